//! The state of Level Zero in a process, from `zeInit` on.

use std::sync::Arc;

use umd::handles::{Found, Handles};
use umd::machine::{self, Device};
use umd::process::{Absent, PerProcess};

use crate::context::Context;
use crate::event::{Event, Pool};
use crate::fence::Fence;
use crate::last::Last;
use crate::list::List;
use crate::queue::CommandQueue;
use crate::space::{Allocation, Space};
use crate::status::{Refusal, Result, Status, invalid};

/// The state of a process.
pub(crate) struct Process {
    pub(crate) devices: Vec<&'static Device>,
    pub(crate) space: Space,
    pub(crate) contexts: Handles<Context>,
    pub(crate) queues: Handles<CommandQueue>,
    pub(crate) lists: Handles<List>,
    pub(crate) fences: Handles<Fence>,
    pub(crate) pools: Handles<Pool>,
    pub(crate) events: Handles<Event>,
    pub(crate) physical: Handles<Allocation>,
}

static PROCESS: PerProcess<Process> = PerProcess::new();

/// The preset of GPUs for which the configuration names none.
pub(crate) const PRESET: &str = "xe";

/// The handle of the only driver.
pub(crate) const DRIVER: u64 = 0x5800_0000_0000;

/// The handle of the first device; the others follow.
const DEVICES: u64 = 0x5810_0000_0000;

/// The distance between the handles of two devices.
const STEP: u64 = 64;

/// The handle of a device.
pub(crate) fn device_handle(index: usize) -> u64 {
    DEVICES + STEP * index as u64
}

/// `zeInit`: creates the state of the process, unless it exists.
///
/// # Errors
///
/// There is no GPU; or the process is a child of one that used a GPU.
pub(crate) fn init() -> Result<&'static Process> {
    match PROCESS.get() {
        Err(Absent::NotYet) => {}
        _ => return get(),
    }
    let all = machine::devices(PRESET);
    let devices: Vec<_> = match environment::var("ZE_AFFINITY_MASK") {
        Some(mask) => masked(&mask, all.len()).into_iter().map(|index| &all[index]).collect(),
        None => all.iter().collect(),
    };
    if devices.is_empty() {
        return Err(Refusal::new(Status::Uninitialized, "there is no GPU"));
    }
    let (process, is_new) = PROCESS.set(Process {
        space: Space::new(&devices)?,
        contexts: Handles::new(9),
        queues: Handles::new(10),
        lists: Handles::new(11),
        fences: Handles::new(12),
        pools: Handles::new(13),
        events: Handles::new(14),
        physical: Handles::new(15),
        devices,
    });
    if is_new {
        umd::stray::watch(&process.space, &process.devices, "zeCommandListAppendMemoryCopy");
    }
    get()
}

/// The devices that a mask selects: numbers, separated by commas. A sub-device after a point is
/// ignored: there are none.
fn masked(mask: &str, count: usize) -> Vec<usize> {
    let number = |entry: &str| entry.trim().split('.').next()?.parse::<usize>().ok();
    let mut left: Vec<_> =
        mask.split(',').filter_map(number).filter(|index| *index < count).collect();
    left.sort_unstable();
    left.dedup();
    left
}

/// The state of the process.
///
/// # Errors
///
/// `zeInit` was not called in this process.
pub(crate) fn get() -> Result<&'static Process> {
    PROCESS.get().map_err(|absent| {
        let why = match absent {
            Absent::NotYet => "zeInit was not called",
            Absent::Parents => {
                "the GPU was in use before this process was forked: a child cannot use its parent's"
            }
        };
        Refusal::new(Status::Uninitialized, why)
    })
}

/// The object of a handle.
///
/// # Errors
///
/// The handle is null, its object was destroyed, or it is not of this kind.
pub(crate) fn find<T>(handles: &Handles<T>, handle: u64, kind: &str) -> Result<Arc<T>> {
    if handle == 0 {
        return Err(Refusal::new(Status::InvalidNullHandle, format!("no {kind}")));
    }
    match handles.find(handle) {
        Found::Live(found) => Ok(found),
        Found::Gone => Err(invalid(format!("{kind} {handle:#x} was destroyed"))),
        Found::Unknown => Err(invalid(format!("{handle:#x} is not a handle of a {kind}"))),
    }
}

/// Checks the handle of the driver.
///
/// # Errors
///
/// It is not that handle.
pub(crate) fn driver(handle: u64) -> Result<&'static Process> {
    match handle {
        DRIVER => get(),
        0 => Err(Refusal::new(Status::InvalidNullHandle, "no driver")),
        _ => Err(invalid(format!("{handle:#x} is not a handle of a driver"))),
    }
}

