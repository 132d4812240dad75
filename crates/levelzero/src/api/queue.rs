//! Command queues.

use std::sync::Arc;

use super::device::{GROUPS, QUEUES};
use crate::boundary::calls;
use crate::c::{Head, In, Out};
use crate::event::end_of;
use crate::process::{self, Process};
use crate::queue::CommandQueue;
use crate::status::{Refusal, Result, Status, enumeration, flags, invalid};

/// Flags of queues; the last mode and priority.
const FLAGS: u32 = 0x7;
const LAST_MODE: u32 = 2;
const LAST_PRIORITY: u32 = 2;

/// The description of a queue.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct QueueDesc {
    head: Head,
    ordinal: u32,
    index: u32,
    flags: u32,
    mode: u32,
    priority: u32,
}

impl QueueDesc {
    /// Checks it against its group of queues, and creates the queue.
    pub(super) fn queue(&self, handle: u64, context: u64, device: usize) -> Result<CommandQueue> {
        flags(self.flags, FLAGS)?;
        enumeration(self.mode, LAST_MODE)?;
        enumeration(self.priority, LAST_PRIORITY)?;
        check_ordinal(self.ordinal)?;
        if self.index >= QUEUES {
            return Err(invalid(format!("queue {}: the group has {QUEUES}", self.index)));
        }
        let (place, space) = ((self.ordinal, self.index), &process::get()?.space);
        Ok(CommandQueue::new(handle, context, device, place, self.mode, space))
    }
}

/// Checks the number of a queue group.
pub(super) fn check_ordinal(ordinal: u32) -> Result<()> {
    if ordinal < GROUPS {
        return Ok(());
    }
    Err(invalid(format!("queue group {ordinal}: there are {GROUPS}")))
}

/// The device of a handle, which must be one of the context's.
pub(super) fn device_of(process: &Process, context: u64, device: u64) -> Result<usize> {
    let context = process.context(context)?;
    let device = process.device(device)?;
    context.check(device)?;
    Ok(device)
}

calls! { CALLS:
    fn zeCommandQueueCreate(context: u64, device: u64, desc: In<QueueDesc>, out: Out<u64>) {
        let process = process::get()?;
        let device = device_of(process, context, device)?;
        let desc = desc.get()?;
        out.check()?;
        desc.queue(0, context, device)?;
        let made = process.queues.try_add(|handle| desc.queue(handle, context, device))?;
        out.put(made.handle)
    }

    // Drops the commands that still wait; fences of the queue stay, and are never signalled.
    fn zeCommandQueueDestroy(queue: u64) {
        let process = process::get()?;
        process.queue(queue)?.abandon();
        process.queues.remove(queue);
        Ok(())
    }

    fn zeCommandQueueExecuteCommandLists(queue: u64, count: u32, lists: In<u64>, fence: u64) {
        let process = process::get()?;
        let queue = process.queue(queue)?;
        if count == 0 {
            return Err(Refusal::new(Status::InvalidSize, "no lists"));
        }
        let lists = lists.list(count as usize)?;
        let mut commands = Vec::with_capacity(lists.len());
        for handle in lists {
            let list = process.list(handle)?;
            if list.context != queue.context || list.device != queue.device {
                let what = format!("list {handle:#x} belongs to another context or device");
                return Err(Refusal::new(Status::InvalidCommandListType, what));
            }
            commands.push(list.closed()?);
        }
        let fence = match fence {
            0 => None,
            handle => {
                let fence = process.fence(handle)?;
                if !Arc::ptr_eq(&fence.queue, &queue) {
                    return Err(Refusal::new(
                        Status::InvalidSynchronizationObject,
                        format!("fence {handle:#x} belongs to another queue"),
                    ));
                }
                Some(fence)
            }
        };
        let all = match &commands[..] {
            [one] => Arc::clone(one),
            many => many.concat().into(),
        };
        queue.execute(all, fence)
    }

    fn zeCommandQueueSynchronize(queue: u64, timeout: u64) {
        process::get()?.queue(queue)?.synchronize(end_of(timeout))
    }

    fn zeCommandQueueGetOrdinal(queue: u64, ordinal: Out<u32>) {
        ordinal.put(process::get()?.queue(queue)?.ordinal)
    }

    fn zeCommandQueueGetIndex(queue: u64, index: Out<u32>) {
        index.put(process::get()?.queue(queue)?.index)
    }
}
