//! Requests that were carried out before (IBA 9.7.4; the kernel's `duplicate_request`).

use iba::Access;
use wire::Operation;

use super::Step;
use crate::answer::Answer;
use crate::env::{Env, Rx};
use crate::qp::Qp;

impl Qp {
    /// Answers a request again, without repeating what must be done once.
    pub(super) fn answer_duplicate<E: Env>(
        &mut self,
        env: &mut E,
        rx: &Rx<'_, E::Payload>,
    ) -> Step {
        let psn = rx.headers.bth.psn;
        match rx.headers.bth.opcode.operation() {
            // IBA C9-105: acknowledged with the newest number, which confirms that all of it
            // arrived.
            operation if operation.is_send() || operation.is_write() => {
                self.resp.push_ack(self.resp.psn.sub(1));
            }
            // Reads memory again, as it is now (IBA 9.7.4).
            Operation::ReadRequest => {
                let Some(reth) = rx.headers.reth() else { return Step::Cleanup };
                let packets = self.path.path_mtu.packets(reth.dma_len);
                // Not part of an earlier request, which no requester sends: dropped.
                if psn.add(packets).is_after(self.resp.psn) || rx.length > 0 {
                    return Step::Cleanup;
                }
                if reth.dma_len > 0
                    && env
                        .check_remote(reth.rkey, reth.va, reth.dma_len, Access::REMOTE_READ)
                        .is_err()
                {
                    // The region is gone by now. The NAK names this request, and not the one that
                    // is expected next. A sender that never requested it before is guessing: half
                    // of all sequence numbers are in the past, and no guess must end the QP.
                    if self.resp.was_granted(psn, psn.add(packets)) {
                        self.refuse_read(env, psn);
                    }
                    return Step::Cleanup;
                }
                let limit = self.attr.max_dest_rd_atomic.into();
                self.resp.answer_again(Answer::read(psn, packets, reth, false), limit);
            }
            Operation::Flush | Operation::AtomicWrite => {
                let limit = self.attr.max_dest_rd_atomic.into();
                self.resp.answer_again(Answer::done(psn, false), limit);
            }
            // Answered from the saved result (IBA 9.7.4); without one it is dropped.
            operation if operation.is_atomic() => {
                if let Some(value) = self.resp.saved_result(psn) {
                    let limit = self.attr.max_dest_rd_atomic.into();
                    self.resp.answer_again(Answer::atomic(psn, value, false), limit);
                }
            }
            _ => {}
        }
        Step::Cleanup
    }
}
