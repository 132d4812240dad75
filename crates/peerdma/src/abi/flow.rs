//! Flow steering: rules that give frames to raw packet QPs.
//!
//! A rule is a structure with its specs right behind it, each of which has a length
//! (`ibv_create_flow(3)`).

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use device::flow::{FlowAttr, FlowKind, FlowLayer, Masked};
use device::ids::FlowId;
use device::{Hca, Kind, Refusal};

use super::boundary::control;
use super::errno;
use super::object::{Object, given};
use super::own::qp;
use super::types::flow::{self as c, Flow, SpecEth, SpecIpv4, SpecIpv4Ext, SpecIpv6, SpecTcpUdp};
use super::types::qp::Qp;

/// The library's part of a rule.
pub(crate) struct OwnFlow {
    hca: Arc<Hca>,
    id: FlowId,
}

type FlowObject = Object<Flow, OwnFlow>;

/// Specs of one rule (`IB_FLOW_SPEC_SUPPORT_LAYERS` of the kernel).
const MOST_SPECS: u8 = 10;

/// Bits of [`c::FlowAttr::flags`].
mod flag {
    pub(super) const DONT_TRAP: u32 = 1 << 1;
    pub(super) const EGRESS: u32 = 1 << 2;
}

/// Values of `enum ibv_flow_spec_type`.
mod spec {
    pub(super) const ETH: u32 = 0x20;
    pub(super) const IPV4: u32 = 0x30;
    pub(super) const IPV6: u32 = 0x31;
    pub(super) const IPV4_EXT: u32 = 0x32;
    pub(super) const ESP: u32 = 0x34;
    pub(super) const TCP: u32 = 0x40;
    pub(super) const UDP: u32 = 0x41;
    pub(super) const VXLAN_TUNNEL: u32 = 0x50;
    pub(super) const GRE: u32 = 0x51;
    pub(super) const MPLS: u32 = 0x60;
    pub(super) const INNER: u32 = 0x100;
    pub(super) const ACTION_TAG: u32 = 0x1000;
    pub(super) const ACTION_COUNT: u32 = 0x1003;
}

pub(crate) unsafe extern "C" fn create_flow(qp: *mut Qp, attr: *mut c::FlowAttr) -> *mut Flow {
    control("ibv_create_flow", ptr::null_mut(), || {
        // SAFETY: contract: the QP is one of ours.
        let own = unsafe { qp::lookup(qp) };
        // SAFETY: contract: the attributes are valid, and their specs lie behind them.
        let wanted = unsafe { rule(attr, &own.hca) };
        let made = wanted.and_then(|rule| own.hca.alive()?.create_flow(own.id, rule));
        errno::or_null(made.map(|id| {
            // SAFETY: contract: the QP is alive.
            let context = unsafe { (*qp).context };
            let c = Flow { comp_mask: 0, context, handle: id.handle() };
            FlowObject::create(c, OwnFlow { hca: Arc::clone(&own.hca), id })
        }))
    })
}

pub(crate) unsafe extern "C" fn destroy_flow(flow: *mut Flow) -> c_int {
    control("ibv_destroy_flow", libc::EIO, || {
        // SAFETY: contract: the rule is one of ours.
        let own = unsafe { FlowObject::lookup(flow) };
        if let Err(refusal) = own.hca.lock().destroy_flow(own.id) {
            return errno::of(refusal.kind());
        }
        // SAFETY: contract: the program uses it no more.
        drop(unsafe { FlowObject::destroy(flow) });
        0
    })
}

fn refused<T>(kind: Kind, what: String) -> Result<T, Refusal> {
    Err(Refusal::new(kind, format!("ibv_create_flow: {what}")))
}

/// A rule in the engine's form. The attributes are null, or valid with their specs.
unsafe fn rule(attr: *mut c::FlowAttr, hca: &Hca) -> Result<FlowAttr, Refusal> {
    // SAFETY: the caller's promise.
    let head = unsafe { given(attr) };
    if head.comp_mask != 0 || head.flags & !(flag::DONT_TRAP | flag::EGRESS) != 0 {
        let (mask, flags) = (head.comp_mask, head.flags);
        return refused(Kind::Invalid, format!("comp_mask {mask:#x}, flags {flags:#x}"));
    }
    if head.flags & flag::EGRESS != 0 {
        return refused(Kind::NotSupported, "rules for egress are not supported".to_owned());
    }
    hca.lock().check_port("ibv_create_flow", head.port.into())?;
    let kind = match head.r#type {
        0 => FlowKind::Normal,
        1 => FlowKind::AllDefault,
        2 => FlowKind::McDefault,
        3 => FlowKind::Sniffer,
        kind => return refused(Kind::Invalid, format!("there is no type {kind}")),
    };
    if head.num_of_specs > MOST_SPECS {
        return refused(
            Kind::Invalid,
            format!("{} specs; {MOST_SPECS} are possible", head.num_of_specs),
        );
    }
    let mut layers = Vec::new();
    let mut at = attr.wrapping_add(1).cast_const().cast::<u8>();
    for _ in 0..head.num_of_specs {
        // SAFETY: the caller's promise: a spec lies here.
        let (layer, size) = unsafe { layer(at) }?;
        layers.push(layer);
        at = at.wrapping_add(size);
    }
    let goes_on = head.flags & flag::DONT_TRAP != 0;
    Ok(FlowAttr { kind, priority: head.priority, goes_on, layers })
}

