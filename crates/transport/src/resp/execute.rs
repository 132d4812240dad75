//! Carrying a request out, completing the receive it used, and acknowledging it.

use iba::{CompCntrOps, QpType, WcFlags, WcOpcode, WcStatus};
use wire::{Operation, Selectivity};

use super::check::{denied, flush_access};
use super::{GRH_BYTES, Message, Region, Step};
use crate::answer::Answer;
use crate::count::Ended;
use crate::env::{AtomicOp, Completion, Env, LocalError, Reason, RemoteError, Rx, Side};
use crate::qp::Qp;
use crate::tm::Met;
use crate::wqe::Failure;

/// [`Completion::sl`] of a datagram.
const UDP_IPV6: u8 = 0x9;
const UDP_IPV4: u8 = 0xa;

impl Qp {
    /// Moves the bytes, and steps over the packet's sequence numbers.
    pub(super) fn execute<E: Env>(&mut self, env: &mut E, rx: &Rx<'_, E::Payload>) -> Step {
        let operation = rx.headers.bth.opcode.operation();
        match operation {
            Operation::ReadRequest => return self.execute_read(rx),
            Operation::CmpSwap | Operation::FetchAdd => return self.execute_atomic(env, rx),
            Operation::AtomicWrite | Operation::Flush => return self.execute_answered(env, rx),
            Operation::Write | Operation::WriteWithImm => {
                if let Err(error) = self.execute_write(env, rx) {
                    return denied(error);
                }
            }
            _ => {
                if let Err(error) = self.execute_send(env, rx) {
                    return match error {
                        LocalError::Protection => Step::ErrMalformedWqe,
                        LocalError::Fault => Step::ErrReceiveFault,
                        LocalError::NotPresent => Step::ErrNotPresent,
                    };
                }
            }
        }

        let packets = self.path.path_mtu.packets(rx.length);
        self.resp.psn = rx.headers.bth.psn.add(packets);
        if !rx.headers.bth.opcode.ends_message() {
            if operation.is_send() && rx.headers.bth.opcode.is_first_or_only() {
                self.report_match(env);
            }
            return Step::Acknowledge;
        }
        self.resp.msn = self.resp.msn.add(1);
        if let Message::Write(region) = self.resp.message {
            let ended = Ended::Well { bytes: region.length };
            env.ended(CompCntrOps::REMOTE_RDMA_WRITE, ended);
        }
        if let Some(ieth) = rx.headers.ieth()
            && env.invalidate(ieth.rkey).is_err()
        {
            return Step::ErrInvalidateRkey;
        }
        if operation == Operation::Write {
            self.resp.message = Message::None;
            return Step::Acknowledge;
        }
        Step::Complete
    }

    fn execute_send<E: Env>(
        &mut self,
        env: &mut E,
        rx: &Rx<'_, E::Payload>,
    ) -> Result<(), LocalError> {
        let Some(held) = &self.resp.recv else { return Err(LocalError::Fault) };
        let received = match self.resp.message {
            Message::Send { received } => received,
            _ if self.qp_type == QpType::Ud => {
                if let Some(grh) = rx.grh {
                    env.scatter_bytes(Side::Recv, &held.wr.sges, 0, grh)?;
                }
                GRH_BYTES
            }
            _ => 0,
        };
        match &held.met {
            Met::Rendezvous(_, rendezvous) => Self::scatter_rendezvous(env, &held.wr, rendezvous)?,
            Met::Eager(_) if received == 0 => {
                env.scatter_after(&held.wr.sges, held.met.header(), rx.payload)?;
            }
            met if rx.length > 0 => {
                let offset = received.saturating_sub(met.header());
                env.scatter(Side::Recv, &held.wr.sges, u64::from(offset), rx.payload)?;
            }
            _ => {}
        }
        self.resp.message = Message::Send { received: received + rx.length };
        Ok(())
    }

    fn execute_write<E: Env>(
        &mut self,
        env: &mut E,
        rx: &Rx<'_, E::Payload>,
    ) -> Result<(), RemoteError> {
        let Message::Write(region) = self.resp.message else { return Err(RemoteError::Fault) };
        if rx.length > 0 {
            env.write_remote(region.rkey, region.addr, rx.payload)?;
        }
        self.resp.message = Message::Write(Region {
            addr: region.addr.wrapping_add(u64::from(rx.length)),
            left: region.left - rx.length,
            ..region
        });
        Ok(())
    }

    fn execute_read<P>(&mut self, rx: &Rx<'_, P>) -> Step {
        let Some(reth) = rx.headers.reth() else { return Step::ErrUnsupportedOpcode };
        let psn = rx.headers.bth.psn;
        let packets = self.path.path_mtu.packets(reth.dma_len);
        self.resp.psn = psn.add(packets);
        let limit = self.attr.max_dest_rd_atomic.into();
        self.resp.save_granted(psn, self.resp.psn, limit);
        // Counted when accepted, not when answered (IBA C9-148).
        self.resp.msn = self.resp.msn.add(1);
        self.resp.answers.push_back(Answer::read(psn, packets, reth, true));
        Step::Cleanup
    }

