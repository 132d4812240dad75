//! A buffer's file, which acts like a dma-buf: what a program can do besides registering it.
//!
//! It works the same in every process: a process that has the descriptor takes part in the buffer
//! for the duration of a call, and for as long as it has the buffer mapped. Nothing here keeps the
//! file open.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::time::Duration;

use dmabuf::{DmaBuf, ImportError, MmapError, RwFlags, SyncFileError};

use crate::args::{Arg, Request, Sync, SyncFd};
use crate::maps::{Maps, Wanted};
use crate::{Result, refused};

/// `DMA_BUF_NAME_LEN`, with its NUL.
const NAME_LEN: usize = 32;

/// The buffer behind a descriptor of the program.
pub(crate) fn import(fd: c_int) -> Result<DmaBuf> {
    if fd < 0 {
        return Err(libc::EBADF);
    }
    // SAFETY: contract: the program does not close the descriptor during the call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    DmaBuf::import(fd).map_err(|error| {
        tracing::debug!(target: "peerdma::drm", "{error}");
        match error {
            ImportError::NotOpen { .. } => libc::EBADF,
            ImportError::NoExporter { .. } => libc::ENODEV,
            ImportError::System { errno, .. } => errno.raw_os_error(),
            _ => libc::EINVAL,
        }
    })
}

/// An ioctl of a dma-buf.
///
/// # Safety
///
/// `place` points to what the request needs.
pub(crate) unsafe fn ioctl(fd: c_int, request: c_ulong, place: *mut c_void) -> Result<()> {
    let request = Request::new(request);
    let arg = Arg::new(request, place);
    let buf = import(fd)?;
    match (request.letter(), request.nr()) {
        // SAFETY: the caller's promise.
        (b'b', 0) => unsafe { arg.with(|sync| cpu_access(&buf, sync)) },
        // SAFETY: the caller's promise.
        (b'b', 1) => unsafe { set_name(&buf, place.cast()) },
        // SAFETY: the caller's promise.
        (b'b', 2) => unsafe { arg.with(|sync| export_sync(&buf, sync)) },
        // SAFETY: the caller's promise.
        (b'b', 3) => unsafe { arg.with(|sync| import_sync(&buf, sync)) },
        _ => Err(libc::ENOTTY),
    }
}

#[doc(alias = "DMA_BUF_IOCTL_SYNC")]
fn cpu_access(buf: &DmaBuf, sync: &mut Sync) -> Result<()> {
    if sync.flags & !7 != 0 || sync.flags & 3 == 0 {
        return Err(libc::EINVAL);
    }
    // The memory is coherent: SYNC_END has nothing to flush. SYNC_START waits for the work that
    // the CPU must see.
    if sync.flags & 4 == 0 {
        let writes = sync.flags & 2 != 0;
        buf.wait_access(writes, None).map_err(|_| libc::ETIMEDOUT)?;
    }
    Ok(())
}

/// # Safety
///
/// `name` is null or a terminated string.
#[doc(alias = "DMA_BUF_SET_NAME")]
unsafe fn set_name(buf: &DmaBuf, name: *const c_char) -> Result<()> {
    if name.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    if unsafe { libc::strnlen(name, NAME_LEN) } == NAME_LEN {
        return Err(libc::EINVAL);
    }
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(name) };
    buf.set_name(&name.to_string_lossy()).map_err(|_| libc::EINVAL)
}

#[doc(alias = "DMA_BUF_IOCTL_EXPORT_SYNC_FILE")]
fn export_sync(buf: &DmaBuf, sync: &mut SyncFd) -> Result<()> {
    let file = buf.export_sync_fd(rw(sync.flags)?).map_err(|error| of_sync(&error))?;
    sync.fd = file.into_raw_fd();
    Ok(())
}

#[doc(alias = "DMA_BUF_IOCTL_IMPORT_SYNC_FILE")]
fn import_sync(buf: &DmaBuf, sync: &mut SyncFd) -> Result<()> {
    let flags = rw(sync.flags)?;
    if sync.fd < 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: contract: the program does not close the descriptor during the call.
    let file = unsafe { BorrowedFd::borrow_raw(sync.fd) };
    buf.import_sync_fd(flags, file).map_err(|error| of_sync(&error))
}

fn rw(flags: u32) -> Result<RwFlags> {
    RwFlags::from_bits(flags).filter(|flags| !flags.is_empty()).ok_or(libc::EINVAL)
}

fn of_sync(error: &SyncFileError) -> c_int {
    tracing::debug!(target: "peerdma::drm", "{error}");
    match error {
        SyncFileError::System { errno, .. } => errno.raw_os_error(),
        SyncFileError::NoSlots(_) => libc::ENOMEM,
        _ => libc::EINVAL,
    }
}

/// Maps a buffer from `offset` on.
///
/// # Safety
///
/// The program may give up whatever it has mapped at a fixed address.
#[doc(alias = "dma_buf_mmap")]
pub(crate) unsafe fn mmap(fd: c_int, wanted: &Wanted, offset: u64) -> Result<*mut c_void> {
    let buf = import(fd)?;
    if wanted.writes() && wanted.flags & libc::MAP_SHARED != 0 && !buf.is_writable() {
        return Err(libc::EACCES);
    }
    let len = wanted.check()?;
    let offered = buf.mmap_backing(offset, len).map_err(|error| of_mmap(&error))?;
    // SAFETY: the caller's promise.
    unsafe { Maps::map(wanted, offered) }
}

pub(crate) fn of_mmap(error: &MmapError) -> c_int {
    match error {
        MmapError::Exporter { reason, .. } => refused(reason),
        MmapError::System { errno, .. } => errno.raw_os_error(),
        _ => libc::EINVAL,
    }
}

/// Which of these `poll` events are ready: the buffer is readable when no write is pending, and
/// writable when no access is pending.
#[doc(alias = "dma_buf_poll")]
pub(crate) fn poll(fd: c_int, events: c_int) -> c_int {
    let Ok(buf) = import(fd) else { return libc::POLLERR.into() };
    let asked = [(libc::POLLIN, false), (libc::POLLOUT, true)];
    let is_ready = |(event, writes): &(i16, bool)| {
        events & c_int::from(*event) != 0 && buf.wait_access(*writes, Some(Duration::ZERO)).is_ok()
    };
    asked
        .iter()
        .filter(|asked| is_ready(asked))
        .fold(0, |all, (event, _)| all | c_int::from(*event))
}

/// `lseek` accepts only the two ends.
#[doc(alias = "dma_buf_llseek")]
pub(crate) fn seek(fd: c_int, offset: i64, whence: c_int) -> Result<i64> {
    let buf = import(fd)?;
    match (whence, offset) {
        (libc::SEEK_SET, 0) => Ok(0),
        (libc::SEEK_END, 0) => i64::try_from(buf.size()).map_err(|_| libc::EOVERFLOW),
        _ => Err(libc::EINVAL),
    }
}
