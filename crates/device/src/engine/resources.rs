//! How many objects of each kind there are.

use super::Engine;

/// The objects of this process on a NIC, as `rdma resource show` counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "rdma_restrack")]
#[non_exhaustive]
pub struct Resources {
    /// Open contexts.
    pub ctx: usize,
    /// Protection domains.
    pub pd: usize,
    /// Completion queues.
    pub cq: usize,
    /// Queue pairs.
    pub qp: usize,
    /// Memory regions, including revoked ones.
    pub mr: usize,
    /// Shared receive queues.
    pub srq: usize,
    /// Blocks of device memory.
    pub dm: usize,
}

impl Engine {
    /// How many objects of each kind there are now.
    pub fn resources(&self) -> Resources {
        let common = &self.common;
        Resources {
            ctx: common.objects.ctxs.len(),
            pd: common.objects.pds.len(),
            cq: common.objects.cqs.len(),
            qp: self.qps.iter().count(),
            mr: common.memory.mrs.len(),
            srq: common.objects.srqs.len(),
            dm: common.memory.dms.len(),
        }
    }
}
