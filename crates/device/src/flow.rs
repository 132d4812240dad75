//! Flow steering: which Ethernet frames a rule matches.
//!
//! A rule has a [`FlowAttr`]: a kind, a priority, and layers that must all match. Values and masks
//! are those of `ibv_create_flow(3)`, in the host's byte order; a frame matches if its bits under
//! the mask are those of the value.

use core::ops::{BitAnd, BitXor};

use wire::frame::{Frame, Ip, PROTOCOL_TCP, PROTOCOL_UDP, TYPE_IPV4, TYPE_IPV6};

use crate::refusal::{Result, refuse};

/// Which of the passing frames a rule may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_flow_attr_type")]
#[expect(clippy::exhaustive_enums, reason = "the four of libibverbs")]
pub enum FlowKind {
    /// Those that match its layers.
    Normal,
    /// Those that no normal rule took.
    AllDefault,
    /// Those to groups that no normal rule took.
    McDefault,
    /// A copy of each, those that the host sends included.
    Sniffer,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_flow_attr")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct FlowAttr {
    /// Which frames it may take.
    pub kind: FlowKind,
    /// For normal rules: lower numbers come first. All that match at the first such number get the
    /// frame.
    pub priority: u16,
    /// Whether rules of higher numbers see the frame as well (`IBV_FLOW_ATTR_FLAGS_DONT_TRAP`).
    pub goes_on: bool,
    /// What must fit.
    pub layers: Vec<FlowLayer>,
}

/// A value, and a mask of the bits that count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct Masked<T> {
    /// The bits.
    pub value: T,
    /// The bits that count.
    pub mask: T,
}

/// The conditions on one header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_flow_spec")]
#[expect(clippy::exhaustive_enums, reason = "the ABI makes each")]
pub enum FlowLayer {
    /// The Ethernet header.
    #[doc(alias = "ibv_flow_spec_eth")]
    Ethernet {
        /// To.
        dst: Masked<[u8; 6]>,
        /// From.
        src: Masked<[u8; 6]>,
        /// What follows, after a tag if there is one.
        ether_type: Masked<u16>,
        /// The contents of the tag. A frame without a tag matches only a mask of 0.
        vlan: Masked<u16>,
    },
    /// An IPv4 header.
    #[doc(alias = "ibv_flow_spec_ipv4_ext")]
    Ipv4 {
        /// From.
        src: Masked<[u8; 4]>,
        /// To.
        dst: Masked<[u8; 4]>,
        /// What follows.
        protocol: Masked<u8>,
        /// Type of service.
        tos: Masked<u8>,
        /// Time to live.
        ttl: Masked<u8>,
        /// 2 is "don't fragment", 4 is "more fragments" (`enum ib_ipv4_flags` of the kernel).
        flags: Masked<u8>,
    },
    /// An IPv6 header.
    #[doc(alias = "ibv_flow_spec_ipv6")]
    Ipv6 {
        /// From.
        src: Masked<[u8; 16]>,
        /// To.
        dst: Masked<[u8; 16]>,
        /// The flow label.
        flow_label: Masked<u32>,
        /// What follows.
        next_header: Masked<u8>,
        /// The traffic class.
        traffic_class: Masked<u8>,
        /// The hop limit.
        hop_limit: Masked<u8>,
    },
    /// The ports of TCP.
    #[doc(alias = "IBV_FLOW_SPEC_TCP")]
    Tcp {
        /// From.
        src: Masked<u16>,
        /// To.
        dst: Masked<u16>,
    },
    /// The ports of UDP.
    #[doc(alias = "IBV_FLOW_SPEC_UDP")]
    Udp {
        /// From.
        src: Masked<u16>,
        /// To.
        dst: Masked<u16>,
    },
}

impl<T: Copy + PartialEq + BitAnd<Output = T> + BitXor<Output = T> + Default> Masked<T> {
    fn fits(self, got: T) -> bool {
        (got ^ self.value) & self.mask == T::default()
    }
}

impl<const N: usize> Masked<[u8; N]> {
    fn fits_bytes(self, got: &[u8; N]) -> bool {
        (0..N).all(|at| (got[at] ^ self.value[at]) & self.mask[at] == 0)
    }
}

