//! A datagram for QP 1, in transit to the communication manager.

use wire::mad::LEN;

use crate::carrier::About;

/// A datagram for QP 1.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    pub(crate) from: ::cm::Peer,
    pub(crate) mad: Box<[u8; LEN]>,
    /// The whole datagram if it came from the socket: it may be for another process.
    pub(crate) whole: Option<(About, Vec<u8>)>,
}

#[cfg(test)]
impl Arrived {
    /// One that a process of this host sent.
    pub(crate) fn local(from: ::cm::Peer, mad: Box<[u8; LEN]>) -> Self {
        Self { from, mad, whole: None }
    }
}
