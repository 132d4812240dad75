//! What receive side scaling hashes.

use bitflags::bitflags;

bitflags! {
    /// Which fields of a frame are hashed (`enum ibv_rx_hash_fields`), in this order.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[doc(alias = "ibv_rx_hash_fields")]
    pub struct HashFields: u64 {
        /// Where an IPv4 packet comes from.
        const SRC_IPV4 = 1;
        /// Where it goes.
        const DST_IPV4 = 1 << 1;
        /// Where an IPv6 packet comes from.
        const SRC_IPV6 = 1 << 2;
        /// Where it goes.
        const DST_IPV6 = 1 << 3;
        /// The TCP port it comes from.
        const SRC_PORT_TCP = 1 << 4;
        /// The one it goes to.
        const DST_PORT_TCP = 1 << 5;
        /// The UDP port it comes from.
        const SRC_PORT_UDP = 1 << 6;
        /// The one it goes to.
        const DST_PORT_UDP = 1 << 7;
    }
}
