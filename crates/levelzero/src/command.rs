//! Commands: what a list has, and a queue does.

use std::sync::Arc;

use umd::queue::Progress;

use crate::event::{Event, now};
use crate::region::Region;
use crate::space::Space;
use crate::status::Result;

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
