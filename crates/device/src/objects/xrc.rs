//! XRC's objects other than QPs.

use super::uses::Uses;
use crate::ids::{CqId, CtxId, XrcdId};

/// An XRC domain: which QPs may use which shared queue.
#[derive(Debug)]
pub(crate) struct Xrcd {
    pub(crate) ctx: CtxId,
    /// The file that stands for it, by device and inode, so that other parts of the program find
    /// it.
    pub(crate) file: Option<(u64, u64)>,
    /// How often it is open.
    pub(crate) opens: u32,
    /// Queues and QPs in it.
    pub(crate) uses: Uses,
}

/// What makes a shared queue one of XRC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SrqXrc {
    pub(crate) xrcd: XrcdId,
    /// Where its receives complete.
    pub(crate) cq: CqId,
}
