//! A connected stream: its queue pair, its memory, and its accounts ([`rsocket::Stream`]).
//!
//! # Waiting
//!
//! Two threads may use a socket at once, one sending and one receiving, and others may be in
//! `rpoll`. Each of them polls the completion queue under one lock (`core`), for all of them. A
//! thread that must wait arms the queue, polls once more, and reads an event. One thread reads at a
//! time ([`Turn`]); the others wait until it has an event, which may be about what they wait for,
//! and look again. A thread that finds that an event was taken since it looked does not wait at
//! all. Threads in `rpoll` wait on the descriptor itself, and are woken when another thread takes
//! the event before they can.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use device::Wc;
use iba::{Access, LKey, QpCap, QpType, RKey, SendFlags, WcFlags, WcStatus, WrOpcode};
use rsocket::{Control, Credit, End, Hello, Mapping, Sent, Sge, Sizes, Stream, Write};
use smallvec::{SmallVec, smallvec};
use transport::wr::{Data, RecvWr, SendWr, SgList, Sge as Piece};

use super::mappings::Maps;
use super::memory::{Pieces, unreachable};
use super::settings::SETTINGS;
use super::waker::Watchers;
use crate::abi::rdmacm::handle::Handle;
use crate::abi::rdmacm::objects::{Domain, Memory, Pair, Queue};
use crate::abi::rdmacm::{Answer, Failure};

/// Marks receive requests.
const RECEIVE: u64 = 1 << 63;
/// The most completions taken at once.
const AT_ONCE: usize = 16;

/// See the module.
pub(super) struct Conn {
    /// Dropped before the memory that it uses.
    qp: Pair,
    pub(super) domain: Arc<Domain>,
    /// The send buffer, followed by slots for credit messages.
    send: Memory,
    data: Memory,
    /// The target list and the table of the peer's mappings, which the peer writes.
    list: Memory,
    core: Mutex<Stream>,
    armed: AtomicBool,
    turn: Mutex<Turn>,
    turned: Condvar,
    /// One thread at a time sends, and one receives.
    pub(super) sender: Mutex<()>,
    pub(super) receiver: Mutex<()>,
    maps: Mutex<Maps>,
    watchers: Arc<Watchers>,
}

/// Which thread waits for events.
#[derive(Default)]
struct Turn {
    /// A thread reads the descriptor.
    is_reading: bool,
    /// Events taken so far.
    taken: u64,
    /// Threads that wait for the one that reads. Most often there are none, and to wake nobody is a
    /// system call, too.
    waiting: usize,
}

impl Conn {
    /// Creates the queue pair of a stream and its memory. `id` is bound to a device.
    pub(super) fn create(id: &Handle, sizes: Sizes, watchers: Arc<Watchers>) -> Answer<Self> {
        let domain = id.domain()?;
        let sizes = sizes.for_stream(domain.device_attr().max_qp_wr);
        let queue = Arc::new(Queue::create(&domain, sizes.sq_size + sizes.rq_size)?);
        let cap = QpCap {
            max_send_wr: sizes.sq_size,
            max_recv_wr: sizes.rq_size,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: sizes.inline,
        };
        let qp = Pair::create(&domain, &queue, QpType::Rc, cap)?;
        id.prepare(&qp)?;
        let credits = Credit::SLOTS as usize * Sge::SIZE;
        let send = sizes.send_buffer as usize + credits;
        let send = Memory::register(&domain, send, Access::LOCAL_WRITE)?;
        let remote = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let data = Memory::register(&domain, sizes.receive_buffer as usize, remote)?;
        let list = Stream::list_size(sizes.mappings) as usize;
        let list = Memory::register(&domain, list, remote)?;
        let sge = |memory: &Memory| Sge { addr: memory.addr(), key: memory.rkey(), length: 0 };
        let core = Stream::new(sizes, sge(&list), sge(&data));
        let conn = Self {
            qp,
            domain,
            send,
            data,
            list,
            core: Mutex::new(core),
            armed: AtomicBool::new(false),
            turn: Mutex::default(),
            turned: Condvar::new(),
            sender: Mutex::default(),
            receiver: Mutex::default(),
            maps: Mutex::default(),
            watchers,
        };
        conn.post_receives(sizes.rq_size)?;
        Ok(conn)
    }

