//! Completion channels and completion queues, as the library has them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use device::ids::{ChannelId, CqId};
use device::{Hca, Wc};

use crate::abi::acks::Acks;
use crate::abi::object::Object;
use crate::abi::turn::Turn;
use crate::abi::types::cq::{CompChannel, Cq, CqEx};
use crate::abi::waiting::Waiting;

/// The library's part of a completion channel.
pub(crate) struct OwnChannel {
    pub(crate) hca: Arc<Hca>,
    pub(crate) id: ChannelId,
    pub(in crate::abi) waiting: Waiting,
    /// Set with the engine locked, when it is destroyed.
    pub(crate) is_gone: AtomicBool,
}

/// A thread that waits holds the library's part: some programs end by destroying the channel on
/// which a thread of theirs waits.
pub(crate) type ChannelObject = Object<CompChannel, Arc<OwnChannel>>;

/// The library's part of a completion queue.
pub(crate) struct OwnCq {
    pub(crate) hca: Arc<Hca>,
    pub(crate) id: CqId,
    pub(crate) comp_acks: Acks,
    pub(crate) async_acks: Acks,
    pub(crate) current: Turn<Current>,
}

/// Every queue has room for the extended structure, so that there is one kind of queue.
pub(crate) type CqObject = Object<CqEx, OwnCq>;

/// The library's part of a completion queue.
///
/// # Safety
///
/// `cq` is one of ours and is not destroyed before the result is
/// last used.
#[inline]
pub(crate) unsafe fn own<'a>(cq: *mut Cq) -> &'a OwnCq {
    // SAFETY: the caller's promise; every queue is made with the extended structure.
    unsafe { CqObject::own(cq.cast()) }
}

/// The same for a call that would reach the kernel.
///
/// # Safety
///
/// As for [`own`].
pub(crate) unsafe fn lookup<'a>(cq: *mut Cq) -> &'a OwnCq {
    // SAFETY: the caller's promise; every queue is made with the extended structure.
    unsafe { CqObject::lookup(cq.cast()) }
}

/// The completion between `ibv_start_poll` and `ibv_end_poll`.
#[derive(Default)]
pub(crate) struct Current(pub(crate) Option<Wc>);
