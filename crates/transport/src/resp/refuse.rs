//! What the responder does about a packet it does not accept (IBA 9.9.3, whose fault classes the
//! kernel's `rxe_responder` names too).

use iba::{QpEvent, QpType, WcOpcode, WcStatus};
use wire::{NakCode, Syndrome};

use super::{Message, Step};
use crate::env::{Completion, Counter, Env, Reason, Rx, Side};
use crate::qp::Qp;
use crate::wqe::Failure;

impl Qp {
    /// Carries out an error step.
    pub(super) fn refuse<E: Env>(
        &mut self,
        env: &mut E,
        rx: &Rx<'_, E::Payload>,
        error: Step,
    ) -> Step {
        match (self.qp_type, error) {
            (_, Step::ErrQkey) => env.count(Counter::QkeyViolation),

            // Class B: nothing happened; the peer sends again.
            (QpType::Rc | QpType::XrcRecv, Step::ErrPsnOutOfSeq) => {
                (self.resp.nak_sent, self.resp.is_gap) = (true, true);
                self.resp.push_nak(self.resp.psn, Syndrome::Nak(NakCode::PsnSequence));
            }
            (QpType::Rc | QpType::XrcRecv, Step::ErrRnr) => {
                env.count(Counter::OutOfBuffer);
                env.count(Counter::SendRnrNak);
                (self.resp.nak_sent, self.resp.owes_sack) = (true, false);
                let timer = self.attr.min_rnr_timer;
                self.resp.push_nak(self.resp.psn, Syndrome::RnrNak { timer });
            }

            // As if no receive were posted: the peer sends the packet again.
            (QpType::Rc | QpType::XrcRecv, Step::ErrNotPresent) => {
                env.count(Counter::PageFaultsPending);
                env.count(Counter::SendRnrNak);
                (self.resp.nak_sent, self.resp.owes_sack) = (true, false);
                if rx.headers.bth.opcode.is_first_or_only() {
                    // The message begins again with this packet; a receive that it took stays with
                    // it.
                    self.resp.message = Message::None;
                }
                let timer = self.attr.min_rnr_timer;
                self.resp.push_nak(self.resp.psn, Syndrome::RnrNak { timer });
            }

            // Class J: the message is complete, only its key is invalid: no NAK, but the receive
            // fails, and the QP with it.
            (QpType::Rc | QpType::XrcRecv, Step::ErrInvalidateRkey) => {
                if rx.headers.bth.ackreq {
                    self.resp.push_ack(self.resp.psn.sub(1));
                }
                let failure = Failure::new(WcStatus::RemInvReqErr, Reason::PeerBrokeProtocol);
                self.fail_receive(env, failure);
                self.enter_error(env);
            }

            // Classes A and C: NAK, and the end of the QP.
            (QpType::Rc | QpType::XrcRecv, error) => {
                Self::count_refused(env, rx.headers.bth.opcode.operation());
                let (code, failure) = fatal(error);
                self.resp.push_nak(self.resp.psn, Syndrome::Nak(code));
                self.refuse_for_good(env, error, failure);
            }

            // Classes D and E: no answer, and the QP continues.
            (_, Step::ErrRnr) => {
                env.count(Counter::OutOfBuffer);
                self.drop_message(env, rx);
            }
            // Nobody sends it again.
            (_, Step::ErrNotPresent) => {
                env.count(Counter::PageFaultsPending);
                self.drop_message(env, rx);
            }
            (_, Step::ErrMalformedWqe | Step::ErrReceiveFault) => {
                // Class A for every service: the receive is wrong, not the packet.
                self.refuse_for_good(env, error, fatal(error).1);
            }
            // The packet may be the first of a valid message (class D1).
            (_, Step::ErrMissingOpcodeLastD1e) => {
                self.lose_message(env);
                return if rx.headers.bth.opcode.is_first_or_only() {
                    Step::CheckOpValid
                } else {
                    self.drop_message(env, rx);
                    Step::Cleanup
                };
            }
            (_, error) => {
                if error == Step::ErrReceiveTooShort {
                    env.count(Counter::RespLocalLengthError);
                }
                if matches!(error, Step::ErrRkeyViolation | Step::ErrUnsupportedOpcode) {
                    Self::count_refused(env, rx.headers.bth.opcode.operation());
                }
                // Class E: a receive of a shared queue cannot be put back, so it completes.
                if self.has_srq {
                    self.fail_receive(env, fatal(error).1);
                }
                self.drop_message(env, rx);
            }
        }
        Step::Cleanup
    }

