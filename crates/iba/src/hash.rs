//! The fields that receive side scaling hashes.

use bitflags::bitflags;

bitflags! {
    /// Which fields of a frame are hashed (`enum ibv_rx_hash_fields`), in this order.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[doc(alias = "ibv_rx_hash_fields")]
    pub struct HashFields: u64 {
        /// The source of an IPv4 packet.
        const SRC_IPV4 = 1;
        /// The destination of an IPv4 packet.
        const DST_IPV4 = 1 << 1;
        /// The source of an IPv6 packet.
        const SRC_IPV6 = 1 << 2;
        /// The destination of an IPv6 packet.
        const DST_IPV6 = 1 << 3;
        /// The TCP source port.
        const SRC_PORT_TCP = 1 << 4;
        /// The TCP destination port.
        const DST_PORT_TCP = 1 << 5;
        /// The UDP source port.
        const SRC_PORT_UDP = 1 << 6;
        /// The UDP destination port.
        const DST_PORT_UDP = 1 << 7;
    }
}
