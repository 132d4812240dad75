//! Which carrier leads to an address.

use iba::{Av, Gid, Qpn};

use crate::qp::vf_of;

/// Which carrier takes a QP's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Route {
    /// Not connected.
    #[default]
    None,
    /// Within this process.
    Loopback,
    /// To another process of this host.
    Shm(u16),
    /// Over the network.
    Udp,
}

/// Packets a QP may send before another has its turn: a few long ones on one host, and over a
/// network as many as one system call takes, as each turn ends with such calls.
const BURST: usize = 16;
const WIRE_BURST: usize = 64;
/// Bytes of one packet on the ring between two processes: large enough to amortise a record, small
/// enough that the receiver copies while the sender fills the next.
const SHM_SEGMENT: u32 = 32 << 10;
/// Bytes of one packet within a process, where it is a reference.
const LOOPBACK_SEGMENT: u32 = 1 << 20;

impl Route {
    /// The carrier for packets to a QP at an address: another host's address means the wire; one of
    /// our own port means the process whose VF the QPN names, which may be this one.
    #[inline]
    pub(crate) fn to(av: &Av, dest: Qpn, gids: &[Gid], own_vf: u16, is_udp_forced: bool) -> Self {
        if !gids.contains(&av.dgid) || is_udp_forced {
            return Self::Udp;
        }
        match vf_of(dest) {
            vf if vf == own_vf => Self::Loopback,
            vf => Self::Shm(vf),
        }
    }

    pub(crate) const fn is_none(self) -> bool {
        matches!(self, Self::None)
    }

    /// Whether its packets are datagrams of UDP.
    #[inline]
    pub(crate) const fn is_udp(self) -> bool {
        matches!(self, Self::Udp)
    }

    pub(crate) const fn is_loopback(self) -> bool {
        matches!(self, Self::Loopback)
    }

    /// The process of this host at the other end of the ring, if the route is a ring.
    #[inline]
    pub(crate) const fn peer(self) -> Option<u16> {
        match self {
            Self::Shm(vf) => Some(vf),
            _ => None,
        }
    }

    /// Packets a QP may send before another has its turn.
    #[inline]
    pub(crate) const fn burst(self) -> usize {
        if self.is_udp() { WIRE_BURST } else { BURST }
    }

    /// The most bytes of one packet, where that may be more than the path MTU: on a carrier that is
    /// reliable and keeps the order, with rings of this size.
    pub(crate) fn segment(self, ring_size: u64) -> Option<u32> {
        match self {
            Self::None | Self::Udp => None,
            // CAST: a ring ends at 16 MiB.
            Self::Shm(_) => Some(SHM_SEGMENT.min(ring_size as u32 / 4)),
            Self::Loopback => Some(LOOPBACK_SEGMENT),
        }
    }

    /// Which carrier it is and why, in words; `is_own_address` says whether the address is of our
    /// port.
    pub(crate) const fn why(self, is_own_address: bool) -> &'static str {
        match self {
            Self::None => "not connected",
            Self::Loopback => "loopback: the peer is in this process",
            Self::Shm(_) => "shared memory: the peer is another process of this host",
            Self::Udp if is_own_address => "UDP: the configuration forces it",
            Self::Udp => "UDP: the address belongs to another host",
        }
    }

    /// What carries its packets.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Loopback => "loopback",
            Self::Shm(_) => "shared memory",
            Self::Udp => "UDP",
        }
    }
}
