//! One line per packet, in the style of tcpdump.
//!
//! ```text
//! IP 10.9.0.1.49152 > 10.9.0.2.4791 ttl 64 id 0 DF: RC_RDMA_WRITE_ONLY qp 0x000011 psn 0x001000 ackreq,
//!     RETH va 0x7f0000001000 rkey 0x1234 len 64, payload 64, icrc 0x1b2c3d4e ok
//! ```
//!
//! Printing never fails: bytes that are not a packet are printed as far as possible, with the
//! reason. The printer reads every field, so the fuzzer runs it over arbitrary bytes.

use core::fmt;
use core::net::{IpAddr, SocketAddr};

use zerocopy::FromBytes;

use crate::aeth::Aeth;
use crate::atomic_ack_eth::AtomicAckEth;
use crate::atomic_eth::AtomicEth;
use crate::bth::{Bth, RawBth};
use crate::deth::Deth;
use crate::feth::{Feth, Selectivity};
use crate::grh::{self, Grh};
use crate::headers::Headers;
use crate::icrc::{self, Flow};
use crate::ieth::Ieth;
use crate::imm_dt::ImmDt;
use crate::ip::{PROTOCOL_UDP, ROCE_V2_PORT, RawIpv4, RawIpv6, RawUdp};
use crate::opcode::Ext;
use crate::reth::Reth;
use crate::sack::{Sack, SackRange};
use crate::xrceth::Xrceth;

/// Prints a packet without its ICRC: the bytes from the BTH to the end of the padding.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a view of bytes")]
pub struct Packet<'a>(pub &'a [u8]);

/// Prints the payload of a UDP datagram: a packet and its ICRC, which is printed but not checked.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a view of bytes")]
pub struct Datagram<'a>(pub &'a [u8]);

/// Prints a packet starting with its IP header, and checks its ICRC.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a view of bytes")]
pub struct IpPacket<'a>(pub &'a [u8]);

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Headers::parse(self.0) {
            Ok((headers, payload)) => {
                write!(f, "{headers}, payload {}", payload.len())?;
                let rule = headers.bth.opcode.info().payload;
                if !rule.admits(payload.len(), payload.len()) {
                    write!(f, " (against the rule {rule:?})")?;
                }
                match headers.bth.pad {
                    0 => Ok(()),
                    pad => write!(f, " pad {pad}"),
                }
            }
            Err(error) => {
                if let Ok((raw, _)) = RawBth::ref_from_prefix(self.0) {
                    write!(f, "{} tver {}, ", Bth::parse(raw), raw.tver())?;
                }
                write!(f, "malformed: {error}")
            }
        }
    }
}

impl fmt::Display for Datagram<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match icrc::split(self.0) {
            Ok((packet, icrc)) => write!(f, "{}, icrc {icrc:#010x}", Packet(packet)),
            Err(error) => write!(f, "malformed: {error}"),
        }
    }
}

impl fmt::Display for IpPacket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.first().map(|byte| byte >> 4) {
            Some(4) => self.fmt_v4(f),
            Some(6) => self.fmt_v6(f),
            Some(version) => write!(f, "malformed: IP version {version}"),
            None => f.write_str("malformed: no IP header"),
        }
    }
}