    fn execute_atomic<E: Env>(&mut self, env: &mut E, rx: &Rx<'_, E::Payload>) -> Step {
        let Some(atomic) = rx.headers.atomic_eth() else { return Step::ErrUnsupportedOpcode };
        let op = if rx.headers.bth.opcode.operation() == Operation::CmpSwap {
            AtomicOp::CompareSwap { compare: atomic.compare, swap: atomic.swap_add }
        } else {
            AtomicOp::FetchAdd { add: atomic.swap_add }
        };
        let value = match env.atomic(atomic.rkey, atomic.va, op) {
            Ok(value) => value,
            Err(error) => return denied(error),
        };
        let psn = rx.headers.bth.psn;
        self.resp.psn = psn.add(1);
        self.resp.msn = self.resp.msn.add(1);
        self.resp.save_result(psn, value, self.attr.max_dest_rd_atomic.into());
        self.resp.answers.push_back(Answer::atomic(psn, value, true));
        Step::Cleanup
    }

    /// Requests whose response only confirms that they are done (IBA annex A19).
    fn execute_answered<E: Env>(&mut self, env: &mut E, rx: &Rx<'_, E::Payload>) -> Step {
        let Some(reth) = rx.headers.reth() else { return Step::ErrUnsupportedOpcode };
        let done = if rx.headers.bth.opcode.operation() == Operation::Flush {
            let whole = rx.headers.feth().is_some_and(|feth| feth.selectivity == Selectivity::Mr);
            let range = (!whole).then_some((reth.va, reth.dma_len));
            env.flush(reth.rkey, range, flush_access(rx.headers))
        } else if reth.va.is_multiple_of(8) {
            env.write_remote(reth.rkey, reth.va, rx.payload)
        } else {
            Err(RemoteError::Misaligned)
        };
        if let Err(error) = done {
            return denied(error);
        }
        let psn = rx.headers.bth.psn;
        self.resp.psn = psn.add(1);
        self.resp.msn = self.resp.msn.add(1);
        self.resp.answers.push_back(Answer::done(psn, true));
        Step::Cleanup
    }

    /// Completes the receive of the message.
    pub(super) fn complete_receive<E: Env>(
        &mut self,
        env: &mut E,
        rx: &Rx<'_, E::Payload>,
    ) -> Step {
        let message = core::mem::take(&mut self.resp.message);
        let Some(held) = self.resp.recv.take() else { return Step::Acknowledge };
        let headers = rx.headers;
        let is_reported = !headers.bth.opcode.is_first_or_only();
        let (mut opcode, mut flags, tm) = held.met.completion(is_reported);
        let byte_len = match message {
            Message::Write(region) => {
                opcode = WcOpcode::RecvRdmaWithImm;
                region.length
            }
            Message::Send { received } => received.saturating_sub(held.met.header()),
            Message::None => 0,
        };
        let mut imm = 0;
        if let Some(imm_dt) = headers.imm_dt() {
            flags |= WcFlags::WITH_IMM;
            imm = imm_dt.data;
        }
        if let Some(ieth) = headers.ieth() {
            flags |= WcFlags::WITH_INV;
            imm = ieth.rkey.0;
        }
        let mut sl = 0;
        if let Some(grh) = rx.grh.filter(|_| self.qp_type == QpType::Ud) {
            flags |= WcFlags::GRH;
            // Before an IPv4 header there are zeros, as we built it.
            sl = if grh[0] >> 4 == 6 { UDP_IPV6 } else { UDP_IPV4 };
        }
        let wr_id = held.wr.wr_id;
        let done = match held.met {
            Met::Rendezvous(_, rendezvous) => self.begin_rendezvous(held.wr, &rendezvous),
            _ => Ok(()),
        };
        if let Err(failure) = done {
            self.account_receive(env, (wr_id, held.room), failure);
        }
        let end = done.err().unwrap_or(Failure::new(WcStatus::Success, Reason::None));
        Self::complete(
            env,
            &Completion {
                status: end.status,
                opcode,
                byte_len,
                flags,
                imm,
                src_qpn: headers.deth().map_or(self.attr.dest_qpn, |deth| deth.src_qp),
                sl,
                tm,
                solicited: headers.bth.se || done.is_err(),
                vendor_err: end.reason as u32,
                ..Completion::new(Side::Recv, wr_id)
            },
        );
        Step::Acknowledge
    }

    /// Queues an acknowledgement of a packet that asks for one, or ends a message.
    pub(super) fn answer_request<P>(&mut self, rx: &Rx<'_, P>) -> Step {
        let bth = &rx.headers.bth;
        if self.qp_type.is_reliable() && (bth.ackreq || bth.opcode.ends_message()) {
            self.owe_ack(self.resp.psn.sub(1), bth.ackreq);
        }
        Step::Cleanup
    }
}
