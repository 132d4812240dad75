//! `HL_IOCTL_MEMORY`: device memory, and the device addresses at which it is mapped.

use std::os::fd::IntoRawFd;

use gpu::Place;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::context::Context;
use super::space::{PAGE, Pack, low, refuse};
use crate::args::{first_half, uapi};
use crate::file::File;
use crate::{Result, refused};

uapi! {
    /// A union: the first word is also the output.
    #[doc(alias = "hl_mem_args")]
    struct Args: 40 {
        words: [u64; 3],
        op: u32,
        flags: u32,
        ctx_id: u32,
        num_of_elements: u32,
    }
}

#[doc(alias = "HL_MEM_USERPTR")]
const USERPTR: u32 = 0x4;
/// One operation.
#[doc(alias = "hl_mem_ioctl")]
pub(super) fn ioctl(file: &File, context: &Context, args: &mut Args) -> Result<()> {
    if !file.node.gpu()?.is_operational() {
        return Err(refuse(libc::EBUSY, format_args!("the device is not operational")));
    }
    let ([first, second, third], flags) = (args.words, args.flags);
    let no = |why: &str| Err(refuse(libc::EINVAL, format_args!("{why}")));
    let (answer, failed) = match args.op {
        0 => (alloc(file, context, first, second).map(u64::from), 0),
        1 => return free(context, first),
        2 if flags & USERPTR != 0 => (context.memory().map_host((first, third), second, flags), 0),
        2 => (context.memory().map_device(second, first, flags), 0),
        3 => {
            let gone = context.memory().unmap(first)?;
            // Dropping it closes descriptors, so it is dropped without the lock.
            drop(gone);
            return Ok(());
        }
        4 => return no("no block of registers can be mapped"),
        5 => (export(context, first, second, third, flags).map(as_word), as_word(-libc::EBADF)),
        6 => return no("no interrupt has time stamps"),
        op => return Err(refuse(libc::EINVAL, format_args!("there is no memory operation {op}"))),
    };
    // The input is not copied back, even on failure.
    let words = [answer.unwrap_or(failed), 0, 0];
    *args = Args { words, op: 0, flags: 0, ctx_id: 0, num_of_elements: 0 };
    answer.map(drop)
}

/// A 32-bit number in the first half of a word.
fn as_word(number: i32) -> u64 {
    // CAST: keeps the bits.
    first_half(number as u32)
}

#[doc(alias = "HL_MEM_OP_ALLOC")]
fn alloc(file: &File, context: &Context, size: u64, page: u64) -> Result<u32> {
    let page = if page == 0 { PAGE } else { page };
    if !page.is_power_of_two() {
        return Err(refuse(libc::EINVAL, format_args!("a page of {page:#x} bytes")));
    }
    let whole = size.checked_next_multiple_of(page).filter(|size| *size > 0);
    let size = whole.ok_or_else(|| refuse(libc::EINVAL, format_args!("{size} bytes of memory")))?;
    let place = Place { align: page, ..Place::ONLY_VRAM };
    let bo = file.node.gpu()?.alloc(size, place).map_err(|error| refused(&error))?;
    let mut memory = context.memory();
    let free = (1..=u32::MAX).find(|handle| !memory.packs.contains_key(handle));
    let handle = free.ok_or(libc::EFAULT)?;
    memory.packs.insert(handle, Pack { bo, mapped: 0 });
    Ok(handle)
}

#[doc(alias = "HL_MEM_OP_FREE")]
fn free(context: &Context, handle: u64) -> Result<()> {
    let handle = low(handle);
    let mut memory = context.memory();
    let pack = memory.pack(handle)?;
    if pack.mapped > 0 {
        return Err(refuse(libc::EINVAL, format_args!("handle {handle} is mapped")));
    }
    let gone = memory.packs.remove(&handle);
    // The memory is dropped without the lock.
    drop(memory);
    drop(gone);
    Ok(())
}

/// A dma-buf of the memory mapped from `addr + offset` on.
#[doc(alias = "HL_MEM_OP_EXPORT_DMABUF_FD")]
fn export(context: &Context, addr: u64, size: u64, offset: u64, flags: u32) -> Result<i32> {
    let bo = context.memory().exportable(addr, size, offset)?;
    let buf = bo.export_range(offset, size).map_err(|error| refused(&error))?;
    let weak = buf.downgrade();
    let mut memory = context.memory();
    // Somebody may have unmapped it meanwhile.
    let exports = &mut memory.mapping(addr)?.exports;
    let gone: Vec<_> = exports.extract_if(.., |buf| buf.is_gone()).collect();
    exports.push(weak);
    drop(memory);
    drop(gone);
    let flags = OFlags::from_bits_retain(flags);
    Ok(dmabuf::give(buf, flags).map_err(Errno::raw_os_error)?.into_raw_fd())
}
