//! Memory, events and pools of other processes.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::boundary::calls;
use crate::c::{In, Out};
use crate::context;
use crate::driver::vmm::POSIX_FD;
use crate::event::Event;
use crate::ipc::{Handle, Raw, What};
use crate::pool::Pool;
use crate::process::{self, Process};
use crate::space::{Kind, Region, Source, offset_of};
use crate::status::{Refusal, Result, Status, invalid, unsupported};
use umd::Memory;

/// The only flag: access between GPUs is enabled when it is needed.
const LAZY_PEER_ACCESS: u32 = 1;

/// The handle of an allocation.
fn handle_of(process: &Process, region: &Region, memory: &Memory) -> Result<Raw> {
    let gpu = process.devices()[memory.device].uuid;
    let new = |file: BorrowedFd<'_>| Handle::new(What::Memory, file, region.len, region.id, gpu);
    let handle = memory.with_descriptor(new)?;
    Ok(handle.at(offset_of(region, region.start)).encode())
}

/// The memory of a handle.
fn fetch(process: &Process, raw: &Raw) -> Result<(Handle, Arc<Memory>)> {
    let handle = Handle::decode(raw, What::Memory)?;
    let fd = handle.fetch()?;
    let devices = process.devices();
    let own = devices.iter().position(|device| device.uuid[..8] == handle.gpu);
    let device = match own {
        Some(device) => device,
        None => context::current()?.device,
    };
    // The owner has freed it in the meantime and no longer knows it.
    let memory = Memory::import(process.devices(), device, fd.as_fd()).map_err(|refusal| {
        match refusal.kind {
            umd::Kind::Unavailable => invalid(refusal.what),
            _ => Refusal::from(refusal),
        }
    })?;
    let end = handle.offset.checked_add(handle.len);
    if handle.len == 0 || end.is_none_or(|end| end > memory.size()) {
        return Err(invalid(format!("a handle of {:#x} bytes", handle.len)));
    }
    Ok((handle, Arc::new(memory)))
}

fn open(out: Out<u64>, raw: Raw, flags: u32) -> Result<()> {
    out.check()?;
    let process = process::get()?;
    let context = context::current()?;
    if flags != LAZY_PEER_ACCESS {
        return Err(invalid(format!(
            "flags {flags:#x}: only CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS is valid"
        )));
    }
    if Handle::decode(&raw, What::Memory)?.pid == std::process::id() {
        return Err(Refusal::new(Status::InvalidContext, "the memory belongs to this process"));
    }
    // The memory may have been freed since it was opened: then the handle is invalid.
    let (handle, memory) = fetch(process, &raw)?;
    if let Some(region) = opened(process, &raw)
        && let Kind::Device { source: Source::Ipc { opened, .. }, .. } = &region.kind
    {
        opened.fetch_add(1, Ordering::Relaxed);
        return out.put(region.start);
    }
    let source = Source::Ipc { handle: raw.0, opened: AtomicUsize::new(1) };
    let kind = Kind::Device { memory, offset: handle.offset, source };
    out.put(process.place(handle.len, Some(context), kind)?.start)
}

/// The region of a handle, if it was opened.
fn opened(process: &Process, raw: &Raw) -> Option<Arc<Region>> {
    process.space.find_device(|region| {
        matches!(&region.kind, Kind::Device { source: Source::Ipc { handle, .. }, .. } if *handle == raw.0)
    })
}

/// Text in the file that stands for a shared pool.
const POOL: &str = "peerdma pool of GPU ";

