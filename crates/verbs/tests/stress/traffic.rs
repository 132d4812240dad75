//! Work requests between two regions, and their possible outcomes.

use verbs::WcStatus;
use verbs::soft::ImporterConfig;

use crate::seat::Op;
use crate::station::{Post, WHATS, What};
use crate::worker::{Kind, Pair, Worker};

/// What happens while work is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    MoveNear,
    MoveFar,
    EvictAll,
    DeregNear,
    DeregFar,
    /// The requester's QP is destroyed.
    DestroyQp,
}

/// One end: a region, the buffer that it is on, and what was known before.
#[derive(Clone, Copy, Debug)]
struct Side {
    region: u64,
    buf: u64,
    /// Where the region begins in the buffer.
    start: u64,
    base: u64,
    rkey: u64,
    dead: bool,
    /// Deregistered while the work was in progress.
    withdrawn: bool,
}

/// One piece of work, and its places in the two buffers.
#[derive(Clone, Copy, Debug)]
struct Work {
    post: Post,
    near: u64,
    far: u64,
}

impl Worker {
    pub(crate) fn traffic(&mut self) {
        let nth = self.rng.below(2) as usize;
        let flip = self.rng.below(2) as usize;
        let seats = [0, nth];
        let (near, far) = (seats[flip], seats[1 - flip]);
        let Some(near) = self.side(near, None) else { return self.dereg_some() };
        let Some(far) = self.side(far, Some(near.buf)) else { return self.dereg_some() };
        let pair = self.pair(nth);
        let (mut near, mut far) = (near, far);
        if self.rng.below(2) == 0
            && self.buffers[&near.buf].held
            && !self.buffers[&near.buf].removed
        {
            let len = self.regions[&near.region].len & !3;
            let start = near.start.next_multiple_of(4);
            let len = len.saturating_sub(start - near.start) & !3;
            self.write_at(near.buf, start, len.min(4096));
        }
        // What a reset did meanwhile is known before anything begins.
        self.know_resets();
        for side in [&mut near, &mut far] {
            let Some(region) = self.regions.get(&side.region) else { return };
            side.dead = region.dead || self.is_refused_for_good(side.buf);
        }
        let works = self.draw(near, far, pair.qps[flip]);
        let meanwhile = match self.rng.below(16) {
            0..3 => Meanwhile::MoveNear,
            3..6 => Meanwhile::MoveFar,
            6 => Meanwhile::EvictAll,
            7 => Meanwhile::DeregNear,
            8 => Meanwhile::DeregFar,
            9 if self.rng.below(4) == 0 => Meanwhile::DestroyQp,
            _ => Meanwhile::Nothing,
        };
        let (seat, other) = (pair.seats[flip], pair.seats[1 - flip]);
        for work in &works {
            if work.post.what == What::Send {
                let words = [
                    work.post.id,
                    pair.qps[1 - flip],
                    far.region,
                    work.far - far.start,
                    work.post.len,
                ];
                self.ask(other, Op::Recv, &words).done();
            }
        }
        for work in &works {
            self.ask(seat, Op::Post, &work.post.words()).done();
        }
        match meanwhile {
            Meanwhile::MoveNear if self.is_movable(near.buf) => self.relocate_one(near.buf),
            Meanwhile::MoveFar if self.is_movable(far.buf) => self.relocate_one(far.buf),
            Meanwhile::EvictAll => drop(self.ask(other, Op::EvictAll, &[]).done()),
            Meanwhile::DeregNear => {
                self.ask(seat, Op::Dereg, &[near.region]).done();
                near.withdrawn = true;
            }
            Meanwhile::DeregFar => {
                self.ask(other, Op::Dereg, &[far.region]).done();
                far.withdrawn = true;
            }
            _ => {}
        }
        let statuses = if meanwhile == Meanwhile::DestroyQp {
            self.end_pair(nth);
            vec![None; works.len()]
        } else {
            self.reap(pair, flip, &works)
        };
        let failed = self.judge(&works, &statuses, near, far, (pair, flip));
        if failed {
            self.end_pair(nth);
        }
        self.settle(near, far, failed);
    }

    /// Deregisters regions that are no longer useful, to make room.
    fn dereg_some(&mut self) {
        if self.rng.below(4) == 0 {
            self.dereg();
        }
    }

