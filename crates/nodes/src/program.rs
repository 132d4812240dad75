//! What a program passes: descriptors, addresses, lengths.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr;

use crate::refusal::Result;

/// The inode of a descriptor, if it is a kind of file that we make.
pub(crate) fn inode(fd: c_int) -> Option<rustix::fs::Stat> {
    if fd < 0 {
        return None;
    }
    // SAFETY: fstat answers EBADF for a number that is no descriptor; it has no other use here.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::fs::fstat(fd).ok()
}

/// Whole pages.
pub(crate) fn pages(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(rustix::param::page_size() as u64)
}

/// Whether the program has every one of these whole pages mapped.
pub(crate) fn is_all_mapped(start: u64, len: u64) -> bool {
    let (Ok(addr), Ok(len)) = (usize::try_from(start), usize::try_from(len)) else { return false };
    let place = ptr::with_exposed_provenance_mut(addr);
    // SAFETY: with this flag the kernel only looks at the mappings and changes nothing.
    unsafe { rustix::mm::msync(place, len, rustix::mm::MsyncFlags::ASYNC) }.is_ok()
}

/// A pointer that a program passes as a number.
pub(crate) fn pointer<T>(number: u64) -> Result<*mut T> {
    let addr = usize::try_from(number).map_err(|_| libc::EFAULT)?;
    if addr == 0 { Err(libc::EFAULT) } else { Ok(ptr::with_exposed_provenance_mut(addr)) }
}