    /// What to tell the peer.
    pub(super) fn hello(&self) -> Hello {
        self.core().hello()
    }

    /// Takes what the peer sent in its private data.
    pub(super) fn meet(&self, peer: &Hello) {
        let mut core = self.core();
        let first = core.meet(peer);
        self.set_target(0, first);
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Stream> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn maps(&self) -> MutexGuard<'_, Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue pair.
    pub(super) fn qp(&self) -> &Pair {
        &self.qp
    }

    /// The descriptor that is readable when the queue has an event, unless the program has taken
    /// its number.
    pub(super) fn own_fd(&self) -> Option<RawFd> {
        self.qp.queue().own_fd()
    }

    /// The entry of the target list that is filled now. The peer writes the length last, so it is
    /// read first: when it is not 0, the rest is there.
    pub(super) fn target(&self, core: &Stream) -> Sge {
        let entry = self.list.part(core.target() * Sge::SIZE as u32, Sge::SIZE as u32);
        // ORDERING: with this load, the reads below see what the peer wrote before the length.
        let length = entry.load_u32(12, Ordering::Acquire).unwrap_or(0);
        let mut bytes = [0; Sge::SIZE];
        // The entry is in the same memory as the length, so it can be read.
        let _ = entry.copy_to(&mut bytes);
        Sge { length, ..Sge::from_bytes(&bytes) }
    }

    /// Writes an entry of the target list. It is ours until its length is 0 and data has told the
    /// peer so.
    fn set_target(&self, index: u32, target: Sge) {
        let entry = self.list.part(index * Sge::SIZE as u32, Sge::SIZE as u32);
        // It could be read a moment ago.
        let _ = entry.copy_from(&target.to_bytes(rsocket::Order::Same));
    }

    /// The mapping of the peer that holds `offset`: address, bytes that follow, key.
    pub(super) fn find_mapping(&self, core: &Stream, offset: u64) -> Option<(u64, u32, u32)> {
        let behind = Stream::list_size(0);
        (0..core.sizes().mappings).find_map(|index| {
            let at = behind + index * Mapping::SIZE as u32;
            let mut bytes = [0; Mapping::SIZE];
            self.list.part(at, Mapping::SIZE as u32).copy_to(&mut bytes).ok()?;
            let mapping = Mapping::from_bytes(&bytes);
            let (addr, left) = mapping.find(offset)?;
            Some((addr, left, mapping.sge.key))
        })
    }

    pub(super) fn may_send(&self, core: &Stream) -> bool {
        core.may_send(self.target(core))
    }

    fn post_receives(&self, count: u32) -> Answer {
        for _ in 0..count {
            self.qp.post_recv(RecvWr { wr_id: RECEIVE, sges: SgList::new() })?;
        }
        Ok(())
    }

    /// Posts a request.
    fn post(&self, write: &Write, data: Data) -> Answer {
        let flags = if let Data::Inline(_) = data { SendFlags::INLINE } else { SendFlags::empty() };
        let opcode = match write.message {
            Some(_) => WrOpcode::RdmaWriteWithImm,
            None => WrOpcode::RdmaWrite,
        };
        let mut wr = SendWr::new(write.sent.encode(), opcode, flags, data);
        wr.imm = write.message.map_or(0, |message| message.encode());
        (wr.remote_addr, wr.rkey) = (write.addr, RKey(write.key));
        self.qp.post_send(wr)
    }

    /// `length` bytes of the send buffer, as a piece of a request.
    fn piece(&self, at: u32, length: u32) -> Piece {
        let addr = self.send.addr() + u64::from(at);
        Piece { addr, length, lkey: LKey(self.send.lkey()) }
    }

    /// Posts a write of the program's next bytes.
    pub(super) fn post_write(
        &self,
        core: &mut Stream,
        write: &Write,
        from: &mut Pieces<'_>,
    ) -> Answer {
        let posted = match &write.place {
            Some(ranges) => {
                let mut pieces = SgList::new();
                for range in ranges.iter().filter(|range| !range.is_empty()) {
                    let length = range.end - range.start;
                    from.copy_to(self.send.part(range.start, length))?;
                    pieces.push(self.piece(range.start, length));
                }
                self.post(write, Data::Sges(pieces))
            }
            None => {
                let mut bytes: SmallVec<[u8; 64]> = smallvec![0; write.length as usize];
                from.read(&mut bytes).and_then(|()| self.post(write, Data::Inline(bytes)))
            }
        };
        posted.inspect_err(|_| core.finish(End::Failed))
    }

    /// Sends the next piece of the program's bytes, `wanted` at most. The caller has checked that
    /// it may be sent.
    pub(super) fn send(&self, core: &mut Stream, wanted: u32, from: &mut Pieces<'_>) -> Answer {
        let index = core.target();
        let (write, left) = core.send(wanted, self.target(core));
        // Before the peer learns of the data: then it may rewrite the entry.
        self.set_target(index, left);
        self.post_write(core, &write, from)
    }

    /// Posts a control message. The caller has checked that it may be sent.
    pub(super) fn control(&self, core: &mut Stream, control: Control) -> Answer {
        let (message, sent) = core.control(control);
        // A probe has no message: its only purpose is the device's acknowledgement.
        let message = (control != Control::Keepalive).then_some(message);
        let write = Write { length: 0, place: None, addr: 0, key: 0, message, sent };
        let nothing = Data::Sges(SgList::new());
        self.post(&write, nothing).inspect_err(|_| core.finish(End::Failed))
    }

    fn give_credits(&self, core: &mut Stream) {
        while let Some(credit) = core.credit() {
            if let Err(failure) = self.post_credit(core, &credit) {
                tracing::info!(target: "peerdma::rsocket", "no credit for the peer: {failure:?}");
                core.finish(End::Failed);
            }
        }
    }

    fn post_credit(&self, core: &Stream, credit: &Credit) -> Answer {
        let mut write = Write {
            length: 0,
            place: None,
            addr: 0,
            key: 0,
            message: Some(credit.message),
            sent: Sent::Credit,
        };
        let Some((entry, slot, addr, key)) = credit.offer else {
            return self.post(&write, Data::Sges(SgList::new()));
        };
        let length = Sge::SIZE as u32;
        (write.length, write.addr, write.key) = (length, addr, key);
        if core.sizes().inline >= length {
            return self.post(&write, Data::Inline(SmallVec::from_slice(&entry)));
        }
        let at = core.sizes().send_buffer + slot * length;
        self.send.part(at, length).copy_from(&entry).map_err(unreachable)?;
        self.post(&write, Data::Sges(smallvec![self.piece(at, length)]))
    }

    /// Handles the completions that are there.
    fn look(&self, core: &mut Stream) -> Answer {
        self.give_credits(core);
        loop {
            let mut came: SmallVec<[Wc; AT_ONCE]> = SmallVec::new();
            let count = self.qp.queue().poll(AT_ONCE, |wc| came.push(*wc));
            if count.inspect_err(|_| core.finish(End::Failed))? == 0 {
                break;
            }
            let mut receives = 0;
            for wc in &came {
                let is_success = wc.status == WcStatus::Success;
                if wc.wr_id & RECEIVE == 0 {
                    core.sent(Sent::decode(wc.wr_id), is_success);
                } else if is_success {
                    receives += 1;
                    self.received(core, wc);
                }
            }
            if core.end().is_none() {
                self.post_receives(receives).inspect_err(|_| core.finish(End::Failed))?;
            }
        }
        self.give_credits(core);
        Ok(())
    }

    fn received(&self, core: &mut Stream, wc: &Wc) {
        if !wc.flags.contains(WcFlags::WITH_IMM) {
            return;
        }
        if let Err(violation) = core.received(wc.imm) {
            tracing::warn!(target: "peerdma::rsocket", "the connection ends: {violation}");
            self.qp.to_error();
        }
    }

    /// Polls once, and arms the queue if `arm` says so: a later completion then raises an event.
    pub(super) fn check(&self, arm: bool) -> MutexGuard<'_, Stream> {
        let mut core = self.core();
        // The stream keeps the failure.
        let _ = self.look(&mut core);
        // ORDERING: `armed` is set under `core`, and cleared when an event was taken, before
        // `taken` says so.
        if arm && !self.armed.load(Ordering::Acquire) && self.qp.queue().arm().is_ok() {
            self.armed.store(true, Ordering::Release);
            let _ = self.look(&mut core);
        }
        core
    }