    fn side(&mut self, seat: usize, not: Option<u64>) -> Option<Side> {
        let fitting: Vec<u64> = self
            .regions
            .iter()
            .filter(|(_, r)| r.seat == seat && r.len >= 64 && Some(r.buf) != not)
            .map(|(id, _)| *id)
            .collect();
        let count = fitting.len() as u64;
        let region = *fitting.get(self.rng.below(count.max(1)) as usize)?;
        let found = &self.regions[&region];
        Some(Side {
            region,
            buf: found.buf,
            start: found.at,
            base: found.base,
            rkey: found.rkey,
            dead: false,
            withdrawn: false,
        })
    }

    /// Whether every access fails, though its key may be good.
    fn is_refused_for_good(&self, buf: u64) -> bool {
        self.buffers[&buf].removed && self.class != ImporterConfig::Pinned
    }

    fn is_movable(&self, buf: u64) -> bool {
        let buffer = &self.buffers[&buf];
        buffer.kind == Kind::Shared && buffer.held
    }

    /// One to four requests, each with its own parts of both regions; a READ may read what the
    /// request before it wrote.
    fn draw(&mut self, near: Side, far: Side, qp: u64) -> Vec<Work> {
        let count = self.rng.below(4) + 1;
        let lens = [near, far].map(|side| self.regions[&side.region].len / count);
        let mut works: Vec<Work> = Vec::new();
        for n in 0..count {
            let mut what = WHATS[self.rng.below(5) as usize];
            if lens[0].min(lens[1]) < 24 {
                what = What::Write;
            }
            let is_atomic = matches!(what, What::Add | What::Swap);
            let most = lens[0].min(lens[1]);
            let mut len = match self.rng.below(4) {
                0 => most,
                _ => self.rng.below(most.min(20_000)) + 1,
            };
            let mut far_at = n * lens[1] + self.rng.below(lens[1] - len.min(lens[1]) + 1);
            if is_atomic {
                len = 8;
                // Aligned in the addresses of the region, whatever the addresses of the buffer.
                let first = (far.base + n * lens[1]).next_multiple_of(8) - far.base;
                let room = ((n + 1) * lens[1] - first - 8) / 8;
                far_at = first + self.rng.below(room + 1) * 8;
            }
            let mut near_at = n * lens[0] + self.rng.below(lens[0] - len + 1);
            if let (What::Read, Some(before)) = (what, works.last())
                && before.post.what != What::Read
                && before.post.len <= lens[0]
                && self.rng.below(2) == 0
            {
                (len, far_at) = (before.post.len, before.far - far.start);
                near_at = n * lens[0];
            }
            let post = Post {
                id: self.number(),
                qp,
                what,
                region: near.region,
                at: near_at,
                len,
                addr: far.base + far_at,
                rkey: far.rkey,
                first: self.compared(far, far_at, what),
                second: self.rng.next(),
            };
            works.push(Work { post, near: near.start + near_at, far: far.start + far_at });
        }
        works
    }

    /// What an atomic adds, or expects: half of the time what is there.
    fn compared(&mut self, far: Side, at: u64, what: What) -> u64 {
        let drawn = self.rng.next();
        if what == What::Swap && drawn.is_multiple_of(2) {
            return self.buffers[&far.buf].model.word(far.start + at).unwrap_or(drawn);
        }
        drawn
    }

    fn reap(&mut self, pair: Pair, flip: usize, works: &[Work]) -> Vec<Option<WcStatus>> {
        let first = works[0].post.id;
        let words = [first, works.len() as u64, 0];
        let answer = self.ask(pair.seats[flip], Op::Reap, &words);
        if !answer.is_done() {
            panic!("{answer:?} of {works:?}");
        }
        let mut statuses = vec![None; works.len()];
        for (n, done) in answer.words.chunks(3).enumerate() {
            assert_eq!(
                done[0], works[n].post.id,
                "completions come in the order of their requests"
            );
            statuses[n] = Some(status(done[1]));
        }
        statuses
    }

