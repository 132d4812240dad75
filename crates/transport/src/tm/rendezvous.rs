//! How a QP handles a message whose tag matched.

use iba::{SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode};
use smallvec::SmallVec;

use super::{Met, RNDV_BYTES, Rendezvous, Role};
use crate::env::{Completion, Env, LocalError, Reason, Side};
use crate::qp::Qp;
use crate::wqe::{Failure, Wqe};
use crate::wr::{Data, RecvWr, SendWr};

/// `IBV_TMH_FIN`: the sender's memory was read.
const FIN: u8 = 2;

impl Qp {
    /// Reports the match of a message of several packets when the first one has arrived.
    pub(crate) fn report_match<E: Env>(&self, env: &mut E) {
        let Some(held) = &self.resp.recv else { return };
        if let Met::Eager(tm) = held.met {
            let completion = Completion {
                opcode: WcOpcode::TmRecv,
                flags: WcFlags::TM_MATCH,
                src_qpn: self.attr.dest_qpn,
                tm,
                ..Completion::new(Side::Recv, held.wr.wr_id)
            };
            Self::complete(env, &completion);
        }
    }

    /// Passes the program the headers of a rendezvous that is longer than the receive it matched.
    pub(crate) fn scatter_rendezvous<E: Env>(
        env: &mut E,
        wr: &RecvWr,
        rendezvous: &Rendezvous,
    ) -> Result<(), LocalError> {
        let room = wr.room();
        if u64::from(rendezvous.length) <= room {
            return Ok(());
        }
        let fits = usize::try_from(room).unwrap_or(RNDV_BYTES).min(RNDV_BYTES);
        env.scatter_bytes(Side::Recv, &wr.sges, 0, &rendezvous.header[..fits])
    }

    /// Reads the memory that a rendezvous names into the receive that it matched, and tells the
    /// sender. If the receive is too short, it fails and the program continues.
    pub(crate) fn begin_rendezvous(
        &mut self,
        wr: RecvWr,
        rendezvous: &Rendezvous,
    ) -> Result<(), Failure> {
        if u64::from(rendezvous.length) > wr.room() {
            return Err(Failure::new(WcStatus::TmRndvIncomplete, Reason::RendezvousTooLong));
        }
        let request = |opcode, flags, data| SendWr {
            remote_addr: rendezvous.addr,
            rkey: rendezvous.rkey,
            ..SendWr::new(wr.wr_id, opcode, flags, data)
        };
        let mut header = rendezvous.header;
        header[0] = FIN;
        // The sender may free its memory when it is told, so the READ must be over.
        let fin =
            request(WrOpcode::Send, SendFlags::FENCE, Data::Inline(SmallVec::from_slice(&header)));
        let read = request(WrOpcode::RdmaRead, SendFlags::SIGNALED, Data::Sges(wr.sges.clone()));
        self.sq.push_back(Wqe { role: Role::Read, ..Wqe::new(read, rendezvous.length) });
        self.sq.push_back(Wqe { role: Role::Fin, ..Wqe::new(fin, RNDV_BYTES as u32) });
        Ok(())
    }
}
