//! Command queues: what is given to one is done in order.

use std::sync::Arc;
use std::time::Instant;

use umd::queue::{Progress, Queue, When};

use crate::command::{Command, Run};
use crate::fence::Fence;
use crate::last::Last;
use crate::space::Space;
use crate::status::{Refusal, Result, Status};

/// A command queue.
pub(crate) struct CommandQueue {
    pub(crate) handle: u64,
    /// The handle of its context.
    pub(crate) context: u64,
    /// The number of its device.
    pub(crate) device: usize,
    /// The number of its kind, and its own in that.
    pub(crate) ordinal: u32,
    pub(crate) index: u32,
    /// Whether a call waits for what it brings.
    pub(crate) is_synchronous: bool,
    /// What its commands' addresses are of.
    space: &'static Space,
    work: Arc<Queue<Refusal>>,
}

/// A call waits for what it brings.
#[doc(alias = "ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS")]
pub(crate) const SYNCHRONOUS: u32 = 1;

impl CommandQueue {
    pub(crate) fn new(
        handle: u64,
        context: u64,
        device: usize,
        (ordinal, index): (u32, u32),
        mode: u32,
        space: &'static Space,
    ) -> Self {
        let is_synchronous = mode == SYNCHRONOUS;
        let work = Arc::default();
        Self { handle, context, device, ordinal, index, is_synchronous, space, work }
    }

    /// Does commands, in their turn, and then signals a fence.
    ///
    /// # Errors
    ///
    /// What a command met that was done at once.
    pub(crate) fn execute(
        &self,
        commands: Arc<[Command]>,
        fence: Option<Arc<Fence>>,
    ) -> Result<()> {
        let (mut run, space) = (Run::default(), self.space);
        self.work.submit(When::Now, move || {
            let answer = run.go_on(&commands, space);
            if !matches!(answer, Ok(Progress::Waiting))
                && let Some(fence) = &fence
            {
                fence.set(true);
            }
            answer
        })?;
        if self.is_synchronous { self.synchronize(None) } else { Ok(()) }
    }

    /// Waits until all is done, or `end`.
    ///
    /// # Errors
    ///
    /// It was not in time; or what a command met.
    pub(crate) fn synchronize(&self, end: Option<Instant>) -> Result<()> {
        if self.work.synchronize_until(end)? {
            return Ok(());
        }
        Err(Refusal::new(Status::NotReady, "the queue has work to do"))
    }

    /// Keeps something until all that is queued now is done.
    pub(crate) fn hold(&self, held: Arc<Last>) {
        let mut held = Some(held);
        // A queue that was destroyed has nothing to do.
        let _ = self.work.submit(When::Now, move || {
            drop(held.take());
            Ok(Progress::Done)
        });
    }

    /// What waits is not done any more.
    pub(crate) fn abandon(&self) {
        self.work.abandon();
    }
}
