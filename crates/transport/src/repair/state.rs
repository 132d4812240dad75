//! What the requester remembers about packets that it sends again.

use iba::Psn;

/// What is being sent again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repair {
    /// What was missing before this number was sent again, once the cursor is back.
    pub(super) next: Psn,
    /// The number after the highest that had left by then.
    pub(super) until: Psn,
    /// The same when the window last shrank: what is lost before it is of the same loss.
    pub(super) point: Psn,
    /// The cursor went back, and passes over what the peer has.
    pub(super) walks: bool,
    /// It sends, or sent, everything again up to `until`, and not only what is missing below `top`.
    pub(super) is_all: bool,
}