/// A spec and its length.
unsafe fn layer(at: *const u8) -> Result<(FlowLayer, usize), Refusal> {
    // SAFETY: the caller's promise; every spec begins with its type,
    let kind = unsafe { at.cast::<u32>().read_unaligned() };
    // SAFETY: and its size.
    let size = usize::from(unsafe { at.wrapping_add(4).cast::<u16>().read_unaligned() });
    let known = match kind {
        spec::ETH => size_of::<SpecEth>(),
        spec::IPV4 => size_of::<SpecIpv4>(),
        spec::IPV4_EXT => size_of::<SpecIpv4Ext>(),
        spec::IPV6 => size_of::<SpecIpv6>(),
        spec::TCP | spec::UDP => size_of::<SpecTcpUdp>(),
        spec::ESP | spec::VXLAN_TUNNEL | spec::GRE | spec::MPLS => {
            return refused(
                Kind::NotSupported,
                format!("rules about tunnels are not supported (spec {kind:#x})"),
            );
        }
        spec::ACTION_TAG..=spec::ACTION_COUNT => {
            return refused(
                Kind::NotSupported,
                format!("actions are not supported (spec {kind:#x})"),
            );
        }
        _ if kind & spec::INNER != 0 => {
            return refused(
                Kind::NotSupported,
                format!("inner headers are not supported (spec {kind:#x})"),
            );
        }
        _ => return refused(Kind::Invalid, format!("there is no spec {kind:#x}")),
    };
    if size < known {
        return refused(Kind::Invalid, format!("spec {kind:#x} of {size} bytes; it has {known}"));
    }
    let layer = match kind {
        // SAFETY: the caller's promise, and the size.
        spec::ETH => eth(&unsafe { at.cast::<SpecEth>().read_unaligned() }),
        // SAFETY: as above.
        spec::IPV4 => ipv4(&unsafe { at.cast::<SpecIpv4>().read_unaligned() }),
        // SAFETY: as above.
        spec::IPV4_EXT => ipv4_ext(&unsafe { at.cast::<SpecIpv4Ext>().read_unaligned() }),
        // SAFETY: as above.
        spec::IPV6 => ipv6(&unsafe { at.cast::<SpecIpv6>().read_unaligned() }),
        _ => {
            // SAFETY: as above.
            let SpecTcpUdp { val, mask, .. } = unsafe { at.cast::<SpecTcpUdp>().read_unaligned() };
            let (src, dst) = (be16(val.src_port, mask.src_port), be16(val.dst_port, mask.dst_port));
            if kind == spec::TCP {
                FlowLayer::Tcp { src, dst }
            } else {
                FlowLayer::Udp { src, dst }
            }
        }
    };
    Ok((layer, size))
}

fn eth(SpecEth { val, mask, .. }: &SpecEth) -> FlowLayer {
    FlowLayer::Ethernet {
        dst: masked(val.dst_mac, mask.dst_mac),
        src: masked(val.src_mac, mask.src_mac),
        ether_type: be16(val.ether_type, mask.ether_type),
        vlan: be16(val.vlan_tag, mask.vlan_tag),
    }
}

fn ipv4(SpecIpv4 { val, mask, .. }: &SpecIpv4) -> FlowLayer {
    FlowLayer::Ipv4 {
        src: masked(val.src_ip.to_ne_bytes(), mask.src_ip.to_ne_bytes()),
        dst: masked(val.dst_ip.to_ne_bytes(), mask.dst_ip.to_ne_bytes()),
        protocol: Masked::default(),
        tos: Masked::default(),
        ttl: Masked::default(),
        flags: Masked::default(),
    }
}

fn ipv4_ext(SpecIpv4Ext { val, mask, .. }: &SpecIpv4Ext) -> FlowLayer {
    FlowLayer::Ipv4 {
        src: masked(val.src_ip.to_ne_bytes(), mask.src_ip.to_ne_bytes()),
        dst: masked(val.dst_ip.to_ne_bytes(), mask.dst_ip.to_ne_bytes()),
        protocol: masked(val.proto, mask.proto),
        tos: masked(val.tos, mask.tos),
        ttl: masked(val.ttl, mask.ttl),
        flags: masked(val.flags, mask.flags),
    }
}

fn ipv6(SpecIpv6 { val, mask, .. }: &SpecIpv6) -> FlowLayer {
    FlowLayer::Ipv6 {
        src: masked(val.src_ip, mask.src_ip),
        dst: masked(val.dst_ip, mask.dst_ip),
        flow_label: masked(u32::from_be(val.flow_label), u32::from_be(mask.flow_label)),
        next_header: masked(val.next_hdr, mask.next_hdr),
        traffic_class: masked(val.traffic_class, mask.traffic_class),
        hop_limit: masked(val.hop_limit, mask.hop_limit),
    }
}

fn masked<T>(value: T, mask: T) -> Masked<T> {
    Masked { value, mask }
}

fn be16(value: u16, mask: u16) -> Masked<u16> {
    masked(u16::from_be(value), u16::from_be(mask))
}