    /// Waits until `is_ready`, and returns the stream as it then is.
    ///
    /// # Errors
    /// EAGAIN if it would have to wait and must not; EINTR.
    pub(super) fn wait_for(
        &self,
        may_wait: bool,
        is_ready: impl Fn(&Stream) -> bool,
    ) -> Answer<MutexGuard<'_, Stream>> {
        let mut since = None;
        loop {
            let mut core = self.core();
            self.look(&mut core)?;
            if is_ready(&core) {
                return Ok(core);
            }
            if !may_wait {
                return Err(Failure::quiet(libc::EAGAIN));
            }
            if since.get_or_insert_with(Instant::now).elapsed() <= SETTINGS.polling_time {
                continue;
            }
            // Before `armed`: a thread that takes the event clears `armed` first, and then counts.
            let seen = self.turn().taken;
            // ORDERING: as in `check`.
            if !self.armed.load(Ordering::Acquire) {
                self.qp.queue().arm()?;
                self.armed.store(true, Ordering::Release);
                continue;
            }
            let target = self.target(&core);
            tracing::trace!(target: "peerdma::rsocket", ?target, stream = ?*core, "waits");
            drop(core);
            self.wait_event(seen)?;
        }
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an event, unless one was taken since `seen`.
    fn wait_event(&self, seen: u64) -> Answer {
        let mut turn = self.turn();
        while turn.is_reading && turn.taken == seen {
            turn.waiting += 1;
            turn = self.turned.wait(turn).unwrap_or_else(PoisonError::into_inner);
            turn.waiting -= 1;
        }
        if turn.taken != seen {
            return Ok(());
        }
        turn.is_reading = true;
        drop(turn);
        let taken = self.qp.queue().take_event();
        let mut turn = self.turn();
        turn.is_reading = false;
        if taken.is_ok() {
            self.took_event(turn);
        } else {
            // Another thread may read now.
            self.tell_waiting(turn);
        }
        taken
    }

