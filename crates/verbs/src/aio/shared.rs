//! A shared receive queue, as its QPs and their messages hold it.

use std::sync::{Arc, Weak};

use super::handle::{Handle, Room};
use super::members::OfSrq;
use super::receives::{Home, Receives};
use super::table::{Entry, wr_id};
use crate::owned::Buffer;
use crate::{Kind, Pd, Refusal, Xrcd};

/// What a new shared receive queue is like.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "programs change its fields")]
pub struct SrqOptions {
    /// How many messages can arrive, at all its QPs together, before one is taken and dropped.
    pub receives: u32,
    /// The longest message that can arrive. A datagram has 40 bytes less.
    pub receive_length: usize,
}

impl Default for SrqOptions {
    /// 256 messages of 4 KiB.
    fn default() -> Self {
        Self { receives: 256, receive_length: 4096 }
    }
}

/// A shared receive queue: the buffers into which several QPs receive, so that memory is needed for
/// the messages that are under way and not for each peer. Clones are the same one.
///
/// Each QP that is created with it ([`QpOptions::srq`](super::QpOptions)) gives its messages by
/// [`Qp::recv`](super::Qp::recv), in order; [`recv`](Self::recv) gives those of all of them. A
/// buffer is posted again when its message is dropped. If all are held, every peer waits (RNR NAK).
///
/// Nothing flushes a receive of a shared queue when a QP goes to the error state. The device says
/// by an asynchronous event that the QP has used its last, and that ends its messages; the thread
/// of this library, one for the process, takes the events of the context for that. Other events
/// wait for [`Context::async_event`](crate::Context::async_event) as ever.
///
/// One of an XRC domain ([`Cq::create_xrc_srq`](super::Cq::create_xrc_srq)) has no QPs: requests
/// name it, by its [`number`](Self::number), and any [`XrcRecvQp`](crate::XrcRecvQp) of the domain
/// receives for it.
#[derive(Clone, Debug)]
#[doc(alias("ibv_srq", "IBV_EVENT_QP_LAST_WQE_REACHED"))]
pub struct Srq(Arc<Shared>);

impl Srq {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

/// A shared receive queue. Its receives complete on one completion queue, that of its QPs.
#[derive(Debug)]
pub(super) struct Shared {
    /// Taken at the end.
    srq: Option<crate::Srq>,
    /// Its number in the table of the completion queue.
    key: usize,
    receives: Receives,
    /// Behind the queue, whose completions it has room for.
    _room: Room,
    cq: Handle,
}

impl Shared {
    /// A queue for QPs, or in an XRC domain.
    pub(super) fn new(
        cq: &Handle,
        pd: &Pd,
        options: &SrqOptions,
        xrcd: Option<&Xrcd>,
    ) -> crate::Result<Arc<Self>> {
        let SrqOptions { receives: count, receive_length } = *options;
        if count == 0 {
            let what = "create_srq: a queue without receives receives nothing";
            return Err(Refusal::new(Kind::Invalid, what));
        }
        let room = Room::new(cq, count, "create_srq")?;
        let receives = Receives::new(pd, receive_length, count)?;
        let srq = match xrcd {
            Some(xrcd) => pd.create_xrc_srq(xrcd, cq.cq(), count, 1)?,
            None => pd.create_srq(count, 1)?,
        };
        let shared = Arc::new_cyclic(|queue: &Weak<Self>| {
            let of_srq = OfSrq::new(queue.clone(), srq.is_xrc());
            let key = cq.table().lock().srqs.insert(of_srq);
            Self { srq: Some(srq), key, receives, _room: room, cq: cq.clone() }
        });
        shared.fill();
        Ok(shared)
    }

    pub(super) fn cq(&self) -> &Handle {
        &self.cq
    }

    pub(super) fn key(&self) -> usize {
        self.key
    }

    pub(super) fn srq(&self) -> &crate::Srq {
        self.srq.as_ref().expect("there until this is dropped")
    }

    /// Posts a receive into each buffer that nobody has.
    pub(super) fn fill(&self) {
        self.receives.fill(|buffer| self.post(buffer));
    }

    /// Posts a receive. False if the queue takes none: the buffer goes back.
    pub(super) fn post(&self, mut buffer: Buffer) -> bool {
        buffer.set_len(buffer.capacity());
        let slice = buffer.slice();
        let mut state = self.cq.table().lock();
        let entry = state.entries.vacant_entry();
        // Posted before it is there: nobody looks for it as long as the table is locked.
        if self.srq().post_recv(wr_id(entry.key(), false), &[slice]).is_err() {
            drop(state);
            self.receives.lend();
            return false;
        }
        entry.insert(Entry::Shared(buffer, self.key));
        true
    }
}

impl Home for Shared {
    fn lend(&self) {
        self.receives.lend();
    }

    fn take_back(self: Arc<Self>, buffer: Buffer) {
        self.post(buffer);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Its QPs are gone, or in error and past their last receive: what is posted stays posted
        // until the queue is gone.
        drop(self.srq.take());
        let mut state = self.cq.table().lock();
        let of_srq = state.srqs.remove(self.key);
        let is_own = |entry: &Entry| matches!(entry, Entry::Shared(_, key) if *key == self.key);
        let own: Vec<usize> =
            state.entries.iter().filter(|(_, entry)| is_own(entry)).map(|(key, _)| key).collect();
        let posted: Vec<Entry> = own.into_iter().map(|key| state.entries.remove(key)).collect();
        // Dropped when the table is not locked.
        drop(state);
        drop((of_srq, posted));
    }
}
