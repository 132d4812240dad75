//! What led to a failed completion, for the code that must explain it.

use core::fmt;
use core::time::Duration;

use iba::{Psn, RKey, WcStatus, WrOpcode};

use crate::env::{Reason, Side};

/// How a work request came to fail. A flushed request has no account: the first failure of its QP
/// explains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the device reads every field")]
pub struct Account {
    /// The queue it was in.
    pub side: Side,
    /// From the work request.
    pub wr_id: u64,
    /// The status it completes with.
    pub status: WcStatus,
    /// Why, in more detail.
    pub reason: Reason,
    /// What it asked for; `None` for a receive.
    pub opcode: Option<WrOpcode>,
    /// Length of its message in bytes; of a receive, the room it had.
    pub length: u64,
    /// The peer's memory that it named, if it names any.
    pub remote: Option<(RKey, u64)>,
    /// Its first and last sequence number, if it began; of a receive, the number that was expected.
    pub psns: Option<(Psn, Psn)>,
    /// The last sequence number that the peer acknowledged.
    pub acknowledged: Psn,
    /// Retries used up since the peer last acknowledged something, and how many there are.
    pub retries: (u8, u8),
    /// The same for retries after "receiver not ready"; 7 means without limit.
    pub rnr_retries: (u8, u8),
    /// The ACK timeout; `None`: it waits forever.
    pub timeout: Option<Duration>,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "nothing failed",
            Self::Flushed => "the QP was in error before this request was processed",
            Self::AckTimeout => "no acknowledgement came within the timeout, again and again",
            Self::SequenceNak => "packets were lost again and again: the peer asked for them too often",
            Self::RnrNak => "the peer had no receive posted, or its memory was absent, again and again",
            Self::InvalidRequestNak => "the peer found the request invalid",
            Self::RemoteAccessNak => {
                "the peer refused access: its key, the range, the rights or the protection domain is wrong"
            }
            Self::RemoteOperationalNak => "the peer could not carry out a valid request",
            Self::LocalProtection => {
                "a key, range, right or protection domain of the local scatter/gather list is wrong"
            }
            Self::LocalFault => "the local memory is gone, though its region is still there",
            Self::ReceiveTooShort => "the message is longer than the receive that it matched",
            Self::BadResponse => "the peer sent an invalid response",
            Self::PeerBrokeProtocol => "the peer sent an invalid request",
            Self::PeerRefused => "the peer asked for memory that it may not use",
            Self::NoReadDepth => "max_rd_atomic is 0: this QP may not send READs and atomics",
            Self::BindRefused => "the memory window could not be bound as asked",
            Self::NoSuchTag => "no receive in the tag list has that handle: its message has arrived, or it was removed",
            Self::RendezvousTooLong => {
                "a rendezvous is longer than the receive that its tag matched, which has its headers instead"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These reasons; does not compile if there are others.
    macro_rules! no_others_than {
        ($($reason:ident),*) => {{
            let _ = |reason| match reason {
                $(Reason::$reason => ()),*
            };
            [$(Reason::$reason),*]
        }};
    }

    /// Code that iterates over all reasons, as the device's test of the sentences does, misses
    /// none.
    #[test]
    fn no_reason_is_left_out_of_all() {
        let every = no_others_than![
            None,
            Flushed,
            AckTimeout,
            SequenceNak,
            RnrNak,
            InvalidRequestNak,
            RemoteAccessNak,
            RemoteOperationalNak,
            LocalProtection,
            LocalFault,
            ReceiveTooShort,
            BadResponse,
            PeerBrokeProtocol,
            PeerRefused,
            NoReadDepth,
            BindRefused,
            NoSuchTag,
            RendezvousTooLong
        ];
        assert_eq!(Reason::ALL, every);
    }

    #[test]
    fn numbers_of_reasons_are_their_places() {
        for (number, reason) in (0..).zip(Reason::ALL) {
            assert_eq!(reason as u32, number);
            assert_eq!(Reason::from_vendor_err(number), Some(reason));
        }
        assert_eq!(Reason::from_vendor_err(129), None);
    }

    #[test]
    fn the_page_for_users_has_every_reason() {
        let page = include_str!("../../../docs/ERRORS.md");
        for reason in &Reason::ALL[1..] {
            let row = format!("| {} | {reason} |", *reason as u32);
            assert!(page.contains(&row), "no row {row:?}");
        }
    }
}
