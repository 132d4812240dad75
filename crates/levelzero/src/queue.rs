//! Command queues, which execute command lists in order.

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
    /// The number of its group, and its index in the group.
    pub(crate) ordinal: u32,
    pub(crate) index: u32,
    /// Whether a call waits until its commands are done.
    pub(crate) is_synchronous: bool,
    /// The address space of its commands.
    space: &'static Space,
    work: Arc<Queue<Refusal>>,
}

/// A call waits until its commands are done.
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

    /// Executes commands in order, and then signals a fence.
    ///
    /// # Errors
    ///
    /// The failure of a command that was executed at once.
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
    /// A timeout; or the failure of a command.
    pub(crate) fn synchronize(&self, end: Option<Instant>) -> Result<()> {
        if self.work.synchronize_until(end)? {
            return Ok(());
        }
        Err(Refusal::new(Status::NotReady, "the queue has work to do"))
    }

    /// Keeps a value alive until all work that is queued now is done.
    pub(crate) fn hold(&self, held: Arc<Last>) {
        let mut held = Some(held);
        // A queue that was destroyed has nothing to do.
        let _ = self.work.submit(When::Now, move || {
            drop(held.take());
            Ok(Progress::Done)
        });
    }

    /// Drops the commands that still wait.
    pub(crate) fn abandon(&self) {
        self.work.abandon();
    }
}
