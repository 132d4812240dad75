//! One-sided operations on memory of the same process, carried out by the initiator without a
//! packet.
//!
//! The rights are those that the published table grants other processes, and whoever takes memory
//! away holds the engine, as the caller does here. What is in any way unusual is declined: a packet
//! finds it again, and says what is wrong.

use transport::env::{Direct, Local, LocalError, OneSided, OneSidedKind};
use umem::Umem;

use super::env::QpEnv;
use crate::carrier::atomic;
use crate::carrier::shm::direct::PIECE;
use crate::ids::PdId;
use crate::payload::for_each_sge;

impl QpEnv<'_, '_> {
    /// Whether operations of this QP that stay in this process need no packet now.
    pub(super) fn is_within(&self) -> bool {
        let out = &self.common.out;
        // Earlier packets of an unreliable QP may still be under way: nothing must overtake them.
        let is_clear = self.context.qp_type.is_reliable() || out.loopback.is_empty();
        self.context.route.is_loopback() && is_clear
    }

    /// The memory that an operation names, if the QP that it is for lets this one use it.
    pub(super) fn within(&self, op: &OneSided<'_>) -> Option<(&Umem, u64)> {
        let need = op.kind.remote_access();
        let (parties, mrs) = (self.parties(), &self.common.memory.mrs);
        let qp = self.common.out.shm.table()?.qp(parties.peer)?;
        if !qp.lets(parties.own, need, qp.pd) {
            return None;
        }
        mrs.windows.check_qp(op.rkey, parties.peer).ok()?;
        let length = u64::from(op.length);
        mrs.remote(PdId(qp.pd), op.rkey, op.remote_addr, length, need).ok()
    }

    /// Carries an operation out, or declines it.
    pub(super) fn one_sided_within(&self, op: &OneSided<'_>) -> Direct {
        let Some((there, offset)) = self.within(op) else { return Direct::Declined };
        let (mrs, pd) = (&self.common.memory.mrs, self.context.pd);
        if let OneSidedKind::Atomic(atomic) = op.kind {
            return atomic::carry_out(mrs, pd, op, there, offset, atomic);
        }
        if self.copy_within(op, there, offset).is_ok() { Direct::Done } else { Direct::Declined }
    }

    #[inline]
    fn copy_within(
        &self,
        op: &OneSided<'_>,
        there: &Umem,
        mut offset: u64,
    ) -> Result<(), LocalError> {
        let (mrs, pd) = (&self.common.memory.mrs, self.context.pd);
        let is_write = op.kind == OneSidedKind::Write;
        let sges = match op.local {
            Local::Bytes(bytes) => {
                return there.write(offset, bytes).map_err(|_| LocalError::Fault);
            }
            Local::Sges(sges) => sges,
        };
        let need = op.kind.local_access();
        // A list of which one element is refused changes nothing.
        if sges.len() > 1 {
            mrs.check_local(pd, sges, need)?;
        }
        for_each_sge(mrs, pd, sges, 0, op.length, need, |here, mut at, length| {
            let end = at + u64::from(length);
            // Whoever moves the memory waits for one piece at most.
            while at < end {
                let piece = PIECE.min(end - at);
                let copied = if is_write {
                    Umem::copy(there, offset, here, at, piece)
                } else {
                    Umem::copy(here, at, there, offset, piece)
                };
                copied.map_err(|_| LocalError::Fault)?;
                at += piece;
                offset += piece;
            }
            Ok(())
        })
    }
}
