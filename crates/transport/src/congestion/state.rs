//! What the receiving half of a QP remembers about marks.

use crate::time::Time;

/// What the receiving half of a QP remembers about marks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Congestion {
    /// Whether the QP takes part at all.
    pub(crate) enabled: bool,
    /// A notification waits to be sent.
    pub(super) owed: bool,
    /// The earliest time of the next one.
    pub(super) next: Time,
}

impl Congestion {
    /// Forgets packets in flight.
    pub(crate) fn restart(&mut self) {
        *self = Self { enabled: self.enabled, ..Self::default() };
    }
}
