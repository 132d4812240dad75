//! Memory: of devices, of the host, and shared.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use umd::Memory;
use umd::space::{GPU_PAGE, LARGE_PAGE};

use super::device::max_alloc;
use crate::boundary::calls;
use crate::c::{self, Head, In, Out};
use crate::context::Context;
use crate::host::{self, Pages};
use crate::process::{self, Process, device_handle};
use crate::space::{Held, Kind, Region};
use crate::status::{Refusal, Result, Status, flags, invalid, unsupported};

/// Types of extension structures: a request for export, an import, the exported descriptor, relaxed
/// limits of an allocation.
const EXPORT_DESC: u32 = 0x18;
const IMPORT_FD: u32 = 0x19;
const EXPORT_FD: u32 = 0x1a;
const RELAXED_LIMITS: u32 = 0x0002_0001;

/// Types of files: opaque, and dma-buf.
const FILES: u32 = 3;

/// Flags of allocations.
const DEVICE_FLAGS: u32 = 0x7;
const HOST_FLAGS: u32 = 0xf;

/// Types of memory.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const SHARED: u32 = 3;

/// Policies of freeing: after a wait for idle, or deferred until idle.
const FREE_POLICIES: u32 = 3;
const BLOCKING_FREE: u32 = 1;
const DEFER_FREE: u32 = 2;