impl FlowLayer {
    fn fits(&self, frame: &Frame) -> bool {
        match *self {
            Self::Ethernet { dst, src, ether_type, vlan } => {
                dst.fits_bytes(&frame.dst)
                    && src.fits_bytes(&frame.src)
                    && ether_type.fits(frame.ether_type)
                    && frame.vlan.map_or(vlan.mask == 0, |tag| vlan.fits(tag))
            }
            Self::Ipv4 { src, dst, protocol, tos, ttl, flags } => match frame.ip {
                Some(Ip::V4 { src: from, dst: to, protocol: p, tos: c, ttl: t, flags: f }) => {
                    // In the header, the two bits are one place lower, and in reverse order.
                    let f = f & 2 | (f & 1) << 2;
                    src.fits_bytes(&from)
                        && dst.fits_bytes(&to)
                        && protocol.fits(p)
                        && tos.fits(c)
                        && ttl.fits(t)
                        && flags.fits(f)
                }
                _ => false,
            },
            Self::Ipv6 { src, dst, flow_label, next_header, traffic_class, hop_limit } => {
                match frame.ip {
                    Some(Ip::V6 {
                        src: from,
                        dst: to,
                        flow_label: label,
                        next_header: next,
                        traffic_class: class,
                        hop_limit: limit,
                    }) => {
                        src.fits_bytes(&from)
                            && dst.fits_bytes(&to)
                            && flow_label.fits(label)
                            && next_header.fits(next)
                            && traffic_class.fits(class)
                            && hop_limit.fits(limit)
                    }
                    _ => false,
                }
            }
            Self::Tcp { src, dst } => fit_ports(frame, PROTOCOL_TCP, src, dst),
            Self::Udp { src, dst } => fit_ports(frame, PROTOCOL_UDP, src, dst),
        }
    }
}

/// Whether both ports match. A rule without a port also matches fragments.
fn fit_ports(frame: &Frame, protocol: u8, src: Masked<u16>, dst: Masked<u16>) -> bool {
    match frame.ports {
        Some(ports) => ports.protocol == protocol && src.fits(ports.src) && dst.fits(ports.dst),
        None => {
            let carried = match frame.ip {
                Some(Ip::V4 { protocol, .. }) => Some(protocol),
                Some(Ip::V6 { next_header, .. }) => Some(next_header),
                None => None,
            };
            carried == Some(protocol) && src.mask == 0 && dst.mask == 0
        }
    }
}

impl FlowAttr {
    /// Whether every layer matches.
    pub fn fits(&self, frame: &Frame) -> bool {
        self.layers.iter().all(|layer| layer.fits(frame))
    }

