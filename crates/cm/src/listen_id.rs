//! The names of listeners.

/// A listener's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenId(pub(crate) u32);
