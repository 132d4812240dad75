//! Host memory that GPUs reach.

use std::ffi::c_int;

use crate::boundary::calls;
use crate::c::Out;
use crate::context;
use crate::process;
use crate::space::{Held, Kind};
use crate::status::{Refusal, Result, Status, invalid};

/// Portable, mapped for the device, write-combined.
const ALLOC_FLAGS: u32 = 7;

/// Portable, mapped for the device, I/O memory, read-only.
const REGISTER_FLAGS: u32 = 15;

fn allocate(out: Out<u64>, len: usize, flags: u32) -> Result<()> {
    out.check()?;
    let process = process::get()?;
    let context = context::current()?;
    if flags & !ALLOC_FLAGS != 0 {
        return Err(invalid(format!("flags {flags:#x} of host memory")));
    }
    out.put(
        process.allocate_host(&context, len as u64, |pages| Kind::Host { _pages: pages, flags })?,
    )
}

calls! { CALLS:
    fn cuMemAllocHost_v2(out: Out<u64>, len: usize) {
        allocate(out, len, 0)
    }

    fn cuMemHostAlloc(out: Out<u64>, len: usize, flags: u32) {
        allocate(out, len, flags)
    }

    fn cuMemFreeHost(start: u64) {
        let process = process::get()?;
        if start == 0 {
            return Ok(());
        }
        process.wait_for_streams();
        process.free(start, |kind| matches!(kind, Kind::Host { .. }))
    }

    fn cuMemHostRegister_v2(start: u64, len: usize, flags: u32) {
        let process = process::get()?;
        let context = context::current()?;
        let len = len as u64;
        if start == 0 || len == 0 || start.checked_add(len).is_none() || flags & !REGISTER_FLAGS != 0 {
            return Err(invalid(format!("{len:#x} bytes at {start:#x}, flags {flags:#x}")));
        }
        if process.space.is_device(start) {
            return Err(invalid(format!("{start:#x} is a device pointer")));
        }
        if let Some(other) = process.space.host_overlap(start, len) {
            return Err(Refusal::new(
                Status::HostMemoryAlreadyRegistered,
                format!("{len:#x} bytes at {start:#x} overlap {}", other.name()),
            ));
        }
        process.space.add(start, len, len, Held::new(Some(context), Kind::Registered { flags }));
        Ok(())
    }

    fn cuMemHostUnregister(start: u64) {
        let process = process::get()?;
        let is_registered = |kind: &Kind| matches!(kind, Kind::Registered { .. });
        process.free(start, is_registered).map_err(|refusal| {
            Refusal::new(Status::HostMemoryNotRegistered, refusal.what)
        })
    }

    fn cuMemHostGetDevicePointer_v2(out: Out<u64>, addr: u64, flags: u32) {
        out.check()?;
        let process = process::get()?;
        context::current()?;
        if flags != 0 {
            return Err(invalid(format!("flags {flags:#x}: must be 0")));
        }
        let known = process.space.find(addr).filter(|region| {
            matches!(region.kind, Kind::Host { .. } | Kind::Registered { .. })
        });
        known.ok_or_else(|| invalid(format!("{addr:#x} is not host memory that CUDA knows")))?;
        out.put(addr)
    }

    fn cuMemHostGetFlags(out: Out<u32>, addr: u64) {
        out.check()?;
        let process = process::get()?;
        let region = process.space.find(addr);
        match region.as_deref().map(|region| &region.kind) {
            Some(Kind::Host { flags, .. } | Kind::Registered { flags }) => out.put(*flags),
            _ => Err(invalid(format!("{addr:#x} is not host memory that CUDA knows"))),
        }
    }

    // Programs that ask pass the number of a device.
    fn cuDeviceGetHostAtomicCapabilities(
        out: Out<u32>,
        _operations: crate::c::In<c_int>,
        count: u32,
        device: c_int,
    ) {
        process::get()?.device(device)?;
        out.check()?;
        (0..count as usize).for_each(|index| out.put_at(index, 0));
        Ok(())
    }
}
