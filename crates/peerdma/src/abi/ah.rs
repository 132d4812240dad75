//! Address handles.

use std::ffi::c_int;
use std::mem;
use std::net::{IpAddr, Ipv4Addr};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use device::ids::PdId;
use device::{Hca, Kind, Refusal};
use iba::{Av, Gid, WcFlags};

use super::boundary::control;
use super::errno;
use super::object::{Object, given, room};
use super::own::context::opened;
use super::own::pd::PdObject;
use super::types::ah::{Ah, AhAttr, GlobalRoute, Grh};
use super::types::context::Context;
use super::types::device::Gid as CGid;
use super::types::pd::Pd;
use super::types::wc::Wc;

/// The library's part of an address handle.
pub(crate) struct OwnAh {
    hca: Arc<Hca>,
    pd: PdId,
    pub(crate) av: Av,
}

pub(crate) type AhObject = Object<Ah, OwnAh>;

pub(crate) unsafe extern "C" fn ibv_create_ah(pd: *mut Pd, attr: *mut AhAttr) -> *mut Ah {
    control("ibv_create_ah", ptr::null_mut(), || {
        // SAFETY: contract: the PD is one of ours.
        let own = unsafe { PdObject::lookup(pd) };
        // SAFETY: contract: the attributes are valid.
        let av = av_of(unsafe { given(attr) });
        errno::or_null(own.hca.create_ah(own.id, &av).map(|()| {
            static HANDLES: AtomicU32 = AtomicU32::new(0);
            let handle = HANDLES.fetch_add(1, Ordering::Relaxed);
            // SAFETY: contract: the PD is alive.
            let context = unsafe { (*pd).context };
            let hca = Arc::clone(&own.hca);
            AhObject::create(Ah { context, pd, handle }, OwnAh { hca, pd: own.id, av })
        }))
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut Ah) -> c_int {
    control("ibv_destroy_ah", libc::EIO, || {
        // SAFETY: contract: the handle is one of ours.
        let _ = unsafe { AhObject::lookup(ah) };
        // SAFETY: as above, and the program uses it no more.
        let own = unsafe { AhObject::destroy(ah) };
        // A PD that was destroyed counts no handles.
        errno::or_errno(own.hca.lock().count_ah(own.pd, false))
    })
}

pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut Context,
    port_num: u8,
    wc: *mut Wc,
    grh: *mut Grh,
    attr: *mut AhAttr,
) -> c_int {
    control("ibv_init_ah_from_wc", -1, || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        // SAFETY: contract: the completion is valid.
        let wc = unsafe { given(wc) };
        let attr = room(attr);
        // SAFETY: the structure is made of integers, for which zero is a value.
        let mut answer: AhAttr = unsafe { mem::zeroed() };
        (answer.dlid, answer.sl, answer.src_path_bits) = (wc.slid, wc.sl, wc.dlid_path_bits);
        answer.port_num = port_num;
        let mut found = Ok(());
        if wc.wc_flags & WcFlags::GRH.bits() != 0 {
            // SAFETY: contract: the completion says that the header is there: 40 bytes of the
            // program's receive buffer.
            let header = unsafe { given(grh.cast::<[u8; 40]>()) };
            answer.is_global = 1;
            found = route_back(&open.hca, header).map(|route| answer.grh = route);
        }
        // SAFETY: contract: the program has room for the attributes.
        unsafe { attr.write(answer) };
        errno::or_minus_one(found)
    })
}

pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut Pd,
    wc: *mut Wc,
    grh: *mut Grh,
    port_num: u8,
) -> *mut Ah {
    control("ibv_create_ah_from_wc", ptr::null_mut(), || {
        // SAFETY: contract: the PD is one of ours.
        let _ = unsafe { PdObject::lookup(pd) };
        // SAFETY: it is.
        let context = unsafe { (*pd).context };
        // SAFETY: the structure is made of integers, for which zero is a value.
        let mut attr: AhAttr = unsafe { mem::zeroed() };
        // SAFETY: the same contract.
        if unsafe { ibv_init_ah_from_wc(context, port_num, wc, grh, &raw mut attr) } != 0 {
            return ptr::null_mut();
        }
        // SAFETY: the same contract.
        unsafe { ibv_create_ah(pd, &raw mut attr) }
    })
}

/// The route back to the sender of a datagram, from the 40 bytes before it.
fn route_back(hca: &Hca, header: &[u8; 40]) -> Result<GlobalRoute, Refusal> {
    let header = Header::parse(header)?;
    if header.to.is_multicast() {
        return Err(Refusal::new(
            Kind::Invalid,
            format!("ibv_init_ah_from_wc: sent to the group {:?}, which cannot answer", header.to),
        ));
    }
    let gids = hca.lock().gids();
    let Some(own) = gids.iter().find(|entry| entry.gid == header.to) else {
        return Err(Refusal::new(
            Kind::Invalid,
            format!("ibv_init_ah_from_wc: sent to {:?}, which is no GID of ours", header.to),
        ));
    };
    Ok(GlobalRoute {
        dgid: CGid { raw: header.from.0 },
        flow_label: header.flow_label,
        sgid_index: u8::try_from(own.index).unwrap_or(u8::MAX),
        hop_limit: header.hop_limit,
        traffic_class: header.traffic_class,
    })
}

