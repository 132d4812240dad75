//! What a child does with what it inherited.
#![allow(unsafe_code, reason = "closes descriptors by number")]

use std::os::fd::RawFd;

/// Closes `fds` in a child after a fork, without running the destructors of what held them.
///
/// # Safety
/// The numbers must be descriptors of this process whose owners are never used nor dropped
/// afterwards: in the child, of objects that stay behind a lock nobody can take any more.
pub unsafe fn close_fds_in_child(fds: &[RawFd]) {
    for &fd in fds {
        // SAFETY: the caller owns `fd`, and nobody uses it later.
        unsafe { rustix::io::close(fd) };
    }
}

/// Closes `fds`, which are those of `owner`, and leaks the rest of `owner`.
pub(crate) fn abandon<T>(owner: T, fds: &[RawFd]) {
    std::mem::forget(owner);
    // SAFETY: the owner of the descriptors is forgotten, so that nobody uses or drops them.
    unsafe { close_fds_in_child(fds) };
}
