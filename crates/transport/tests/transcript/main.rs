//! The protocol, rule by rule, as packet transcripts.
//!
//! Each test holds one QP; the test is its peer. `send!` is a packet that the peer sends to the QP,
//! `recv!` one that the QP must send, and the first number is the time in microseconds.

mod ack_delay;
mod answered;
mod ask;
mod atomic;
mod congestion;
mod dup;
mod early;
mod fence;
mod flush;
mod gaps;
mod joined;
mod malformed;
mod nak;
mod read;
mod retry;
mod rnr;
mod segments;
mod send;
mod srq;
mod states;
mod uc;
mod ud;
mod write;
mod xrc;

/// What all tests use.
mod prelude {
    pub(crate) use fabric_sim::build::{self, Build, ack, nak, packet};
    pub(crate) use fabric_sim::options::{BASE, KEY, PEER, QKEY, QPN, RQ_PSN, SQ_PSN};
    pub(crate) use fabric_sim::{Options, Station, recv, recv_nothing, send};
    pub(crate) use iba::{
        Access, Psn, QKey, QpEvent, QpState, Qpn, RKey, RnrTimer, SendFlags, WcFlags, WcOpcode,
        WcStatus, WrOpcode,
    };
    pub(crate) use transport::env::{Counter, LocalError, Skipped};
    pub(crate) use transport::{Data, ModifyError, PostError, Reason, SendWr, Step, UdDest};
    pub(crate) use wire::{NakCode, Opcode, Syndrome};

    /// Sequence numbers of the QP under test.
    pub(crate) fn sq(count: u32) -> Psn {
        SQ_PSN.add(count)
    }

    /// Sequence numbers of its peer.
    pub(crate) fn rq(count: u32) -> Psn {
        RQ_PSN.add(count)
    }

    /// A station whose peer has acknowledged a message: the one before `sq(0)`.
    pub(crate) fn met(options: Options) -> Station {
        let first = sq(0).sub(1);
        let mut s = Station::new(&Options { sq_psn: first, ..options });
        let signaled = SendWr { flags: SendFlags::SIGNALED, ..build::send(99, BASE, 0) };
        s.post(signaled);
        recv!(s, 0, packet(Opcode::RcSendOnly, first).ackreq());
        send!(s, 0, ack(first, 1));
        s.sent(99, WcStatus::Success);
        s
    }

    /// `length` bytes that differ from their neighbours.
    pub(crate) fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + at / 256) as u8).collect()
    }

    pub(crate) fn rnr_nak(psn: Psn, msn: u32, code: u8) -> wire::Headers {
        let timer = RnrTimer::from_code(code).expect("a five-bit code");
        nak(psn, msn, Syndrome::RnrNak { timer })
    }
}
