//! Virtual memory: reservations, physical memory, and mappings.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use umd::space::{GPU_PAGE, LARGE_PAGE};

use super::memory::{device_memory, host_memory};
use super::queue::device_of;
use crate::boundary::calls;
use crate::c::{Head, In, Out};
use crate::exported::Exported;
use crate::process::{self, Process, find};
use crate::space::{Allocation, Held, Kind, Region, Reserved};
use crate::status::{Refusal, Result, Status, enumeration, flags, invalid};

/// Flags of physical memory: on the device, on the host.
const PHYSICAL_FLAGS: u32 = 3;
const PHYSICAL_ON_HOST: u32 = 2;

/// The last access attribute: none, read and write, read-only.
const LAST_ACCESS: u32 = 2;

#[derive(Clone, Copy)]
#[repr(C)]
struct PhysicalDesc {
    head: Head,
    flags: u32,
    size: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct PhysicalProperties {
    head: Head,
    id: u64,
    size: u64,
}

/// The access as `umd` encodes it.
fn access(given: u32) -> Result<u8> {
    enumeration(given, LAST_ACCESS)?;
    Ok([0, 3, 1][given as usize])
}

/// The granularity of mappings: host pages, which are the smaller ones.
fn page() -> u64 {
    rustix::param::page_size() as u64
}

fn whole(what: u64) -> Result<u64> {
    let page = page();
    if what > 0 && what.is_multiple_of(page) {
        return Ok(what);
    }
    let what = format!("{what:#x} is not a multiple of the page size {page:#x}");
    Err(Refusal::new(Status::UnsupportedSize, what))
}

fn aligned(addr: u64) -> Result<u64> {
    let page = page();
    if addr.is_multiple_of(page) {
        return Ok(addr);
    }
    let what = format!("{addr:#x} is not aligned to the page size {page:#x}");
    Err(Refusal::new(Status::UnsupportedAlignment, what))
}

/// Calls a function on the reservation that contains all of a range.
fn reserved<T>(
    process: &Process,
    context: u64,
    start: u64,
    len: usize,
    act: impl FnOnce(&Region, &Reserved, u64) -> umd::Result<T>,
) -> Result<T> {
    let context = process.context(context)?;
    if start == 0 {
        return Err(Refusal::new(Status::InvalidNullPointer, "no address"));
    }
    let (start, len) = (aligned(start)?, whole(len as u64)?);
    let region = process.space.find_pointer(start);
    let none = || invalid(format!("{len:#x} addresses from {start:#x} on were not reserved"));
    let region = region.filter(|region| Arc::ptr_eq(&region.context, &context));
    let region = region.ok_or_else(none)?;
    match &region.kind {
        Kind::Reserved(reserved) if len <= region.stop() - start => {
            Ok(act(&region, reserved, len)?)
        }
        _ => Err(none()),
    }
}

calls! { CALLS:
    fn zeVirtualMemQueryPageSize(context: u64, device: u64, len: usize, page: Out<usize>) {
        let process = process::get()?;
        device_of(process, context, device)?;
        page.check()?;
        // CAST: a page size is small.
        page.put(if len < LARGE_PAGE as usize { GPU_PAGE } else { LARGE_PAGE } as usize)
    }

    fn zeVirtualMemReserve(context: u64, hint: u64, len: usize, out: Out<u64>) {
        let process = process::get()?;
        let own = process.context(context)?;
        out.check()?;
        let len = whole(len as u64)?;
        let span = len.next_multiple_of(GPU_PAGE);
        let start = process.space.take(span, LARGE_PAGE, hint)?;
        let held = Held::new(own, Kind::Reserved(Reserved::default()));
        out.put(process.space.add(start, len, span, held).start)
    }

    fn zeVirtualMemFree(context: u64, start: u64, len: usize) {
        let process = process::get()?;
        let own = process.context(context)?;
        if start == 0 {
            return Err(Refusal::new(Status::InvalidNullPointer, "no address"));
        }
        let (start, len) = (aligned(start)?, whole(len as u64)?);
        let is_that = |region: &Region| {
            matches!(&region.kind, Kind::Reserved(reserved) if reserved.is_empty())
                && Arc::ptr_eq(&region.context, &own)
                && region.len == len
        };
        let region = process.space.remove(start, is_that).ok_or_else(|| {
            invalid(format!("{len:#x} bytes at {start:#x} are not a reservation without mappings"))
        })?;
        process.space.end(&region);
        Ok(())
    }

    fn zePhysicalMemCreate(
        context: u64,
        device: u64,
        desc: In<PhysicalDesc>,
        out: Out<u64>,
    ) {
        let process = process::get()?;
        let desc = desc.get()?;
        out.check()?;
        flags(desc.flags, PHYSICAL_FLAGS)?;
        let is_host = desc.flags & PHYSICAL_ON_HOST != 0;
        let device = if is_host && device == 0 {
            process.context(context)?.devices[0]
        } else {
            device_of(process, context, device)?
        };
        let size = whole(desc.size as u64)?;
        let memory = if is_host {
            host_memory(process, device, size, desc.head)?
        } else {
            device_memory(process, device, size, desc.head)?
        };
        let (id, memory) = (process.space.next_id(), Arc::new(memory));
        let file = Exported::default();
        let new = |handle| Allocation { handle, context, id, size, memory, is_host, file };
        out.put(process.physical.add(new).handle)
    }

    fn zePhysicalMemGetProperties(context: u64, handle: u64, place: Out<PhysicalProperties>) {
        let process = process::get()?;
        process.context(context)?;
        let allocation = find(&process.physical, handle, "physical memory")?;
        crate::c::fill(place, |properties| {
            (properties.id, properties.size) = (allocation.id, allocation.size);
        })
    }

    // Mappings stay.
    fn zePhysicalMemDestroy(context: u64, handle: u64) {
        let process = process::get()?;
        process.context(context)?;
        let allocation = find(&process.physical, handle, "physical memory")?;
        if allocation.context != context {
            return Err(invalid(format!("{handle:#x} belongs to another context")));
        }
        process.physical.remove(handle);
        Ok(())
    }

    fn zeVirtualMemMap(
        context: u64,
        start: u64,
        len: usize,
        handle: u64,
        offset: usize,
        given: u32,
    ) {
        let process = process::get()?;
        let allocation = find(&process.physical, handle, "physical memory")?;
        if allocation.context != context {
            return Err(invalid(format!("{handle:#x} belongs to another context")));
        }
        let access = access(given)?;
        let offset = aligned(offset as u64)?;
        reserved(process, context, start, len, |_, reserved, len| {
            if offset > allocation.size || len > allocation.size - offset {
                let size = allocation.size;
                return Err(umd::invalid(format!("{len:#x} bytes at offset {offset:#x} of an allocation of {size:#x}")));
            }
            let id = process.space.next_id();
            reserved.map(start, len, offset, &allocation, id, access)
        })
    }

    fn zeVirtualMemUnmap(context: u64, start: u64, len: usize) {
        let process = process::get()?;
        // Where nothing is mapped, there is nothing to do.
        reserved(process, context, start, len, |_, reserved, len| {
            if reserved.has_any(start, len) { reserved.unmap(start, len) } else { Ok(()) }
        })
    }

    fn zeVirtualMemSetAccessAttribute(context: u64, start: u64, len: usize, given: u32) {
        let process = process::get()?;
        let access = access(given)?;
        reserved(process, context, start, len, |region, reserved, len| {
            if reserved.has_any(start, len) {
                return reserved.set_access(start, len, access);
            }
            region.access.store(given, Ordering::Relaxed);
            Ok(())
        })
    }

    fn zeVirtualMemGetAccessAttribute(
        context: u64,
        start: u64,
        len: usize,
        given: Out<u32>,
        same: Out<usize>,
    ) {
        let process = process::get()?;
        given.check()?;
        same.check()?;
        let (access, all) = reserved(process, context, start, len, |region, reserved, len| {
            if !reserved.has_any(start, len) {
                return Ok((region.access.load(Ordering::Relaxed), region.stop() - start));
            }
            let mapped = reserved.covering(start, len)?;
            let first = mapped.first().map_or(0, |mapped| mapped.access());
            let alike = mapped.iter().take_while(|mapped| mapped.access() == first);
            let end = alike.last().map_or(start, |mapped| mapped.stop());
            Ok(([0, 2, 1, 1][usize::from(first & 3)], (end - start).min(len)))
        })?;
        given.put(access)?;
        // CAST: not longer than the requested range.
        same.put(all as usize)
    }
}
