//! The bare operations with which peerdma is compared.

#![allow(unsafe_code, reason = "a bare system call and a bare memcpy")]

pub(crate) mod post;
pub(crate) mod userfault;

use std::hint::black_box;
use std::io;

use rustix::process::Pid;
use umem::HostBuf;

/// One `process_vm_writev`: the first `len` bytes of `from` to `to` in process `pid`.
pub(crate) fn process_vm_writev(pid: Pid, from: &HostBuf, len: usize, to: u64) -> io::Result<()> {
    assert!(len <= from.len(), "the caller copies what the buffer has");
    let local = libc::iovec { iov_base: from.as_ptr().cast(), iov_len: len };
    let remote =
        libc::iovec { iov_base: std::ptr::without_provenance_mut(to as usize), iov_len: len };
    // SAFETY: the local range lies in `from`, which lives across the call.
    unsafe { write_all(pid, &[local], &[remote], len) }
}

/// One `process_vm_writev` of these lists, which are `len` bytes each.
///
/// # Safety
///
/// The local ranges are readable memory.
unsafe fn write_all(
    pid: Pid,
    local: &[libc::iovec],
    remote: &[libc::iovec],
    len: usize,
) -> io::Result<()> {
    let (count, there) = (local.len() as u64, remote.len() as u64);
    let (pid, local, remote) = (pid.as_raw_nonzero().get(), local.as_ptr(), remote.as_ptr());
    // SAFETY: the caller's promise, and the local ranges are only read; the remote ones are checked
    // by the kernel, in the other process.
    let written = unsafe { libc::process_vm_writev(pid, local, count, remote, there, 0) };
    match usize::try_from(written) {
        Ok(written) if written == len => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// One `process_vm_writev` of several ranges of `len` bytes, a cache line apart, from `from` to the
/// same places from `to` on in process `pid`.
pub(crate) fn process_vm_writev_each(
    pid: Pid,
    from: &HostBuf,
    len: usize,
    to: u64,
    count: usize,
) -> io::Result<()> {
    const LINE: usize = 64;
    assert!(len <= LINE && count * LINE <= from.len(), "the caller copies what the buffer has");
    let range = |base: usize, index: usize| libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(base + index * LINE),
        iov_len: len,
    };
    let ours = from.as_ptr().expose_provenance();
    let local: Vec<_> = (0..count).map(|index| range(ours, index)).collect();
    let remote: Vec<_> = (0..count).map(|index| range(to as usize, index)).collect();
    // SAFETY: the local ranges lie in `from`, which lives across the call.
    unsafe { write_all(pid, &local, &remote, len * count) }
}

/// One `memcpy` of `len` bytes.
pub(crate) fn memcpy(to: &HostBuf, from: &HostBuf, len: usize) {
    assert!(len <= to.len() && len <= from.len(), "the caller copies what both have");
    // SAFETY: both ranges lie in mappings that live across the call and cannot shrink; two buffers
    // never overlap, and no reference to their contents exists.
    unsafe { std::ptr::copy_nonoverlapping(black_box(from.as_ptr()), black_box(to.as_ptr()), len) };
}
