//! Streams: queues of work, each of which belongs to a context.

use std::ops::Deref;
use std::sync::Arc;

pub(crate) use umd::queue::{Progress, When};

use crate::status::Refusal;

/// A stream.
pub(crate) struct Stream {
    pub(crate) handle: u64,
    /// The handle of its context.
    pub(crate) context: u64,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    queue: Arc<Queue>,
}

type Queue = umd::queue::Queue<Refusal>;

impl Deref for Stream {
    type Target = Arc<Queue>;

    fn deref(&self) -> &Arc<Queue> {
        &self.queue
    }
}

/// Work in it does not wait for the legacy default stream.
#[doc(alias = "CU_STREAM_NON_BLOCKING")]
pub(crate) const NON_BLOCKING: u32 = 1;

/// The handle of the legacy default stream (`CU_STREAM_LEGACY`).
#[doc(alias = "CU_STREAM_LEGACY")]
pub(crate) const LEGACY: u64 = 1;

/// The handle of the calling thread's stream (`CU_STREAM_PER_THREAD`).
#[doc(alias = "CU_STREAM_PER_THREAD")]
pub(crate) const PER_THREAD: u64 = 2;

impl Stream {
    pub(crate) fn new(handle: u64, context: u64, flags: u32, priority: i32) -> Self {
        Self { handle, context, flags, priority, queue: Arc::default() }
    }

    /// The legacy default stream of a context.
    pub(crate) fn legacy(context: u64) -> Self {
        Self::new(LEGACY, context, 0, 0)
    }

    pub(crate) fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }
}
