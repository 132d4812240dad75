//! What `/proc/self/fdinfo` tells about a descriptor.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{Mode, OFlags};

/// More than the kernel tells about an eventfd or a socket.
const ROOM: usize = 1024;

/// The number of an eventfd, which no other open eventfd has, and its count; `None` for other
/// files.
pub fn eventfd(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let mut room = [0; ROOM];
    let text = read(fd, &mut room)?;
    let value = |key: &str| Some(text.lines().find_map(|line| line.strip_prefix(key))?.trim());
    let id = value("eventfd-id:")?.parse().ok()?;
    let count = u64::from_str_radix(value("eventfd-count:")?, 16).ok()?;
    Some((id, count))
}

/// How many descriptors wait in a Unix socket to be received, or, if it listens, in the connections
/// that wait to be accepted; `None` where the kernel does not tell (Linux before 5.4, no /proc).
pub(crate) fn queued_descriptors(socket: BorrowedFd<'_>) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", socket.as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("scm_fds:"))?.trim().parse().ok()
}

/// What the kernel tells about a descriptor, read in one call: each channel of a program is an
/// eventfd, and some programs make one for each connection.
fn read<'a>(fd: BorrowedFd<'_>, room: &'a mut [u8; ROOM]) -> Option<&'a str> {
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let length = rustix::io::read(&file, &mut room[..]).ok()?;
    std::str::from_utf8(&room[..length]).ok()
}
