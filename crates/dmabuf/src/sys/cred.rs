//! Who is at the other end of a Unix socket, as the kernel says.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// `struct ucred`, with pid 0 as `None`: the peer's process has no number in our pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerCred {
    pub(crate) pid: Option<u32>,
    pub(crate) uid: u32,
}

/// Reads `SO_PEERCRED`: of the process that connected or, on a connecting socket, listened.
///
/// rustix has this call too, but its pid cannot be 0.
pub(crate) fn peer_cred(socket: BorrowedFd<'_>) -> Result<PeerCred, Errno> {
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the fd is open; `cred` is valid for `len` bytes of writing, any bytes are a valid ucred, and `len` is
    // valid for reading and writing.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut len,
        )
    };
    if rc != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::NOTCONN));
    }
    Ok(PeerCred { pid: u32::try_from(cred.pid).ok().filter(|pid| *pid != 0), uid: cred.uid })
}