impl IpPacket<'_> {
    fn fmt_v4(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok((ip, rest)) = RawIpv4::ref_from_prefix(self.0) else {
            return f.write_str("malformed: the packet ends within its IPv4 header");
        };
        let (src, dst) = (IpAddr::V4(ip.src()), IpAddr::V4(ip.dst()));
        // RoCEv2 has no IP options, so what follows them would not be a RoCE packet.
        let udp =
            UdpPayload::of(rest, ip.protocol()).filter(|_| ip.header_len() == size_of_val(ip));
        write_endpoints(f, "IP", src, dst, udp)?;
        if ip.tos() != 0 {
            write!(f, " tos {:#04x}", ip.tos())?;
        }
        let df = if ip.df() { " DF" } else { "" };
        write!(f, " ttl {} id {}{df}", ip.ttl(), ip.id())?;
        if usize::from(ip.total_len()) != self.0.len() {
            write!(f, " (length {} of {})", self.0.len(), ip.total_len())?;
        }
        if ip.checksum() != ip.computed_checksum() {
            write!(f, " (bad checksum {:#06x})", ip.checksum())?;
        }
        let flow = udp.map(|udp| Flow::V4 {
            src: ip.src(),
            dst: ip.dst(),
            src_port: udp.header.src_port(),
            dst_port: udp.header.dst_port(),
            df: ip.df(),
        });
        write_udp(f, flow, udp, ip.id(), ip.protocol())
    }

    fn fmt_v6(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok((ip, rest)) = RawIpv6::ref_from_prefix(self.0) else {
            return f.write_str("malformed: the packet ends within its IPv6 header");
        };
        let (src, dst) = (IpAddr::V6(ip.src()), IpAddr::V6(ip.dst()));
        let udp = UdpPayload::of(rest, ip.next_header());
        write_endpoints(f, "IP6", src, dst, udp)?;
        if ip.traffic_class() != 0 {
            write!(f, " class {:#04x}", ip.traffic_class())?;
        }
        if ip.flow_label() != 0 {
            write!(f, " flow {:#07x}", ip.flow_label())?;
        }
        write!(f, " hlim {}", ip.hop_limit())?;
        if usize::from(ip.payload_len()) != rest.len() {
            write!(f, " (length {} of {})", rest.len(), ip.payload_len())?;
        }
        let flow = udp.map(|udp| Flow::V6 {
            src: ip.src(),
            dst: ip.dst(),
            src_port: udp.header.src_port(),
            dst_port: udp.header.dst_port(),
        });
        write_udp(f, flow, udp, 0, ip.next_header())
    }
}

/// A UDP header and its payload.
#[derive(Clone, Copy)]
struct UdpPayload<'a> {
    header: &'a RawUdp,
    bytes: &'a [u8],
}

impl<'a> UdpPayload<'a> {
    fn of(bytes: &'a [u8], protocol: u8) -> Option<Self> {
        let (header, bytes) = RawUdp::ref_from_prefix(bytes).ok()?;
        (protocol == PROTOCOL_UDP).then_some(Self { header, bytes })
    }
}

fn write_endpoints(
    f: &mut fmt::Formatter<'_>,
    ip: &str,
    src: IpAddr,
    dst: IpAddr,
    udp: Option<UdpPayload<'_>>,
) -> fmt::Result {
    match udp {
        Some(UdpPayload { header, .. }) => {
            write!(f, "{ip} {src}.{} > {dst}.{}", header.src_port(), header.dst_port())
        }
        None => write!(f, "{ip} {src} > {dst}"),
    }
}

fn write_udp(
    f: &mut fmt::Formatter<'_>,
    flow: Option<Flow>,
    udp: Option<UdpPayload<'_>>,
    id: u16,
    protocol: u8,
) -> fmt::Result {
    let (Some(flow), Some(UdpPayload { header, bytes })) = (flow, udp) else {
        return write!(f, ": not RoCEv2, protocol {protocol}");
    };
    if usize::from(header.length()) != bytes.len() + size_of_val(header) {
        write!(f, " (UDP length {} of {})", bytes.len() + size_of_val(header), header.length())?;
    }
    if header.checksum() != 0 {
        write!(f, " cksum {:#06x}", header.checksum())?;
    }
    if header.dst_port() != ROCE_V2_PORT {
        write!(f, " (not port {ROCE_V2_PORT})")?;
    }
    let Ok((packet, received)) = icrc::split(bytes) else {
        return write!(f, ": {}", Datagram(bytes));
    };
    write!(f, ": {}, icrc {received:#010x} ", Packet(packet))?;
    match icrc::compute(&flow, id, packet) {
        computed if computed == received => f.write_str("ok"),
        computed => write!(f, "bad, expected {computed:#010x}"),
    }
}

