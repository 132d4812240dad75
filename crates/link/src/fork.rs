//! What a child does with what it inherited.
#![allow(unsafe_code, reason = "closes descriptors by number")]

use descriptors::Inherited;

use crate::ether::{Listener, Sender};
use crate::registry::{Claim, Directory};
use crate::shm::{Inbound, Outbound};
use crate::udp::UdpLink;

/// What owns descriptors and can name them.
///
/// # Safety
///
/// What `inherited` adds are descriptors that the value owns, and nothing else.
pub(crate) unsafe trait OwnsFds {
    fn inherited(&self, out: &mut Vec<Inherited>);
}

/// For the child after a fork: closes the descriptors of `owner`, and leaks the rest of it without
/// running its destructors.
pub(crate) fn abandon(owner: impl OwnsFds) {
    let mut fds = Vec::new();
    owner.inherited(&mut fds);
    std::mem::forget(owner);
    for fd in fds {
        // SAFETY: its owner is forgotten, so that nobody uses or closes it later.
        unsafe { fd.close() };
    }
}

// SAFETY: its socket, the table that came by it, and the doorbell.
unsafe impl OwnsFds for Outbound {
    fn inherited(&self, out: &mut Vec<Inherited>) {
        self.inherited(out);
    }
}

// SAFETY: its socket, the table that came by it, and the doorbell.
unsafe impl OwnsFds for Inbound {
    fn inherited(&self, out: &mut Vec<Inherited>) {
        self.inherited(out);
    }
}

// SAFETY: its sockets, its table and its doorbell.
unsafe impl OwnsFds for Claim {
    fn inherited(&self, out: &mut Vec<Inherited>) {
        self.inherited(out);
    }
}

// SAFETY: its epoll set and the sockets in it.
unsafe impl OwnsFds for Directory {
    fn inherited(&self, out: &mut Vec<Inherited>) {
        self.inherited(out);
    }
}

// SAFETY: its sockets.
unsafe impl OwnsFds for UdpLink {
    fn inherited(&self, out: &mut Vec<Inherited>) {
        self.inherited(out);
    }
}

// SAFETY: its socket.
unsafe impl OwnsFds for Sender {
    fn inherited(&self, out: &mut Vec<Inherited>) {
        self.inherited(out);
    }
}

// SAFETY: its socket.
unsafe impl OwnsFds for Listener {
    fn inherited(&self, out: &mut Vec<Inherited>) {
        self.inherited(out);
    }
}
