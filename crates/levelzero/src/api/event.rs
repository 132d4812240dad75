//! Events and their pools.

use std::time::Instant;

use crate::boundary::calls;
use crate::c::{Head, In, Out};
use crate::event::{Event, POOL_FLAGS, Pool, TIMESTAMP, end_of, now};
use crate::process;
use crate::status::{Refusal, Status, flags};

/// Scopes of events: sub-device, device, host.
const SCOPES: u32 = 7;

#[derive(Clone, Copy)]
#[repr(C)]
struct PoolDesc {
    head: Head,
    flags: u32,
    count: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct EventDesc {
    head: Head,
    index: u32,
    signal: u32,
    wait: u32,
}

/// Start and end on the device's clock, global and of the context: here both are the same.
#[derive(Clone, Copy)]
#[repr(C)]
struct Times([u64; 4]);

calls! { CALLS:
    fn zeEventPoolCreate(
        context: u64,
        desc: In<PoolDesc>,
        count: u32,
        devices: In<u64>,
        out: Out<u64>,
    ) {
        let process = process::get()?;
        let own = process.context(context)?;
        let desc = desc.get()?;
        out.check()?;
        flags(desc.flags, POOL_FLAGS)?;
        if desc.count == 0 {
            return Err(Refusal::new(Status::InvalidSize, "a pool of no events"));
        }
        if count > 0 && devices.is_null() {
            return Err(Refusal::new(Status::InvalidSize, format!("{count} devices at null")));
        }
        for device in devices.list(count as usize)? {
            own.check(process.device(device)?)?;
        }
        let new = |handle| Pool::new(handle, context, desc.flags, desc.count);
        out.put(process.pools.try_add(new)?.handle)
    }

    fn zeEventPoolDestroy(pool: u64) {
        let process = process::get()?;
        process.pool(pool)?;
        process.pools.remove(pool);
        Ok(())
    }

    fn zeEventPoolGetContextHandle(pool: u64, context: Out<u64>) {
        context.put(process::get()?.pool(pool)?.context)
    }

    fn zeEventPoolGetFlags(pool: u64, flags: Out<u32>) {
        flags.put(process::get()?.pool(pool)?.flags)
    }

    fn zeEventCreate(pool: u64, desc: In<EventDesc>, out: Out<u64>) {
        let process = process::get()?;
        let pool = process.pool(pool)?;
        let desc = desc.get()?;
        out.check()?;
        flags(desc.signal, SCOPES)?;
        flags(desc.wait, SCOPES)?;
        let new = |handle| Event::new(handle, &pool, desc.index, desc.signal, desc.wait);
        out.put(process.events.try_add(new)?.handle)
    }

    fn zeEventDestroy(event: u64) {
        let process = process::get()?;
        process.event(event)?;
        process.events.remove(event);
        Ok(())
    }

    fn zeEventHostSignal(event: u64) {
        process::get()?.event(event)?.signal(now());
        Ok(())
    }

    fn zeEventHostSynchronize(event: u64, timeout: u64) {
        process::get()?.event(event)?.wait(end_of(timeout))
    }

    fn zeEventQueryStatus(event: u64) {
        process::get()?.event(event)?.wait(Some(Instant::now()))
    }

    fn zeEventHostReset(event: u64) {
        process::get()?.event(event)?.reset();
        Ok(())
    }

    fn zeEventQueryKernelTimestamp(event: u64, out: Out<Times>) {
        let event = process::get()?.event(event)?;
        out.check()?;
        if event.pool.flags & TIMESTAMP == 0 {
            return Err(Refusal::new(
                Status::InvalidSynchronizationObject,
                "the events of this pool take no timestamps (ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP)",
            ));
        }
        let (began, ended) = event.times()?;
        out.put(Times([began, ended, began, ended]))
    }

    fn zeEventGetEventPool(event: u64, pool: Out<u64>) {
        pool.put(process::get()?.event(event)?.pool.handle)
    }

    fn zeEventGetSignalScope(event: u64, scope: Out<u32>) {
        scope.put(process::get()?.event(event)?.signal_scope)
    }

    fn zeEventGetWaitScope(event: u64, scope: Out<u32>) {
        scope.put(process::get()?.event(event)?.wait_scope)
    }
}
