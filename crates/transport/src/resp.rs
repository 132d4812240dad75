//! The responder: carries out the peer's requests.
//!
//! A packet goes through the named steps of the kernel's `rxe_responder`, one function each, in the
//! order of IBA 9.6 and 9.7.4:
//!
//! ```text
//!  CHK_PSN -> CHK_OP_SEQ -> CHK_OP_VALID -> CHK_RESOURCE -> CHK_LENGTH -> CHK_RKEY -> EXECUTE
//!     |                                                                                  |
//!     +--> DUPLICATE_REQUEST                 COMPLETE -> ACKNOWLEDGE -> CLEANUP  <-------+
//! ```
//!
//! A step that finds something wrong names an error step; `resp/refuse.rs` defines what each of
//! those leads to.

mod check;
mod duplicate;
mod execute;
mod refuse;
mod step;

use std::collections::VecDeque;

use iba::{Msn, Psn, RKey};

use crate::answer::Answer;
use crate::env::{Env, Rx};
use crate::qp::Qp;
use crate::time::Time;
use crate::tm::Met;
use crate::wr::RecvWr;

pub use check::consumes_receive;
pub use step::Step;

/// The bytes of a GRH at the head of every datagram's receive buffer (IBA 11.4.1.2).
const GRH_BYTES: u32 = 40;

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
    /// UC: the message is lost; wait for the next.
    dropping: bool,
    /// A gap, or a lack of receives, was reported: the rest of the burst is dropped in silence (IBA
    /// 9.7.5, RNR NAK).
    nak_sent: bool,
    /// Answers to send to the peer, in the order of their sequence numbers.
    pub(crate) answers: VecDeque<Answer>,
    /// The sequence number of the answer that last found its memory absent, and since when.
    pub(crate) absent: Option<(Psn, Time)>,
    /// Results of atomics, in case they are requested again: as many as the peer may have
    /// outstanding.
    pub(crate) results: VecDeque<(Psn, u64)>,
    /// Where the last READs that were granted begin and end: as many as the peer may have
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
    /// Why the message got it.
    pub(crate) met: Met,
}

/// The message that is arriving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Message {
    /// None: the next packet has to begin one.
    #[default]
    None,
    /// A SEND of which this much is here.
    Send { received: u32 },
    /// A WRITE.
    Write(Region),
}

/// The rest of a one-sided operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    rkey: RKey,
    addr: u64,
    pub(crate) left: u32,
    /// Of the whole message.
    length: u32,
}

impl Responder {
    /// Starts over, expecting `psn`.
    pub(crate) fn start(&mut self, psn: Psn) {
        *self = Self { psn, ..Self::default() };
    }

    /// Whether this is the number of the packet expected, and that has to begin a message.
    pub(crate) fn awaits(&self, psn: Psn) -> bool {
        psn == self.psn && self.message == Message::None && self.recv.is_none() && !self.nak_sent
    }

    /// Steps over a packet that is a whole message, and returns how many are done.
    pub(crate) fn received_one(&mut self) -> Msn {
        self.psn = self.psn.add(1);
        self.msn = self.msn.add(1);
        self.msn
    }
}

impl Qp {
    /// Carries out a request, or refuses it.
    pub(crate) fn respond<E: Env>(&mut self, env: &mut E, rx: &Rx<'_, E::Payload>) {
        let mut step = Step::CheckPsn;
        loop {
            step = match step {
                Step::CheckPsn => self.check_psn(env, rx),
                Step::CheckOpSeq => self.check_op_seq(rx),
                Step::CheckOpValid => self.check_op_valid(env, rx),
                Step::CheckResource => self.check_resource(env, rx),
                Step::CheckLength => self.check_length(rx),
                Step::CheckRkey => self.check_rkey(env, rx),
                Step::Execute => self.execute(env, rx),
                Step::Complete => self.complete_receive(env, rx),
                Step::Acknowledge => self.answer_request(rx),
                Step::DuplicateRequest => self.answer_duplicate(env, rx),
                Step::Cleanup => return,
                error => {
                    self.resp.refusal = Some(error);
                    self.refuse(env, rx, error)
                }
            };
        }
    }
}
