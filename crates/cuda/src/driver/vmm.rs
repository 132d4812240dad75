//! Virtual memory management.

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::Arc;

use crate::boundary::calls;
use crate::c::{In, Out};
use crate::driver::managed::{DEVICE, Location};
use crate::process::{self, Process};
use crate::space::LARGE_PAGE;
use crate::status::{Refusal, Result, Status, invalid, unsupported};
use crate::vmm::Allocation;
use umd::Memory;

/// The kind of handle that is a file descriptor.
pub(crate) const POSIX_FD: u32 = 1;

/// The kind of allocation: pinned.
const PINNED: c_int = 1;

/// The properties of an allocation.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Properties {
    kind: c_int,
    handle_types: u32,
    location: Location,
    metadata: *const c_void,
    compression: u8,
    is_rdma_capable: u8,
    usage: u16,
    reserved: [u8; 4],
}

/// The access of a device to memory.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Access {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

impl Access {
    /// The GPU, and its access: 0 none, 1 read, 3 read and write.
    pub(crate) fn of_device(&self, process: &Process) -> Result<(usize, u8)> {
        if self.location.kind != DEVICE {
            return Err(unsupported("access by anything other than a GPU"));
        }
        match self.flags {
            // CAST: one of the three.
            0 | 1 | 3 => Ok((process.ordinal(self.location.id)?, self.flags as u8)),
            other => Err(invalid(format!("access {other} is unknown"))),
        }
    }
}

fn check(process: &Process, properties: &Properties) -> Result<usize> {
    if properties.kind != PINNED {
        return Err(invalid(format!("allocations of kind {}", properties.kind)));
    }
    if properties.handle_types & !POSIX_FD != 0 {
        return Err(unsupported(format!("handles of kinds {:#x}", properties.handle_types)));
    }
    if properties.compression != 0 {
        return Err(unsupported("compressed memory"));
    }
    match properties.location.kind {
        DEVICE => process.ordinal(properties.location.id),
        2..=4 => Err(unsupported("host memory by cuMemCreate")),
        other => Err(invalid(format!("a location of kind {other}"))),
    }
}

