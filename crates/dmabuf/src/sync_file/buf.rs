//! The fences of a buffer as files.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::{Repr, SyncFile, SyncFileError};
use crate::buf::DmaBuf;
use crate::exporter::{ExporterError, ExporterErrorKind};
use crate::fence::Fence;
use crate::remote::RwFlags;
use crate::resv::{Resv, Usage};
use crate::sys::sync_file as kernel;

impl DmaBuf {
    /// A snapshot of what an access must wait for: a write waits for all implicit users, a read for
    /// writers. A signaled file if there are none.
    ///
    /// # Errors
    ///
    /// [`SyncFileError`].
    #[doc(alias = "DMA_BUF_IOCTL_EXPORT_SYNC_FILE")]
    pub fn export_sync_file(&self, flags: RwFlags) -> Result<SyncFile, SyncFileError> {
        check(flags)?;
        self.resv().assert_unlocked("export_sync_file");
        let ours = self.resv().singleton(Usage::implicit(flags.contains(RwFlags::WRITE)));
        if !self.is_kernel() {
            return SyncFile::new(&ours);
        }
        let call = "DMA_BUF_IOCTL_EXPORT_SYNC_FILE";
        let fd = self.known_fd().and_then(|fd| kernel::export_sync_file(fd, flags.bits()));
        let fd = fd.map_err(|errno| SyncFileError::System { call, errno })?;
        let theirs = SyncFile { repr: Repr::Kernel(fd.into()) };
        if ours.is_signaled() {
            return Ok(theirs);
        }
        SyncFile::new(&Fence::all_of([ours, theirs.to_fence()?]))
    }

    /// Makes implicit users of the buffer wait for `file`: as for work that writes if `flags` say
    /// so, and otherwise as for work that reads. Each fence in it is added, even if signaled.
    ///
    /// # Errors
    ///
    /// [`SyncFileError`].
    #[doc(alias = "DMA_BUF_IOCTL_IMPORT_SYNC_FILE")]
    pub fn import_sync_file(&self, flags: RwFlags, file: &SyncFile) -> Result<(), SyncFileError> {
        check(flags)?;
        self.resv().assert_unlocked("import_sync_file");
        if self.is_kernel() {
            return self.import_into_kernel(flags, file);
        }
        add_to(self.resv(), flags, file)
    }

    /// As [`export_sync_file`](Self::export_sync_file), as a descriptor. For a buffer of another
    /// process it is that process's file, with the fences known there.
    ///
    /// # Errors
    ///
    /// [`SyncFileError`].
    pub fn export_sync_fd(&self, flags: RwFlags) -> Result<OwnedFd, SyncFileError> {
        check(flags)?;
        match self.shared().remote() {
            Some(remote_end) => remote_end.export_sync(flags).map_err(remote("EXPORT_SYNC_FILE")),
            None => self.export_sync_file(flags)?.dup_fd(),
        }
    }

    /// As [`import_sync_file`](Self::import_sync_file), with a descriptor. For a buffer of another
    /// process, that process adds the fence, which must then be the kernel's or that process's own.
    ///
    /// # Errors
    ///
    /// [`SyncFileError`].
    pub fn import_sync_fd(&self, flags: RwFlags, fd: BorrowedFd<'_>) -> Result<(), SyncFileError> {
        check(flags)?;
        match self.shared().remote() {
            Some(remote_end) => {
                remote_end.import_sync(flags, fd).map_err(remote("IMPORT_SYNC_FILE"))
            }
            None => self.import_sync_file(flags, &SyncFile::from_fd(fd)?),
        }
    }

    /// Every process that has the buffer must see the fence, so it has to be a fence of the kernel.
    fn import_into_kernel(&self, flags: RwFlags, file: &SyncFile) -> Result<(), SyncFileError> {
        match &file.repr {
            Repr::Kernel(fd) => {
                let import = |to| kernel::import_sync_file(to, flags.bits(), fd.as_fd());
                let done = fd.look().and_then(|()| self.known_fd()).and_then(import);
                done.map_err(|errno| SyncFileError::System {
                    call: "DMA_BUF_IOCTL_IMPORT_SYNC_FILE",
                    errno,
                })
            }
            Repr::Own(own) if own.fence().is_signaled() => Ok(()),
            Repr::Own(own) => Err(SyncFileError::NotTheKernels { fence: own.fence().to_string() }),
        }
    }
}

/// Adds each fence of a file.
pub(crate) fn add_to(resv: &Resv, flags: RwFlags, file: &SyncFile) -> Result<(), SyncFileError> {
    let parts = file.to_fence()?.unwrap_parts();
    if parts.is_empty() {
        return Ok(());
    }
    let usage = if flags.contains(RwFlags::WRITE) { Usage::Write } else { Usage::Read };
    let resv = resv.lock();
    resv.reserve_fences(parts.len())?;
    for fence in &parts {
        resv.add_fence(fence, usage)
            .expect("a slot was reserved for each, and none is a container");
    }
    Ok(())
}

/// The answer of the exporter's process, as an errno.
fn remote(call: &'static str) -> impl FnOnce(ExporterError) -> SyncFileError {
    move |error| {
        let errno = match error.kind {
            ExporterErrorKind::Kernel(errno) => errno,
            ExporterErrorKind::NoMemory => Errno::NOMEM,
            ExporterErrorKind::NoDevice => Errno::NODEV,
            ExporterErrorKind::Busy => Errno::BUSY,
            _ => Errno::INVAL,
        };
        SyncFileError::System { call, errno }
    }
}

/// Checks that this is a non-empty set of the two flags.
fn check(flags: RwFlags) -> Result<(), SyncFileError> {
    if flags.is_empty() || !RwFlags::all().contains(flags) {
        return Err(SyncFileError::BadFlags { flags: flags.bits() });
    }
    Ok(())
}
