//! Fences, each of which is signalled at the end of one submission to a queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::event::wait_until;
use crate::queue::CommandQueue;
use crate::status::{Refusal, Result, Status};

/// A fence.
pub(crate) struct Fence {
    pub(crate) handle: u64,
    pub(crate) queue: Arc<CommandQueue>,
    is_signalled: AtomicBool,
}

impl Fence {
    pub(crate) fn new(handle: u64, queue: Arc<CommandQueue>, is_signalled: bool) -> Self {
        Self { handle, queue, is_signalled: AtomicBool::new(is_signalled) }
    }

    pub(crate) fn set(&self, is_signalled: bool) {
        self.is_signalled.store(is_signalled, Ordering::Release);
    }

    /// Waits until it is signalled, or `end`.
    ///
    /// # Errors
    ///
    /// A timeout.
    pub(crate) fn wait(&self, end: Option<Instant>) -> Result<()> {
        if wait_until(|| self.is_signalled.load(Ordering::Acquire), end) {
            return Ok(());
        }
        Err(Refusal::new(Status::NotReady, "the fence is not signalled"))
    }
}
