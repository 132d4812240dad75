//! What a completion counter counts.

use bitflags::bitflags;

bitflags! {
    /// Operations that a completion counter is attached for, with the values of
    /// `enum ibv_qp_attach_comp_cntr_op`.
    ///
    /// Unknown bits are kept, so that a refusal can name them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[doc(alias = "ibv_qp_attach_comp_cntr_op")]
    pub struct CompCntrOps: u32 {
        /// SENDs of this QP, with and without immediate data or a key to invalidate.
        const SEND = 1;
        /// Receives of this QP.
        const RECV = 1 << 1;
        /// READs of this QP.
        const RDMA_READ = 1 << 2;
        /// READs of its peer.
        const REMOTE_RDMA_READ = 1 << 3;
        /// WRITEs of this QP, with and without immediate data.
        const RDMA_WRITE = 1 << 4;
        /// WRITEs of its peer.
        const REMOTE_RDMA_WRITE = 1 << 5;
        const _ = !0;
    }
}

impl CompCntrOps {
    /// Every operation.
    pub const KNOWN: Self = Self::SEND
        .union(Self::RECV)
        .union(Self::RDMA_READ)
        .union(Self::REMOTE_RDMA_READ)
        .union(Self::RDMA_WRITE)
        .union(Self::REMOTE_RDMA_WRITE);
}
