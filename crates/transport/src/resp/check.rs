//! The checks of the responder, in their order.

use iba::{Access, QpType};
use wire::{Headers, Opcode, Operation, PayloadRule};

use super::{GRH_BYTES, Held, Message, Region, Step};
use crate::env::{Counter, Env, RemoteError, Rx};
use crate::qp::Qp;
use crate::tm::Taken;

/// The longest message (IBA 9.7.1).
const MAX_MESSAGE: u32 = 1 << 31;

impl Qp {
    /// Whether it is the next packet (IBA 9.7.4 for RC, 9.8.2 for UC).
    pub(super) fn check_psn<E: Env>(&mut self, env: &mut E, rx: &Rx<'_, E::Payload>) -> Step {
        let psn = rx.headers.bth.psn;
        // Step over operations that the peer carried out itself, just before this packet. A
        // repeated packet reports them again, but the numbers then no longer match.
        if self.path.reliable
            && rx.skipped.psns > 0
            && psn.sub(rx.skipped.psns) == self.resp.psn
            && self.resp.message == Message::None
        {
            self.resp.psn = psn;
            self.resp.msn = self.resp.msn.add(rx.skipped.messages);
        }
        self.resp.drop_unneeded(psn);
        let ahead = psn.distance(self.resp.psn);
        match self.qp_type {
            QpType::Rc | QpType::XrcRecv if ahead > 0 => {
                if self.resp.nak_sent {
                    return Step::Cleanup;
                }
                env.count(Counter::OutOfSequence);
                Step::ErrPsnOutOfSeq
            }
            QpType::Rc | QpType::XrcRecv if ahead < 0 => {
                env.count(Counter::DuplicateRequest);
                Step::DuplicateRequest
            }
            QpType::Rc | QpType::XrcRecv => {
                (self.resp.nak_sent, self.resp.is_gap) = (false, false);
                // The peer learns what is missing next.
                self.resp.owes_sack |= rx.headers.bth.ackreq && !self.resp.kept.is_empty();
                Step::CheckOpSeq
            }
            QpType::Uc => {
                if ahead != 0 || self.resp.dropping {
                    self.lose_message(env);
                    if !rx.headers.bth.opcode.is_first_or_only() {
                        self.resp.dropping = true;
                        env.count(Counter::OutOfSequence);
                        return Step::Cleanup;
                    }
                    self.resp.dropping = false;
                }
                Step::CheckOpSeq
            }
            QpType::Ud => self.check_datagram(rx),
            _ => Step::ErrUnsupportedOpcode,
        }
    }

    /// A datagram is a whole message; only its key must be right (IBA 9.8.3).
    fn check_datagram<P>(&self, rx: &Rx<'_, P>) -> Step {
        match rx.headers.deth() {
            Some(deth) if deth.qkey == self.attr.qkey => Step::CheckResource,
            _ => Step::ErrQkey,
        }
    }

    /// Whether it continues the message, or begins one when there is none (IBA 9.7.4 and 9.8.2).
    pub(super) fn check_op_seq<P>(&self, rx: &Rx<'_, P>) -> Step {
        let opcode = rx.headers.bth.opcode;
        let continues = match self.resp.message {
            Message::None => None,
            Message::Send { .. } => Some(opcode.operation().is_send()),
            Message::Write(_) => Some(opcode.operation().is_write()),
        };
        match (continues, opcode.is_first_or_only()) {
            (None, true) | (Some(true), false) => Step::CheckOpValid,
            (None, false) => Step::ErrMissingOpcodeFirst,
            (Some(_), _) if self.qp_type == QpType::Uc => Step::ErrMissingOpcodeLastD1e,
            (Some(_), _) => Step::ErrMissingOpcodeLastC,
        }
    }

    /// Whether the QP allows its peer this operation at all (IBA 9.7.4).
    pub(super) fn check_op_valid<E: Env>(&mut self, env: &mut E, rx: &Rx<'_, E::Payload>) -> Step {
        let (needed, counter) = match rx.headers.bth.opcode.operation() {
            Operation::Send | Operation::SendWithImm | Operation::SendWithInv => {
                return Step::CheckResource;
            }
            Operation::Write | Operation::WriteWithImm => {
                (Access::REMOTE_WRITE, Counter::RxWriteRequests)
            }
            Operation::ReadRequest => (Access::REMOTE_READ, Counter::RxReadRequests),
            Operation::CmpSwap | Operation::FetchAdd => {
                (Access::REMOTE_ATOMIC, Counter::RxAtomicRequests)
            }
            Operation::AtomicWrite => (Access::REMOTE_WRITE, Counter::RxWriteRequests),
            Operation::Flush => (flush_access(rx.headers), Counter::RxWriteRequests),
            _ => return Step::ErrUnsupportedOpcode,
        };
        if rx.headers.bth.opcode.is_first_or_only() {
            env.count(counter);
        }
        // A FLUSH that names no placement needs no right, and means nothing.
        if self.attr.access_flags.contains(needed) && !needed.is_empty() {
            Step::CheckResource
        } else {
            Step::ErrUnsupportedOpcode
        }
    }