    /// Refuses rules that no frame can match: an IP header after the type of another, ports of a
    /// protocol that the IP header excludes (`is_valid_attr` and `parse_flow_attr` of the kernel's
    /// mlx5). Rules of other kinds have no layers.
    pub(crate) fn check(&self) -> Result<()> {
        if self.kind != FlowKind::Normal && !self.layers.is_empty() {
            refuse!(Invalid, "create_flow: a rule of kind {:?} takes no specs", self.kind);
        }
        if matches!(self.kind, FlowKind::AllDefault | FlowKind::McDefault) && self.goes_on {
            refuse!(Invalid, "create_flow: DONT_TRAP in a default rule, after which no rule comes");
        }
        let excludes = |asked: Masked<u16>, is: u16| !asked.fits(is);
        for layer in &self.layers {
            let FlowLayer::Ethernet { ether_type, .. } = *layer else { continue };
            let other = self.layers.iter().find(|layer| match layer {
                FlowLayer::Ipv4 { .. } => excludes(ether_type, TYPE_IPV4),
                FlowLayer::Ipv6 { .. } => excludes(ether_type, TYPE_IPV6),
                _ => false,
            });
            if let Some(other) = other {
                refuse!(Invalid, "create_flow: ether_type {ether_type:x?} excludes {other:?}");
            }
        }
        for layer in &self.layers {
            let carried = match *layer {
                FlowLayer::Ipv4 { protocol, .. } => protocol,
                FlowLayer::Ipv6 { next_header, .. } => next_header,
                _ => continue,
            };
            let is_excluded = self.layers.iter().any(|layer| match layer {
                FlowLayer::Tcp { .. } => !carried.fits(PROTOCOL_TCP),
                FlowLayer::Udp { .. } => !carried.fits(PROTOCOL_UDP),
                _ => false,
            });
            if is_excluded {
                refuse!(Invalid, "create_flow: protocol {carried:?} excludes the requested ports");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exactly<T>(value: T, mask: T) -> Masked<T> {
        Masked { value, mask }
    }

    /// From 02:..:09 to a group, VLAN 7 if requested: 10.0.0.1:1000 to 10.0.0.2:2000.
    fn frame(vlan: Option<u16>) -> Frame {
        Frame {
            dst: [1, 0, 0x5e, 0, 0, 1],
            src: [2, 0, 0, 0, 0, 9],
            vlan,
            ether_type: TYPE_IPV4,
            ip: Some(Ip::V4 {
                src: [10, 0, 0, 1],
                dst: [10, 0, 0, 2],
                protocol: PROTOCOL_UDP,
                tos: 0,
                ttl: 64,
                flags: 2,
            }),
            ports: Some(wire::frame::Ports { protocol: PROTOCOL_UDP, src: 1000, dst: 2000 }),
        }
    }

    fn ethernet() -> FlowLayer {
        FlowLayer::Ethernet {
            dst: Masked::default(),
            src: Masked::default(),
            ether_type: exactly(TYPE_IPV4, 0xffff),
            vlan: Masked::default(),
        }
    }

    fn ipv4(dst: Masked<[u8; 4]>, flags: Masked<u8>) -> FlowLayer {
        let any = Masked::default();
        let (src, protocol, tos, ttl) = (Masked::default(), any, any, any);
        FlowLayer::Ipv4 { src, dst, protocol, tos, ttl, flags }
    }

    fn rule(layers: Vec<FlowLayer>) -> FlowAttr {
        FlowAttr { kind: FlowKind::Normal, priority: 0, goes_on: false, layers }
    }

    #[test]
    fn every_layer_must_match() {
        let near = exactly([10, 0, 0, 0], [255, 255, 255, 0]);
        let far = exactly([10, 0, 1, 0], [255, 255, 255, 0]);
        let udp = |dst| FlowLayer::Udp { src: Masked::default(), dst: exactly(dst, 0xffff) };
        let any = Masked::default();
        assert!(rule(vec![]).fits(&frame(None)));
        assert!(rule(vec![ethernet(), ipv4(near, any), udp(2000)]).fits(&frame(None)));
        assert!(!rule(vec![ethernet(), ipv4(far, any), udp(2000)]).fits(&frame(None)));
        assert!(!rule(vec![ethernet(), ipv4(near, any), udp(2001)]).fits(&frame(None)));
        let tcp = FlowLayer::Tcp { src: any16(), dst: any16() };
        assert!(!rule(vec![tcp]).fits(&frame(None)));
        let v6 = FlowLayer::Ipv6 {
            src: Masked::default(),
            dst: Masked::default(),
            flow_label: Masked::default(),
            next_header: any,
            traffic_class: any,
            hop_limit: any,
        };
        assert!(!rule(vec![v6]).fits(&frame(None)));
    }

    fn any16() -> Masked<u16> {
        Masked::default()
    }

    #[test]
    fn a_frame_without_a_tag_matches_no_vlan() {
        let tagged = |mask| {
            let FlowLayer::Ethernet { dst, src, ether_type, .. } = ethernet() else { panic!() };
            rule(vec![FlowLayer::Ethernet { dst, src, ether_type, vlan: exactly(7, mask) }])
        };
        assert!(tagged(0xfff).fits(&frame(Some(0xa007))));
        assert!(!tagged(0xffff).fits(&frame(Some(0xa007))));
        assert!(!tagged(0xfff).fits(&frame(None)));
        assert!(tagged(0).fits(&frame(None)));
    }

    #[test]
    fn fragment_flags_are_those_of_the_kernel() {
        let mut frame = frame(None);
        assert!(rule(vec![ipv4(any_ip(), exactly(2, 2))]).fits(&frame));
        assert!(!rule(vec![ipv4(any_ip(), exactly(4, 4))]).fits(&frame));
        let Some(Ip::V4 { flags, .. }) = &mut frame.ip else { panic!() };
        *flags = 1;
        frame.ports = None;
        assert!(rule(vec![ipv4(any_ip(), exactly(4, 4))]).fits(&frame));
        // The first of the fragments has ports, and the others could not be told apart.
        assert!(rule(vec![FlowLayer::Udp { src: any16(), dst: any16() }]).fits(&frame));
        let to = exactly(2000, 0xffff);
        assert!(!rule(vec![FlowLayer::Udp { src: any16(), dst: to }]).fits(&frame));
    }

    fn any_ip() -> Masked<[u8; 4]> {
        Masked::default()
    }

    #[test]
    fn a_rule_that_no_frame_can_match_is_refused() {
        let invalid = |rule: FlowAttr| rule.check().unwrap_err().kind() == crate::Kind::Invalid;
        let v6_type = FlowLayer::Ethernet {
            dst: Masked::default(),
            src: Masked::default(),
            ether_type: exactly(TYPE_IPV6, 0xffff),
            vlan: Masked::default(),
        };
        let any = ipv4(any_ip(), Masked::default());
        assert!(rule(vec![ethernet(), any]).check().is_ok());
        assert!(invalid(rule(vec![v6_type, any])));
        let FlowLayer::Ipv4 { src, dst, tos, ttl, flags, .. } = any else { panic!() };
        let protocol = exactly(PROTOCOL_TCP, 0xff);
        let tcp_only = FlowLayer::Ipv4 { src, dst, protocol, tos, ttl, flags };
        let udp = FlowLayer::Udp { src: any16(), dst: any16() };
        assert!(invalid(rule(vec![tcp_only, udp])));
        assert!(invalid(FlowAttr { kind: FlowKind::Sniffer, ..rule(vec![udp]) }));
        let last = FlowAttr { kind: FlowKind::AllDefault, goes_on: true, ..rule(vec![]) };
        assert!(invalid(last));
    }
}
