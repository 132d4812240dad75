//! Who is at the other end of a Unix socket, as the kernel says.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// `struct ucred` of the process at the other end of a Unix socket (`unix(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "what the kernel says")]
pub struct PeerCred {
    /// Its process id. The kernel's 0 is `None`: the process has no number in our pid namespace.
    pub pid: Option<u32>,
    /// Its effective user id.
    pub uid: u32,
}

/// Reads `SO_PEERCRED`: of the process that connected or, on a connecting socket, listened.
///
/// rustix has this call too, but its pid cannot be 0.
///
/// # Errors
///
/// What the kernel says: ENOTSOCK.
pub fn peer_cred(socket: BorrowedFd<'_>) -> Result<PeerCred, Errno> {
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
