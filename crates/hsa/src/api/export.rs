//! dma-bufs of allocations.

use std::os::fd::IntoRawFd;

use crate::boundary::calls;
use crate::c::Out;
use crate::process;
use crate::space::Kind;
use crate::status::{Refusal, Result, Status, invalid};

/// Flags of exports: by PCI Express, which is always the path.
const FLAGS: u64 = 1;

/// The bytes that an allocation has beyond the requested ones.
const PAGE: u64 = 4096;

/// Exports the allocation that contains a range. The dma-buf covers the whole allocation, and
/// `offset` tells where the range begins.
fn export(addr: u64, len: usize, file: Out<i32>, offset: Out<u64>) -> Result<()> {
    let process = process::get()?;
    file.check()?;
    offset.check()?;
    if addr == 0 || len == 0 {
        return Err(invalid(format!("{len:#x} bytes at {addr:#x}")));
    }
    let none = |what: String| Refusal::new(Status::INVALID_ALLOCATION, what);
    let region = process.space.find(addr);
    let region = region.ok_or_else(|| none(format!("{addr:#x} is in no allocation")))?;
    let end = addr.checked_add(len as u64);
    if end.is_none_or(|end| end > region.start + region.len.next_multiple_of(PAGE)) {
        let name = region.name();
        return Err(none(format!("{len:#x} bytes at {addr:#x} are not all inside {name}")));
    }
    let Kind::Device { memory, is_ipc, .. } = &region.kind else {
        let what = format!("{} belongs to no GPU", region.name());
        return Err(Refusal::new(Status::INVALID_AGENT, what));
    };
    if *is_ipc {
        return Err(none(format!("{} is another process's", region.name())));
    }
    if process.gpus[memory.device].config.dma_buf == Some(false) {
        let what = "this GPU exports no dma-bufs (dma_buf = false)";
        return Err(Refusal::new(Status::ERROR, what));
    }
    file.put(memory.share()?.into_raw_fd())?;
    offset.put(addr - region.start)
}

calls! { CALLS:
    fn hsa_amd_portable_export_dmabuf(addr: u64, len: usize, file: Out<i32>, offset: Out<u64>) {
        export(addr, len, file, offset)
    }

    fn hsa_amd_portable_export_dmabuf_v2(
        addr: u64,
        len: usize,
        file: Out<i32>,
        offset: Out<u64>,
        flags: u64,
    ) {
        if flags & !FLAGS != 0 {
            return Err(invalid(format!("flags {flags:#x}, of {FLAGS:#x}")));
        }
        export(addr, len, file, offset)
    }

    fn hsa_amd_portable_close_dmabuf(file: i32) {
        process::get()?;
        // SAFETY: contract: the program gives up this descriptor. If it is closed already, the call
        // fails.
        if unsafe { libc::close(file) } == 0 {
            return Ok(());
        }
        Err(Refusal::new(Status::RESOURCE_FREE, format!("there is no descriptor {file}")))
    }
}
