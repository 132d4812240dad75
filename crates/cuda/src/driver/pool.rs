//! Memory in the order of streams, and pools.

use std::ffi::c_int;

use crate::boundary::calls;
use crate::c::{In, Out};
use crate::driver::managed::{DEVICE, Location};
use crate::driver::vmm::{Access, POSIX_FD};
use crate::pool::Pool;
use crate::process;
use crate::space::{Kind, Source};
use crate::status::{invalid, unsupported};
use crate::stream::{Progress, When};

/// The properties of a pool. The header has more fields, all zero.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Properties {
    kind: c_int,
    handle_types: u32,
    location: Location,
    security: u64,
    max_size: usize,
    usage: u16,
    is_rdma_capable: u8,
    reserved: [u8; 53],
}

const _: () = assert!(size_of::<Properties>() == 88);

fn is_of_pool(kind: &Kind) -> bool {
    matches!(kind, Kind::Device { source: Source::Pool(_), .. })
}

calls! { CALLS:
    fn cuMemAllocAsync(out: Out<u64>, len: usize, stream: u64) {
        out.check()?;
        let process = process::get()?;
        let context = process.contexts.find(process.stream(stream)?.context)?;
        let pool = process.pools.current(context.device);
        out.put(process.allocate_from(&pool, len as u64)?)
    }

    fn cuMemAllocFromPoolAsync(out: Out<u64>, len: usize, pool: u64, stream: u64) {
        out.check()?;
        let process = process::get()?;
        process.stream(stream)?;
        let pool = process.pools.find(pool)?;
        out.put(process.allocate_from(&pool, len as u64)?)
    }

    fn cuMemFreeAsync(start: u64, stream: u64) {
        let process = process::get()?;
        let stream = process.stream(stream)?;
        let region = process.space.find(start).filter(|region| {
            region.start == start
                && matches!(region.kind, Kind::Device { source: Source::Pool(_) | Source::Alloc | Source::Packed { .. }, .. })
        });
        region.ok_or_else(|| invalid(format!("{start:#x} is not an allocation")))?;
        process.submit(&stream, When::Now, move || {
            process.free(start, |kind| {
                is_of_pool(kind)
                    || matches!(kind, Kind::Device { source: Source::Alloc | Source::Packed { .. }, .. })
            })?;
            Ok(Progress::Done)
        })
    }

    fn cuDeviceGetDefaultMemPool(out: Out<u64>, device: c_int) {
        let process = process::get()?;
        out.put(process.pools.default(process.ordinal(device)?).handle)
    }

    fn cuDeviceGetMemPool(out: Out<u64>, device: c_int) {
        let process = process::get()?;
        out.put(process.pools.current(process.ordinal(device)?).handle)
    }

    fn cuDeviceSetMemPool(device: c_int, pool: u64) {
        let process = process::get()?;
        let (device, pool) = (process.ordinal(device)?, process.pools.find(pool)?);
        if pool.device != device {
            return Err(invalid("the pool belongs to another device"));
        }
        process.pools.set_current(device, pool);
        Ok(())
    }

    fn cuMemPoolCreate(out: Out<u64>, properties: In<Properties>) {
        out.check()?;
        let process = process::get()?;
        let properties = properties.get()?;
        if properties.kind != 1 {
            return Err(invalid(format!("allocations of kind {}", properties.kind)));
        }
        if properties.location.kind != DEVICE {
            return Err(unsupported("pools of host memory"));
        }
        if properties.handle_types & !POSIX_FD != 0 {
            return Err(unsupported(format!("handles of kinds {:#x}", properties.handle_types)));
        }
        let device = process.ordinal(properties.location.id)?;
        let (kinds, rdma) = (properties.handle_types, properties.is_rdma_capable != 0);
        let new = |handle| Pool::new(handle, device, kinds, false).for_peers(rdma);
        out.put(process.pools.handles.add(new).handle)
    }

    fn cuMemPoolDestroy(pool: u64) {
        process::get()?.pools.destroy(pool)
    }

    fn cuMemPoolGetAttribute(pool: u64, attribute: u32, value: Out<u8>) {
        value.check()?;
        let found = process::get()?.pools.find(pool)?.attribute(attribute)?;
        if Pool::is_wide(attribute) {
            value.of().put(found)
        } else {
            // CAST: 0 or 1.
            value.of().put(found as c_int)
        }
    }

    fn cuMemPoolSetAttribute(pool: u64, attribute: u32, value: In<u8>) {
        let pool = process::get()?.pools.find(pool)?;
        let value = if Pool::is_wide(attribute) {
            value.of::<u64>().get()?
        } else {
            // CAST: only zero or not counts.
            u64::from(value.of::<c_int>().get()? != 0)
        };
        pool.set_attribute(attribute, value)
    }

    fn cuMemPoolSetAccess(pool: u64, list: In<Access>, count: usize) {
        let process = process::get()?;
        let pool = process.pools.find(pool)?;
        for access in list.list(count)? {
            let (device, flags) = access.of_device(process)?;
            let devices = process.devices();
            if device == pool.device && flags != 3 {
                return Err(invalid("the device of a pool cannot lose access to it"));
            }
            if !devices[device].reaches(devices[pool.device]) {
                return Err(invalid(format!("{} has no path to it", devices[device].name)));
            }
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(flags: Out<u32>, pool: u64, location: In<Location>) {
        let process = process::get()?;
        let (pool, location) = (process.pools.find(pool)?, location.get()?);
        if location.kind != DEVICE {
            return Err(invalid(format!("a location of kind {}", location.kind)));
        }
        let device = process.ordinal(location.id)?;
        let devices = process.devices();
        flags.put(if devices[device].reaches(devices[pool.device]) { 3 } else { 0 })
    }

    fn cuMemPoolTrimTo(pool: u64, _keep: usize) {
        // A pool caches nothing.
        process::get()?.pools.find(pool).map(|_| ())
    }

    fn cuCtxRecordEvent(context: u64, event: u64) {
        let process = process::get()?;
        let context = process.contexts.find_or_current(context)?;
        let event = process.event(event)?;
        process.record(&event, &context.legacy)
    }

    fn cuCtxWaitEvent(context: u64, event: u64) {
        let process = process::get()?;
        let context = process.contexts.find_or_current(context)?;
        process.delay(&process.event(event)?, &context.legacy)
    }
}
