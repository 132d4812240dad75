//! Locks of one byte that belong to an open file description, so that they end with it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Opens the file behind `fd` again, for reading and writing: the same file, another open file
/// description.
pub(crate) fn reopen(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Locks a byte of the file for this open file description, unless another one has it.
pub(crate) fn try_lock(file: impl AsFd, byte: u64) -> Result<bool, Errno> {
    match control(file.as_fd(), libc::F_OFD_SETLK, byte) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether another open file description has a byte locked.
pub(crate) fn is_locked(file: impl AsFd, byte: u64) -> Result<bool, Errno> {
    let answer = control(file.as_fd(), libc::F_OFD_GETLK, byte)?;
    Ok(i32::from(answer.l_type) != libc::F_UNLCK)
}

/// Unlocks a byte that this open file description has locked.
pub(crate) fn unlock(file: impl AsFd, byte: u64) -> Result<(), Errno> {
    control_as(libc::F_UNLCK, file.as_fd(), libc::F_OFD_SETLK, byte).map(drop)
}

fn control(file: BorrowedFd<'_>, command: i32, byte: u64) -> Result<libc::flock, Errno> {
    control_as(libc::F_WRLCK, file, command, byte)
}

fn control_as(
    kind: i32,
    file: BorrowedFd<'_>,
    command: i32,
    byte: u64,
) -> Result<libc::flock, Errno> {
    let mut lock = libc::flock {
        // CAST: the constants are small; their type differs by architecture.
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: i64::try_from(byte).map_err(|_| Errno::OVERFLOW)?,
        l_len: 1,
        // Must be 0 for these commands.
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the structure lives through the call, which may write to
    // it.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } == -1 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL));
    }
    Ok(lock)
}
