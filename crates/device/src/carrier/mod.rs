//! The carriers, which take packets from QP to QP.
//!
//! | carrier | between | its packets | reliable, in order |
//! |---|---|---|---|
//! | [`loopback`] | QPs of one process | references, or copies for unreliable QPs | yes |
//! | [`shm`] | processes of one host | records in rings; one-sided operations directly | yes |
//! | [`udp`] | hosts | datagrams of the path MTU, in trains | no |
//! | [`ether`] | raw packet QPs and the port | Ethernet frames | no |
//!
//! A QP knows one thing about its carrier: the [`Route`]. Each carrier has a sending half, which
//! QPs reach while they run ([`Senders`]), and a receiving half ([`Receivers`]), so that a QP that
//! is given a packet can answer at once. No carrier names another, nor the engine.

mod about;
pub(crate) mod atomic;
pub(crate) mod ether;
pub(crate) mod fast_path;
pub(crate) mod loopback;
mod route;
pub(crate) mod shm;
pub(crate) mod udp;

use link::netdev::Watch;

pub(crate) use self::about::About;
pub(crate) use self::route::Route;

use self::loopback::Loopback;

/// The sending halves.
#[derive(Debug)]
pub(crate) struct Senders {
    pub(crate) loopback: Loopback,
    pub(crate) shm: shm::Peers,
    pub(crate) udp: udp::UdpQueue,
    pub(crate) ether: ether::Sender,
}

/// The receiving halves.
#[derive(Debug)]
pub(crate) struct Receivers {
    pub(crate) shm: shm::Receiver,
    pub(crate) udp: udp::Receiver,
    /// Ethernet frames, while a rule gives some to a QP.
    pub(crate) frames: Option<Box<ether::Frames>>,
    /// Reports changes of the netdev.
    pub(crate) watch: Option<Watch>,
}

impl Receivers {
    /// In a forked child, closes what belongs to the parent.
    pub(crate) fn abandon_in_child(&mut self) {
        self.shm.abandon_in_child();
        self.udp.abandon_in_child();
        if let Some(frames) = self.frames.take() {
            frames.listener.abandon_in_child();
        }
        self.watch = None;
    }

    /// Hangs up on every peer and closes the sockets.
    pub(crate) fn close(&mut self) {
        self.shm.hang_up();
        self.udp.close();
        self.frames = None;
        self.watch = None;
    }

    /// Whether frames came recently, so that each poll should check.
    pub(crate) fn frames_are_hot(&self) -> bool {
        self.frames.as_ref().is_some_and(|frames| frames.is_hot())
    }
}
