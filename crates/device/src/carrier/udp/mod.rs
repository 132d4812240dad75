//! Datagrams to and from other hosts, as RoCEv2 has them.
//!
//! | file | what |
//! |---|---|
//! | [`queue`] | the sending half: packets with their ICRC, in trains |
//! | [`tx_sockets`] | sockets of their own for those whom much is sent to |
//! | [`receiver`] | the receiving half: the sockets |
//! | [`port`] | whether the kernel gives us what is ours |
//! | [`intake`] | what a datagram is checked with |
//! | [`sources`] | sockets of their own for those whom much comes from |
//! | [`forwarders`] | whose forwarded datagrams are taken |
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
    /// Where they are.
    pub(crate) const MASK: u8 = 3;
    /// The sender knows what a mark is.
    pub(crate) const ECT_0: u8 = 2;
    /// Congestion experienced: the mark.
    pub(crate) const CE: u8 = 3;
}
