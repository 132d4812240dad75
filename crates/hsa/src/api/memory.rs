//! Memory: allocation, freeing, access by agents, and the program's own memory.

use rustix::mm::MsyncFlags;
use umd::Memory;
use umd::space::GPU_PAGE;
use umem::HostBuf;

use super::region::size;
use crate::boundary::{LOG, calls};
use crate::c::{In, Out};
use crate::process::{self, Process};
use crate::region::Region;
use crate::space::{self, Allocation, Held, Kind, OnFree};
use crate::status::{Refusal, Result, Status, invalid};

/// Flags of allocations: PCI Express, contiguous, for code.
const FLAGS: u32 = 7;

/// The bits of all agents.
pub(super) fn all(process: &Process) -> u64 {
    u64::MAX >> (u64::BITS as usize - process.agents())
}

/// Allocates memory.
fn allocate(process: &Process, region: Region, len: u64) -> Result<u64> {
    let most = size(process, region);
    let wrong = |what: String| Refusal::new(Status::INVALID_ALLOCATION, what);
    if len > most {
        return Err(wrong(format!("{len:#x} bytes of a region of {most:#x}")));
    }
    match region {
        Region::Vram(gpu) => {
            let memory = Memory::new(&process.gpus, gpu, len.next_multiple_of(GPU_PAGE))?;
            let held = Held::new(Kind::device(memory, false), 1 << region.agent());
            let placed = process.space.place(len, 1, held)?;
            if process.gpus[gpu].config.host_access
                && let Err(refusal) = space::map(&placed)
            {
                let _ = free(process, placed.start);
                return Err(refusal.into());
            }
            Ok(placed.start)
        }
        Region::System(_) => {
            let none = || Refusal::new(Status::OUT_OF_RESOURCES, format!("{len:#x} bytes"));
            let pages = HostBuf::anonymous(usize::try_from(len).map_err(|_| none())?);
            let pages = pages.map_err(|_| none())?;
            let start = pages.as_ptr().addr() as u64;
            let held = Held::new(Kind::Host { _pages: pages, flags: region.flags() }, 1);
            process.space.add(start, len, len, held);
            Ok(start)
        }
        Region::Group(_) => Err(wrong("memory of work groups is not allocated".to_owned())),
    }
}

/// Frees the allocation that begins at an address.
fn free(process: &Process, start: u64) -> Result<()> {
    if start == 0 {
        return Ok(());
    }
    let is_its = |region: &Allocation| !matches!(region.kind, Kind::Device { is_ipc: true, .. });
    let region =
        process.space.remove(start, is_its).ok_or_else(|| match process.space.find(start) {
            Some(found) if found.start == start => {
                invalid(format!("{} is attached: detach it instead", found.name()))
            }
            _ => {
                Refusal::new(Status::INVALID_ALLOCATION, format!("{start:#x} is not an allocation"))
            }
        })?;
    region.freed();
    process.space.end(&region);
    Ok(())
}

/// The bits of agents.
pub(super) fn agents(process: &Process, count: usize, handles: In<u64>) -> Result<u64> {
    let handles = handles.list(count)?;
    handles.into_iter().try_fold(0, |bits, handle| Ok(bits | 1 << process.agent(handle)?))
}

/// Checks that all of a range is mapped: agents reach only mapped memory.
fn check_mapped(start: u64, len: u64) -> Result<()> {
    let page = rustix::param::page_size() as u64;
    let first = start & !(page - 1);
    let end = start.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
    let end = end.ok_or_else(|| invalid("the range wraps around the end of the address space"))?;
    // CAST: addresses are 64 bits wide here.
    let (first, len) = (std::ptr::without_provenance_mut(first as usize), (end - first) as usize);
    // SAFETY: with this flag the call only checks whether the range is mapped.
    let is_there = unsafe { rustix::mm::msync(first, len, MsyncFlags::ASYNC) }.is_ok();
    if is_there {
        return Ok(());
    }
    Err(Refusal::new(Status::ERROR, format!("not all of {len:#x} bytes at {first:p} is mapped")))
}

/// Gives agents access to memory of the program, at the same address.
fn lock(
    process: &Process,
    start: u64,
    len: usize,
    handles: In<u64>,
    count: i32,
    out: Out<u64>,
) -> Result<()> {
    if start == 0 || len == 0 {
        return Err(invalid(format!("{len:#x} bytes at {start:#x}")));
    }
    out.check()?;
    out.put(0)?;
    let count = usize::try_from(count).map_err(|_| invalid("a number of agents below zero"))?;
    if handles.is_null() != (count == 0) {
        return Err(invalid("agents: a count without a list, or a list without a count"));
    }
    agents(process, count, handles)?;
    let len = len as u64;
    if process.space.is_device(start) {
        let what = format!("{start:#x} is memory of a GPU, and not the program's");
        return Err(Refusal::new(Status::ERROR, what));
    }
    check_mapped(start, len)?;
    process.locked.add(start, len);
    out.put(start)
}

