//! Datagrams of RoCEv2 to and from other hosts.
//!
//! | file | what |
//! |---|---|
//! | [`queue`] | the sending half: packets with their ICRC, in trains |
//! | [`tx_sockets`] | connected sockets to busy destinations |
//! | [`receiver`] | the receiving half: the sockets |
//! | [`port`] | whether the kernel gives us our datagrams |
//! | [`intake`] | the checks of datagrams |
//! | [`sources`] | connected sockets from busy sources |
//! | [`forwarders`] | whose forwarded datagrams are accepted |
//! | [`alike`] | packets of one message, checked in one loop |

pub(crate) mod alike;
mod forwarders;
mod intake;
mod port;
pub(crate) mod queue;
mod receiver;
mod sources;
#[cfg(test)]
mod tests;
pub(crate) mod tx_sockets;

pub(crate) use self::intake::Intake;
#[cfg(test)]
pub(crate) use self::port::SILENCE;
pub(crate) use self::queue::UdpQueue;
pub(crate) use self::receiver::{JoinError, Look, Receiver};

/// The lower two bits of the type of service (RFC 3168).
pub(crate) mod ecn {
    /// The mask of the two bits.
    pub(crate) const MASK: u8 = 3;
    /// The sender understands marks.
    pub(crate) const ECT_0: u8 = 2;
    /// Congestion experienced: the mark.
    pub(crate) const CE: u8 = 3;
}
