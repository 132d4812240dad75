//! One thread: draws its steps, takes them at its two stations, and knows the permitted values of
//! every byte.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use verbs::soft::ImporterConfig;

use crate::model::Model;
use crate::rng::Rng;
use crate::seat::{Answer, Op, Seat};
use crate::watch::Post as Watched;

/// Resets of the GPU by each of the two processes: those that began, and those that ended.
#[derive(Debug, Default)]
pub(crate) struct Resets {
    pub(crate) begun: [AtomicU64; 2],
    pub(crate) ended: [AtomicU64; 2],
}

impl Resets {
    pub(crate) fn begun(&self, seat: usize) -> u64 {
        self.begun[seat].load(Ordering::SeqCst)
    }

    pub(crate) fn ended(&self, seat: usize) -> u64 {
        self.ended[seat].load(Ordering::SeqCst)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// On the GPU that all threads use.
    Shared,
    /// On a GPU of its own, which can be removed.
    Private,
    Host,
    Dm,
    /// Device memory that is used as a dma-buf.
    Exported,
}

#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) seat: usize,
    pub(crate) kind: Kind,
    pub(crate) size: u64,
    pub(crate) model: Model,
    /// Whether the station still has it, so that its CPU can read it.
    pub(crate) held: bool,
    /// Whether its GPU was removed, or its device memory freed.
    pub(crate) removed: bool,
    /// May be only in VRAM, where it can be unreachable for lack of room.
    pub(crate) fickle: bool,
    /// The resets that the model knows.
    pub(crate) resets: u64,
}

#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) seat: usize,
    pub(crate) buf: u64,
    /// Where in the buffer.
    pub(crate) at: u64,
    pub(crate) len: u64,
    pub(crate) base: u64,
    pub(crate) rkey: u64,
    /// Resets of the buffer's GPU before it was registered.
    pub(crate) resets: u64,
    /// Its key is dead.
    pub(crate) dead: bool,
}

/// Two connected QPs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) seats: [usize; 2],
    pub(crate) qps: [u64; 2],
}

pub(crate) struct Worker {
    pub(crate) rng: Rng,
    pub(crate) class: ImporterConfig,
    pub(crate) seats: [Seat; 2],
    pub(crate) buffers: BTreeMap<u64, Buffer>,
    pub(crate) regions: BTreeMap<u64, Region>,
    /// Within this process, and between the two.
    pub(crate) pairs: [Option<Pair>; 2],
    /// The last key that each station gave up: address and key.
    pub(crate) gone: [Option<(u64, u64)>; 2],
    pub(crate) resets: Arc<Resets>,
    pub(crate) watched: Arc<Watched>,
    next: u64,
    pub(crate) tally: Tally,
}

/// What happened, to show that a run tested what it must.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) steps: u64,
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    pub(crate) failed: u64,
    pub(crate) checked: u64,
}

/// At most this many of each.
const BUFFERS: usize = 8;
const REGIONS: usize = 12;

impl Worker {
    pub(crate) fn new(
        rng: Rng,
        class: ImporterConfig,
        seats: [Seat; 2],
        resets: Arc<Resets>,
        watched: Arc<Watched>,
    ) -> Self {
        Self {
            rng,
            class,
            seats,
            buffers: BTreeMap::new(),
            regions: BTreeMap::new(),
            pairs: [None; 2],
            gone: [None; 2],
            resets,
            watched,
            next: 1,
            tally: Tally::default(),
        }
    }

