//! Command lists: recorded commands for a queue, or commands that run at once if the list is an
//! immediate one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::command::Command;
use crate::queue::CommandQueue;
use crate::status::{Refusal, Result, Status};

/// A command list.
pub(crate) struct List {
    pub(crate) handle: u64,
    /// The handle of its context.
    pub(crate) context: u64,
    /// The number of its device.
    pub(crate) device: usize,
    /// The number of the queue group that it is for.
    pub(crate) ordinal: u32,
    /// The queue that runs the commands of an immediate list.
    pub(crate) immediate: Option<CommandQueue>,
    written: Mutex<Written>,
}

#[derive(Default)]
struct Written {
    commands: Vec<Command>,
    /// The commands of a closed list.
    closed: Option<Arc<[Command]>>,
}

impl List {
    pub(crate) fn new(
        handle: u64,
        context: u64,
        device: usize,
        ordinal: u32,
        immediate: Option<CommandQueue>,
    ) -> Self {
        Self { handle, context, device, ordinal, immediate, written: Mutex::default() }
    }

    /// Records a command, or executes it.
    ///
    /// # Errors
    ///
    /// The list is closed; or the failure of the command, if it was executed at once.
    pub(crate) fn append(&self, command: Command) -> Result<()> {
        if let Some(queue) = &self.immediate {
            return queue.execute(Arc::from([command]), None);
        }
        let mut written = self.lock();
        if written.closed.is_some() {
            return Err(Refusal::new(
                Status::InvalidArgument,
                "the list is closed: reset it before appending",
            ));
        }
        written.commands.push(command);
        Ok(())
    }

    /// Closes the list. For an immediate list it does nothing.
    pub(crate) fn close(&self) {
        let mut written = self.lock();
        if written.closed.is_none() {
            written.closed = Some(std::mem::take(&mut written.commands).into());
        }
    }

    /// Empties and reopens the list; commands that an immediate list has begun continue.
    pub(crate) fn reset(&self) {
        *self.lock() = Written::default();
    }

    /// The commands of a list that is closed.
    ///
    /// # Errors
    ///
    /// The list is not closed.
    pub(crate) fn closed(&self) -> Result<Arc<[Command]>> {
        self.check_regular()?;
        let closed = self.lock().closed.clone();
        closed.ok_or_else(|| {
            Refusal::new(Status::InvalidArgument, "the list was not closed: it cannot be executed")
        })
    }

    fn check_regular(&self) -> Result<()> {
        match self.immediate {
            None => Ok(()),
            Some(_) => Err(Refusal::new(
                Status::InvalidCommandListType,
                "an immediate list cannot be executed: its commands run when they are appended",
            )),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
