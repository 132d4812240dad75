//! A connected stream: its queue pair, its memory, and its accounts ([`rsocket::Stream`]).
//!
//! # Waiting
//!
//! Two threads may use a socket at once, one sending and one receiving, and others may be in
//! `rpoll`. All of them look at the completion queue under one lock (`core`), for each other. Who
//! must wait arms the queue, looks once more, and reads an event. One thread reads at a time
//! ([`Turn`]); the others wait until it has an event, which may be about what they wait for, and
//! look again. Who finds that an event was taken since it looked does not wait at all. Threads in
//! `rpoll` wait on the descriptor itself, and are woken when another takes the event from under
//! them.

use std::ffi::c_int;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use iba::QpType;
use rsocket::{Control, Credit, End, Hello, Mapping, Sent, Sge, Sizes, Stream, Write};

use super::map::Maps;
use super::memory::{LOCAL_WRITE, Memory, Pieces, REMOTE_WRITE, unreachable};
use super::settings::SETTINGS;
use super::waker::Watchers;
use crate::abi::context::opened;
use crate::abi::cq::{
    ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq, req_notify_cq,
};
use crate::abi::events::{ibv_ack_cq_events, ibv_get_cq_event};
use crate::abi::poll::poll_cq;
use crate::abi::post::{post_recv, post_send};
use crate::abi::rdmacm::connect::to_error;
use crate::abi::rdmacm::qp::{rdma_create_qp, rdma_destroy_qp};
use crate::abi::rdmacm::{Answer, Failure, verb};
use crate::abi::types::CEnum;
use crate::abi::types::cq::{CompChannel, Cq};
use crate::abi::types::qp::QpInitAttr;
use crate::abi::types::rdma::CmId;
use crate::abi::types::wc::Wc;
use crate::abi::types::wr::{RecvWr, SendWr, Sge as Piece};

/// Marks receive requests.
const RECEIVE: u64 = 1 << 63;
/// `IBV_WC_WITH_IMM`.
const WITH_IMM: u32 = 1 << 1;
/// `IBV_WR_RDMA_WRITE` and `IBV_WR_RDMA_WRITE_WITH_IMM`.
const WRITE: CEnum = 0;
const WRITE_WITH_IMM: CEnum = 1;
/// `IBV_SEND_INLINE`.
const INLINE: u32 = 1 << 3;

/// See the module.
pub(super) struct Conn {
    id: *mut CmId,
    queue: Queue,
    /// The send buffer, with places for credit messages behind it.
    send: Memory,
    data: Memory,
    /// The target list and the table of the peer's mappings, which the peer writes.
    list: Memory,
    core: Mutex<Stream>,
    armed: AtomicBool,
    turn: Mutex<Turn>,
    turned: Condvar,
    /// One sends at a time, and one receives.
    pub(super) sender: Mutex<()>,
    pub(super) receiver: Mutex<()>,
    pub(super) maps: Mutex<Maps>,
    watchers: Arc<Watchers>,
}

// SAFETY: the pointers are to objects that synchronize themselves; the program's threads share the
// socket through mutexes.
unsafe impl Send for Conn {}
// SAFETY: as above.
unsafe impl Sync for Conn {}

/// Who waits for events.
#[derive(Default)]
struct Turn {
    /// A thread reads.
    is_reading: bool,
    /// Events that were taken.
    taken: u64,
}

/// A completion queue with its channel.
pub(super) struct Queue {
    pub(super) channel: *mut CompChannel,
    pub(super) cq: *mut Cq,
}

impl Queue {
    /// A queue for `size` completions.
    ///
    /// # Safety
    ///
    /// `id` is one of ours, and bound to a device.
    pub(super) unsafe fn create(id: *mut CmId, size: u32) -> Answer<Self> {
        // SAFETY: the caller's promise.
        let context = unsafe { (*id).verbs };
        // SAFETY: the caller's promise.
        let channel = unsafe { ibv_create_comp_channel(context) };
        if channel.is_null() {
            return Err(Failure::last());
        }
        let mut queue = Self { channel, cq: ptr::null_mut() };
        let size = c_int::try_from(size).unwrap_or(c_int::MAX);
        // SAFETY: the caller's promise; the channel was made just now.
        queue.cq = unsafe { ibv_create_cq(context, size, id.cast(), channel, 0) };
        if queue.cq.is_null() { Err(Failure::last()) } else { Ok(queue) }
    }

    /// The descriptor of its channel.
    pub(super) fn fd(&self) -> c_int {
        // SAFETY: the channel lives as long as this value.
        unsafe { (*self.channel).fd }
    }

    /// The next completion will be an event.
    pub(super) fn arm(&self) -> Answer {
        // SAFETY: the queue lives as long as this value.
        verb(unsafe { req_notify_cq(self.cq, 0) })
    }

