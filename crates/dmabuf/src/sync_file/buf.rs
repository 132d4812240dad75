//! The fences of a buffer as files.

use std::os::fd::AsFd;

use super::{Repr, SyncFile, SyncFileError};
use crate::DmaBuf;
use crate::fence::Fence;
use crate::resv::Usage;
use crate::sys::sync_file as kernel;

bitflags::bitflags! {
    /// What an access will do, or what work behind a fence does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RwFlags: u32 {
        /// It reads.
        #[doc(alias = "DMA_BUF_SYNC_READ")]
        const READ = 1;
        /// It writes.
        #[doc(alias = "DMA_BUF_SYNC_WRITE")]
        const WRITE = 2;
    }
}

impl DmaBuf {
    /// What an access must wait for, as it is now: for one that writes all implicit users, and otherwise those that
    /// write. A signaled file if there are none.
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
        let fd = kernel::export_sync_file(self.fd(), flags.bits())
            .map_err(|errno| SyncFileError::System { call, errno })?;
        let theirs = SyncFile { repr: Repr::Kernel(fd) };
        if ours.is_signaled() {
            return Ok(theirs);
        }
        SyncFile::new(&Fence::all_of([ours, theirs.to_fence()?]))
    }

    /// Makes implicit users of the buffer wait for `file`, as for work that writes if `flags` say so, and otherwise as
    /// for work that reads. Each fence in it is added, signaled ones too.
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
        let parts = file.to_fence()?.unwrap_parts();
        if parts.is_empty() {
            return Ok(());
        }
        let usage = if flags.contains(RwFlags::WRITE) { Usage::Write } else { Usage::Read };
        let resv = self.resv().lock();
        resv.reserve_fences(parts.len())?;
        for fence in &parts {
            resv.add_fence(fence, usage)
                .expect("a slot was reserved for each, and none is a container");
        }
        Ok(())
    }

    /// Every process that has the buffer must see the fence, so it has to be one of the kernel's.
    fn import_into_kernel(&self, flags: RwFlags, file: &SyncFile) -> Result<(), SyncFileError> {
        match &file.repr {
            Repr::Kernel(fd) => {
                kernel::import_sync_file(self.fd(), flags.bits(), fd.as_fd()).map_err(|errno| {
                    SyncFileError::System { call: "DMA_BUF_IOCTL_IMPORT_SYNC_FILE", errno }
                })
            }
            Repr::Own(own) if own.fence().is_signaled() => Ok(()),
            Repr::Own(own) => Err(SyncFileError::NotTheKernels { fence: own.fence().to_string() }),
        }
    }
}

/// A non-empty set of the two.
fn check(flags: RwFlags) -> Result<(), SyncFileError> {
    if flags.is_empty() || !RwFlags::all().contains(flags) {
        return Err(SyncFileError::BadFlags { flags: flags.bits() });
    }
    Ok(())
}
