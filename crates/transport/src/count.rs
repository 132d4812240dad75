//! What completion counters are told (`ibv_qp_attach_comp_cntr(3)`): each operation that ended, on
//! either side of a QP, visible in a completion queue or not.
//!
//! Atomics, binds, invalidations, FLUSH and ATOMIC WRITE have no bit in that call's mask, and are
//! not reported.

use iba::{CompCntrOps, WcFlags, WcStatus, WrOpcode};
use wire::Operation;

use crate::env::{Completion, Env, Side};
use crate::qp::Qp;
use crate::tm::Role;
use crate::wqe::{Failure, Wqe};

/// How an operation ended that a completion counter may count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a counter has two values")]
pub enum Ended {
    /// Success, with this many bytes moved.
    Well {
        /// What a completion's `byte_len` would be.
        bytes: u32,
    },
    /// In error, flushed ones included.
    InError,
}

impl Qp {
    /// Counts a request of the send queue that ended. Those that the library posted for itself
    /// count with the receive that they serve.
    pub(crate) fn count_send<E: Env>(env: &mut E, wqe: &Wqe, failure: Option<Failure>) {
        if wqe.role != Role::Posted {
            return;
        }
        let op = match wqe.wr.opcode {
            WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::SendWithInv => CompCntrOps::SEND,
            WrOpcode::RdmaRead => CompCntrOps::RDMA_READ,
            WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => CompCntrOps::RDMA_WRITE,
            _ => return,
        };
        let ended = match failure {
            None => Ended::Well { bytes: wqe.length },
            Some(_) => Ended::InError,
        };
        env.ended(op, ended);
    }

    /// Counts a receive that ended. Of one that matched a tag the program may have been told
    /// before.
    pub(crate) fn count_receive<E: Env>(env: &mut E, completion: &Completion) {
        let told_early = WcFlags::TM_MATCH | WcFlags::TM_DATA_VALID;
        match completion {
            Completion { side: Side::Send, .. } => {}
            Completion { status: WcStatus::Success, flags, byte_len: bytes, .. } => {
                if *flags & told_early != WcFlags::TM_MATCH {
                    env.ended(CompCntrOps::RECV, Ended::Well { bytes: *bytes });
                }
            }
            _ => env.ended(CompCntrOps::RECV, Ended::InError),
        }
    }

    /// Counts a peer's READ or WRITE that is not carried out.
    pub(crate) fn count_refused<E: Env>(env: &mut E, operation: Operation) {
        match operation {
            Operation::ReadRequest => env.ended(CompCntrOps::REMOTE_RDMA_READ, Ended::InError),
            Operation::Write | Operation::WriteWithImm => {
                env.ended(CompCntrOps::REMOTE_RDMA_WRITE, Ended::InError);
            }
            _ => {}
        }
    }
}
