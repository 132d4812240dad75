//! The objects of XRC other than QPs.

use super::charges::Charge;
use super::uses::Uses;
use crate::ids::{CqId, CtxId, XrcdId};

/// An XRC domain: it determines which QPs may use which shared queues.
#[derive(Debug)]
pub(crate) struct Xrcd {
    pub(crate) ctx: CtxId,
    /// The file that it belongs to, by device and inode, so that other parts of the program can
    /// find it.
    pub(crate) file: Option<(u64, u64)>,
    /// One for each time that it is open.
    pub(crate) opens: Vec<Charge>,
    /// Queues and QPs in it.
    pub(crate) uses: Uses,
}

/// The XRC attributes of a shared queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SrqXrc {
    pub(crate) xrcd: XrcdId,
    /// The CQ of its receives.
    pub(crate) cq: CqId,
}