#[derive(Clone, Copy)]
#[repr(C)]
struct DeviceDesc {
    head: Head,
    flags: u32,
    ordinal: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct HostDesc {
    head: Head,
    flags: u32,
}

/// The types of files, in the structures of export.
#[derive(Clone, Copy)]
#[repr(C)]
struct Flags {
    head: Head,
    flags: u32,
}

/// The type of a file, and its descriptor.
#[derive(Clone, Copy)]
#[repr(C)]
struct File {
    head: Head,
    flags: u32,
    fd: i32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Properties {
    head: Head,
    kind: u32,
    id: u64,
    page_size: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct FreeDesc {
    head: Head,
    policy: u32,
}

/// Checks the size and the alignment of an allocation. Returns the alignment.
fn check(len: u64, align: u64, most: u64, head: Head) -> Result<u64> {
    let limit = if head.find::<Flags>(RELAXED_LIMITS).is_some() { u64::MAX } else { most };
    if len == 0 || len > limit {
        let what = format!("{len:#x} bytes of memory: the limits are 1 to {limit:#x}");
        return Err(Refusal::new(Status::UnsupportedSize, what));
    }
    if align & align.wrapping_sub(1) != 0 {
        let what = format!("alignment {align:#x} is not a power of two");
        return Err(Refusal::new(Status::UnsupportedAlignment, what));
    }
    Ok(align.max(1))
}

/// Checks the file type for an export of memory.
fn check_export(head: Head) -> Result<()> {
    match head.find::<Flags>(EXPORT_DESC) {
        Some(export) if export.input().get()?.flags & !FILES != 0 => Err(Refusal::new(
            Status::UnsupportedEnumeration,
            "memory can only be exported as a dma-buf",
        )),
        _ => Ok(()),
    }
}

/// Memory of a device: new, or imported from a file.
pub(super) fn device_memory(
    process: &Process,
    device: usize,
    len: u64,
    head: Head,
) -> Result<Memory> {
    if let Some(imported) = imported(process, device, len, head)? {
        return Ok(imported);
    }
    let size = len.checked_next_multiple_of(GPU_PAGE);
    let full = || Refusal::new(Status::OutOfDeviceMemory, format!("{len:#x} bytes"));
    Ok(Memory::new(&process.devices, device, size.ok_or_else(full)?)?)
}

/// Host memory that a device can access: new, or imported from a file.
pub(super) fn host_memory(
    process: &Process,
    device: usize,
    len: u64,
    head: Head,
) -> Result<Memory> {
    match imported(process, device, len, head)? {
        Some(imported) => Ok(imported),
        None => Memory::system(&process.devices, device, len).map_err(host::full),
    }
}

/// The memory of a file, if the program passes one.
fn imported(process: &Process, device: usize, len: u64, head: Head) -> Result<Option<Memory>> {
    let Some(import) = head.find::<File>(IMPORT_FD) else { return Ok(None) };
    let import = import.input().get()?;
    if import.flags & !FILES != 0 {
        let what = "memory can only be imported from a dma-buf";
        return Err(Refusal::new(Status::UnsupportedEnumeration, what));
    }
    if import.fd < 0 {
        return Err(invalid(format!("no descriptor: {}", import.fd)));
    }
    // SAFETY: contract: the program's descriptor, open during the call.
    let file = unsafe { BorrowedFd::borrow_raw(import.fd) };
    let memory = Memory::import(&process.devices, device, file)?;
    if len > memory.size() {
        let size = memory.size();
        return Err(invalid(format!("{len:#x} bytes of a file that has {size:#x}")));
    }
    Ok(Some(memory))
}

/// Aligned memory that the CPU can access: a buffer of a device of the context.
fn reached_by_cpu(
    process: &Process,
    context: Arc<Context>,
    device: Option<usize>,
    (len, align, head): (u64, u64, Head),
    kind: impl FnOnce(Pages) -> Kind,
) -> Result<u64> {
    check_export(head)?;
    let device = device.or_else(|| context.devices.first().copied()).unwrap_or(0);
    let pages = match imported(process, device, len, head)? {
        Some(memory) => Pages::imported(memory, false)?,
        None if head.find::<Flags>(EXPORT_DESC).is_some() => {
            Pages::exported(&process.devices, device, len, align)?
        }
        None => Pages::plain(len, align)?,
    };
    let start = pages.start;
    process.space.add(start, len, len, Held::new(context, kind(pages)));
    Ok(start)
}

/// The allocation that begins at an address, if the context may free it.
fn take(process: &Process, context: u64, start: u64) -> Result<Arc<Region>> {
    let context = process.context(context)?;
    if start == 0 {
        return Err(Refusal::new(Status::InvalidNullPointer, "no address"));
    }
    let is_its = |region: &Region| {
        let is_memory = !matches!(region.kind, Kind::Reserved(_)) && !region.is_ipc();
        is_memory && Arc::ptr_eq(&region.context, &context)
    };
    process.space.remove(start, is_its).ok_or_else(|| match process.space.find(start) {
        Some(found) => {
            invalid(format!("{start:#x} cannot be freed by this call: it is {}", found.name()))
        }
        None => invalid(format!("{start:#x} is not an allocation")),
    })
}

/// Facts of an address: the kind of memory, the number of its device, and the page size.
fn about(region: &Region, addr: u64) -> Option<(u32, Option<usize>, u64)> {
    match &region.kind {
        Kind::Device { memory, .. } => Some((DEVICE, Some(memory.device), GPU_PAGE)),
        Kind::Reserved(reserved) => {
            let mapped = reserved.find(addr)?;
            match &*mapped.allocation {
                physical if physical.is_host => Some((HOST, None, GPU_PAGE)),
                physical => Some((DEVICE, Some(physical.memory.device), LARGE_PAGE)),
            }
        }
        Kind::Host { .. } => Some((HOST, None, rustix::param::page_size() as u64)),
        Kind::Shared { device, .. } => Some((SHARED, *device, rustix::param::page_size() as u64)),
    }
}

/// Fills in the descriptor of memory, if the program asks for it.
fn put_file(process: &Process, region: Option<&Region>, addr: u64, place: Out<File>) -> Result<()> {
    let asked = place.input().get()?;
    if asked.flags & !FILES != 0 {
        let what = "memory can only be exported as a dma-buf";
        return Err(Refusal::new(Status::UnsupportedEnumeration, what));
    }
    let Some(region) = region else { return Ok(()) };
    let buffer_of = region.buffer_of(addr).map(|device| process.devices[device]);
    if buffer_of.is_some_and(|device| device.config.dma_buf == Some(false)) {
        return Err(unsupported("this GPU exports no dma-bufs (dma_buf = false)"));
    }
    let fd = region.file(addr)?;
    c::fill(place, |file| file.fd = fd)
}

calls! { CALLS:
    fn zeMemAllocDevice(
        context: u64,
        desc: In<DeviceDesc>,
        len: usize,
        align: usize,
        device: u64,
        out: Out<u64>,
    ) {
        let process = process::get()?;
        let own = process.context(context)?;
        let (desc, device, len) = (desc.get()?, process.device(device)?, len as u64);
        out.check()?;
        own.check(device)?;
        flags(desc.flags, DEVICE_FLAGS)?;
        let align = check(len, align as u64, max_alloc(process.devices[device]), desc.head)?;
        check_export(desc.head)?;
        let memory = Arc::new(device_memory(process, device, len, desc.head)?);
        out.put(process.space.place(len, align, Held::device(own, memory, false))?.start)
    }

    fn zeMemAllocHost(
        context: u64,
        desc: In<HostDesc>,
        len: usize,
        align: usize,
        out: Out<u64>,
    ) {
        let process = process::get()?;
        let own = process.context(context)?;
        let (desc, len) = (desc.get()?, len as u64);
        out.check()?;
        flags(desc.flags, HOST_FLAGS)?;
        let align = check(len, align as u64, u64::MAX / 4, desc.head)?;
        let wanted = (len, align, desc.head);
        out.put(reached_by_cpu(process, own, None, wanted, |pages| Kind::Host { pages })?)
    }

    // Host memory, which every device can access.
    fn zeMemAllocShared(
        context: u64,
        device_desc: In<DeviceDesc>,
        host_desc: In<HostDesc>,
        len: usize,
        align: usize,
        device: u64,
        out: Out<u64>,
    ) {
        let process = process::get()?;
        let own = process.context(context)?;
        let (desc, host_desc, len) = (device_desc.get()?, host_desc.get()?, len as u64);
        out.check()?;
        flags(desc.flags, DEVICE_FLAGS)?;
        flags(host_desc.flags, HOST_FLAGS)?;
        let device = match device {
            0 => None,
            handle => Some(process.device(handle)?),
        };
        if let Some(device) = device {
            own.check(device)?;
        }
        let first = process.devices[device.unwrap_or(0)];
        let align = check(len, align as u64, max_alloc(first), desc.head)?;
        let wanted = (len, align, desc.head);
        out.put(reached_by_cpu(process, own, device, wanted, |pages| Kind::Shared { pages, device })?)
    }

    fn zeMemFree(context: u64, start: u64) {
        let process = process::get()?;
        let region = take(process, context, start)?;
        process.space.end(&region);
        Ok(())
    }

    fn zeMemFreeExt(context: u64, desc: In<FreeDesc>, start: u64) {
        let process = process::get()?;
        let policy = desc.get()?.policy;
        flags(policy, FREE_POLICIES)?;
        if policy & BLOCKING_FREE != 0 {
            process.synchronize(None)?;
        }
        if policy & DEFER_FREE == 0 {
            let region = take(process, context, start)?;
            process.space.end(&region);
            return Ok(());
        }
        process.check_freeable(context, start)?;
        process.when_idle(move || {
            if let Ok(region) = take(process, context, start) {
                process.space.end(&region);
            }
        });
        Ok(())
    }

    // For an unknown address the call succeeds with an unknown type: programs ask for every
    // pointer.
    fn zeMemGetAllocProperties(
        context: u64,
        addr: u64,
        place: Out<Properties>,
        device: Out<u64>,
    ) {
        let process = process::get()?;
        process.context(context)?;
        if addr == 0 {
            return Err(Refusal::new(Status::InvalidNullPointer, "no address"));
        }
        let region = process.space.find(addr);
        let found = region.as_deref().and_then(|region| about(region, addr));
        let (kind, owner, page_size) = found.unwrap_or((0, None, 0));
        let id = region.as_ref().filter(|_| kind != 0).map_or(0, |region| region.id);
        let head = place.input().get()?.head;
        c::fill(place, |properties| {
            (properties.kind, properties.id, properties.page_size) = (kind, id, page_size);
        })?;
        device.put_if(owner.map_or(0, device_handle));
        let memory = region.as_deref().filter(|_| kind != 0);
        match head.find::<File>(EXPORT_FD) {
            Some(file) => put_file(process, memory, addr, file),
            None => Ok(()),
        }
    }

    fn zeMemGetAddressRange(context: u64, addr: u64, base: Out<u64>, len: Out<usize>) {
        let process = process::get()?;
        process.context(context)?;
        if addr == 0 {
            return Err(Refusal::new(Status::InvalidNullPointer, "no address"));
        }
        let none = || {
            Refusal::new(Status::AddressNotFound, format!("{addr:#x} is in no allocation"))
        };
        let region = process.space.find(addr).ok_or_else(none)?;
        let (start, size) = match &region.kind {
            // The range of the mapping, not that of the reservation.
            Kind::Reserved(reserved) => {
                let mapped = reserved.find(addr).ok_or_else(none)?;
                (mapped.start, mapped.len)
            }
            _ => (region.start, region.len),
        };
        base.put_if(start);
        // CAST: addresses are 64 bits wide here.
        len.put_if(size as usize);
        Ok(())
    }
}

impl Process {
    /// Checks that an address can be freed.
    fn check_freeable(&self, context: u64, start: u64) -> Result<()> {
        let context = self.context(context)?;
        match self.space.find(start) {
            Some(region) if region.start == start && Arc::ptr_eq(&region.context, &context) => {
                Ok(())
            }
            _ => Err(invalid(format!("{start:#x} is not an allocation of this context"))),
        }
    }
}
