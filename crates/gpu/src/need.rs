//! What a buffer requires of a place, and the result of making room for it.

use crate::place::{Domain, Domains};
use crate::pools::Resource;
use crate::windows::Windows;

/// The number for memory that a fault plan holds, which is not a buffer. It counts neither as the
/// process's own nor as pinned.
pub(crate) const BALLAST: u64 = u64::MAX;

/// How much of VRAM a fault plan holds.
#[derive(Debug, Default)]
pub(crate) struct Ballast {
    /// Millionths of VRAM that must be in use.
    pub(crate) share: Windows<u32>,
    pub(crate) held: Vec<Resource>,
}

/// What a buffer requires.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub(crate) bo: u64,
    pub(crate) len: u64,
    pub(crate) align: u64,
    pub(crate) fixed: bool,
    /// Whether it must be in the part of VRAM that peers reach.
    pub(crate) visible: bool,
}

/// The result of trying to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evicted {
    /// There is more room.
    Yes,
    /// There may be more room once a buffer is released.
    Busy,
    /// Everything there is pinned or must not move.
    Nothing,
}

/// Whether a domain is in a set.
pub(crate) fn allows(domains: Domains, domain: Domain) -> bool {
    domains.contains(domain.only())
}