    /// Checks whether the rules allow how each request ended, and records what the bytes may be
    /// now. True if something failed.
    fn judge(
        &mut self,
        works: &[Work],
        statuses: &[Option<WcStatus>],
        near: Side,
        far: Side,
        (pair, flip): (Pair, usize),
    ) -> bool {
        let mut failed = false;
        let calm = [near, far].map(|side| self.is_calm(side.buf));
        for (side, calm) in [(near, calm[0]), (far, calm[1])] {
            if !calm {
                self.buffers.get_mut(&side.buf).expect("in use").model.may_clear();
            }
        }
        let mut sends = 0;
        for (work, status) in works.iter().zip(statuses) {
            self.tally.operations += 1;
            if let Some(status) = *status {
                let is_atomic = matches!(work.post.what, What::Add | What::Swap);
                // The memory of an atomic is aligned, and not only its address (docs/semantics.md
                // 2.10).
                let is_odd = is_atomic && !work.far.is_multiple_of(8);
                let allowed = match status {
                    WcStatus::RetryExcErr => self.is_asked_in_vain(work, works, near, far, calm),
                    WcStatus::RemInvReqErr => is_odd,
                    WcStatus::Success if is_odd => false,
                    _ => self.allows(status, work.post.what, near, far, calm, failed),
                };
                assert!(
                    allowed,
                    "{status:?} for {work:?} of {works:?}: {statuses:?}; near {near:?} calm {} in {:?}; far {far:?} calm {} in {:?}; {}",
                    calm[0],
                    Shown(&self.buffers[&near.buf]),
                    calm[1],
                    Shown(&self.buffers[&far.buf]),
                    self.watched.history()
                );
            }
            let is_done = *status == Some(WcStatus::Success);
            failed |= !is_done;
            self.tally.failed += u64::from(!is_done);
            if is_done {
                self.tally.bytes += work.post.len;
                sends += u64::from(work.post.what == What::Send);
            }
            self.apply(work, is_done, near, far);
            for (side, calm) in [(near, calm[0]), (far, calm[1])] {
                if !calm {
                    self.buffers.get_mut(&side.buf).expect("in use").model.may_clear();
                }
            }
        }
        if sends > 0 {
            self.reap_receives(works, statuses, pair, flip, sends);
        }
        failed
    }

    /// Each SEND that was received completed a receive of its length.
    fn reap_receives(
        &mut self,
        works: &[Work],
        statuses: &[Option<WcStatus>],
        pair: Pair,
        flip: usize,
        sends: u64,
    ) {
        let words = [works[0].post.id, sends, 1];
        let answer = self.ask(pair.seats[1 - flip], Op::Reap, &words);
        if !answer.is_done() {
            panic!("{answer:?} of {works:?}");
        }
        let mut done = answer.words.chunks(3);
        for (work, status) in works.iter().zip(statuses) {
            if work.post.what == What::Send && *status == Some(WcStatus::Success) {
                let got = done.next().expect("as many as were asked for");
                assert_eq!(
                    got,
                    [work.post.id, WcStatus::Success as u64, work.post.len],
                    "{works:?}"
                );
            }
        }
    }

    /// The rules: docs/semantics.md 2.3 to 2.5 and 2.10.
    fn allows(
        &self,
        status: WcStatus,
        what: What,
        near: Side,
        far: Side,
        calm: [bool; 2],
        failed: bool,
    ) -> bool {
        let dynamic = self.class == ImporterConfig::Dynamic;
        let revocable = self.class == ImporterConfig::Revocable;
        let is_gone =
            |side: Side, calm: bool| side.withdrawn || (revocable && (side.dead || !calm));
        let is_refused = |side: Side, calm: bool| {
            let buffer = &self.buffers[&side.buf];
            dynamic && (side.dead || !calm || buffer.fickle)
        };
        let far_fails = is_gone(far, calm[1]) || is_refused(far, calm[1]);
        match status {
            WcStatus::Success => !near.dead && !far.dead && !failed,
            WcStatus::LocProtErr => is_gone(near, calm[0]),
            WcStatus::LocQpOpErr => is_refused(near, calm[0]),
            WcStatus::RemAccessErr => what != What::Send && far_fails,
            WcStatus::RemOpErr => what == What::Send && far_fails,
            WcStatus::WrFlushErr => failed,
            _ => false,
        }
    }

    /// A response that could not be stored, as its buffer was moving, is requested again. A
    /// responder that has refused a later request is in the error state by then, and no longer
    /// answers (IBA 10.3.1).
    fn is_asked_in_vain(
        &self,
        work: &Work,
        works: &[Work],
        near: Side,
        far: Side,
        calm: [bool; 2],
    ) -> bool {
        let dynamic = self.class == ImporterConfig::Dynamic;
        let is_answered = matches!(work.post.what, What::Read | What::Add | What::Swap);
        let was_absent = self.buffers[&near.buf].kind == Kind::Shared && (dynamic || !calm[0]);
        let later = works.iter().filter(|other| other.post.id > work.post.id);
        let is_odd = |other: &Work| {
            matches!(other.post.what, What::Add | What::Swap) && !other.far.is_multiple_of(8)
        };
        let far_fails = far.withdrawn || !calm[1] || self.buffers[&far.buf].fickle;
        let refused = later.clone().any(is_odd) || far_fails && later.count() > 0;
        is_answered && was_absent && refused
    }

