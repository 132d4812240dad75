//! Memory and events of other processes.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use umd::Memory;
use umd::handles::Found;

use super::queue::device_of;
use crate::boundary::calls;
use crate::c::{Head, In, Out};
use crate::event::Pool;
use crate::host::Pages;
use crate::ipc::{self, Raw, What};
use crate::process::{self, Process};
use crate::space::{Allocation, Held, Kind, Region, mapped};
use crate::status::{Refusal, Result, Status, flags, invalid};

/// Flags by which memory is opened: how it is cached.
const FLAGS: u32 = 3;

/// The handle of the allocation that contains an address, or of the physical memory that is mapped
/// there; or of physical memory that is named by its own handle.
fn memory_handle(process: &Process, context: u64, addr: u64) -> Result<Raw> {
    process.context(context)?;
    if addr == 0 {
        return Err(Refusal::new(Status::InvalidNullPointer, "no address"));
    }
    let Some(region) = process.space.find(addr) else {
        return match process.physical.find(addr) {
            Found::Live(allocation) => physical_handle(&allocation),
            _ => Err(invalid(format!("{addr:#x} is in no allocation"))),
        };
    };
    match &region.kind {
        Kind::Reserved(reserved) => physical_handle(&mapped(reserved, addr)?.allocation),
        Kind::Host { .. } | Kind::Shared { .. } => handle(What::HostMemory, region.file(addr)?),
        Kind::Device { .. } => handle(What::Memory, region.file(addr)?),
    }
}

fn physical_handle(allocation: &Allocation) -> Result<Raw> {
    let what = if allocation.is_host { What::HostMemory } else { What::Memory };
    handle(what, allocation.file()?)
}

/// A handle of a descriptor of some memory of this process.
fn handle(what: What, number: i32) -> Result<Raw> {
    // SAFETY: it is open until the memory is freed, which the program must not do during the call.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    ipc::handle(what, number, file)
}

calls! { CALLS:
    fn zeMemGetIpcHandle(context: u64, addr: u64, out: Out<Raw>) {
        out.check()?;
        out.put(memory_handle(process::get()?, context, addr)?)
    }

    // The extension structures name the processes to reach; a descriptor reaches those of this
    // host.
    fn zeMemGetIpcHandleWithProperties(
        context: u64,
        addr: u64,
        _next: In<Head>,
        out: Out<Raw>,
    ) {
        out.check()?;
        out.put(memory_handle(process::get()?, context, addr)?)
    }

    // The descriptor in the handle belongs to the memory, and stays open until that is freed.
    fn zeMemPutIpcHandle(context: u64, _handle: Raw) {
        process::get()?.context(context).map(|_| ())
    }

    fn zeMemGetIpcHandleFromFileDescriptorExp(context: u64, fd: u64, out: Out<Raw>) {
        process::get()?.context(context)?;
        out.check()?;
        let number = i32::try_from(fd).map_err(|_| invalid(format!("no descriptor: {fd:#x}")))?;
        let mut raw = Raw([0; 64]);
        raw.0[..4].copy_from_slice(&number.to_le_bytes());
        ipc::open(&[What::Memory], &raw)?;
        out.put(raw)
    }

    fn zeMemGetFileDescriptorFromIpcHandleExp(context: u64, handle: Raw, out: Out<u64>) {
        process::get()?.context(context)?;
        let number = ipc::number(&handle);
        out.put(u64::try_from(number).map_err(|_| invalid(format!("no descriptor: {number}")))?)
    }

    fn zeMemOpenIpcHandle(context: u64, device: u64, handle: Raw, given: u32, out: Out<u64>) {
        let process = process::get()?;
        let device = device_of(process, context, device)?;
        out.check()?;
        flags(given, FLAGS)?;
        let (what, file) = ipc::open(&[What::Memory, What::HostMemory], &handle)?;
        let memory = Memory::import(&process.devices, device, file.as_fd())?;
        let (len, own) = (memory.size(), process.context(context)?);
        if what == What::HostMemory {
            let pages = Pages::imported(memory, true)?;
            let start = pages.start;
            process.space.add(start, len, len, Held::new(own, Kind::Host { pages }));
            return out.put(start);
        }
        let held = Held::device(own, Arc::new(memory), true);
        out.put(process.space.place(len, 1, held)?.start)
    }

    fn zeMemCloseIpcHandle(context: u64, start: u64) {
        let process = process::get()?;
        let context = process.context(context)?;
        if start == 0 {
            return Err(Refusal::new(Status::InvalidNullPointer, "no address"));
        }
        let is_its = |region: &Region| {
            region.is_ipc() && Arc::ptr_eq(&region.context, &context)
        };
        let region = process.space.remove(start, is_its);
        let none = || invalid(format!("{start:#x} was not opened by a handle of this context"));
        process.space.end(&*region.ok_or_else(none)?);
        Ok(())
    }

    fn zeEventPoolGetIpcHandle(pool: u64, out: Out<Raw>) {
        let pool = process::get()?.pool(pool)?;
        out.check()?;
        out.put(ipc::handle(What::Events, pool.number()?, pool.file()?)?)
    }

    fn zeEventPoolPutIpcHandle(context: u64, _handle: Raw) {
        process::get()?.context(context).map(|_| ())
    }

    fn zeEventPoolOpenIpcHandle(context: u64, handle: Raw, out: Out<u64>) {
        let process = process::get()?;
        process.context(context)?;
        out.check()?;
        let (_, file) = ipc::open(&[What::Events], &handle)?;
        let new = |handle| Pool::opened(handle, context, file);
        out.put(process.pools.try_add(new)?.handle)
    }

    fn zeEventPoolCloseIpcHandle(pool: u64) {
        let process = process::get()?;
        if !process.pool(pool)?.is_opened {
            return Err(invalid("the pool belongs to this process: destroy it instead"));
        }
        process.pools.remove(pool);
        Ok(())
    }
}
