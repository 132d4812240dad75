//! Whether another process has a file open.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The signal for an open that conflicts with a lease.
const F_SETSIG: c_int = 10;

/// Another open file description of a file.
pub(crate) fn open_again(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(&path, flags, Mode::empty())
}

/// An open file description for the check of [`is_alone`].
pub(crate) fn probe(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let probe = open_again(fd, OFlags::RDWR | OFlags::CLOEXEC)?;
    make_harmless(&probe);
    Ok(probe)
}

/// If another process opens the file during the query, a harmless signal is sent instead of the
/// deadly SIGIO.
pub(super) fn make_harmless(probe: &OwnedFd) {
    // SAFETY: this only sets the number of a signal.
    unsafe { libc::fcntl(probe.as_raw_fd(), F_SETSIG, libc::SIGURG) };
}

/// Whether a probe is the only open file description of its file, in this process or another: then
/// the kernel grants a write lease. (The one that `memfd_create` made does not count.)
pub(crate) fn is_alone(probe: &OwnedFd) -> bool {
    let probe = probe.as_raw_fd();
    // SAFETY: a lease only changes which process is notified of an open; it is given back below.
    let taken = unsafe { libc::fcntl(probe, libc::F_SETLEASE, libc::F_WRLCK) } == 0;
    if taken {
        // SAFETY: as above.
        unsafe { libc::fcntl(probe, libc::F_SETLEASE, libc::F_UNLCK) };
    }
    taken
}
