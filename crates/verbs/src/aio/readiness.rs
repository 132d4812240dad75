//! When a descriptor is readable.

use std::io;
use std::task::{Context, Poll};

/// Says when a descriptor is readable. Made for one descriptor.
pub trait Readiness: Unpin {
    /// Ready when the descriptor may be readable. The caller then takes all that there is to read,
    /// so the next call is pending until there is something new.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}
