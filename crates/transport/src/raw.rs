//! Raw Ethernet: a work request is a whole frame. There are no InfiniBand headers, no sequence
//! numbers and no answers; the device decides which frame is for which QP.

use iba::{WcFlags, WcOpcode, WcStatus};

use crate::env::{Completion, Counter, Env, LocalError, Reason, Side, TransmitError};
use crate::packet::payload;
use crate::qp::{Qp, Sent};
use crate::time::Time;
use crate::wqe::Failure;
use crate::wr::RecvWr;

/// Bytes of an Ethernet header, the least size of a frame.
#[doc(alias = "ETH_HLEN")]
pub const ETHERNET_HEADER: u32 = 14;

/// How a receive ends that got a frame, or should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a queue handles each")]
pub enum FrameEnd {
    /// The frame is in its memory.
    Done,
    /// The frame is longer than the receive: the queue fails (IBA 11.6.2, "local length error").
    TooLong,
    /// The memory of the receive cannot be used: the queue fails.
    Memory(LocalError),
}

impl FrameEnd {
    /// How it fails, if it does.
    const fn failure(self) -> Option<Failure> {
        let (status, reason) = match self {
            Self::Done => return None,
            Self::TooLong => (WcStatus::LocLenErr, Reason::ReceiveTooShort),
            Self::Memory(LocalError::Protection) => (WcStatus::LocProtErr, Reason::LocalProtection),
            Self::Memory(_) => (WcStatus::LocAccessErr, Reason::LocalFault),
        };
        Some(Failure::new(status, reason))
    }

    /// The completion of a receive of `length` bytes with this end.
    pub fn completion(self, wr_id: u64, length: u32) -> Completion {
        let received = Completion { opcode: WcOpcode::Recv, ..Completion::new(Side::Recv, wr_id) };
        match self.failure() {
            None => Completion { byte_len: length, ..received },
            Some(Failure { status, reason }) => {
                Completion { status, solicited: true, vendor_err: reason as u32, ..received }
            }
        }
    }

    /// The completion of a receive that got nothing.
    pub fn flushed(wr_id: u64) -> Completion {
        Completion {
            status: WcStatus::WrFlushErr,
            opcode: WcOpcode::Recv,
            solicited: true,
            vendor_err: Reason::Flushed as u32,
            ..Completion::new(Side::Recv, wr_id)
        }
    }
}

/// Writes a frame to the memory of a receive.
pub fn scatter_frame<E: Env>(
    env: &mut E,
    wr: &RecvWr,
    frame: &E::Payload,
    length: u32,
) -> FrameEnd {
    if wr.room() < u64::from(length) {
        return FrameEnd::TooLong;
    }
    match env.scatter(Side::Recv, &wr.sges, 0, frame) {
        Ok(()) => FrameEnd::Done,
        Err(error) => FrameEnd::Memory(error),
    }
}

impl Qp {
    /// Whether the QP accepts frames in its state.
    pub fn takes_frames(&self) -> bool {
        self.state().receives()
    }

    /// Takes the next receive of the QP's own queue, for a frame.
    pub fn take_receive(&mut self) -> Option<RecvWr> {
        self.rq.pop_front()
    }

    /// Gives a frame to a receive of the QP, its own or one of its shared queue; `flags` is what is
    /// known about it. Any error is an error of the receive, and ends the QP.
    pub fn receive_frame<E: Env>(
        &mut self,
        env: &mut E,
        wr: &RecvWr,
        frame: &E::Payload,
        length: u32,
        flags: WcFlags,
    ) {
        let end = scatter_frame(env, wr, frame, length);
        if end == FrameEnd::TooLong {
            env.count(Counter::RespLocalLengthError);
        }
        let mut completion = end.completion(wr.wr_id, length);
        if end == FrameEnd::Done {
            completion.flags = flags;
        }
        if let Some(failure) = end.failure() {
            self.account_receive(env, (wr.wr_id, wr.room()), failure);
        }
        Self::complete(env, &completion);
        if end != FrameEnd::Done {
            self.enter_error(env);
        }
    }

    /// Sends a frame. It is done when it is sent.
    pub(crate) fn transmit_frame<E: Env>(&mut self, env: &mut E, now: Time) -> Sent {
        let length = u64::from(self.sq[self.req.index].length);
        self.req.paced_until = self.pace.wait(now, length, self.path.path_mtu);
        if self.req.paced_until.is_some() {
            return Sent::Nothing;
        }
        let wqe = &self.sq[self.req.index];
        env.of_request(wqe.wr.wr_id, self.sq.len() - self.req.index);
        match env.transmit_frame(payload(&wqe.wr.data, 0, wqe.length), wqe.wr.flags) {
            Ok(()) => {
                self.pace.spend(now, length);
                self.retire_front(env);
            }
            Err(TransmitError::Blocked) => return Sent::Blocked,
            Err(TransmitError::Memory(LocalError::NotPresent)) => {
                env.count(Counter::PageFaultsPending);
                return Sent::Blocked;
            }
            Err(TransmitError::Memory(error)) => self.fail(env, Failure::local(error)),
            Err(TransmitError::Remote(_)) => self.fail(env, Failure::local(LocalError::Fault)),
        }
        Sent::Packets(1)
    }
}
