//! Command lists.

use super::queue::{QueueDesc, check_ordinal, device_of};
use crate::boundary::calls;
use crate::c::{Head, In, Out};
use crate::event::end_of;
use crate::list::List;
use crate::process::{self, device_handle};
use crate::status::{Refusal, Result, Status, flags};

/// Flags of lists.
const FLAGS: u32 = 0x3f;

#[derive(Clone, Copy)]
#[repr(C)]
struct ListDesc {
    head: Head,
    ordinal: u32,
    flags: u32,
}

fn immediate(list: &List) -> Result<&crate::queue::CommandQueue> {
    list.immediate.as_ref().ok_or_else(|| {
        Refusal::new(Status::InvalidCommandListType, "the list is not an immediate one")
    })
}

calls! { CALLS:
    fn zeCommandListCreate(context: u64, device: u64, desc: In<ListDesc>, out: Out<u64>) {
        let process = process::get()?;
        let device = device_of(process, context, device)?;
        let desc = desc.get()?;
        out.check()?;
        flags(desc.flags, FLAGS)?;
        check_ordinal(desc.ordinal)?;
        let new = |handle| List::new(handle, context, device, desc.ordinal, None);
        out.put(process.lists.add(new).handle)
    }

    fn zeCommandListCreateImmediate(
        context: u64,
        device: u64,
        desc: In<QueueDesc>,
        out: Out<u64>,
    ) {
        let process = process::get()?;
        let device = device_of(process, context, device)?;
        let desc = desc.get()?;
        out.check()?;
        let made = process.lists.try_add(|handle| {
            let queue = desc.queue(handle, context, device)?;
            Ok::<_, Refusal>(List::new(handle, context, device, queue.ordinal, Some(queue)))
        })?;
        out.put(made.handle)
    }

    // Drops the commands of an immediate list that still wait.
    fn zeCommandListDestroy(list: u64) {
        let process = process::get()?;
        if let Some(queue) = &process.list(list)?.immediate {
            queue.abandon();
        }
        process.lists.remove(list);
        Ok(())
    }

    fn zeCommandListClose(list: u64) {
        process::get()?.list(list)?.close();
        Ok(())
    }

    fn zeCommandListReset(list: u64) {
        process::get()?.list(list)?.reset();
        Ok(())
    }

    fn zeCommandListHostSynchronize(list: u64, timeout: u64) {
        immediate(&*process::get()?.list(list)?)?.synchronize(end_of(timeout))
    }

    fn zeCommandListGetDeviceHandle(list: u64, device: Out<u64>) {
        device.put(device_handle(process::get()?.list(list)?.device))
    }

    fn zeCommandListGetContextHandle(list: u64, context: Out<u64>) {
        context.put(process::get()?.list(list)?.context)
    }

    fn zeCommandListGetOrdinal(list: u64, ordinal: Out<u32>) {
        ordinal.put(process::get()?.list(list)?.ordinal)
    }

    fn zeCommandListImmediateGetIndex(list: u64, index: Out<u32>) {
        index.put(immediate(&*process::get()?.list(list)?)?.index)
    }

    fn zeCommandListIsImmediate(list: u64, answer: Out<u8>) {
        answer.put(process::get()?.list(list)?.immediate.is_some().into())
    }
}
