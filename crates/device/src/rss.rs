//! Receive side scaling: which work queue of a table gets a frame.

use iba::HashFields;
use wire::frame::{Frame, Ip, PROTOCOL_TCP};

use crate::refusal::{Result, refuse};

/// Bytes of a Toeplitz key: 32 bits, and one for each bit of the longest input.
pub const KEY: usize = 40;

/// How frames are spread over work queues.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_rx_hash_conf")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct RxHash {
    /// The fields.
    pub fields: HashFields,
    /// The key of the Toeplitz function.
    pub key: [u8; KEY],
}

impl RxHash {
    /// Refuses fields that no frame has together (`create_rss_raw_qp_tir` of the kernel's mlx5).
    pub(crate) fn check(&self) -> Result<()> {
        use HashFields as F;
        let asks = |fields| self.fields.intersects(fields);
        let (v4, v6) = (F::SRC_IPV4 | F::DST_IPV4, F::SRC_IPV6 | F::DST_IPV6);
        let (tcp, udp) = (F::SRC_PORT_TCP | F::DST_PORT_TCP, F::SRC_PORT_UDP | F::DST_PORT_UDP);
        if asks(v4) && asks(v6) {
            refuse!(Invalid, "create_qp: rx_hash_fields of both IPv4 and IPv6");
        }
        if asks(tcp) && asks(udp) {
            refuse!(Invalid, "create_qp: rx_hash_fields of both TCP and UDP");
        }
        Ok(())
    }

    /// The hash of a frame; 0 for one that lacks a hashed field.
    pub fn hash(&self, frame: &Frame) -> u32 {
        let mut input = [0; KEY - 4];
        let Some(length) = self.input(frame, &mut input) else { return 0 };
        toeplitz(&self.key, &input[..length])
    }

    /// Concatenates the fields, and returns their length; `None` if the frame lacks one.
    fn input(&self, frame: &Frame, input: &mut [u8]) -> Option<usize> {
        use HashFields as F;
        let mut length = 0;
        let mut add = |field: F, bytes: &[u8]| {
            if self.fields.contains(field) {
                input[length..length + bytes.len()].copy_from_slice(bytes);
                length += bytes.len();
            }
        };
        if self.fields.intersects(F::SRC_IPV4 | F::DST_IPV4) {
            let Some(Ip::V4 { src, dst, .. }) = &frame.ip else { return None };
            add(F::SRC_IPV4, src);
            add(F::DST_IPV4, dst);
        }
        if self.fields.intersects(F::SRC_IPV6 | F::DST_IPV6) {
            let Some(Ip::V6 { src, dst, .. }) = &frame.ip else { return None };
            add(F::SRC_IPV6, src);
            add(F::DST_IPV6, dst);
        }
        let tcp = F::SRC_PORT_TCP | F::DST_PORT_TCP;
        let udp = F::SRC_PORT_UDP | F::DST_PORT_UDP;
        if self.fields.intersects(tcp | udp) {
            let wants_tcp = self.fields.intersects(tcp);
            let ports = frame.ports?;
            if wants_tcp != (ports.protocol == PROTOCOL_TCP) {
                return None;
            }
            let [src, dst] = [ports.src.to_be_bytes(), ports.dst.to_be_bytes()];
            add(if wants_tcp { F::SRC_PORT_TCP } else { F::SRC_PORT_UDP }, &src);
            add(if wants_tcp { F::DST_PORT_TCP } else { F::DST_PORT_UDP }, &dst);
        }
        Some(length)
    }
}

