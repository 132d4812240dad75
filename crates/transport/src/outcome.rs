//! Reports to the environment how work requests ended: what led to a failure ([`Account`]), and
//! what completion counters count ([`Ended`]).

use iba::{CompCntrOps, WcFlags, WcStatus, WrOpcode};
use wire::Operation;

use crate::account::Account;
use crate::count::Ended;
use crate::env::{Completion, Env, Side};
use crate::qp::Qp;
use crate::tm::Role;
use crate::wqe::{Failure, Wqe};

impl Qp {
    /// Tells the environment why a send work request failed.
    pub(crate) fn account_send<E: Env>(&self, env: &mut E, wqe: &Wqe, failure: Failure) {
        let data = &wqe.wr;
        env.account(&Account {
            side: Side::Send,
            wr_id: data.wr_id,
            status: failure.status,
            reason: failure.reason,
            opcode: Some(data.opcode),
            length: wqe.length.into(),
            remote: data.opcode.names_remote().then_some((data.rkey, data.remote_addr)),
            psns: wqe.begun.then(|| (wqe.first, wqe.end().sub(1))),
            ..self.account(failure)
        });
    }

    /// Tells the environment why a receive failed.
    pub(crate) fn account_receive<E: Env>(
        &self,
        env: &mut E,
        (wr_id, room): (u64, u64),
        failure: Failure,
    ) {
        let expected = self.resp.psn;
        env.account(&Account {
            side: Side::Recv,
            wr_id,
            length: room,
            psns: Some((expected, expected)),
            ..self.account(failure)
        });
    }

    fn account(&self, failure: Failure) -> Account {
        let used = |left: u8, all: u8| (all.saturating_sub(left), all);
        Account {
            side: Side::Send,
            wr_id: 0,
            status: failure.status,
            reason: failure.reason,
            opcode: None,
            length: 0,
            remote: None,
            psns: None,
            acknowledged: self.req.una.sub(1),
            retries: used(self.req.retries, self.attr.retry_cnt),
            rnr_retries: used(self.req.rnr_retries, self.attr.rnr_retry),
            timeout: self.attr.timeout.duration(),
        }
    }
}

impl Qp {
    /// Counts a request of the send queue that ended. Requests that the library itself posted count
    /// with the receive that they serve.
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

    /// Counts a receive that ended. For one that matched a tag, the program may know already.
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