calls! { CALLS:
    fn hsa_memory_allocate(region: u64, len: usize, out: Out<u64>) {
        let process = process::get()?;
        out.check()?;
        if len == 0 {
            return Err(invalid("0 bytes of memory"));
        }
        let region = process.region(region, Status::INVALID_REGION)?;
        out.put(allocate(process, region, len as u64)?)
    }

    fn hsa_amd_memory_pool_allocate(pool: u64, len: usize, flags: u32, out: Out<u64>) {
        let process = process::get()?;
        out.check()?;
        if len == 0 || flags & !FLAGS != 0 {
            return Err(invalid(format!("{len:#x} bytes of memory, with flags {flags:#x}")));
        }
        let region = process.region(pool, Status::INVALID_MEMORY_POOL)?;
        out.put(allocate(process, region, len as u64)?)
    }

    fn hsa_memory_free(start: u64) {
        free(process::get()?, start)
    }

    fn hsa_amd_memory_pool_free(start: u64) {
        free(process::get()?, start)
    }

    // Copies reach all memory of the program.
    fn hsa_memory_register(start: u64, len: usize) {
        process::get()?;
        if start != 0 && len == 0 {
            return Err(invalid("0 bytes of memory"));
        }
        Ok(())
    }

    fn hsa_memory_deregister(_start: u64, _len: usize) {
        process::get().map(|_| ())
    }

    fn hsa_amd_agents_allow_access(
        count: u32,
        handles: In<u64>,
        flags: In<u32>,
        start: u64,
    ) {
        let process = process::get()?;
        if count == 0 || handles.is_null() || !flags.is_null() || start == 0 {
            return Err(invalid("no agents, no address, or flags, of which there are none"));
        }
        let found = process.space.find(start).filter(|region| region.start == start);
        let found = found.ok_or_else(|| {
            let what = format!("no allocation begins at {start:#x}");
            Refusal::new(Status::INVALID_ALLOCATION, what)
        })?;
        let bits = agents(process, count as usize, handles)?;
        if let Kind::Device { memory, .. } = &found.kind {
            if bits & 1 != 0 && !process.gpus[memory.device].config.host_access {
                let what = format!("{}: the CPU does not reach it", found.name());
                return Err(Refusal::new(Status::INVALID_AGENT, what));
            }
            let is_far = |gpu: &usize| {
                bits & 2 << gpu != 0 && !process.reaches(*gpu, memory.device)
            };
            if let Some(gpu) = (0..process.gpus.len()).find(is_far) {
                let name = &process.gpus[gpu].name;
                let what = format!("{}: {name} has no path there on PCI", found.name());
                return Err(Refusal::new(Status::OUT_OF_RESOURCES, what));
            }
        }
        found.allow(bits);
        Ok(())
    }

    fn hsa_amd_memory_lock(
        start: u64,
        len: usize,
        handles: In<u64>,
        count: i32,
        out: Out<u64>,
    ) {
        lock(process::get()?, start, len, handles, count, out)
    }

    fn hsa_amd_memory_lock_to_pool(
        start: u64,
        len: usize,
        handles: In<u64>,
        count: i32,
        pool: u64,
        flags: u32,
        out: Out<u64>,
    ) {
        let process = process::get()?;
        let region = process.region(pool, Status::INVALID_MEMORY_POOL)?;
        if flags != 0 || !matches!(region, Region::System(_)) {
            return Err(invalid("memory of the program is locked to a pool of the CPU's"));
        }
        lock(process, start, len, handles, count, out)
    }

    // ROCr does not report memory that was not locked.
    fn hsa_amd_memory_unlock(start: u64) {
        let process = process::get()?;
        if !process.locked.remove(start) {
            tracing::info!(target: LOG, "hsa_amd_memory_unlock: {start:#x} was not locked");
        }
        Ok(())
    }

    fn hsa_amd_register_deallocation_callback(addr: u64, act: Option<OnFree>, data: u64) {
        let process = process::get()?;
        let act = act.filter(|_| addr != 0).ok_or_else(|| invalid("no address, or no function"))?;
        let is_attached = |region: &Allocation| {
            matches!(region.kind, Kind::Device { is_ipc: true, .. })
        };
        let found = process.space.find(addr).filter(|region| !is_attached(region));
        let found = found.ok_or_else(|| {
            Refusal::new(Status::INVALID_ALLOCATION, format!("{addr:#x} is in no allocation"))
        })?;
        found.when_freed(addr, act, data);
        Ok(())
    }

    fn hsa_amd_deregister_deallocation_callback(addr: u64, act: Option<OnFree>) {
        let process = process::get()?;
        let act = act.filter(|_| addr != 0).ok_or_else(|| invalid("no address, or no function"))?;
        let found = process.space.find(addr);
        if found.is_some_and(|region| region.forget(addr, act)) {
            return Ok(());
        }
        Err(invalid(format!("no such function is registered for the freeing of {addr:#x}")))
    }
}
