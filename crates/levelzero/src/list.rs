//! Command lists: what a queue is to do, written down; or done at once, if the list is an immediate
//! one.

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
    /// The number of the kind of queues that it is for.
    pub(crate) ordinal: u32,
    /// Where an immediate list's commands go at once.
    pub(crate) immediate: Option<CommandQueue>,
    written: Mutex<Written>,
}

#[derive(Default)]
struct Written {
    commands: Vec<Command>,
    /// What a closed list hands to queues.
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

    /// Writes a command down, or has it done.
    ///
    /// # Errors
    ///
    /// The list is closed; or what the command met, if it was done at once.
    pub(crate) fn append(&self, command: Command) -> Result<()> {
        if let Some(queue) = &self.immediate {
            return queue.execute(Arc::from([command]), None);
        }
        let mut written = self.lock();
        if written.closed.is_some() {
            return Err(Refusal::new(
                Status::InvalidArgument,
                "the list is closed: nothing is appended before it is reset",
            ));
        }
        written.commands.push(command);
        Ok(())
    }

    /// Nothing more comes. An immediate list has nothing to close.
    pub(crate) fn close(&self) {
        let mut written = self.lock();
        if written.closed.is_none() {
            written.closed = Some(std::mem::take(&mut written.commands).into());
        }
    }

    /// It is empty and open again; what an immediate list has begun goes on.
    pub(crate) fn reset(&self) {
        *self.lock() = Written::default();
    }

    /// The commands of a list that is closed.
    ///
    /// # Errors
    ///
    /// It is not.
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
                "an immediate list is not executed: its commands are, one by one",
            )),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