/// The Toeplitz hash: for each bit of the input that is set, the 32 bits of the key from that
/// position on, added without carry. At most 36 bytes are hashed.
#[doc(alias = "IBV_RX_HASH_FUNC_TOEPLITZ")]
pub fn toeplitz(key: &[u8; KEY], input: &[u8]) -> u32 {
    let mut hash = 0;
    for (at, byte) in input.iter().take(KEY - 4).enumerate() {
        let mut window = [0; 8];
        window[..5].copy_from_slice(&key[at..at + 5]);
        // 40 bits of key, in which the 8 windows of this byte lie.
        let window = u64::from_be_bytes(window);
        for bit in 0..8 {
            if byte & (0x80 >> bit) != 0 {
                hash ^= (window << bit >> 32) as u32;
            }
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

    use wire::frame::Ports;

    use super::*;

    /// The key of the verification suite that Microsoft published with receive side scaling.
    const VERIFICATION: [u8; KEY] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Destination, source, the hash of the addresses, the hash of addresses and ports of TCP.
    const SUITE: [(&str, &str, u32, u32); 8] = [
        ("161.142.100.80:1766", "66.9.149.187:2794", 0x323e_8fc2, 0x51cc_c178),
        ("65.69.140.83:4739", "199.92.111.2:14230", 0xd718_262a, 0xc626_b0ea),
        ("12.22.207.184:38024", "24.19.198.95:12898", 0xd2d0_a5de, 0x5c2b_394a),
        ("209.142.163.6:2217", "38.27.205.30:48228", 0x8298_9176, 0xafc7_327f),
        ("202.188.127.2:1303", "153.39.163.191:44251", 0x5d18_09c5, 0x10e8_28a2),
        ("[3ffe:2501:200:3::1]:1766", "[3ffe:2501:200:1fff::7]:2794", 0x2cc1_8cd5, 0x4020_7d3d),
        ("[ff02::1]:4739", "[3ffe:501:8::260:97ff:fe40:efab]:14230", 0x0f0c_461c, 0xdde5_1bbf),
        (
            "[fe80::200:f8ff:fe21:67cf]:38024",
            "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
            0x4b61_e985,
            0x02d1_feef,
        ),
    ];

    fn frame(src: SocketAddr, dst: SocketAddr, protocol: u8) -> Frame {
        let v4 = |src: Ipv4Addr, dst: Ipv4Addr| Ip::V4 {
            src: src.octets(),
            dst: dst.octets(),
            protocol,
            tos: 0,
            ttl: 0,
            flags: 0,
        };
        let v6 = |src: Ipv6Addr, dst: Ipv6Addr| Ip::V6 {
            src: src.octets(),
            dst: dst.octets(),
            flow_label: 0,
            next_header: protocol,
            traffic_class: 0,
            hop_limit: 0,
        };
        let ip = match (src, dst) {
            (SocketAddr::V4(src), SocketAddr::V4(dst)) => v4(*src.ip(), *dst.ip()),
            (SocketAddr::V6(src), SocketAddr::V6(dst)) => v6(*src.ip(), *dst.ip()),
            _ => panic!("two families"),
        };
        let ports = Some(Ports { protocol, src: src.port(), dst: dst.port() });
        Frame { dst: [0; 6], src: [0; 6], vlan: None, ether_type: 0, ip: Some(ip), ports }
    }

    fn hash(fields: HashFields, frame: &Frame) -> u32 {
        RxHash { fields, key: VERIFICATION }.hash(frame)
    }

    #[test]
    fn the_hash_passes_the_published_verification_suite() {
        use HashFields as F;
        for (dst, src, addresses, ports) in SUITE {
            let dst: SocketAddr = dst.parse().unwrap();
            let ip =
                if dst.is_ipv4() { F::SRC_IPV4 | F::DST_IPV4 } else { F::SRC_IPV6 | F::DST_IPV6 };
            let src = src.parse().unwrap();
            let tcp = frame(src, dst, PROTOCOL_TCP);
            assert_eq!(hash(ip, &tcp), addresses, "{dst}");
            assert_eq!(hash(ip | F::SRC_PORT_TCP | F::DST_PORT_TCP, &tcp), ports, "{dst}");
            let udp = frame(src, dst, 17);
            assert_eq!(hash(ip | F::SRC_PORT_UDP | F::DST_PORT_UDP, &udp), ports, "{dst}");
        }
    }

    #[test]
    fn a_frame_that_lacks_a_field_has_hash_0() {
        use HashFields as F;
        let [a, b] = ["10.0.0.1:1", "10.0.0.2:2"].map(|at| at.parse().unwrap());
        let tcp = frame(a, b, PROTOCOL_TCP);
        assert_eq!(hash(F::SRC_IPV6, &tcp), 0);
        assert_eq!(hash(F::SRC_IPV4 | F::DST_PORT_UDP, &tcp), 0);
        assert_eq!(hash(F::empty(), &tcp), 0);
        assert_ne!(hash(F::SRC_IPV4, &tcp), 0);
        let fragment = Frame { ports: None, ..tcp };
        assert_eq!(hash(F::SRC_IPV4 | F::DST_PORT_TCP, &fragment), 0);
    }

    #[test]
    fn fields_that_exclude_each_other_are_refused() {
        use HashFields as F;
        let check = |fields| RxHash { fields, key: VERIFICATION }.check().is_ok();
        assert!(check(F::SRC_IPV4 | F::DST_PORT_TCP) && check(F::empty()));
        assert!(!check(F::SRC_IPV4 | F::DST_IPV6));
        assert!(!check(F::SRC_PORT_TCP | F::SRC_PORT_UDP));
    }
}