    /// Takes completions, and says how many.
    pub(super) fn poll(&self, room: &mut [Wc]) -> Answer<usize> {
        // SAFETY: the queue lives as long as this value; there is room.
        let count = unsafe { poll_cq(self.cq, room.len() as c_int, room.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| Failure::new(libc::EIO, "rsocket: the queue is broken"))
    }

    /// Takes an event, and waits for one.
    pub(super) fn take_event(&self) -> Answer {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel lives as long as this value.
        let answer = unsafe { ibv_get_cq_event(self.channel, &raw mut cq, &raw mut context) };
        if answer != 0 {
            return Err(Failure::last());
        }
        // SAFETY: the event was given just now.
        unsafe { ibv_ack_cq_events(cq, 1) };
        Ok(())
    }

    /// Whether an event is there to be taken.
    pub(super) fn has_event(&self) -> bool {
        is_readable(self.fd())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if !self.cq.is_null() {
            // SAFETY: it is ours, and what used it is gone.
            unsafe { ibv_destroy_cq(self.cq) };
        }
        // SAFETY: as above.
        unsafe { ibv_destroy_comp_channel(self.channel) };
    }
}

/// Whether something can be read from a descriptor now.
pub(super) fn is_readable(fd: c_int) -> bool {
    let mut fds = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: there is one entry, and it lives through the call.
    unsafe { libc::poll(&raw mut fds, 1, 0) == 1 }
}

impl Conn {
    /// Makes the queue pair of a stream and its memory.
    ///
    /// # Safety
    ///
    /// `id` is one of ours, bound to a device, without a queue pair, and outlives the result.
    pub(super) unsafe fn create(
        id: *mut CmId,
        sizes: Sizes,
        watchers: Arc<Watchers>,
    ) -> Answer<Self> {
        // SAFETY: the caller's promise.
        let CmId { verbs: context, pd, .. } = *unsafe { &*id };
        // SAFETY: contract: the context is open.
        let most = unsafe { opened(context) }.hca.alive()?.device_attr().max_qp_wr;
        let mut sizes = sizes.for_stream(most);
        // SAFETY: the caller's promise.
        let queue = unsafe { Queue::create(id, sizes.sq_size + sizes.rq_size) }?;
        // SAFETY: the structure is made of integers and pointers, for which zero is a value.
        let mut attr: QpInitAttr = unsafe { mem::zeroed() };
        attr.qp_context = id.cast();
        (attr.send_cq, attr.recv_cq) = (queue.cq, queue.cq);
        attr.qp_type = QpType::Rc as CEnum;
        attr.sq_sig_all = 1;
        (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (sizes.sq_size, sizes.rq_size);
        (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (2, 1);
        attr.cap.max_inline_data = sizes.inline;
        // SAFETY: the caller's promise; the attributes are valid.
        if unsafe { rdma_create_qp(id, ptr::null_mut(), &raw mut attr) } != 0 {
            return Err(Failure::last());
        }
        sizes.inline = attr.cap.max_inline_data;
        let memory = || -> Answer<_> {
            let credits = Credit::SLOTS as usize * Sge::SIZE;
            let list = Stream::list_size(sizes.mappings) as usize;
            let send = sizes.send_buffer as usize + credits;
            // SAFETY: the domain is the identifier's, which outlives the result.
            let send = unsafe { Memory::register(pd, send, LOCAL_WRITE) }?;
            let remote = LOCAL_WRITE | REMOTE_WRITE;
            // SAFETY: as above.
            let data = unsafe { Memory::register(pd, sizes.receive_buffer as usize, remote) }?;
            // SAFETY: as above.
            let list = unsafe { Memory::register(pd, list, remote) }?;
            Ok((send, data, list))
        };
        let (send, data, list) = match memory() {
            Ok(memory) => memory,
            Err(failure) => {
                // SAFETY: it was made just now.
                unsafe { rdma_destroy_qp(id) };
                return Err(failure);
            }
        };
        let sge = |memory: &Memory| Sge { addr: memory.addr(), key: memory.rkey(), length: 0 };
        let core = Stream::new(sizes, sge(&list), sge(&data));
        let conn = Self {
            id,
            queue,
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

    /// Takes what the peer told.
    pub(super) fn meet(&self, peer: &Hello) {
        let mut core = self.core();
        let first = core.meet(peer);
        self.set_target(0, first);
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Stream> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The descriptor that is readable when the queue has an event.
    pub(super) fn fd(&self) -> c_int {
        self.queue.fd()
    }

    /// The entry of the target list that is filled now. The length is what the peer wrote last, so
    /// it is read first: the rest is there when it is not 0.
    pub(super) fn target(&self, core: &Stream) -> Sge {
        let entry = self.list.part(core.target() * Sge::SIZE as u32, Sge::SIZE as u32);
        // ORDERING: with it the reads below see what the peer wrote before it.
        let length = entry.load_u32(12, Ordering::Acquire).unwrap_or(0);
        let mut bytes = [0; Sge::SIZE];
        // The peer wrote it, and it is of one piece with the length, so that it is there.
        let _ = entry.copy_to(&mut bytes);
        Sge { length, ..Sge::from_bytes(&bytes) }
    }

    /// Writes an entry of the target list. It is ours until its length is 0 and the peer was told
    /// so by data.
    fn set_target(&self, index: u32, target: Sge) {
        let entry = self.list.part(index * Sge::SIZE as u32, Sge::SIZE as u32);
        // It was read before.
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
            let mut wr = RecvWr {
                wr_id: RECEIVE,
                next: ptr::null_mut(),
                sg_list: ptr::null_mut(),
                num_sge: 0,
            };
            let mut bad = ptr::null_mut();
            // SAFETY: the identifier has a queue pair as long as this value lives.
            let qp = unsafe { (*self.id).qp };
            // SAFETY: the queue pair is ours, the request valid.
            verb(unsafe { post_recv(qp, &raw mut wr, &raw mut bad) })?;
        }
        Ok(())
    }

    /// Posts a request whose bytes are `pieces`.
    fn post(&self, write: &Write, pieces: &mut [Piece], flags: u32) -> Answer {
        // SAFETY: the structure is made of integers and pointers, for which zero is a value.
        let mut wr: SendWr = unsafe { mem::zeroed() };
        wr.wr_id = write.sent.encode();
        wr.sg_list = pieces.as_mut_ptr();
        wr.num_sge = pieces.len() as c_int;
        wr.send_flags = flags;
        (wr.opcode, wr.imm_data) = match write.message {
            Some(message) => (WRITE_WITH_IMM, message.encode().to_be()),
            None => (WRITE, 0),
        };
        wr.wr.rdma.remote_addr = write.addr;
        wr.wr.rdma.rkey = write.key;
        let mut bad = ptr::null_mut();
        // SAFETY: the identifier has a queue pair as long as this value lives.
        let qp = unsafe { (*self.id).qp };
        // SAFETY: the queue pair is ours; the request and what it names live through the call.
        verb(unsafe { post_send(qp, &raw mut wr, &raw mut bad) })
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
                let mut pieces = smallvec::SmallVec::<[Piece; 2]>::new();
                for range in ranges.iter().filter(|range| !range.is_empty()) {
                    let length = range.end - range.start;
                    from.copy_to(self.send.part(range.start, length))?;
                    let addr = self.send.addr() + u64::from(range.start);
                    pieces.push(Piece { addr, length, lkey: self.send.lkey() });
                }
                self.post(write, &mut pieces, 0)
            }
            None => {
                let length = write.length;
                if let Some(own) = from.next(length as usize) {
                    from.skip(length as usize);
                    let addr = own.as_ptr().addr() as u64;
                    self.post(write, &mut [Piece { addr, length, lkey: 0 }], INLINE)
                } else {
                    // Inline data is gathered by the device, of as many pieces as a request may
                    // have.
                    let mut gathered = vec![0_u8; length as usize];
                    // SAFETY: the bytes live, and nobody else knows them.
                    let place =
                        unsafe { umem::Foreign::new(gathered.as_mut_ptr(), gathered.len()) };
                    from.copy_to(place)?;
                    let addr = gathered.as_ptr().addr() as u64;
                    self.post(write, &mut [Piece { addr, length, lkey: 0 }], INLINE)
                }
            }
        };
        posted.inspect_err(|_| core.finish(End::Failed))
    }

    /// Sends the next piece of the program's bytes, `wanted` at most. It may be sent.
    pub(super) fn send(&self, core: &mut Stream, wanted: u32, from: &mut Pieces<'_>) -> Answer {
        let index = core.target();
        let (write, left) = core.send(wanted, self.target(core));
        // Before the peer learns of the data: it may then write the entry anew.
        self.set_target(index, left);
        self.post_write(core, &write, from)
    }

    /// Posts a control message. It may be sent.
    pub(super) fn control(&self, core: &mut Stream, control: Control) -> Answer {
        let (message, sent) = core.control(control);
        // A probe has no message: that the device acknowledges it is all that it is for.
        let message = (control != Control::Keepalive).then_some(message);
        let write = Write { length: 0, place: None, addr: 0, key: 0, message, sent };
        self.post(&write, &mut [], 0).inspect_err(|_| core.finish(End::Failed))
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
            return self.post(&write, &mut [], 0);
        };
        let length = Sge::SIZE as u32;
        (write.length, write.addr, write.key) = (length, addr, key);
        if core.sizes().inline >= length {
            let addr = entry.as_ptr().addr() as u64;
            return self.post(&write, &mut [Piece { addr, length, lkey: 0 }], INLINE);
        }
        let at = core.sizes().send_buffer + slot * length;
        self.send.part(at, length).copy_from(&entry).map_err(unreachable)?;
        let addr = self.send.addr() + u64::from(at);
        self.post(&write, &mut [Piece { addr, length, lkey: self.send.lkey() }], 0)
    }

    /// Looks at the completions there are.
    fn look(&self, core: &mut Stream) -> Answer {
        self.give_credits(core);
        // SAFETY: the structure is made of integers, for which zero is a value.
        let mut room: [Wc; 16] = unsafe { mem::zeroed() };
        loop {
            let count = self.queue.poll(&mut room).inspect_err(|_| core.finish(End::Failed))?;
            if count == 0 {
                break;
            }
            let mut came = 0;
            for wc in &room[..count] {
                if wc.wr_id & RECEIVE == 0 {
                    core.sent(Sent::decode(wc.wr_id), wc.status == 0);
                } else if wc.status == 0 {
                    came += 1;
                    self.received(core, wc);
                }
            }
            if core.end().is_none() {
                self.post_receives(came).inspect_err(|_| core.finish(End::Failed))?;
            }
        }
        self.give_credits(core);
        Ok(())
    }

    fn received(&self, core: &mut Stream, wc: &Wc) {
        if wc.wc_flags & WITH_IMM == 0 {
            return;
        }
        if let Err(violation) = core.received(u32::from_be(wc.imm_data)) {
            tracing::warn!(target: "peerdma::rsocket", "the connection ends: {violation}");
            // SAFETY: the identifier is ours.
            unsafe { to_error(self.id) };
        }
    }

    /// Looks once, and arms the queue if `arm` says so: what comes afterwards is an event.
    pub(super) fn check(&self, arm: bool) -> MutexGuard<'_, Stream> {
        let mut core = self.core();
        // What failed is in the stream.
        let _ = self.look(&mut core);
        // ORDERING: `armed` is set under `core`, and cleared when an event was taken, before
        // `taken` says so.
        if arm && !self.armed.load(Ordering::Acquire) && self.queue.arm().is_ok() {
            self.armed.store(true, Ordering::Release);
            let _ = self.look(&mut core);
        }
        core
    }