    fn tell_waiting(&self, turn: MutexGuard<'_, Turn>) {
        let somebody_waits = turn.waiting > 0;
        drop(turn);
        if somebody_waits {
            self.turned.notify_all();
        }
    }

    /// Takes the event that made the descriptor readable, unless another thread does.
    pub(super) fn take_event(&self) {
        let turn = self.turn();
        // The thread that reads wakes us when it has the event.
        if !turn.is_reading && has_event(self.qp.queue()) && self.qp.queue().take_event().is_ok() {
            self.took_event(turn);
        }
    }

    fn took_event(&self, mut turn: MutexGuard<'_, Turn>) {
        self.armed.store(false, Ordering::Release);
        turn.taken += 1;
        self.tell_waiting(turn);
        self.watchers.notify();
    }

    /// The connection manager reports the end: all threads that wait for the queue pair learn of
    /// it.
    pub(super) fn finish(&self, end: End) {
        let mut core = self.check(false);
        core.finish(end);
        drop(core);
        // What is posted is flushed, which raises events.
        self.qp.to_error();
        self.watchers.notify();
    }

    /// Flushes what is posted, so that waiting threads see the end.
    pub(super) fn flush(&self) {
        drop(self.check(true));
        self.qp.to_error();
    }

    /// Reads received data, and leaves it there if `is_peek`.
    pub(super) fn read(&self, core: &mut Stream, to: &mut Pieces<'_>, is_peek: bool) -> Answer {
        let ranges = core.data(to.left());
        let mut read = 0;
        for range in ranges.iter().filter(|range| !range.is_empty()) {
            let length = range.end - range.start;
            to.copy_from(self.data.part(range.start, length))?;
            read += length;
        }
        if !is_peek {
            core.consume(read);
        }
        Ok(())
    }
}

/// Whether an event can be taken.
pub(super) fn has_event(queue: &Queue) -> bool {
    queue.own_fd().is_some_and(|fd| {
        let mut fds = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: there is one entry, and it outlives the call.
        unsafe { libc::poll(&raw mut fds, 1, 0) == 1 }
    })
}