    pub(crate) fn step(&mut self) {
        // A step draws from a generator of its own, so that the state it finds does not change
        // later steps.
        let own = Rng::new(self.rng.next(), 0);
        let rest = std::mem::replace(&mut self.rng, own);
        let kind = self.rng.below(100);
        self.watched.say(self.tally.steps, || format!("step {kind}"));
        self.know_resets();
        match kind {
            0..10 => self.alloc(),
            10..13 => self.free(),
            13..27 => self.register(),
            27..31 => self.dereg(),
            31..38 => self.relocate(),
            38..40 => drop(self.some_seat().ask(Op::EvictAll, &[])),
            40..44 => self.write(),
            44..47 => self.dead_key(),
            47..49 => self.check_all(),
            49 => self.remove(),
            50 => self.drop_pair(),
            51 => {
                if self.rng.below(8) == 0 {
                    self.reopen();
                }
            }
            _ => self.traffic(),
        }
        self.rng = rest;
        self.tally.steps += 1;
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn ask(&mut self, seat: usize, op: Op, words: &[u64]) -> Answer {
        self.watched.say(self.tally.steps, || format!("{op:?} {words:?} at {seat}"));
        self.seats[seat].ask(op, words)
    }

    fn some_seat(&mut self) -> &mut Seat {
        let seat = self.rng.below(2) as usize;
        &mut self.seats[seat]
    }

    pub(crate) fn pick(&mut self, fits: impl Fn(&Buffer) -> bool) -> Option<u64> {
        let fitting: Vec<u64> =
            self.buffers.iter().filter(|(_, b)| fits(b)).map(|(id, _)| *id).collect();
        let count = fitting.len() as u64;
        (count > 0).then(|| fitting[self.rng.below(count) as usize])
    }

    fn alloc(&mut self) {
        if self.buffers.len() >= BUFFERS {
            return;
        }
        let (seat, buf) = (self.rng.below(2) as usize, self.number());
        let mut size = (self.rng.below(32) + 1) * 4096;
        let kind = match self.rng.below(16) {
            0..10 => Kind::Shared,
            10 => Kind::Private,
            11..14 => Kind::Host,
            14 => Kind::Dm,
            _ => Kind::Exported,
        };
        let mut place = self.rng.below(8);
        place = [0, 0, 1, 1, 1, 2, 2, 3][place as usize];
        let resets = self.resets.ended(seat);
        let answer = match kind {
            Kind::Shared => self.ask(seat, Op::AllocGpu, &[buf, size, place, 0]),
            Kind::Private => self.ask(seat, Op::AllocGpu, &[buf, size, 1, 1]),
            Kind::Host => self.ask(seat, Op::AllocHost, &[buf, size]),
            Kind::Dm | Kind::Exported => {
                size = size.min(16384);
                self.ask(seat, Op::AllocDm, &[buf, size])
            }
        };
        let fine = match answer.kind() {
            "" => true,
            "NoMemory" | "WouldBlock" => false,
            "NoDevice" if self.resets.begun(seat) != resets => false,
            _ => panic!("alloc {kind:?}: {answer:?}"),
        };
        if fine {
            let (model, fickle) = (Model::zeros(size), kind == Kind::Shared && place == 3);
            let (held, removed) = (true, false);
            self.buffers
                .insert(buf, Buffer { seat, kind, size, model, held, removed, fickle, resets });
        }
    }

    /// Drops the handle; half of the time the regions stay, and nothing else of the buffer.
    fn free(&mut self) {
        let Some(buf) = self.pick(|b| b.held) else { return };
        let lonely = self.regions.values().all(|region| region.buf != buf);
        if lonely || self.rng.below(2) == 0 {
            return self.forget(buf);
        }
        let (seat, kind) = (self.buffers[&buf].seat, self.buffers[&buf].kind);
        self.ask(seat, Op::Free, &[buf]).done();
        let buffer = self.buffers.get_mut(&buf).expect("picked");
        buffer.held = false;
        // The buffer's fd is closed, and with it importers lose the memory.
        buffer.removed |= kind == Kind::Exported;
    }

    /// Ends a buffer and all regions on it.
    pub(crate) fn forget(&mut self, buf: u64) {
        let regions: Vec<u64> =
            self.regions.iter().filter(|(_, r)| r.buf == buf).map(|(id, _)| *id).collect();
        for region in regions {
            self.dereg_one(region);
        }
        let Some(buffer) = self.buffers.remove(&buf) else { return };
        if buffer.held {
            self.ask(buffer.seat, Op::Free, &[buf]).done();
        }
    }

    fn register(&mut self) {
        if self.regions.len() >= REGIONS {
            return;
        }
        let Some(buf) = self.pick(|b| b.held) else { return };
        let (home, kind, size) = {
            let buffer = &self.buffers[&buf];
            (buffer.seat, buffer.kind, buffer.size)
        };
        let (mut at, mut len) = (0, size);
        if kind != Kind::Host && self.rng.below(2) == 0 {
            at = self.rng.below(size / 2);
            len = self.rng.below(size - at) + 1;
        }
        // Offset and iova must agree only within a page.
        let iova = (self.rng.below(1 << 20) + 1) * 4096 + at % 4096;
        let elsewhere = self.rng.below(2) == 1;
        let seat = match kind {
            Kind::Host | Kind::Dm => home,
            _ if elsewhere => 1 - home,
            _ => home,
        };
        let (resets, region) = (self.resets.ended(home), self.number());
        let direct = seat == home && kind != Kind::Exported;
        let answer = if direct {
            self.ask(seat, Op::Register, &[region, buf, at, len, iova])
        } else {
            let shared = self.ask(home, Op::Share, &[buf]);
            match shared.words[..] {
                [pid, fd] => self.ask(seat, Op::Import, &[region, pid, fd, at, len, iova]),
                _ => shared,
            }
        };
        let calm = self.resets.begun(home) == resets || kind != Kind::Shared;
        let buffer = &self.buffers[&buf];
        match answer.kind() {
            "" => {}
            "NoMemory" | "WouldBlock" | "Busy" => return,
            // There is no memory where it can be pinned or mapped.
            "Invalid" if kind == Kind::Shared => return,
            // Device memory cannot be pinned.
            "NotSupported" if kind == Kind::Exported && self.class != ImporterConfig::Dynamic => {
                return;
            }
            "NoDevice" if buffer.removed || !calm => return,
            _ => panic!("register {buffer:?}: {answer:?}"),
        }
        let &[base, rkey] = &answer.words[..] else { panic!("{answer:?}") };
        self.regions.insert(region, Region { seat, buf, at, len, base, rkey, resets, dead: false });
        // It cannot be known whether the memory was revoked before or after the registration.
        if self.class == ImporterConfig::Revocable && !calm {
            self.dereg_one(region);
        }
    }

    pub(crate) fn dereg(&mut self) {
        let count = self.regions.len() as u64;
        if count > 0 {
            let nth = self.rng.below(count) as usize;
            let id = *self.regions.keys().nth(nth).expect("counted");
            self.dereg_one(id);
        }
    }

    pub(crate) fn dereg_one(&mut self, id: u64) {
        let Some(region) = self.regions.remove(&id) else { return };
        self.ask(region.seat, Op::Dereg, &[id]).done();
        self.gone[region.seat] = Some((region.base, region.rkey));
        // A buffer without a handle goes with its last region.
        let is_last = self.regions.values().all(|other| other.buf != region.buf);
        if is_last && self.buffers.get(&region.buf).is_some_and(|buffer| !buffer.held) {
            self.buffers.remove(&region.buf);
        }
    }

    fn relocate(&mut self) {
        if let Some(buf) = self.pick(|b| b.held && b.kind == Kind::Shared) {
            self.relocate_one(buf);
        }
    }

    pub(crate) fn relocate_one(&mut self, buf: u64) {
        let (seat, to) = (self.buffers[&buf].seat, self.rng.below(3));
        let resets = self.resets.ended(seat);
        let answer = self.ask(seat, Op::Move, &[buf, to]);
        match answer.kind() {
            "" | "Busy" | "Invalid" | "NoMemory" | "WouldBlock" => {}
            "NoDevice" if self.resets.begun(seat) != resets => {}
            _ => panic!("move {:?}: {answer:?}", self.buffers[&buf]),
        }
    }

    /// The CPU writes.
    fn write(&mut self) {
        let Some(buf) = self.pick(|b| b.held && !b.removed) else { return };
        let size = self.buffers[&buf].size;
        let at = self.rng.below(size / 4) * 4;
        let len = (self.rng.below(size - at) / 4 + 1) * 4;
        self.write_at(buf, at, len.min(size - at));
    }

    pub(crate) fn write_at(&mut self, buf: u64, at: u64, len: u64) {
        let (bytes, seat) = (self.rng.bytes(len), self.buffers[&buf].seat);
        let answer = self.seats[seat].ask_with(Op::Write, &[buf, at], &bytes);
        let calm = self.is_calm(buf);
        let buffer = self.buffers.get_mut(&buf).expect("it exists");
        match answer.kind() {
            "" => buffer.model.put_sure(at, &bytes),
            "NoDevice" if !calm => {}
            _ => panic!("write {buffer:?}: {answer:?}"),
        }
        if !calm {
            self.know_resets();
        }
    }

    /// Whether no reset began since the model last knew of all.
    pub(crate) fn is_calm(&self, buf: u64) -> bool {
        let buffer = &self.buffers[&buf];
        buffer.kind != Kind::Shared || self.resets.begun(buffer.seat) == buffer.resets
    }

    /// The effects of resets: memory may be cleared, keys may be dead.
    pub(crate) fn know_resets(&mut self) {
        let all: Vec<u64> = self.buffers.keys().copied().collect();
        for buf in all.into_iter().filter(|buf| !self.is_calm(*buf)).collect::<Vec<_>>() {
            let buffer = self.buffers.get_mut(&buf).expect("listed");
            buffer.model.may_clear();
            if !buffer.held {
                self.forget(buf);
                continue;
            }
            self.check(buf);
        }
        if self.class == ImporterConfig::Revocable {
            for region in self.regions.values_mut() {
                let buffer = &self.buffers[&region.buf];
                let is_shared = buffer.kind == Kind::Shared;
                // A reset that has only begun may still let it work.
                region.dead |= is_shared && self.resets.ended(buffer.seat) != region.resets;
            }
        }
    }

    /// Reads every byte of a buffer, and knows them from then on.
    pub(crate) fn check(&mut self, buf: u64) {
        let (seat, size, kind) = {
            let buffer = &self.buffers[&buf];
            (buffer.seat, buffer.size, buffer.kind)
        };
        loop {
            let resets = self.resets.ended(seat);
            let is_quiet = || kind != Kind::Shared || self.resets.begun(seat) == resets;
            if !is_quiet() {
                std::thread::yield_now();
                continue;
            }
            let answer = self.seats[seat].ask(Op::Read, &[buf, 0, size]);
            let calm = is_quiet();
            let buffer = self.buffers.get_mut(&buf).expect("it exists");
            if kind == Kind::Shared && buffer.resets != resets || !calm {
                buffer.model.may_clear();
            }
            if !calm {
                continue;
            }
            let answer = answer.done();
            if let Err(wrong) = buffer.model.settle(&answer.bytes) {
                let regions: Vec<_> = self.regions.values().filter(|r| r.buf == buf).collect();
                let Buffer { seat, kind, size, resets, .. } = buffer;
                panic!(
                    "buffer {buf} ({kind:?} of {size} at {seat}, resets {resets}): {wrong}; {regions:?}"
                );
            }
            buffer.resets = resets;
            self.tally.checked += size;
            return;
        }
    }

    fn check_all(&mut self) {
        let all: Vec<u64> = self.buffers.keys().copied().collect();
        for buf in all {
            let buffer = &self.buffers[&buf];
            if buffer.held && !buffer.removed {
                self.check(buf);
            }
        }
    }

    /// Removes the GPU under a buffer that is alone on it.
    fn remove(&mut self) {
        let Some(buf) = self.pick(|b| b.held && b.kind == Kind::Private && !b.removed) else {
            return;
        };
        self.ask(self.buffers[&buf].seat, Op::Remove, &[buf]).done();
        self.buffers.get_mut(&buf).expect("picked").removed = true;
        if self.class == ImporterConfig::Revocable {
            for region in self.regions.values_mut().filter(|region| region.buf == buf) {
                region.dead = true;
            }
        }
    }

    pub(crate) fn drop_pair(&mut self) {
        let nth = self.rng.below(2) as usize;
        self.end_pair(nth);
    }

    pub(crate) fn end_pair(&mut self, nth: usize) {
        let Some(pair) = self.pairs[nth].take() else { return };
        let first = self.rng.below(2) as usize;
        for end in [first, 1 - first] {
            self.ask(pair.seats[end], Op::FreeQp, &[pair.qps[end]]).done();
        }
    }

    /// The pair of QPs within this process (0) or to the other (1).
    pub(crate) fn pair(&mut self, nth: usize) -> Pair {
        if let Some(pair) = self.pairs[nth] {
            return pair;
        }
        let pair = Pair { seats: [0, nth], qps: [self.number(), self.number()] };
        let ends = [0, 1].map(|end| self.ask(pair.seats[end], Op::NewQp, &[pair.qps[end]]).done());
        for end in [0, 1] {
            let peer = &ends[1 - end].words;
            let words = [&[pair.qps[end]], &peer[..]].concat();
            self.ask(pair.seats[end], Op::Connect, &words).done();
        }
        self.pairs[nth] = Some(pair);
        pair
    }

    /// Closes the NIC at one station, with all that it had, and opens it again.
    fn reopen(&mut self) {
        let seat = self.rng.below(2) as usize;
        self.end_pair(1);
        if seat == 0 {
            self.end_pair(0);
        }
        self.forget_nic(seat);
        self.ask(seat, Op::Reopen, &[]).done();
    }

    /// Everything that belongs to the NIC goes with it.
    fn forget_nic(&mut self, seat: usize) {
        let is_dm = |buffer: &Buffer| matches!(buffer.kind, Kind::Dm | Kind::Exported);
        let dms: Vec<u64> = self
            .buffers
            .iter()
            .filter(|(_, buffer)| buffer.seat == seat && is_dm(buffer))
            .map(|(id, _)| *id)
            .collect();
        for buf in dms {
            self.forget(buf);
        }
        let regions: Vec<u64> =
            self.regions.iter().filter(|(_, r)| r.seat == seat).map(|(id, _)| *id).collect();
        for region in regions {
            // Half of them are left to the NIC.
            if self.rng.below(2) == 0 {
                self.dereg_one(region);
            } else if let Some(region) = self.regions.remove(&region) {
                let is_last = self.regions.values().all(|other| other.buf != region.buf);
                if is_last && !self.buffers[&region.buf].held {
                    self.buffers.remove(&region.buf);
                }
            }
        }
        self.gone[seat] = None;
    }

    /// The end of a run: reads everything, releases everything, and checks what the NICs still
    /// have.
    pub(crate) fn finish(&mut self) {
        self.know_resets();
        self.check_all();
        for nth in [0, 1] {
            self.end_pair(nth);
        }
        let all: Vec<u64> = self.buffers.keys().copied().collect();
        for buf in all {
            self.forget(buf);
        }
        for seat in [0, 1] {
            let left = self.ask(seat, Op::Objects, &[]).done().words;
            assert!(left.iter().all(|count| *count == 0), "the NIC still has {left:?}");
            self.ask(seat, Op::Close, &[]).done();
        }
    }
}