    fn apply(&mut self, work: &Work, is_done: bool, near: Side, far: Side) {
        let Work { post, near: near_at, far: far_at } = *work;
        let len = post.len;
        let from_near = self.buffers[&near.buf].model.part(near_at, len);
        let from_far = self.buffers[&far.buf].model.part(far_at, len);
        let old = (post.len == 8).then(|| self.buffers[&far.buf].model.word(far_at)).flatten();
        let (to, at, bytes) = match post.what {
            What::Write | What::Send => (far.buf, far_at, from_near),
            What::Read => (near.buf, near_at, from_far),
            What::Add | What::Swap => {
                let model = &mut self.buffers.get_mut(&far.buf).expect("in use").model;
                match old {
                    Some(old) => {
                        let new = match post.what {
                            What::Add => old.wrapping_add(post.first),
                            _ if old == post.first => post.second,
                            _ => old,
                        };
                        let mut after = crate::model::Model::zeros(8);
                        after.put_sure(0, &new.to_ne_bytes());
                        let after = after.part(0, 8);
                        if is_done {
                            model.put(far_at, &after);
                        } else {
                            model.may_put(far_at, &after);
                        }
                    }
                    None => model.lose(far_at, 8),
                }
                (near.buf, near_at, from_far)
            }
        };
        let model = &mut self.buffers.get_mut(&to).expect("in use").model;
        if is_done {
            model.put(at, &bytes);
        } else {
            model.may_put(at, &bytes);
        }
    }

    /// Bytes that are in doubt are read, or given up.
    fn settle(&mut self, near: Side, far: Side, failed: bool) {
        for side in [near, far] {
            if side.withdrawn {
                // The station has released it already, and does nothing the second time.
                self.dereg_one(side.region);
            }
        }
        self.know_resets();
        let look = failed || self.rng.below(3) == 0;
        for buf in [near.buf, far.buf] {
            let Some(buffer) = self.buffers.get(&buf) else { continue };
            if buffer.removed {
                continue;
            }
            if buffer.held && look {
                self.check(buf);
            } else if failed && !buffer.held {
                self.forget(buf);
            }
        }
    }

    /// A key of a deregistered region gives no access.
    pub(crate) fn dead_key(&mut self) {
        let nth = self.rng.below(2) as usize;
        let Some((addr, rkey)) = self.gone[nth] else { return };
        let Some(near) = self.side(0, None) else { return };
        if self.regions[&near.region].dead || self.is_refused_for_good(near.buf) {
            return;
        }
        if self.buffers[&near.buf].fickle || !self.is_calm(near.buf) {
            return;
        }
        let pair = self.pair(nth);
        let what = [What::Write, What::Read][self.rng.below(2) as usize];
        let post = Post {
            id: self.number(),
            qp: pair.qps[0],
            what,
            region: near.region,
            at: 0,
            len: 8,
            addr,
            rkey,
            first: 0,
            second: 0,
        };
        self.ask(0, Op::Post, &post.words()).done();
        let work = Work { post, near: near.start, far: 0 };
        let got = self.reap(pair, 0, &[work])[0];
        let near_may_fail = !self.is_calm(near.buf) && got != Some(WcStatus::Success);
        assert!(got == Some(WcStatus::RemAccessErr) || near_may_fail, "{got:?} by a dead key");
        self.end_pair(nth);
    }
}

/// A buffer without its bytes.
struct Shown<'a>(&'a crate::worker::Buffer);

impl std::fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let b = self.0;
        write!(
            f,
            "{:?} of {} at {} held {} removed {} fickle {} resets {}",
            b.kind, b.size, b.seat, b.held, b.removed, b.fickle, b.resets
        )
    }
}

fn status(number: u64) -> WcStatus {
    const ALL: [WcStatus; 14] = [
        WcStatus::Success,
        WcStatus::LocLenErr,
        WcStatus::LocQpOpErr,
        WcStatus::LocEecOpErr,
        WcStatus::LocProtErr,
        WcStatus::WrFlushErr,
        WcStatus::MwBindErr,
        WcStatus::BadRespErr,
        WcStatus::LocAccessErr,
        WcStatus::RemInvReqErr,
        WcStatus::RemAccessErr,
        WcStatus::RemOpErr,
        WcStatus::RetryExcErr,
        WcStatus::RnrRetryExcErr,
    ];
    let found = ALL.into_iter().find(|status| *status as u64 == number);
    found.unwrap_or_else(|| panic!("status {number}"))
}
