//! Export of memory as a dma-buf.

use std::ffi::c_int;
use std::os::fd::IntoRawFd;
use std::sync::Arc;

use crate::boundary::calls;
use crate::c::Out;
use crate::process::{self, Process};
use crate::space::{Kind, Source, offset_of};
use crate::status::{Result, invalid, unsupported};
use crate::vmm::Mapped;
use umd::copy::{At, Piece};
use umd::export_joined;

/// The only kind of handle for a range of addresses.
const DMA_BUF_FD: c_int = 1;

/// The mapping goes through the PCIe BAR, not over a faster link.
const FLAG_PCIE: u64 = 1;

/// Exports `len` bytes at `addr`.
fn export(process: &Process, addr: u64, len: u64, flags: u64) -> Result<c_int> {
    let page = rustix::param::page_size() as u64;
    if len == 0 || !len.is_multiple_of(page) || !addr.is_multiple_of(page) {
        return Err(invalid(format!(
            "{len:#x} bytes at {addr:#x} are not whole pages of {page:#x}"
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
    if let Some(block) = process.block_of(addr) {
        // Whole pages of a block: allocations begin and end anywhere in it.
        let device = &process.devices()[block.memory.device];
        if device.config.dma_buf == Some(false) {
            return Err(unsupported("this GPU exports no dma-bufs (dma_buf = false)"));
        }
        if addr + len > block.stop() {
            return Err(invalid(format!(
                "{len:#x} bytes at {addr:#x} extend beyond their allocation"
            )));
        }
        return Ok(block.memory.export(addr - block.start, len)?.into_raw_fd());
    }
    let region = process.space.find_pointer(addr);
    let region = region.ok_or_else(|| invalid(format!("{addr:#x} is not a device pointer")))?;
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
        Kind::Device { source: Source::Pool(pool), .. } if !pool.is_rdma_capable => {
            return Err(invalid(format!(
                "{} belongs to a pool that was not made for peers (gpuDirectRDMACapable)",
                region.name()
            )));
        }
        // The whole allocation, even if the program asked for less.
        Kind::Device { memory, .. } => {
            let offset = offset_of(&region, addr);
            let size = region.len.next_multiple_of(crate::space::GPU_PAGE);
            if offset + len > size {
                return Err(invalid(format!(
                    "{len:#x} bytes at {addr:#x} are not all inside {}",
                    region.name()
                )));
            }
            return Ok(memory.export(offset, len)?.into_raw_fd());
        }
        // Allocations with equal properties are one memory to a peer.
        Kind::Reserved(reserved) => {
            let maps = reserved.covering(addr, len)?;
            let differs = |pair: &[Arc<Mapped>]| !pair[0].allocation.is_like(&pair[1].allocation);
            if maps.windows(2).any(differs) {
                return Err(invalid(format!(
                    "{len:#x} bytes at {addr:#x} belong to allocations with different properties"
                )));
            }
        }
        _ => {}
    }
    let pieces = process.pieces(addr, len)?;
    match &pieces[..] {
        [piece] => match &piece.at {
            At::Device(memory, offset) => Ok(memory.export(*offset, len)?.into_raw_fd()),
            At::Host(_) => Err(invalid(format!("{addr:#x} is not a device pointer"))),
        },
        _ => {
            let of_device = |piece: &Piece| match &piece.at {
                At::Device(memory, offset) => Ok((Arc::clone(memory), *offset, piece.len)),
                At::Host(_) => Err(invalid(format!("{addr:#x} is not a device pointer"))),
            };
            let pieces: Vec<_> = pieces.iter().map(of_device).collect::<Result<_>>()?;
            Ok(export_joined(&pieces)?.into_raw_fd())
        }
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
