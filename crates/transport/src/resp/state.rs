//! What the responder remembers.

use std::collections::VecDeque;

use iba::{Msn, Psn, RKey};

use super::step::Step;
use crate::answer::Answer;
use crate::ranges::Ranges;
use crate::time::Time;
use crate::tm::Met;
use crate::wr::RecvWr;

/// What the responder remembers.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// The next sequence number expected.
    pub(crate) psn: Psn,
    /// Messages completed.
    pub(crate) msn: Msn,
    /// The message that is arriving.
    pub(crate) message: Message,
    /// The receive it fills.
    pub(crate) recv: Option<Held>,
    /// UC: the message is lost; wait for the next one.
    pub(super) dropping: bool,
    /// A gap, or a lack of receives, was reported: the rest of the burst is silently dropped (IBA
    /// 9.7.5, RNR NAK).
    pub(super) nak_sent: bool,
    /// That was about a gap.
    pub(super) is_gap: bool,
    /// What was kept of the packets behind a gap ([`Early`](crate::Early)).
    pub(crate) kept: Ranges,
    /// The peer is owed word of that.
    pub(crate) owes_sack: bool,
    /// Answers to send to the peer, in the order of their sequence numbers.
    pub(crate) answers: VecDeque<Answer>,
    /// The sequence number of the answer that last found its memory absent, and since when.
    pub(crate) absent: Option<(Psn, Time)>,
    /// Results of atomics, in case the peer requests them again: as many as the peer may have
    /// outstanding.
    pub(crate) results: VecDeque<(Psn, u64)>,
    /// The first and last numbers of the last granted READs: as many as the peer may have
    /// outstanding.
    pub(crate) granted: VecDeque<(Psn, Psn)>,
    /// The step at which a packet was last refused or dropped.
    pub(crate) refusal: Option<Step>,
}

/// A receive that a message is filling.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) wr: RecvWr,
    /// How many bytes of a message it has room for.
    pub(crate) room: u64,
    /// How the message got it.
    pub(crate) met: Met,
}

/// The message that is arriving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Message {
    /// None: the next packet has to begin one.
    #[default]
    None,
    /// A SEND of which this much has arrived.
    Send { received: u32 },
    /// A WRITE.
    Write(Region),
}

/// The rest of a one-sided operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(super) rkey: RKey,
    pub(super) addr: u64,
    pub(crate) left: u32,
    /// The length of the whole message.
    pub(super) length: u32,
}

impl Responder {
    /// Starts over, expecting `psn`.
    pub(crate) fn start(&mut self, psn: Psn) {
        *self = Self { psn, ..Self::default() };
    }

    /// Whether this is the expected number, of a packet that must begin a message.
    pub(crate) fn awaits(&self, psn: Psn) -> bool {
        psn == self.psn
            && self.message == Message::None
            && self.recv.is_none()
            && !self.nak_sent
            && self.kept.is_empty()
    }

    /// Whether the peer was asked to send the expected packet later, and all after it.
    pub(crate) fn is_pausing(&self) -> bool {
        self.nak_sent && !self.is_gap
    }

    /// Steps over a packet that is a whole message, and returns how many are done.
    pub(crate) fn received_one(&mut self) -> Msn {
        self.psn = self.psn.add(1);
        self.msn = self.msn.add(1);
        self.msn
    }
}
