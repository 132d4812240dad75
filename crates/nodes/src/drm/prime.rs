//! Buffers as files: PRIME.

use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::args::Prime;
use crate::file::File;
use crate::state::State;
use crate::{Result, inode, refused};

/// `DRM_CLOEXEC` and `DRM_RDWR` are these flags of `open`.
#[doc(alias = "DRM_IOCTL_PRIME_HANDLE_TO_FD")]
pub(crate) fn to_fd(file: &File, prime: &mut Prime) -> Result<()> {
    // CAST: keeps the bits.
    let flags = OFlags::from_bits_retain(prime.flags);
    if !(OFlags::CLOEXEC | OFlags::RDWR).contains(flags) {
        return Err(libc::EINVAL);
    }
    let object = file.object(prime.handle)?;
    let buf = object.bo.export().map_err(|error| refused(&error))?;
    let fd = dmabuf::give(buf, flags).map_err(Errno::raw_os_error)?;
    prime.fd = fd.into_raw_fd();
    Ok(())
}

/// A handle for the buffer behind a descriptor: a buffer of this GPU keeps the handle that it has;
/// any other buffer is imported.
#[doc(alias = "DRM_IOCTL_PRIME_FD_TO_HANDLE")]
pub(crate) fn to_handle(state: &State, file: &File, prime: &mut Prime) -> Result<()> {
    inode(prime.fd).ok_or(libc::EBADF)?;
    // SAFETY: contract: the program does not close the descriptor during the call.
    let fd = unsafe { BorrowedFd::borrow_raw(prime.fd) };
    let bo = file.node.gpu()?.import(fd).map_err(|error| refused(&error))?;
    let object = file.node.object(bo, |size| state.new_offset(size));
    prime.handle = file.add(Arc::clone(&object));
    Ok(())
}