    /// Fails the receive that a message was filling and moves the QP to ERR. Without such a
    /// receive, an event reports it (IBA 9.9.3, "affiliated asynchronous error").
    pub(crate) fn refuse_for_good<E: Env>(&mut self, env: &mut E, error: Step, failure: Failure) {
        let is_access = error == Step::ErrRkeyViolation;
        match error {
            Step::ErrRkeyViolation => env.count(Counter::RespRemoteAccessErrors),
            Step::ErrReceiveTooShort => env.count(Counter::RespLocalLengthError),
            // The receive is at fault, not the request.
            Step::ErrMalformedWqe | Step::ErrReceiveFault => {}
            _ => env.count(Counter::RespRemoteInvalidRequest),
        }
        if !self.fail_receive(env, failure) {
            env.event(if is_access { QpEvent::AccessErr } else { QpEvent::ReqErr });
        }
        self.enter_error(env);
    }

    /// Discards the message that was arriving on UC. Its receive waits for the next one, unless it
    /// came from a shared queue.
    pub(super) fn lose_message<E: Env>(&mut self, env: &mut E) {
        if self.resp.message == Message::None {
            return;
        }
        self.resp.message = Message::None;
        if self.has_srq {
            let failure = Failure::new(WcStatus::RemInvReqErr, Reason::PeerBrokeProtocol);
            self.fail_receive(env, failure);
        }
    }

    /// Drops what is left of a UC message, or a datagram.
    fn drop_message<E: Env>(&mut self, env: &mut E, rx: &Rx<'_, E::Payload>) {
        env.count(Counter::DroppedPacket);
        self.resp.message = Message::None;
        self.resp.psn = rx.headers.bth.psn.add(self.path.path_mtu.packets(rx.length));
        self.resp.dropping = self.qp_type == QpType::Uc && !rx.headers.bth.opcode.ends_message();
    }

    /// Completes the receive that a message was filling, if there is one, with an error.
    fn fail_receive<E: Env>(&mut self, env: &mut E, failure: Failure) -> bool {
        self.resp.message = Message::None;
        let Some(held) = self.resp.recv.take() else { return false };
        if failure != Failure::FLUSHED {
            self.account_receive(env, (held.wr.wr_id, held.room), failure);
        }
        Self::complete(env, &failed_receive(held.wr.wr_id, failure));
        true
    }

    /// Completes every receive as flushed.
    pub(crate) fn flush_receives<E: Env>(&mut self, env: &mut E) {
        self.fail_receive(env, Failure::FLUSHED);
        while let Some(wr) = self.rq.pop_front() {
            Self::complete(env, &failed_receive(wr.wr_id, Failure::FLUSHED));
        }
    }
}

/// The NAK and the completion status of a request that ends the QP.
fn fatal(error: Step) -> (NakCode, Failure) {
    match error {
        // IBA 11.6.2, "local access error": for the receive that a WRITE with immediate data took;
        // the kernel's rxe reports the requester's status.
        Step::ErrRkeyViolation => {
            (NakCode::RemoteAccess, Failure::new(WcStatus::LocAccessErr, Reason::PeerRefused))
        }
        // IBA 11.6.2, "local length error"; the kernel's rxe reports "remote invalid request" here,
        // NICs do not.
        Step::ErrReceiveTooShort => {
            (NakCode::InvalidRequest, Failure::new(WcStatus::LocLenErr, Reason::ReceiveTooShort))
        }
        Step::ErrMalformedWqe => (
            NakCode::RemoteOperational,
            Failure::new(WcStatus::LocProtErr, Reason::LocalProtection),
        ),
        Step::ErrReceiveFault => {
            (NakCode::RemoteOperational, Failure::new(WcStatus::LocAccessErr, Reason::LocalFault))
        }
        _ => (
            NakCode::InvalidRequest,
            Failure::new(WcStatus::RemInvReqErr, Reason::PeerBrokeProtocol),
        ),
    }
}

fn failed_receive(wr_id: u64, failure: Failure) -> Completion {
    Completion {
        status: failure.status,
        opcode: WcOpcode::Recv,
        solicited: true,
        vendor_err: failure.reason as u32,
        ..Completion::new(Side::Recv, wr_id)
    }
}