impl fmt::Display for Bth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} qp {} psn {}", self.opcode, self.dest_qp, self.psn)?;
        let flags = [
            (self.ackreq, " ackreq"),
            (self.se, " se"),
            (self.fecn, " fecn"),
            (self.becn, " becn"),
            (!self.migreq, " unmigrated"),
        ];
        for (_, name) in flags.into_iter().filter(|(is_set, _)| *is_set) {
            f.write_str(name)?;
        }
        match self.pkey {
            iba::PKey::DEFAULT => Ok(()),
            pkey => write!(f, " pkey {pkey}"),
        }
    }
}

impl fmt::Display for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.bth, f)?;
        for ext in self.bth.opcode.info().headers {
            write!(f, ", {} ", ext.name())?;
            match ext {
                Ext::Xrceth => fmt_some(self.xrceth(), f)?,
                Ext::Deth => fmt_some(self.deth(), f)?,
                Ext::Feth => fmt_some(self.feth(), f)?,
                Ext::Reth => fmt_some(self.reth(), f)?,
                Ext::AtomicEth => fmt_some(self.atomic_eth(), f)?,
                Ext::Aeth => fmt_some(self.aeth(), f)?,
                Ext::AtomicAckEth => fmt_some(self.atomic_ack_eth(), f)?,
                Ext::ImmDt => fmt_some(self.imm_dt(), f)?,
                Ext::Ieth => fmt_some(self.ieth(), f)?,
                Ext::Sack => fmt_some(self.sack(), f)?,
            }
        }
        Ok(())
    }
}

fn fmt_some(header: Option<impl fmt::Display>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    header.map_or(Ok(()), |header| header.fmt(f))
}

impl fmt::Display for Xrceth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "srq {}", self.srqn)
    }
}

impl fmt::Display for Deth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qkey {} from qp {}", self.qkey, self.src_qp)
    }
}

impl fmt::Display for Feth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.selectivity {
            Selectivity::Range => f.write_str("range")?,
            Selectivity::Mr => f.write_str("mr")?,
            Selectivity::Reserved(code) => write!(f, "selectivity {code}")?,
        }
        f.write_str(match (self.global, self.persistent) {
            (false, false) => "",
            (true, false) => " global",
            (false, true) => " persistent",
            (true, true) => " global persistent",
        })
    }
}

impl fmt::Display for Reth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "va {:#x} rkey {} len {}", self.va, self.rkey, self.dma_len)
    }
}

impl fmt::Display for AtomicEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { va, rkey, swap_add, compare } = self;
        write!(f, "va {va:#x} rkey {rkey} swap/add {swap_add:#x} compare {compare:#x}")
    }
}

impl fmt::Display for Aeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} msn {}", self.syndrome, self.msn.value())
    }
}

impl fmt::Display for AtomicAckEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "orig {:#x}", self.orig)
    }
}

impl fmt::Display for ImmDt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.data)
    }
}

impl fmt::Display for Sack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("keeps")?;
        for SackRange { ahead, count } in self.ranges.iter().filter(|range| range.count > 0) {
            write!(f, " +{ahead}")?;
            if *count > 1 {
                write!(f, "..{}", u32::from(*ahead) + u32::from(*count))?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Ieth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rkey {}", self.rkey)
    }
}

impl fmt::Display for Grh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sgid, dgid) = (self.sgid().to_ip(), self.dgid().to_ip());
        write!(f, "GRH {sgid} > {dgid} class {:#04x}", self.traffic_class())?;
        write!(f, " flow {:#07x} hlim {}", self.flow_label(), self.hop_limit())
    }
}

