//! Memory: of devices, of the host, and of both.

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

/// Structures that lead on from others: memory is to be exported; it is imported; the descriptor
/// that it is exported as; more may be allocated than one allocation has.
const EXPORT_DESC: u32 = 0x18;
const IMPORT_FD: u32 = 0x19;
const EXPORT_FD: u32 = 0x1a;
const RELAXED_LIMITS: u32 = 0x0002_0001;

/// Kinds of files: of no kind, and a dma-buf.
const FILES: u32 = 3;

/// Flags of allocations.
const DEVICE_FLAGS: u32 = 0x7;
const HOST_FLAGS: u32 = 0xf;

/// What memory is.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const SHARED: u32 = 3;

/// When memory is freed: once nothing uses it, or after a wait for that.
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

/// A kind of files, in the structures of export.
#[derive(Clone, Copy)]
#[repr(C)]
struct Flags {
    head: Head,
    flags: u32,
}

/// A kind of files, and one.
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

/// Checks how much is asked for, and how it is to be aligned. Returns the alignment.
fn check(len: u64, align: u64, most: u64, head: Head) -> Result<u64> {
    let limit = if head.find::<Flags>(RELAXED_LIMITS).is_some() { u64::MAX } else { most };
    if len == 0 || len > limit {
        let what = format!("{len:#x} bytes of memory: 1 to {limit:#x}");
        return Err(Refusal::new(Status::UnsupportedSize, what));
    }
    if align & align.wrapping_sub(1) != 0 {
        let what = format!("alignment {align:#x} is no power of two");
        return Err(Refusal::new(Status::UnsupportedAlignment, what));
    }
    Ok(align.max(1))
}

/// Looks at what memory is to be exported as.
fn check_export(head: Head) -> Result<()> {
    match head.find::<Flags>(EXPORT_DESC) {
        Some(export) if export.input().get()?.flags & !FILES != 0 => Err(Refusal::new(
            Status::UnsupportedEnumeration,
            "memory is exported as a dma-buf, and as nothing else",
        )),
        _ => Ok(()),
    }
}

/// Memory that a device has, or that a file is of.
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

/// Memory of the host that a device reaches, or that a file is of.
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

/// The memory that a file is of, if the program gives one.
fn imported(process: &Process, device: usize, len: u64, head: Head) -> Result<Option<Memory>> {
    let Some(import) = head.find::<File>(IMPORT_FD) else { return Ok(None) };
    let import = import.input().get()?;
    if import.flags & !FILES != 0 {
        let what = "memory is imported from a dma-buf, and from nothing else";
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

/// Memory that the CPU reaches, aligned. It is a buffer of a device of the context.
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

/// The allocation that begins at an address, if it is one that the context may free.
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
        Some(found) => invalid(format!("{start:#x} cannot be freed so: it is {}", found.name())),
        None => invalid(format!("{start:#x} is no allocation")),
    })
}

/// What is at an address: its kind, the number of its device, and its pages.
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

/// Answers who wants the descriptor of memory, too.
fn put_file(process: &Process, region: Option<&Region>, place: Out<File>) -> Result<()> {
    let asked = place.input().get()?;
    if asked.flags & !FILES != 0 {
        let what = "memory is exported as a dma-buf, and as nothing else";
        return Err(Refusal::new(Status::UnsupportedEnumeration, what));
    }
    let Some(region) = region else { return Ok(()) };
    let buffer_of = region.buffer_of().map(|device| process.devices[device]);
    if buffer_of.is_some_and(|device| device.config.dma_buf == Some(false)) {
        return Err(unsupported("this GPU exports no dma-bufs (dma_buf = false)"));
    }
    let fd = region.file()?;
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

    // Host memory, which every device reaches.
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

    // Of an address that nobody knows, success and no kind: programs ask for every pointer.
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
        match head.find::<File>(EXPORT_FD) {
            Some(file) => put_file(process, region.as_deref(), file),
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
            // The mapping, and not the addresses that were reserved.
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
            _ => Err(invalid(format!("{start:#x} is no allocation of this context"))),
        }
    }
}
