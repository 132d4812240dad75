//! Buffers of the kernel's dma-heaps: `<linux/dma-heap.h>`.

use std::os::fd::{FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};

/// A kernel dma-buf of `size` bytes from `/dev/dma_heap/NAME`, and which call failed otherwise.
pub(crate) fn allocate(heap: &str, size: u64) -> Result<OwnedFd, (&'static str, Errno)> {
    let path = format!("/dev/dma_heap/{heap}");
    let device = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| ("open of /dev/dma_heap", errno))?;
    let fd_flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
    let mut arg = AllocationData { len: size, fd: 0, fd_flags, heap_flags: 0 };
    // SAFETY: the opcode takes a pointer to this structure, reads it and writes it.
    let request = unsafe {
        Updater::<{ opcode::read_write::<AllocationData>(b'H', 0) }, AllocationData>::new(&mut arg)
    };
    // SAFETY: as above; a file that is not a heap returns ENOTTY.
    unsafe { ioctl(&device, request) }.map_err(|errno| ("DMA_HEAP_IOCTL_ALLOC", errno))?;
    // CAST: the kernel's fds fit in an int. SAFETY: the request succeeded, so this is a new fd
    // without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(arg.fd as i32) })
}

/// `struct dma_heap_allocation_data`.
#[repr(C)]
struct AllocationData {
    len: u64,
    fd: u32,
    fd_flags: u32,
    heap_flags: u64,
}