calls! { CALLS:
    fn cuMemGetAllocationGranularity(out: Out<usize>, properties: In<Properties>, option: c_int) {
        out.check()?;
        let process = process::get()?;
        check(process, &properties.get()?)?;
        if option != 0 && option != 1 {
            return Err(invalid(format!("granularity {option}")));
        }
        // CAST: a page size is small.
        out.put(LARGE_PAGE as usize)
    }

    fn cuMemCreate(handle: Out<u64>, size: usize, properties: In<Properties>, flags: u64) {
        handle.check()?;
        let process = process::get()?;
        let (properties, size) = (properties.get()?, size as u64);
        let device = check(process, &properties)?;
        if flags != 0 || size == 0 || !size.is_multiple_of(LARGE_PAGE) {
            return Err(invalid(format!("{size:#x} bytes, flags {flags:#x}")));
        }
        let memory = Arc::new(Memory::new(process.devices(), device, size)?);
        let (kinds, rdma) = (properties.handle_types, properties.is_rdma_capable != 0);
        let new = |handle| Allocation::new(handle, memory, size, kinds, rdma);
        handle.put(process.allocations.add(new).handle)
    }

    fn cuMemRelease(handle: u64) {
        let process = process::get()?;
        process.allocation(handle)?.release(&process.allocations);
        Ok(())
    }

    fn cuMemAddressReserve(out: Out<u64>, size: usize, align: usize, hint: u64, flags: u64) {
        out.check()?;
        if flags != 0 {
            return Err(invalid(format!("flags {flags:#x}: must be 0")));
        }
        out.put(process::get()?.reserve(size as u64, align as u64, hint)?)
    }

    fn cuMemAddressFree(start: u64, size: usize) {
        process::get()?.unreserve(start, size as u64)
    }

    fn cuMemMap(at: u64, size: usize, offset: usize, handle: u64, flags: u64) {
        if flags != 0 {
            return Err(invalid(format!("flags {flags:#x}: must be 0")));
        }
        process::get()?.map(at, size as u64, offset as u64, handle)
    }

    fn cuMemUnmap(at: u64, size: usize) {
        let process = process::get()?;
        process.wait_for_streams();
        process.unmap(at, size as u64)
    }

    fn cuMemSetAccess(at: u64, size: usize, list: In<Access>, count: usize) {
        let process = process::get()?;
        for access in list.list(count)? {
            let (device, flags) = access.of_device(process)?;
            let owner = process.mapped(at)?.allocation.memory.device;
            let devices = process.devices();
            if flags != 0 && !devices[device].reaches(devices[owner]) {
                let (own, other) = (&devices[device].name, &devices[owner].name);
                return Err(Refusal::new(
                    Status::InvalidDevice,
                    format!("{own} does not reach {other}: there is no path on PCI"),
                ));
            }
            // Setting the access of other GPUs does not remove that of the owner.
            if device == owner || flags != 0 {
                process.set_access(at, size as u64, flags)?;
            }
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, addr: u64) {
        flags.check()?;
        let process = process::get()?;
        let location = location.get()?;
        if location.kind != DEVICE {
            return Err(invalid(format!("a location of kind {}", location.kind)));
        }
        let device = process.ordinal(location.id)?;
        let mapped = process.mapped(addr)?;
        let devices = process.devices();
        let owner = devices[mapped.allocation.memory.device];
        flags.put(if devices[device].reaches(owner) { mapped.access().into() } else { 0 })
    }

    fn cuMemRetainAllocationHandle(handle: Out<u64>, addr: u64) {
        handle.check()?;
        let process = process::get()?;
        let mapped = process.mapped(addr)?;
        mapped.allocation.retain(&process.allocations);
        handle.put(mapped.allocation.handle)
    }

    fn cuMemGetAllocationPropertiesFromHandle(out: Out<Properties>, handle: u64) {
        out.check()?;
        let allocation = process::get()?.allocation(handle)?;
        out.put(Properties {
            kind: PINNED,
            handle_types: allocation.handle_types,
            // CAST: there are few GPUs.
            location: Location { kind: DEVICE, id: allocation.memory.device as c_int },
            metadata: std::ptr::null(),
            compression: 0,
            is_rdma_capable: allocation.is_rdma_capable.into(),
            usage: 0,
            reserved: [0; 4],
        })
    }

    fn cuMemExportToShareableHandle(out: Out<c_int>, handle: u64, kind: u32, flags: u64) {
        out.check()?;
        let allocation = process::get()?.allocation(handle)?;
        if flags != 0 || kind == 0 || allocation.handle_types & kind != kind {
            return Err(invalid(format!(
                "handles of kind {kind:#x} were not asked for when the memory was made ({:#x})",
                allocation.handle_types
            )));
        }
        out.put(allocation.memory.share()?.into_raw_fd())
    }

    fn cuMemImportFromShareableHandle(out: Out<u64>, handle: *const c_void, kind: u32) {
        out.check()?;
        let process = process::get()?;
        if kind != POSIX_FD {
            return Err(unsupported(format!("handles of kind {kind:#x}")));
        }
        // The number itself is passed as the pointer.
        let fd = c_int::try_from(handle.addr()).ok().filter(|fd| *fd >= 0);
        let fd = fd.ok_or_else(|| invalid("no descriptor"))?;
        // SAFETY: contract: the program's descriptor, open during the call.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let device = crate::context::current().map_or(0, |context| context.device);
        let memory = Arc::new(Memory::import(process.devices(), device, file)?);
        let size = memory.size();
        let new = |handle| Allocation::new(handle, memory, size, POSIX_FD, true);
        out.put(process.allocations.add(new).handle)
    }
}
