//! A packet that can take the fast path.

use iba::{Msn, Psn};
use wire::bth::pad_for;
use wire::{Aeth, Headers, Opcode, Syndrome};

/// A packet that can take the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the device builds and reads each")]
pub enum FastPacket {
    /// A whole SEND of RC without immediate data.
    Send {
        /// Its sequence number.
        psn: Psn,
        /// The solicited bit.
        se: bool,
        /// Whether it asks for an acknowledgement.
        ackreq: bool,
    },
    /// An acknowledgement of RC.
    Ack {
        /// The sequence number up to which, inclusive, everything is done.
        psn: Psn,
        /// How many messages the responder completed.
        msn: Msn,
    },
}

impl FastPacket {
    /// The headers of the packet, with `length` bytes of payload.
    pub fn headers(self, dest: iba::Qpn, length: u32) -> Headers {
        match self {
            Self::Send { psn, se, ackreq } => {
                let mut headers = Headers::new(Opcode::RcSendOnly, dest, psn);
                (headers.bth.se, headers.bth.ackreq) = (se, ackreq);
                headers.bth.pad = pad_for(length as usize);
                headers
            }
            Self::Ack { psn, msn } => {
                let mut headers = Headers::new(Opcode::RcAck, dest, psn);
                headers.set_aeth(Aeth { syndrome: Syndrome::ACK, msn });
                headers
            }
        }
    }

    /// The packet with these headers and this many bytes of payload, if it can take the fast path.
    pub fn of(headers: &Headers, length: u32) -> Option<Self> {
        let bth = &headers.bth;
        let fast = match bth.opcode {
            Opcode::RcSendOnly => Self::Send { psn: bth.psn, se: bth.se, ackreq: bth.ackreq },
            Opcode::RcAck => Self::Ack { psn: bth.psn, msn: headers.aeth()?.msn },
            _ => return None,
        };
        (fast.headers(bth.dest_qp, length) == *headers).then_some(fast)
    }
}
