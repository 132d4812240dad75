//! Command lists: what a queue is to do, written down; or done at once, if the list is an immediate
//! one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use umd::queue::Progress;

use crate::event::{Event, now};
use crate::process;
use crate::queue::CommandQueue;
use crate::region::Region;
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

/// Something to do, after some events, and before one.
#[derive(Clone)]
pub(crate) struct Command {
    pub(crate) waits: Vec<Arc<Event>>,
    pub(crate) act: Act,
    pub(crate) signal: Option<Arc<Event>>,
}

/// What is done.
#[derive(Clone)]
pub(crate) enum Act {
    /// Nothing: what is before it is done in any case.
    Barrier,
    Copy {
        dst: u64,
        src: u64,
        len: u64,
    },
    Region(Region),
    Fill {
        dst: u64,
        pattern: Vec<u8>,
        len: u64,
    },
    Reset(Arc<Event>),
    /// The device's clock, to this address.
    Timestamp(u64),
    /// Times of events, from this address on, each at the offset given for it.
    Times {
        events: Vec<Arc<Event>>,
        dst: u64,
        offsets: Option<Vec<u64>>,
    },
}

/// How far the commands of a list are done.
#[derive(Default)]
pub(crate) struct Run {
    next: usize,
}

impl Run {
    /// Does commands, up to one that must wait.
    ///
    /// # Errors
    ///
    /// What a command met. Those behind it are not done.
    pub(crate) fn go_on(&mut self, commands: &[Command]) -> Result<Progress> {
        while let Some(command) = commands.get(self.next) {
            if !command.waits.iter().all(|event| event.is_signalled()) {
                return Ok(Progress::Waiting);
            }
            let began = now();
            command.act.run()?;
            if let Some(event) = &command.signal {
                event.signal(began);
            }
            self.next += 1;
        }
        Ok(Progress::Done)
    }
}

impl Act {
    fn run(&self) -> Result<()> {
        let space = &process::get()?.space;
        match self {
            Self::Barrier => Ok(()),
            Self::Copy { dst, src, len } => Ok(space.copy(*dst, *src, *len)?),
            Self::Region(region) => region.copy(space),
            Self::Fill { dst, pattern, len } => Ok(space.fill(*dst, pattern, *len)?),
            Self::Reset(event) => {
                event.reset();
                Ok(())
            }
            Self::Timestamp(dst) => Ok(space.fill(*dst, &now().to_le_bytes(), 8)?),
            Self::Times { events, dst, offsets } => {
                for (index, event) in events.iter().enumerate() {
                    let (began, ended) = event.times()?;
                    let offset = match offsets {
                        Some(offsets) => offsets[index],
                        None => 32 * index as u64,
                    };
                    let times = [began, ended, began, ended].map(u64::to_le_bytes).concat();
                    space.fill(dst.wrapping_add(offset), &times, 32)?;
                }
                Ok(())
            }
        }
    }
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
