//! Memory as a dma-buf.

use std::ffi::c_int;
use std::os::fd::IntoRawFd;

use crate::boundary::calls;
use crate::c::Out;
use crate::process::{self, Process};
use crate::space::{Kind, Source};
use crate::status::{Result, invalid, unsupported};
use umd::copy::At;

/// The one kind of handle for a range of addresses.
const DMA_BUF_FD: c_int = 1;

/// Through the BAR, and not by whatever is faster.
const FLAG_PCIE: u64 = 1;

/// Exports `len` bytes at `addr`.
fn export(process: &Process, addr: u64, len: u64, flags: u64) -> Result<c_int> {
    let page = rustix::param::page_size() as u64;
    if len == 0 || !len.is_multiple_of(page) || !addr.is_multiple_of(page) {
        return Err(invalid(format!(
            "{len:#x} bytes at {addr:#x} are no whole pages of {page:#x}"
        )));
    }
    if flags == FLAG_PCIE {
        return Err(unsupported(
            "a dma-buf through the BAR (CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE)",
        ));
    }
    if flags != 0 {
        return Err(invalid(format!("flags {flags:#x} of a dma-buf")));
    }
    let region = process.space.find_pointer(addr);
    let region = region.ok_or_else(|| invalid(format!("{addr:#x} is no device pointer")))?;
    if let Kind::Device { memory, .. } = &region.kind
        && process.devices()[memory.device].config.dma_buf == Some(false)
    {
        return Err(unsupported("this GPU exports no dma-bufs (dma_buf = false)"));
    }
    match &region.kind {
        Kind::Device { source: Source::Ipc { .. }, .. } => {
            return Err(invalid(format!(
                "{} was opened by IPC: its owner exports it",
                region.name()
            )));
        }
        Kind::Device { source: Source::Pool(_), .. } => {
            return Err(invalid(format!("{} is of a pool that is not for peers", region.name())));
        }
        // All that the allocation has, though the program asked for less.
        Kind::Device { memory, .. } => {
            let offset = addr - region.start;
            let size = region.len.next_multiple_of(crate::space::GPU_PAGE);
            if offset + len > size {
                return Err(invalid(format!(
                    "{len:#x} bytes at {addr:#x} are not all inside {}",
                    region.name()
                )));
            }
            return Ok(memory.export(offset, len)?.into_raw_fd());
        }
        _ => {}
    }
    let pieces = process.pieces(addr, len)?;
    match &pieces[..] {
        [piece] => match &piece.at {
            At::Device(memory, offset) => Ok(memory.export(*offset, len)?.into_raw_fd()),
            At::Host(_) => Err(invalid(format!("{addr:#x} is no device pointer"))),
        },
        _ => Err(unsupported(format!(
            "{len:#x} bytes at {addr:#x} are of {} allocations: a dma-buf here is of one",
            pieces.len()
        ))),
    }
}

calls! { CALLS:
    fn cuMemGetHandleForAddressRange(
        handle: Out<c_int>,
        addr: u64,
        len: usize,
        kind: c_int,
        flags: u64,
    ) {
        handle.check()?;
        let process = process::get()?;
        if kind != DMA_BUF_FD {
            return Err(invalid(format!("handles of kind {kind} for a range of addresses")));
        }
        handle.put(export(process, addr, len as u64, flags)?)
    }
}
