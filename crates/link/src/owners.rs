//! The owners of descriptors that a forked child inherits. They are listed here so that
//! [`fork`](crate::fork) need not know its users.
#![allow(unsafe_code, reason = "lists what each of them owns")]

use descriptors::Inherited;

use crate::ether::{Listener, Sender};
use crate::fork::OwnsFds;
use crate::registry::{Claim, Directory};
use crate::shm::{Inbound, Outbound};
use crate::udp::UdpLink;

// SAFETY: its socket, the table that came through it, and the doorbell.
unsafe impl OwnsFds for Outbound {
    fn inherited(&self, out: &mut Vec<Inherited>) {
        self.inherited(out);
    }
}

// SAFETY: its socket, the table that came through it, and the doorbell.
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
