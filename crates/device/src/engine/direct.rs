//! One-sided operations without a packet: whose memory a QP may reach, and what is counted.

use super::env::QpEnv;
use crate::carrier::shm::direct::Parties;

impl QpEnv<'_, '_> {
    /// The process whose memory this QP may reach without a packet now.
    pub(super) fn direct_peer(&mut self) -> Option<u16> {
        let vf = self.context.route.peer()?;
        let peers = &mut self.common.out.shm;
        // Earlier packets of an unreliable QP may still be in the ring: nothing must overtake them.
        let is_reliable = self.context.qp_type.is_reliable();
        let is_clear = is_reliable || !peers.has_unread(vf, self.context.ring_position);
        (peers.table().is_some() && is_clear).then_some(vf)
    }

    pub(super) fn parties(&self) -> Parties {
        Parties { own: self.context.qpn, peer: self.context.dest_qpn, pd: self.context.pd }
    }

    /// Counts operations that needed no packet.
    #[inline]
    pub(super) fn count_direct(&mut self, operations: usize, bytes: u64) {
        let counters = self.counters();
        counters.direct_operations += operations as u64;
        counters.direct_bytes += bytes;
    }
}
