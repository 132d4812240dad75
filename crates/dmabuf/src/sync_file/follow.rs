//! Fences of the kernel as fences of this process.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;
use rustix::io::Errno;

use super::{SyncFileError, SyncFileInfo, status_of};
use crate::fence::{Fence, FenceStatus, Timeline};
use crate::poll::file::poll_one;
use crate::sys;

/// A fence that is signaled when the kernel's file is. A thread waits for the file, and ends then;
/// the kernel's fences are signaled in finite time.
pub(super) fn follow(file: BorrowedFd<'_>, info: &SyncFileInfo) -> Result<Fence, SyncFileError> {
    if info.status == FenceStatus::Signaled {
        return Ok(Fence::signaled_stub());
    }
    let (driver, name) = match &info.fences[..] {
        [fence] => (&*fence.driver, &*fence.timeline),
        _ => ("sync_file", &*info.name),
    };
    let timeline = Timeline::new(driver, name);
    let fence = timeline.point();
    let file = rustix::io::fcntl_dupfd_cloexec(file, 0)
        .map_err(|errno| SyncFileError::System { call: "F_DUPFD_CLOEXEC", errno })?;
    let followed = fence.clone();
    let wait = move || {
        poll_one(file.as_fd(), PollFlags::IN, None);
        let info = sys::sync_file::file_info(file.as_fd());
        match info.map_or(FenceStatus::Failed(Errno::IO), |info| status_of(info.status)) {
            FenceStatus::Failed(errno) => {
                // Nothing else signals this timeline.
                let _ = timeline.fail(&followed, errno);
            }
            FenceStatus::Active | FenceStatus::Signaled => timeline.signal(followed.seqno()),
        }
    };
    sys::spawn("peerdma-fence", wait).map_err(|error| SyncFileError::System {
        call: "pthread_create",
        errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
    })?;
    Ok(fence)
}
