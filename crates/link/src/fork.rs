//! What a child does with what it inherited.
#![allow(unsafe_code, reason = "closes descriptors by number")]

use std::os::fd::RawFd;

use crate::ether::{Listener, Sender};
use crate::registry::{Claim, Directory};
use crate::shm::{Inbound, Outbound};
use crate::udp::UdpLink;

/// What owns descriptors and can name them.
///
/// # Safety
///
/// What `raw_fds` adds are descriptors that the value owns, and nothing else.
pub(crate) unsafe trait OwnsFds {
    fn raw_fds(&self, out: &mut Vec<RawFd>);
}

/// For the child after a fork: closes the descriptors of `owner`, and leaks the rest of it without running its destructors.
pub(crate) fn abandon(owner: impl OwnsFds) {
    let mut fds = Vec::new();
    owner.raw_fds(&mut fds);
    std::mem::forget(owner);
    for fd in fds {
        // SAFETY: its owner is forgotten, so that nobody uses or closes it later.
        unsafe { rustix::io::close(fd) };
    }
}

// SAFETY: its socket, the table that came by it, and the doorbell.
unsafe impl OwnsFds for Outbound {
    fn raw_fds(&self, out: &mut Vec<RawFd>) {
        self.raw_fds(out);
    }
}

// SAFETY: its socket, the table that came by it, and the doorbell.
unsafe impl OwnsFds for Inbound {
    fn raw_fds(&self, out: &mut Vec<RawFd>) {
        self.raw_fds(out);
    }
}

// SAFETY: its sockets, its table and its doorbell.
unsafe impl OwnsFds for Claim {
    fn raw_fds(&self, out: &mut Vec<RawFd>) {
        self.raw_fds(out);
    }
}

// SAFETY: its epoll set and the sockets in it.
unsafe impl OwnsFds for Directory {
    fn raw_fds(&self, out: &mut Vec<RawFd>) {
        self.raw_fds(out);
    }
}

// SAFETY: its sockets.
unsafe impl OwnsFds for UdpLink {
    fn raw_fds(&self, out: &mut Vec<RawFd>) {
        self.raw_fds(out);
    }
}

// SAFETY: its socket.
unsafe impl OwnsFds for Sender {
    fn raw_fds(&self, out: &mut Vec<RawFd>) {
        self.raw_fds(out);
    }
}

// SAFETY: its socket.
unsafe impl OwnsFds for Listener {
    fn raw_fds(&self, out: &mut Vec<RawFd>) {
        self.raw_fds(out);
    }
}
