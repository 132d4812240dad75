//! Rings in shared memory, between the processes of a host.
//!
//! | file | what |
//! |---|---|
//! | [`peers`] | the sending half: our VF, a ring to each peer, doorbells, forwarded datagrams |
//! | [`receiver`] | the receiving half: the rings of others to us, and the copies that they make |
//! | [`record`] | the records of packets in a ring |
//! | [`table`] | the memory that peers may access without our engine |
//! | [`direct`] | our access to a peer's memory without its engine |

pub(crate) mod direct;
pub(crate) mod peers;
mod receiver;
pub(crate) mod record;
pub(crate) mod table;
#[cfg(test)]
mod tests;

pub(crate) use self::peers::{Forwarded, Peers, PushError, RingPosition};
pub(crate) use self::receiver::{GONE_BURST, RING_BURST, Receiver, UnderWay};