impl Process {
    /// The number of the device of a handle.
    ///
    /// # Errors
    ///
    /// There is no such device.
    pub(crate) fn device(&self, handle: u64) -> Result<usize> {
        if handle == 0 {
            return Err(Refusal::new(Status::InvalidNullHandle, "no device"));
        }
        let from = handle.wrapping_sub(DEVICES);
        let index = usize::try_from(from / STEP).ok().filter(|index| *index < self.devices.len());
        let index = index.filter(|_| from.is_multiple_of(STEP));
        index.ok_or_else(|| invalid(format!("{handle:#x} is not a handle of a device")))
    }

    pub(crate) fn context(&self, handle: u64) -> Result<Arc<Context>> {
        find(&self.contexts, handle, "context")
    }

    /// Ends a context, and frees its memory. Its queues, lists and events stay until they are
    /// destroyed, as with Intel's driver.
    ///
    /// # Errors
    ///
    /// The handle is not that of a context.
    pub(crate) fn end_context(&self, handle: u64) -> Result<()> {
        let context = self.context(handle)?;
        self.space.free_all(|region| Arc::ptr_eq(&region.context, &context));
        self.contexts.remove(handle);
        Ok(())
    }

    pub(crate) fn queue(&self, handle: u64) -> Result<Arc<CommandQueue>> {
        find(&self.queues, handle, "command queue")
    }

    pub(crate) fn list(&self, handle: u64) -> Result<Arc<List>> {
        find(&self.lists, handle, "command list")
    }

    pub(crate) fn fence(&self, handle: u64) -> Result<Arc<Fence>> {
        find(&self.fences, handle, "fence")
    }

    pub(crate) fn pool(&self, handle: u64) -> Result<Arc<Pool>> {
        find(&self.pools, handle, "event pool")
    }

    pub(crate) fn event(&self, handle: u64) -> Result<Arc<Event>> {
        find(&self.events, handle, "event")
    }

    /// The events of a list of handles.
    ///
    /// # Errors
    ///
    /// One of them is not an event, or belongs to another context.
    pub(crate) fn events(
        &self,
        context: u64,
        count: u32,
        handles: crate::c::In<u64>,
    ) -> Result<Vec<Arc<Event>>> {
        if count > 0 && handles.is_null() {
            return Err(Refusal::new(Status::InvalidSize, format!("{count} events at null")));
        }
        let handles = handles.list(count as usize)?;
        handles.into_iter().map(|handle| self.event_of(context, handle)).collect()
    }

    /// The event of a handle, if it is of this context.
    ///
    /// # Errors
    ///
    /// It is not an event, or belongs to another context.
    pub(crate) fn event_of(&self, context: u64, handle: u64) -> Result<Arc<Event>> {
        let event = self.event(handle)?;
        if event.pool.context != context {
            return Err(Refusal::new(
                Status::InvalidSynchronizationObject,
                format!("event {handle:#x} belongs to another context"),
            ));
        }
        Ok(event)
    }
}

impl Process {
    /// All queues, including those of immediate lists, of one device or of all.
    fn each_queue(&self, device: Option<usize>, mut act: impl FnMut(&CommandQueue)) {
        let is_its = |queue: &CommandQueue| device.is_none_or(|device| queue.device == device);
        for queue in self.queues.all() {
            if is_its(&queue) {
                act(&queue);
            }
        }
        for list in self.lists.all() {
            if let Some(queue) = list.immediate.as_ref().filter(|queue| is_its(queue)) {
                act(queue);
            }
        }
    }

    /// Waits until all queued work is done.
    ///
    /// # Errors
    ///
    /// The failure of a command.
    pub(crate) fn synchronize(&self, device: Option<usize>) -> Result<()> {
        let mut answer = Ok(());
        self.each_queue(device, |queue| {
            let met = queue.synchronize(None);
            if answer.is_ok() {
                answer = met;
            }
        });
        answer
    }

    /// Calls `act` when all work that is queued now is done: at once if there is none.
    pub(crate) fn when_idle(&self, act: impl FnOnce() + Send + 'static) {
        let last = Arc::new(Last::new(act));
        self.each_queue(None, |queue| queue.hold(Arc::clone(&last)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_selects_the_devices_that_it_names() {
        assert_eq!(masked("1", 2), [1]);
        assert_eq!(masked("1,0.3,1, 7,x", 2), [0, 1]);
        assert!(masked("2", 2).is_empty());
    }
}