/// Prints `bytes` as everything that they might be: a packet, a datagram, an IP packet, a GRH.
/// Checks that what can be read can be written again, and that the ICRC of any flow can be
/// verified. For fuzzers.
///
/// # Panics
///
/// If there is a bug in this crate.
pub fn exercise(bytes: &[u8]) -> String {
    use fmt::Write;

    let mut text = format!("{}\n{}\n{}", Packet(bytes), Datagram(bytes), IpPacket(bytes));
    if let Some(grh) = bytes.first_chunk::<{ grh::LEN }>() {
        let grh = Grh::parse(grh);
        assert_eq!(Grh::parse(&grh.to_bytes()), grh, "a GRH that changes when written");
        write!(text, "\n{grh}").expect("writing to a string never fails");
    }
    if let Ok((headers, len)) = Headers::parse_prefix(bytes) {
        let mut emitted = vec![0; headers.len()];
        assert_eq!(headers.emit(&mut emitted), len, "headers that change length");
        assert_eq!(Headers::parse_prefix(&emitted), Ok((headers, len)), "headers that change");
    }
    for port in [0, ROCE_V2_PORT] {
        let v4 = SocketAddr::from(([10, 9, 0, 1], port));
        let v6 = SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 1], port));
        for flow in [Flow::new(v4, v4), Flow::new(v6, v6)].into_iter().flatten() {
            let Ok((packet, id)) = icrc::verify(&flow, bytes) else { continue };
            let mut again = packet.to_vec();
            again.extend(icrc::compute(&flow, id, packet).to_le_bytes());
            assert_eq!(again, bytes, "an ICRC that verifies but cannot be computed");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use iba::{Psn, Qpn, RKey};

    use super::*;
    use crate::opcode::Opcode;

    fn write_only() -> Vec<u8> {
        let mut headers = Headers::new(Opcode::RcWriteOnly, Qpn::new(0x11), Psn::new(0x1000));
        headers.set_reth(Reth { va: 0x7f00_0000_1000, rkey: RKey(0x1234), dma_len: 3 });
        headers.bth.ackreq = true;
        headers.bth.pad = 1;
        let mut packet = vec![0; headers.len() + 4];
        headers.emit(&mut packet);
        packet
    }

    #[test]
    fn a_packet_is_one_line() {
        assert_eq!(
            Packet(&write_only()).to_string(),
            "RC_RDMA_WRITE_ONLY qp 0x000011 psn 0x001000 ackreq, \
             RETH va 0x7f0000001000 rkey 0x1234 len 3, payload 3 pad 1"
        );
    }

    #[test]
    fn an_ip_packet_shows_whether_its_icrc_is_right() {
        let packet = write_only();
        let flow = Flow::new(([10, 9, 0, 1], 49152).into(), ([10, 9, 0, 2], ROCE_V2_PORT).into());
        let icrc = icrc::compute(&flow.unwrap(), 7, &packet).to_le_bytes();
        let udp = crate::ip::Udp {
            src_port: 49152,
            dst_port: ROCE_V2_PORT,
            length: (8 + packet.len() + icrc.len()) as u16,
            checksum: 0,
        };
        let ip = crate::ip::Ipv4 {
            tos: 0,
            total_len: 20 + udp.length,
            id: 7,
            df: true,
            ttl: 64,
            protocol: PROTOCOL_UDP,
            src: [10, 9, 0, 1].into(),
            dst: [10, 9, 0, 2].into(),
        };
        use zerocopy::IntoBytes;
        let mut bytes = [ip.to_raw().as_bytes(), udp.to_raw().as_bytes(), &packet, &icrc].concat();
        let text = IpPacket(&bytes).to_string();
        let start = "IP 10.9.0.1.49152 > 10.9.0.2.4791 ttl 64 id 7 DF: RC_RDMA_WRITE_ONLY qp ";
        assert!(text.starts_with(start) && text.ends_with(" ok"), "{text}");

        *bytes.last_mut().unwrap() ^= 1;
        assert!(IpPacket(&bytes).to_string().contains(" bad, expected "));
    }

    #[test]
    fn an_error_follows_what_can_be_read() {
        let mut packet = write_only();
        packet.truncate(20);
        assert_eq!(
            Packet(&packet).to_string(),
            "RC_RDMA_WRITE_ONLY qp 0x000011 psn 0x001000 ackreq tver 0, \
             malformed: the packet ends 8 bytes before the end of its RETH"
        );
        assert_eq!(IpPacket(&[]).to_string(), "malformed: no IP header");
    }
}
