//! What is known about a datagram outside its bytes.

use std::net::SocketAddr;

/// What the kernel reported about a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) src: SocketAddr,
    pub(crate) dst: SocketAddr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}
