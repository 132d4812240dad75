//! A fence as a file, which a program can pass to another or to `poll`.
//!
//! ```text
//!     DmaBuf --export_sync_file--> SyncFile --fd--> poll, merge, another API
//!     DmaBuf <--import_sync_file-- SyncFile
//! ```
//!
//! There are two kinds of files. For the kernel's dma-bufs it is the kernel's `sync_file`. For
//! fences of this process it is an eventfd that becomes readable when the fence is signaled, and
//! that this process recognises by its id; another process can wait for it, but cannot import it.
//! Rules: `docs/semantics.md` 1.9.

mod buf;
mod follow;
mod own;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use descriptors::Known;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::time::ClockId;

use crate::fence::{Fence, FenceStatus, TimedOut};
use crate::poll::file::poll_one;
use crate::sys::sync_file as kernel;

pub(crate) use buf::add_to;
use own::Own;

/// A fence as a file: it can be polled for reading (POLLIN) and is ready when the fence is
/// signaled.
#[doc(alias = "sync_file")]
#[derive(Debug)]
pub struct SyncFile {
    repr: Repr,
}

#[derive(Debug)]
enum Repr {
    Own(Own),
    Kernel(Known),
}

/// What a sync_file reports about itself.
#[doc(alias = "sync_file_info")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SyncFileInfo {
    /// Its name.
    pub name: String,
    /// 1 when all its fences are signaled without an error.
    pub status: FenceStatus,
    /// Its fences; a container is shown as the fences that it holds.
    pub fences: Vec<SyncFenceInfo>,
}

/// What a sync_file reports about one of its fences.
#[doc(alias = "sync_fence_info")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SyncFenceInfo {
    /// The timeline's name.
    pub timeline: String,
    /// The producer's name.
    pub driver: String,
    /// Its status.
    pub status: FenceStatus,
    /// When it was signaled, in nanoseconds of CLOCK_MONOTONIC; 0 while active.
    pub timestamp: u64,
}

/// Why an operation on a sync_file failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SyncFileError {
    /// The flags have neither READ nor WRITE, or others as well (EINVAL).
    #[error("the flags {flags:#x} of a sync_file request are not READ, WRITE or both")]
    BadFlags {
        /// The flags.
        flags: u32,
    },
    /// The file is neither ours nor the kernel's (EINVAL).
    #[error("fd {fd} is not a sync_file")]
    NotASyncFile {
        /// The descriptor.
        fd: i32,
    },
    /// A fence of this process cannot become one of the kernel's (EINVAL).
    #[error("the kernel cannot wait for a fence of this process: {fence}")]
    NotTheKernels {
        /// The fence.
        fence: String,
    },
    /// No room for its fences (ENOMEM).
    #[error("{0}")]
    NoSlots(#[from] crate::resv::ReserveError),
    /// The kernel refused.
    #[error("{call} failed: {errno}")]
    System {
        /// The call.
        call: &'static str,
        /// The kernel's reason.
        errno: Errno,
    },
}

impl SyncFile {
    /// A file for a fence of this process.
    ///
    /// # Errors
    ///
    /// [`SyncFileError::System`]: no free fd.
    #[doc(alias = "sync_file_create")]
    pub fn new(fence: &Fence) -> Result<Self, SyncFileError> {
        // The kernel's name for an unnamed file.
        let name = format!(
            "{}-{}{}-{}",
            fence.driver_name(),
            fence.timeline_name(),
            fence.context(),
            fence.seqno()
        );
        Self::named(fence, &name)
    }

    /// Finds the sync_file behind an fd, of the kernel or of this process.
    ///
    /// # Errors
    ///
    /// [`SyncFileError::NotASyncFile`].
    #[doc(alias = "sync_file_fdget")]
    pub fn from_fd(fd: BorrowedFd<'_>) -> Result<Self, SyncFileError> {
        use std::os::fd::AsRawFd;
        if let Some(own) = Own::find(fd) {
            return Ok(Self { repr: Repr::Own(own) });
        }
        let not = |_| SyncFileError::NotASyncFile { fd: fd.as_raw_fd() };
        kernel::file_info(fd).map_err(not)?;
        let fd = rustix::io::fcntl_dupfd_cloexec(fd, 0)
            .map_err(|errno| SyncFileError::System { call: "F_DUPFD_CLOEXEC", errno })?;
        Ok(Self { repr: Repr::Kernel(fd.into()) })
    }

    /// The fence, if it is a fence of this process.
    pub fn fence(&self) -> Option<&Fence> {
        match &self.repr {
            Repr::Own(own) => Some(own.fence()),
            Repr::Kernel(_) => None,
        }
    }

    /// Whether the file is the kernel's.
    pub fn is_kernel(&self) -> bool {
        matches!(self.repr, Repr::Kernel(_))
    }

    /// Its status.
    ///
    /// # Errors
    ///
    /// The kernel's error, for its files.
    pub fn status(&self) -> Result<FenceStatus, SyncFileError> {
        match &self.repr {
            Repr::Own(own) => Ok(own.fence().status()),
            Repr::Kernel(_) => Ok(self.info()?.status),
        }
    }

