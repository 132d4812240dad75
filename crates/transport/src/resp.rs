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
mod state;
mod step;

use crate::env::{Env, Rx};
use crate::qp::Qp;

pub use check::consumes_receive;
pub(crate) use state::{Held, Message, Region, Responder};
pub use step::Step;

/// The bytes of a GRH at the head of every datagram's receive buffer (IBA 11.4.1.2).
const GRH_BYTES: u32 = 40;

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