calls! { CALLS:
    fn cuIpcGetMemHandle(out: Out<Raw>, addr: u64) {
        out.check()?;
        let process = process::get()?;
        context::current()?;
        let region = process.space.find_pointer(addr);
        let region = region.ok_or_else(|| invalid(format!("{addr:#x} is not a device pointer")))?;
        match &region.kind {
            Kind::Device { memory, source: Source::Alloc | Source::Packed { .. }, .. } => {
                out.put(handle_of(process, &region, memory)?)
            }
            _ => Err(invalid(format!("{} has no handle of this kind", region.name()))),
        }
    }

    fn cuIpcOpenMemHandle(out: Out<u64>, handle: Raw, flags: u32) {
        open(out, handle, flags)
    }

    fn cuIpcOpenMemHandle_v2(out: Out<u64>, handle: Raw, flags: u32) {
        open(out, handle, flags)
    }

    fn cuIpcCloseMemHandle(start: u64) {
        let process = process::get()?;
        let region = process.space.find(start).filter(|region| region.start == start);
        let Some(Kind::Device { source: Source::Ipc { opened, .. }, .. }) =
            region.as_deref().map(|region| &region.kind)
        else {
            return Err(invalid(format!("{start:#x} was not opened")));
        };
        if opened.fetch_sub(1, Ordering::AcqRel) > 1 {
            return Ok(());
        }
        process.wait_for_streams();
        process.free(start, |kind| {
            matches!(kind, Kind::Device { source: Source::Ipc { .. }, .. })
        })
    }

    fn cuIpcGetEventHandle(out: Out<Raw>, event: u64) {
        out.check()?;
        let process = process::get()?;
        let event = process.event(event)?;
        let file = event.file().ok_or_else(|| {
            Refusal::new(Status::InvalidHandle, "the event was not made with CU_EVENT_INTERPROCESS")
        })?;
        let device = process.contexts.find(event.context)?.device;
        let gpu = process.devices()[device].uuid;
        out.put(Handle::new(What::Event, file, 0, event.handle, gpu)?.encode())
    }

    fn cuIpcOpenEventHandle(out: Out<u64>, handle: Raw) {
        out.check()?;
        let process = process::get()?;
        let context = context::current()?;
        let handle = Handle::decode(&handle, What::Event)?;
        if handle.pid == std::process::id() {
            return Err(Refusal::new(Status::InvalidContext, "the event belongs to this process"));
        }
        let file = handle.fetch()?;
        let event = Event::opened(file)?;
        let new = process.events.add(|handle| event.at(handle, context.handle));
        out.put(new.handle)
    }

    fn cuMemPoolExportToShareableHandle(out: Out<c_int>, pool: u64, kind: u32, flags: u64) {
        out.check()?;
        let process = process::get()?;
        let pool = process.pools.find(pool)?;
        if flags != 0 || kind != POSIX_FD || pool.handle_types & kind == 0 {
            return Err(invalid(format!("the pool was not made with handles of kind {kind:#x}")));
        }
        let name = &process.devices()[pool.device].name;
        let failed = |error: rustix::io::Errno| {
            Refusal::new(Status::OperatingSystem, format!("no file for a pool: {error}"))
        };
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("peerdma-pool", flags).map_err(failed)?;
        rustix::io::write(&file, format!("{POOL}{name}").as_bytes()).map_err(failed)?;
        out.put(file.into_raw_fd())
    }

    fn cuMemPoolImportFromShareableHandle(
        out: Out<u64>,
        handle: *const c_void,
        kind: u32,
        flags: u64,
    ) {
        out.check()?;
        let process = process::get()?;
        if kind != POSIX_FD {
            return Err(unsupported(format!("handles of kind {kind:#x}")));
        }
        let fd = c_int::try_from(handle.addr()).ok().filter(|fd| *fd >= 0 && flags == 0);
        let fd = fd.ok_or_else(|| invalid("no descriptor"))?;
        // SAFETY: contract: the program's descriptor, open during the call.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let mut text = [0; 128];
        let len = rustix::io::pread(file, &mut text, 0);
        let len = len.map_err(|error| invalid(format!("descriptor {fd}: {error}")))?;
        let text = str::from_utf8(&text[..len]).unwrap_or_default();
        let gpu = text.strip_prefix(POOL);
        let devices = process.devices();
        let device = devices.iter().position(|device| gpu == Some(&*device.name));
        let device = device.ok_or_else(|| invalid(format!("descriptor {fd} does not belong to a pool")))?;
        let new = |handle| Pool::new(handle, device, kind, false);
        out.put(process.pools.handles.add(new).handle)
    }

    fn cuMemPoolExportPointer(out: Out<Raw>, addr: u64) {
        out.check()?;
        let process = process::get()?;
        let region = process.space.find_pointer(addr);
        match region.as_deref().map(|region| (region, &region.kind)) {
            Some((region, Kind::Device { memory, source: Source::Pool(pool), .. }))
                if pool.handle_types != 0 =>
            {
                out.put(handle_of(process, region, memory)?)
            }
            _ => Err(invalid(format!("{addr:#x} does not belong to a shareable pool"))),
        }
    }

    fn cuMemPoolImportPointer(out: Out<u64>, pool: u64, data: In<Raw>) {
        out.check()?;
        let process = process::get()?;
        let pool = process.pools.find(pool)?;
        let (handle, memory) = fetch(process, &data.get()?)?;
        pool.add(handle.len);
        let kind = Kind::Device { memory, offset: handle.offset, source: Source::Pool(pool) };
        out.put(process.place(handle.len, None, kind)?.start)
    }
}