/// What the header of a received datagram says.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    from: Gid,
    to: Gid,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
}

impl Header {
    /// In RoCEv2 the 40 bytes are an IPv6 header, or 20 undefined bytes and an IPv4 header (RoCEv2
    /// Annex A17.4.5.2). What could be both is IPv4 if its checksum is right.
    fn parse(bytes: &[u8; 40]) -> Result<Self, Refusal> {
        let (_, v4) = bytes.split_at(20);
        let may_be_v4 = v4[0] == 0x45 && checksum(v4) == 0xffff;
        match bytes[0] >> 4 {
            6 if !may_be_v4 => Ok(Self::parse_v6(bytes)),
            _ if v4[0] >> 4 == 4 => Ok(Self::parse_v4(v4)),
            version => Err(Refusal::new(
                Kind::Invalid,
                format!("ibv_init_ah_from_wc: a header of IP version {version}"),
            )),
        }
    }

    fn parse_v4(bytes: &[u8]) -> Self {
        let gid = |at: usize| {
            let octets: [u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
            Gid::from(IpAddr::V4(Ipv4Addr::from(octets)))
        };
        Self {
            from: gid(12),
            to: gid(16),
            flow_label: 0,
            hop_limit: bytes[8],
            traffic_class: bytes[1],
        }
    }

    fn parse_v6(bytes: &[u8; 40]) -> Self {
        let gid = |at: usize| Gid(bytes[at..at + 16].try_into().expect("sixteen bytes"));
        let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Self {
            from: gid(8),
            to: gid(24),
            flow_label: word & 0xf_ffff,
            hop_limit: bytes[7],
            traffic_class: (word >> 20) as u8,
        }
    }
}

/// The one's complement sum of an IPv4 header: all ones if its checksum is right (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let words =
        header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

/// An address vector in the engine's form.
pub(crate) fn av_of(c: &AhAttr) -> Av {
    Av {
        dgid: Gid(c.grh.dgid.raw),
        sgid_index: c.grh.sgid_index,
        flow_label: c.grh.flow_label & 0xf_ffff,
        hop_limit: c.grh.hop_limit,
        traffic_class: c.grh.traffic_class,
        sl: c.sl,
        port_num: c.port_num,
        dlid: c.dlid,
        src_path_bits: c.src_path_bits,
        static_rate: c.static_rate,
        is_global: c.is_global != 0,
    }
}

/// An address vector in the form that programs see.
pub(crate) fn attr_of(av: &Av) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            dgid: CGid { raw: av.dgid.0 },
            flow_label: av.flow_label,
            sgid_index: av.sgid_index,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        },
        dlid: av.dlid,
        sl: av.sl,
        src_path_bits: av.src_path_bits,
        static_rate: av.static_rate,
        is_global: u8::from(av.is_global),
        port_num: av.port_num,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header as `ping` would send it from 10.0.0.1 to 10.0.0.2, with a correct checksum.
    fn v4_header() -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[20..].copy_from_slice(&[
            0x45, 0x10, 0x00, 0x54, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0x00, 0x00, 10, 0, 0, 1,
            10, 0, 0, 2,
        ]);
        let check = !checksum(&bytes[20..]);
        bytes[30..32].copy_from_slice(&check.to_be_bytes());
        bytes
    }

    #[test]
    fn ipv4_is_in_the_last_twenty_bytes() {
        let header = Header::parse(&v4_header()).unwrap();
        assert_eq!(header.from, Gid::from(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(header.to, Gid::from(Ipv4Addr::new(10, 0, 0, 2)));
        assert_eq!((header.hop_limit, header.traffic_class), (0x40, 0x10));
    }

    /// The bytes before an IPv4 header are whatever the buffer held.
    #[test]
    fn a_right_checksum_decides_for_ipv4() {
        let mut bytes = v4_header();
        bytes[0] = 0x60;
        assert_eq!(Header::parse(&bytes).unwrap().from, Gid::from(Ipv4Addr::new(10, 0, 0, 1)));
        bytes[39] ^= 1;
        assert_eq!(Header::parse(&bytes).unwrap().hop_limit, bytes[7]);
    }

    #[test]
    fn ipv6_fills_all_forty() {
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45, 0, 8, 17, 3]);
        bytes[8] = 0xfd;
        bytes[24] = 0xfe;
        let header = Header::parse(&bytes).unwrap();
        assert_eq!((header.from.0[0], header.to.0[0]), (0xfd, 0xfe));
        assert_eq!((header.traffic_class, header.flow_label), (0xab, 0x1_2345));
        assert_eq!(header.hop_limit, 3);
    }

    #[test]
    fn anything_else_is_refused() {
        assert_eq!(Header::parse(&[0; 40]).unwrap_err().kind(), Kind::Invalid);
    }
}
