//! The buffers of a receive queue.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Pd;
use crate::owned::{Buffer, Pool};

/// The buffers of a receive queue, and how many of them are in neither a receive nor a message.
#[derive(Debug)]
pub(super) struct Receives {
    pool: Pool,
    lent: AtomicU32,
}

impl Receives {
    pub(super) fn new(pd: &Pd, length: usize, count: u32) -> crate::Result<Self> {
        Ok(Self { pool: Pool::new(pd, length, count)?, lent: AtomicU32::new(count) })
    }

    /// A buffer of the pool goes to the program.
    pub(super) fn lend(&self) {
        self.lent.fetch_add(1, Ordering::Relaxed);
    }

    /// Posts a receive into each buffer that nobody has, as long as they are taken.
    pub(super) fn fill(&self, post: impl Fn(Buffer) -> bool) {
        // ORDERING: what this thread lent counts. What another one lends and gives back is seen by
        // a later call.
        while self.lent.load(Ordering::Relaxed) > 0
            && let Some(buffer) = self.pool.try_take()
        {
            self.lent.fetch_sub(1, Ordering::Relaxed);
            if !post(buffer) {
                return;
            }
        }
    }
}

/// What the buffer of a message goes back to: a QP, or a shared receive queue.
pub(super) trait Home: Debug + Send + Sync {
    /// The buffer goes to the program, and may come back to the pool.
    fn lend(&self);

    /// Posts a receive into it.
    fn take_back(self: Arc<Self>, buffer: Buffer);
}