    /// Waits until it is signaled, at most for `limit`.
    ///
    /// # Errors
    ///
    /// [`TimedOut`].
    pub fn wait(&self, limit: Option<Duration>) -> Result<(), TimedOut> {
        match &self.repr {
            Repr::Own(own) => own.fence().wait(limit),
            Repr::Kernel(fd) => {
                let ready = poll_one(fd.as_fd(), PollFlags::IN, limit);
                if ready.is_empty() { Err(TimedOut) } else { Ok(()) }
            }
        }
    }

    /// Information about it.
    ///
    /// # Errors
    ///
    /// The kernel's error, for its files.
    #[doc(alias = "SYNC_IOC_FILE_INFO")]
    pub fn info(&self) -> Result<SyncFileInfo, SyncFileError> {
        match &self.repr {
            Repr::Own(own) => Ok(own.info()),
            Repr::Kernel(fd) => {
                let info = kernel::file_info(fd.as_fd())
                    .map_err(|errno| SyncFileError::System { call: "SYNC_IOC_FILE_INFO", errno })?;
                let fences = info.fences.into_iter().map(|fence| SyncFenceInfo {
                    timeline: fence.timeline,
                    driver: fence.driver,
                    status: status_of(fence.status),
                    timestamp: fence.timestamp,
                });
                Ok(SyncFileInfo {
                    name: info.name,
                    status: status_of(info.status),
                    fences: fences.collect(),
                })
            }
        }
    }

    /// A file that is signaled when both are. Two files of the kernel give a file of the kernel.
    ///
    /// # Errors
    ///
    /// The kernel's error, or no free fd.
    #[doc(alias = "SYNC_IOC_MERGE")]
    pub fn merge(&self, other: &Self, name: &str) -> Result<Self, SyncFileError> {
        if let (Repr::Kernel(one), Repr::Kernel(two)) = (&self.repr, &other.repr) {
            let fd = kernel::merge(one.as_fd(), two.as_fd(), name)
                .map_err(|errno| SyncFileError::System { call: "SYNC_IOC_MERGE", errno })?;
            return Ok(Self { repr: Repr::Kernel(fd.into()) });
        }
        Self::named(&Fence::all_of([self.to_fence()?, other.to_fence()?]), name)
    }

    /// Tells the producers by when a user would like it to be signaled.
    ///
    /// # Errors
    ///
    /// The kernel's error, for its files.
    #[doc(alias = "SYNC_IOC_SET_DEADLINE")]
    pub fn set_deadline(&self, deadline: Instant) -> Result<(), SyncFileError> {
        match &self.repr {
            Repr::Own(own) => {
                own.fence().set_deadline(deadline);
                Ok(())
            }
            Repr::Kernel(fd) => {
                let now = rustix::time::clock_gettime(ClockId::Monotonic);
                let ahead = deadline.saturating_duration_since(Instant::now());
                // CAST: the time since boot is not negative, and no deadline is 500 years away.
                let at = now.tv_sec as u64 * 1_000_000_000
                    + now.tv_nsec as u64
                    + ahead.as_nanos() as u64;
                kernel::set_deadline(fd.as_fd(), at)
                    .map_err(|errno| SyncFileError::System { call: "SYNC_IOC_SET_DEADLINE", errno })
            }
        }
    }

    /// A fence of this process for it: its own fence, or one that follows the kernel's file.
    ///
    /// # Errors
    ///
    /// The kernel's error, or no thread to follow the file.
    #[doc(alias = "sync_file_get_fence")]
    pub fn to_fence(&self) -> Result<Fence, SyncFileError> {
        match &self.repr {
            Repr::Own(own) => Ok(own.fence().clone()),
            Repr::Kernel(fd) => follow::follow(fd.as_fd(), &self.info()?),
        }
    }

    /// One more fd for it, closed by an exec.
    ///
    /// # Errors
    ///
    /// No free fd.
    pub fn dup_fd(&self) -> Result<OwnedFd, SyncFileError> {
        rustix::io::fcntl_dupfd_cloexec(self.as_fd(), 0)
            .map_err(|errno| SyncFileError::System { call: "F_DUPFD_CLOEXEC", errno })
    }

    fn named(fence: &Fence, name: &str) -> Result<Self, SyncFileError> {
        Ok(Self { repr: Repr::Own(Own::new(fence, name)?) })
    }
}

impl AsFd for SyncFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.repr {
            Repr::Own(own) => own.as_fd(),
            Repr::Kernel(fd) => fd.as_fd(),
        }
    }
}

fn status_of(status: i32) -> FenceStatus {
    match status {
        0 => FenceStatus::Active,
        1.. => FenceStatus::Signaled,
        negative => FenceStatus::Failed(Errno::from_raw_os_error(negative.wrapping_neg())),
    }
}

#[cfg(test)]
mod tests;