    /// Whether there is a receive for a request that needs one, and a place among the answers for
    /// one that is answered with data.
    pub(super) fn check_resource<E: Env>(&mut self, env: &mut E, rx: &Rx<'_, E::Payload>) -> Step {
        let opcode = rx.headers.bth.opcode;
        let operation = opcode.operation();
        if is_answered(operation) {
            let waiting = self.resp.answers.iter().filter(|answer| answer.is_new_data()).count();
            return if waiting < usize::from(self.attr.max_dest_rd_atomic) {
                Step::CheckLength
            } else {
                Step::ErrTooManyRdmaAtmReq
            };
        }
        if consumes_receive(opcode) && self.resp.recv.is_none() {
            if env.withholds_receives() {
                return Step::ErrRnr;
            }
            let taken =
                if self.has_srq { env.take_srq(rx) } else { self.rq.pop_front().map(Taken::from) };
            let Some(Taken { wr, met }) = taken else { return Step::ErrRnr };
            let room = met.room(wr.room());
            self.resp.recv = Some(Held { wr, room, met });
        }
        Step::CheckLength
    }

    /// Whether the payload is as long as its place in the message demands (IBA 9.7.4), and a
    /// message is not longer than allowed.
    pub(super) fn check_length<P>(&mut self, rx: &Rx<'_, P>) -> Step {
        let opcode = rx.headers.bth.opcode;
        let operation = opcode.operation();
        let mtu = self.path.path_mtu.bytes();
        let length = rx.length;
        // One packet that stands for many on a reliable carrier: still whole packets, except the
        // last.
        let whole = if self.path.reliable {
            length > 0 && length.is_multiple_of(mtu)
        } else {
            length == mtu.saturating_mul(rx.packets)
        };
        let within = self.path.reliable || length <= mtu;
        let fits = match opcode.info().payload {
            PayloadRule::Empty => length == 0,
            PayloadRule::Exactly(bytes) => length == bytes.into(),
            PayloadRule::Full => whole,
            PayloadRule::Some => length > 0 && within,
            PayloadRule::Any => within,
        };
        if !fits {
            return Step::ErrLength;
        }

        if operation.is_send() {
            let before = match self.resp.message {
                Message::Send { received } => u64::from(received),
                _ if self.qp_type == QpType::Ud => u64::from(GRH_BYTES),
                _ => 0,
            };
            let room = self.resp.recv.as_ref().map_or(0, |held| held.room);
            let end = before + u64::from(length);
            return if end <= room && end <= u64::from(MAX_MESSAGE) + u64::from(GRH_BYTES) {
                Step::Execute
            } else {
                Step::ErrReceiveTooShort
            };
        }
        if let Some(reth) = rx.headers.reth() {
            if reth.dma_len > MAX_MESSAGE {
                return Step::ErrLength;
            }
            if operation.is_write() {
                self.resp.message = Message::Write(Region {
                    rkey: reth.rkey,
                    addr: reth.va,
                    left: reth.dma_len,
                    length: reth.dma_len,
                });
            }
        }
        if operation == Operation::AtomicWrite
            && rx.headers.reth().is_none_or(|reth| reth.dma_len != 8)
        {
            return Step::ErrLength;
        }
        // With the last packet, exactly as much has arrived as the RETH announced; before it, less
        // (IBA 9.7.4).
        if let (true, Message::Write(region)) = (operation.is_write(), self.resp.message) {
            let fits =
                if opcode.ends_message() { length == region.left } else { length < region.left };
            if !fits {
                return Step::ErrLength;
            }
        }
        Step::CheckRkey
    }

    /// Whether the peer may use the memory that it names, checked for the whole message at its
    /// first packet (IBA 9.7.4). An operation on no bytes needs no key (IBA C9-88).
    pub(super) fn check_rkey<E: Env>(&mut self, env: &mut E, rx: &Rx<'_, E::Payload>) -> Step {
        let headers = rx.headers;
        let operation = headers.bth.opcode.operation();
        let checked = if let Some(reth) = headers.reth() {
            let access = if operation == Operation::ReadRequest {
                Access::REMOTE_READ
            } else {
                Access::REMOTE_WRITE
            };
            // Carrying out a FLUSH checks its range.
            if reth.dma_len == 0 || operation == Operation::Flush {
                Ok(())
            } else {
                env.check_remote(reth.rkey, reth.va, reth.dma_len, access)
            }
        } else if let Some(atomic) = headers.atomic_eth() {
            env.check_remote(atomic.rkey, atomic.va, 8, Access::REMOTE_ATOMIC)
        } else {
            Ok(())
        };
        match checked {
            Ok(()) => Step::Execute,
            Err(error) => denied(error),
        }
    }
}

/// Whether a packet takes a receive from the queue.
pub fn consumes_receive(opcode: Opcode) -> bool {
    match opcode.operation() {
        Operation::WriteWithImm => true,
        operation => operation.is_send() && opcode.is_first_or_only(),
    }
}

/// Whether a request is answered, and so takes one of the QP's responder resources.
const fn is_answered(operation: Operation) -> bool {
    matches!(operation, Operation::ReadRequest | Operation::Flush | Operation::AtomicWrite)
        || operation.is_atomic()
}

/// The rights that a FLUSH needs.
pub(super) fn flush_access(headers: &Headers) -> Access {
    let feth = headers.feth().unwrap_or_default();
    let mut access = Access::empty();
    access.set(Access::FLUSH_GLOBAL, feth.global);
    access.set(Access::FLUSH_PERSISTENT, feth.persistent);
    access
}

/// The error step of an access that was denied.
pub(super) const fn denied(error: RemoteError) -> Step {
    match error {
        RemoteError::Misaligned => Step::ErrMisalignedAtomic,
        RemoteError::Access | RemoteError::Fault => Step::ErrRkeyViolation,
        RemoteError::NotPresent => Step::ErrNotPresent,
    }
}
