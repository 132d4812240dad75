//! Commands, which a list holds and a queue executes.

use std::sync::Arc;

use umd::queue::Progress;

use crate::event::{Event, now};
use crate::region::Region;
use crate::space::Space;
use crate::status::Result;

/// An operation, the events that it waits for, and the event that it signals.
#[derive(Clone)]
pub(crate) struct Command {
    pub(crate) waits: Vec<Arc<Event>>,
    pub(crate) act: Act,
    pub(crate) signal: Option<Arc<Event>>,
}

/// An operation.
#[derive(Clone)]
pub(crate) enum Act {
    /// Does nothing: the commands before it are done in any case.
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
    /// Writes the device's clock to this address.
    Timestamp(u64),
    /// Writes the timestamps of events from this address on, each at its given offset.
    Times {
        events: Vec<Arc<Event>>,
        dst: u64,
        offsets: Option<Vec<u64>>,
    },
}

/// The progress of the commands of a list.
#[derive(Default)]
pub(crate) struct Run {
    next: usize,
}

impl Run {
    /// Executes commands, up to one that must wait.
    ///
    /// # Errors
    ///
    /// The failure of a command. The commands after it are not executed.
    pub(crate) fn go_on(&mut self, commands: &[Command], space: &Space) -> Result<Progress> {
        while let Some(command) = commands.get(self.next) {
            if !command.waits.iter().all(|event| event.is_signalled()) {
                return Ok(Progress::Waiting);
            }
            let began = now();
            command.act.run(space)?;
            if let Some(event) = &command.signal {
                event.signal(began);
            }
            self.next += 1;
        }
        Ok(Progress::Done)
    }
}

impl Act {
    fn run(&self, space: &Space) -> Result<()> {
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
