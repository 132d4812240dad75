//! The direct path: one-sided operations carried out by the initiator, without a packet.

use iba::WrOpcode;

use crate::env::{AtomicOp, Direct, Env, Local, LocalError, OneSided, OneSidedKind};
use crate::qp::Qp;
use crate::req::Begin;
use crate::wqe::{Failure, Wqe};
use crate::wr::Data;

/// An operation of this many bytes waits for requests in flight rather than being sent as packets:
/// packets are copied twice, and the operations after them would also have to be packets. Waiting
/// takes a round trip.
const LONG: u32 = 32 << 10;

impl Qp {
    /// Offers the work request at the cursor to [`Env::one_sided`]. It is done if the environment
    /// carried it out.
    ///
    /// Only when nothing of this QP is in flight, so that it cannot overtake anything (IBA 10.8.3
    /// orders a WRITE after the SENDs before it). The peer learns of it with the next packet, from
    /// [`Skipped`](crate::env::Skipped): its sequence numbers are used as if packets had been sent.
    pub(crate) fn carry_out_directly<E: Env>(&mut self, env: &mut E) -> Begin {
        if !self.path.reliable || self.pace.is_limited() {
            return Begin::Send;
        }
        let wqe = &self.sq[self.req.index];
        if self.req.index > 0 || !self.req.is_quiet() {
            let waits = wqe.length >= LONG && one_sided(wqe).is_some_and(|op| env.is_direct(&op));
            return if waits { Begin::Wait } else { Begin::Send };
        }
        let Some(op) = one_sided(wqe) else { return Begin::Send };
        match env.one_sided(&op) {
            // An operation that the peer refuses is sent to it: its NAK ends both QPs, as the
            // standard requires.
            Direct::Declined | Direct::Remote(_) | Direct::Local(LocalError::NotPresent) => {
                return Begin::Send;
            }
            Direct::Local(error) => self.fail_front(env, Failure::local(error)),
            Direct::Done => {
                let psns = self.path.path_mtu.packets(wqe.length);
                let req = &mut self.req;
                req.psn = req.psn.add(psns);
                (req.una, req.max) = (req.psn, req.psn);
                req.skipped.psns = req.skipped.psns.wrapping_add(psns);
                req.skipped.messages = req.skipped.messages.wrapping_add(1);
                self.retire_front(env);
            }
        }
        Begin::Done
    }
}

fn one_sided(wqe: &Wqe) -> Option<OneSided<'_>> {
    let wr = &wqe.wr;
    let kind = match wr.opcode {
        WrOpcode::RdmaWrite => OneSidedKind::Write,
        WrOpcode::RdmaRead => OneSidedKind::Read,
        WrOpcode::AtomicCmpAndSwp => {
            OneSidedKind::Atomic(AtomicOp::CompareSwap { compare: wr.compare_add, swap: wr.swap })
        }
        WrOpcode::AtomicFetchAndAdd => {
            OneSidedKind::Atomic(AtomicOp::FetchAdd { add: wr.compare_add })
        }
        _ => return None,
    };
    let local = match &wr.data {
        Data::Sges(sges) => Local::Sges(sges),
        Data::Inline(bytes) => Local::Bytes(bytes),
        Data::Bind(_) | Data::Flush(_) => return None,
    };
    let length = wqe.length;
    Some(OneSided { kind, local, length, remote_addr: wr.remote_addr, rkey: wr.rkey })
}
