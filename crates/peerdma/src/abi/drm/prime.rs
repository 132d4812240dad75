//! Buffers as files: PRIME, and what a program may do with the file besides registering it.

use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

use dmabuf::{DmaBuf, ImportError, Usage};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::args::{Arg, Prime, Request, Sync};
use super::file::File;
use super::node::Object;
use super::state::State;
use super::{Result, inode, refused};

/// Which signal tells of an opening that a lease is in the way of.
const F_SETSIG: c_int = 10;

/// A buffer that was exported. It is kept while anybody has the memfd open, as the kernel keeps a dma-buf.
pub(super) struct Export {
    pub(super) dev: u64,
    pub(super) ino: u64,
    pub(super) object: Arc<Object>,
    buf: DmaBuf,
    /// The file, opened once more. A write lease on it is granted when no other opening of the file exists, in this
    /// process or another.
    probe: OwnedFd,
}

impl Export {
    /// Whether nobody but us has the file. (The opening that `memfd_create` made does not count as one, and we never
    /// pass it on.)
    pub(super) fn is_only_ours(&self) -> bool {
        let probe = self.probe.as_raw_fd();
        // SAFETY: a lease changes nothing but who is told of an opening; it is given back below.
        let taken = unsafe { libc::fcntl(probe, libc::F_SETLEASE, libc::F_WRLCK) } == 0;
        if taken {
            // SAFETY: as above.
            unsafe { libc::fcntl(probe, libc::F_SETLEASE, libc::F_UNLCK) };
        }
        taken
    }
}

/// `DRM_CLOEXEC` and `DRM_RDWR` are these flags of `open`.
#[doc(alias = "DRM_IOCTL_PRIME_HANDLE_TO_FD")]
pub(super) fn to_fd(state: &State, file: &File, prime: &mut Prime) -> Result<()> {
    // CAST: the bits.
    let flags = OFlags::from_bits_retain(prime.flags);
    if !(OFlags::CLOEXEC | OFlags::RDWR).contains(flags) {
        return Err(libc::EINVAL);
    }
    let object = file.object(prime.handle)?;
    let buf = object.bo.export().map_err(|error| refused(&error))?;
    // Not while a sweep has a lease on it: it would be told of the opening.
    let (probe, theirs) = state.between_sweeps(|| {
        (open_again(&buf, OFlags::RDWR | OFlags::CLOEXEC), open_again(&buf, flags))
    });
    let (probe, theirs) = (probe?, theirs?);
    // And if another process opens it just then, by a signal that nobody minds instead of the deadly SIGIO.
    // SAFETY: the number of a signal is all that is set.
    unsafe { libc::fcntl(probe.as_raw_fd(), F_SETSIG, libc::SIGURG) };
    let stat = rustix::fs::fstat(&probe).map_err(Errno::raw_os_error)?;
    state.keep(Export { dev: stat.st_dev, ino: stat.st_ino, object, buf, probe })?;
    prime.fd = theirs.into_raw_fd();
    Ok(())
}

/// The buffer behind a descriptor, if it is of this GPU. It imports no others: it would not use them.
#[doc(alias = "DRM_IOCTL_PRIME_FD_TO_HANDLE")]
pub(super) fn to_handle(state: &State, file: &File, prime: &mut Prime) -> Result<()> {
    let stat = inode(prime.fd).ok_or(libc::EBADF)?;
    let known = state.kind(prime.fd).and_then(|_| state.export(stat.st_ino));
    if let Some(export) = known.filter(|export| Arc::ptr_eq(&export.object.node, &file.node)) {
        prime.handle = file.add(Arc::clone(&export.object));
        return Ok(());
    }
    // SAFETY: contract: the program does not close the descriptor during the call.
    let fd = unsafe { BorrowedFd::borrow_raw(prime.fd) };
    match DmaBuf::import(fd) {
        Ok(buf) => {
            let exporter = buf.exporter_name();
            tracing::debug!(target: "peerdma::drm", "a buffer of {exporter} is not imported");
            Err(libc::EOPNOTSUPP)
        }
        Err(ImportError::NotOpen { .. }) => Err(libc::EBADF),
        Err(error) => {
            tracing::debug!(target: "peerdma::drm", "{error}");
            Err(libc::EINVAL)
        }
    }
}

/// An ioctl on the file of a buffer: `DMA_BUF_IOCTL_SYNC`.
///
/// # Safety
///
/// `place` is what the request needs.
pub(super) unsafe fn ioctl(
    state: &State,
    ino: u64,
    request: c_ulong,
    place: *mut c_void,
) -> Result<()> {
    let request = Request::new(request);
    if (request.letter(), request.nr()) != (b'b', 0) {
        return Err(libc::ENOTTY);
    }
    let buf = state.export(ino).ok_or(libc::EBADF)?.buf.clone();
    let sync = |sync: &mut Sync| {
        if sync.flags & !7 != 0 || sync.flags & 3 == 0 {
            return Err(libc::EINVAL);
        }
        // The end has nothing to flush. The beginning waits for those whose work it must see.
        if sync.flags & 4 == 0 {
            let writes = sync.flags & 2 != 0;
            buf.resv().wait(Usage::implicit(writes), None).map_err(|_| libc::ETIMEDOUT)?;
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { Arg::new(request, place).with(sync) }
}

/// Another opening of a buffer's file.
fn open_again(buf: &DmaBuf, flags: OFlags) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", buf.fd().as_raw_fd());
    let opened = rustix::fs::open(&path, flags, Mode::empty());
    opened.map_err(|error| {
        tracing::debug!(target: "peerdma::drm", "{path}: {error}");
        c_int::from(error.raw_os_error())
    })
}
