//! Which process is at the other end of a Unix socket, as the kernel reports it, and whether it may
//! give us descriptors.
#![allow(unsafe_code, reason = "socket options that rustix lacks")]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;

use rustix::io::Errno;

/// `struct ucred` of the process at the other end of a Unix socket (`unix(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "what the kernel reports")]
pub struct PeerCred {
    /// Its process id. The kernel's 0 is `None`: the process has no number in our pid namespace.
    pub pid: Option<u32>,
    /// Its effective user id.
    pub uid: u32,
}

impl PeerCred {
    /// Whether the process is of our user; see [`is_same_user`].
    pub fn is_same_user(self) -> bool {
        is_same_user(self.uid)
    }
}

/// Whether a process with this effective user id, as the kernel shows it to us, is of our user.
/// Nothing of ours is given to any other user.
///
/// Users that our user namespace does not know are all shown as the overflow uid
/// (`user_namespaces(7)`), so that number means no particular user, even if it is also ours. Only
/// where the namespace knows every user is it a user like any other.
pub fn is_same_user(uid: u32) -> bool {
    SameUser::now().is(uid)
}

/// Our user at a moment, to compare others with later: to find out who that is may take reading a
/// file, and comparing does not.
#[derive(Clone, Copy, Debug)]
pub struct SameUser {
    /// `None` if our number may mean another user, too.
    uid: Option<u32>,
}

impl SameUser {
    /// Our user now.
    pub fn now() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self { uid: (uid != overflow_uid() || knows_every_user()).then_some(uid) }
    }

    /// As [`is_same_user`].
    pub fn is(self, uid: u32) -> bool {
        self.uid == Some(uid)
    }
}

fn overflow_uid() -> u32 {
    /// `DEFAULT_OVERFLOWUID` of the kernel.
    const DEFAULT: u32 = 65534;
    static UID: OnceLock<u32> = OnceLock::new();
    *UID.get_or_init(|| {
        let said = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
        said.ok().and_then(|uid| uid.trim().parse().ok()).unwrap_or(DEFAULT)
    })
}

/// Whether our user namespace has a number for every user. Asked each time: a process can enter
/// another namespace.
fn knows_every_user() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| is_whole(&map))
}

/// Whether a `uid_map` maps every number.
fn is_whole(map: &str) -> bool {
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// Reads `SO_PEERCRED`: the credentials of the process that connected or, on a connecting socket,
/// listened.
///
/// rustix has this call too, but its pid cannot be 0.
///
/// # Errors
///
/// The kernel's error: ENOTSOCK.
pub fn peer_cred(socket: BorrowedFd<'_>) -> Result<PeerCred, Errno> {
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the fd is open; `cred` is valid for `len` bytes of writing, any bytes are a valid
    // ucred, and `len` is valid for reading and writing.
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

/// Makes the kernel refuse messages with descriptors that are sent to this socket from now on
/// (EPERM for the sender), or accept them again. An accepted socket inherits the setting that its
/// listener had when it was connected. False where the kernel cannot (Linux before 6.16).
pub(crate) fn take_descriptors(socket: BorrowedFd<'_>, take: bool) -> bool {
    /// `SO_PASSRIGHTS` of `<asm-generic/socket.h>`.
    const SO_PASSRIGHTS: libc::c_int = 83;
    let value = libc::c_int::from(take);
    // SAFETY: the fd is open, and `value` is valid for reading as many bytes as are passed.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    rc == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_of_our_user_and_others_are_not() {
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(is_same_user(own), own != overflow_uid() || knows_every_user());
        assert!(!is_same_user(own ^ 1));
    }

    #[test]
    fn a_namespace_knows_every_user_only_if_it_maps_them_all() {
        assert!(is_whole("         0          0 4294967295\n"));
        assert!(!is_whole("         0          0      65536\n"));
        assert!(!is_whole("      1000       1000          1\n"));
        assert!(!is_whole("0 100000 65536\n65536 0 1\n"));
        assert!(!is_whole(""));
    }
}
