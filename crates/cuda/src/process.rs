//! The state of CUDA in a process, from `cuInit` on.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use umd::handles::Handles;
use umd::process::{Absent, PerProcess};

use crate::context::Contexts;
use crate::event::Event;
use crate::machine::Device;
use crate::pack::Block;
use crate::pool::Pools;
use crate::space::Space;
use crate::status::{Refusal, Result, Status, invalid};
use crate::stream::Stream;
use crate::vmm::Allocation;

/// The state of a process. Created once, and never freed: other threads may be in a call when the
/// process ends.
pub(crate) struct Process {
    /// The GPUs visible to the program, in its order.
    devices: Vec<&'static Device>,
    pub(crate) space: Space,
    /// Memory that several allocations share.
    pub(crate) blocks: Mutex<Vec<Weak<Block>>>,
    pub(crate) contexts: Contexts,
    pub(crate) streams: Handles<Stream>,
    pub(crate) events: Handles<Event>,
    pub(crate) allocations: Handles<Allocation>,
    pub(crate) pools: Pools,
}

static PROCESS: PerProcess<Process> = PerProcess::new();

/// Creates the state of the process with these GPUs, unless it exists. Returns the state, and
/// whether it is new.
///
/// # Errors
///
/// No addresses could be reserved.
pub(crate) fn make(devices: Vec<&'static Device>) -> Result<(&'static Process, bool)> {
    Ok(PROCESS.set(Process {
        space: Space::new(&devices)?,
        blocks: Mutex::default(),
        contexts: Contexts::new(devices.len()),
        streams: Handles::new(1),
        events: Handles::new(2),
        allocations: Handles::new(3),
        pools: Pools::new(devices.len()),
        devices,
    }))
}

/// Whether `cuInit` has not been called yet, neither here nor before a fork.
pub(crate) fn is_absent() -> bool {
    matches!(PROCESS.get(), Err(Absent::NotYet))
}

/// The state of the process.
///
/// # Errors
///
/// `cuInit` was not called in this process.
pub(crate) fn get() -> Result<&'static Process> {
    PROCESS.get().map_err(|absent| {
        let why = match absent {
            Absent::NotYet => "cuInit was not called",
            Absent::Parents => {
                "cuInit was called before this process was forked: a child cannot use its parent's GPU"
            }
        };
        Refusal::new(Status::NotInitialized, why)
    })
}

impl Process {
    /// The GPUs.
    pub(crate) fn devices(&self) -> &[&'static Device] {
        &self.devices
    }

    /// The block of packed allocations that contains an address.
    pub(crate) fn block_of(&self, addr: u64) -> Option<Arc<Block>> {
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut blocks = blocks.iter().filter_map(Weak::upgrade);
        blocks.find(|block| (block.start..block.stop()).contains(&addr))
    }

    /// Checks the number of a GPU from the program.
    ///
    /// # Errors
    ///
    /// There is no GPU with that number.
    pub(crate) fn ordinal(&self, number: i32) -> Result<usize> {
        let ordinal = usize::try_from(number).ok().filter(|ordinal| *ordinal < self.devices.len());
        ordinal.ok_or_else(|| {
            let count = self.devices.len();
            Refusal::new(Status::InvalidDevice, format!("device {number}: there are {count}"))
        })
    }

    /// The GPU with a number from the program.
    ///
    /// # Errors
    ///
    /// There is no such object.
    pub(crate) fn device(&self, number: i32) -> Result<&'static Device> {
        Ok(self.devices[self.ordinal(number)?])
    }

    /// The event of this handle.
    ///
    /// # Errors
    ///
    /// There is no such object.
    pub(crate) fn event(&self, handle: u64) -> Result<Arc<Event>> {
        let gone = || Refusal::new(Status::InvalidHandle, format!("{handle:#x} is not an event"));
        self.events.get(handle).ok_or_else(gone)
    }

    /// The memory of this handle.
    ///
    /// # Errors
    ///
    /// There is no such object.
    pub(crate) fn allocation(&self, handle: u64) -> Result<Arc<Allocation>> {
        let gone = || invalid(format!("{handle:#x} is not a handle of memory"));
        self.allocations.get(handle).ok_or_else(gone)
    }
}