    /// Waits until `is_ready`, and gives the stream as it then is.
    ///
    /// # Errors
    /// EAGAIN if it would have to wait and may not; EINTR.
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
            // Before `armed`: who takes the event clears that first, and then counts.
            let seen = self.turn().taken;
            // ORDERING: as in `check`.
            if !self.armed.load(Ordering::Acquire) {
                self.queue.arm()?;
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
            turn = self.turned.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
        if turn.taken != seen {
            return Ok(());
        }
        turn.is_reading = true;
        drop(turn);
        let taken = self.queue.take_event();
        let mut turn = self.turn();
        turn.is_reading = false;
        if taken.is_ok() {
            self.took_event(turn);
        } else {
            // Another may read on.
            drop(turn);
            self.turned.notify_all();
        }
        taken
    }

    /// Takes the event for which the descriptor became readable, if another thread does not.
    pub(super) fn take_event(&self) {
        let turn = self.turn();
        // Who reads wakes us when it has it.
        if !turn.is_reading && self.queue.has_event() && self.queue.take_event().is_ok() {
            self.took_event(turn);
        }
    }

    fn took_event(&self, mut turn: MutexGuard<'_, Turn>) {
        self.armed.store(false, Ordering::Release);
        turn.taken += 1;
        drop(turn);
        self.turned.notify_all();
        self.watchers.notify();
    }

    /// The connection manager says that it is over: everybody who waits for the queue pair learns
    /// of it.
    pub(super) fn finish(&self, end: End) {
        let mut core = self.check(false);
        core.finish(end);
        drop(core);
        // What is posted is flushed, and those are events.
        // SAFETY: the identifier is ours.
        unsafe { to_error(self.id) };
        self.watchers.notify();
    }

    /// Flushes what is posted, so that whoever waits sees the end.
    pub(super) fn flush(&self) {
        drop(self.check(true));
        // SAFETY: the identifier is ours.
        unsafe { to_error(self.id) };
    }

    /// Reads what came, and, if `is_peek`, leaves it there.
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

impl Drop for Conn {
    fn drop(&mut self) {
        self.maps.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        // SAFETY: the identifier is ours; the queue and the memory go after the queue pair that
        // uses them.
        unsafe { rdma_destroy_qp(self.id) };
    }
}
