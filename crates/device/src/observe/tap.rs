//! The capture of a NIC's packets: every packet of every carrier, as RoCEv2.
//!
//! Datagrams are recorded as they are. A record in a ring and a packet within the process are
//! recorded as the packet that they represent, with its headers and ICRC: while a NIC is captured,
//! each of its records is one packet of the path MTU, and the direct path, which has no packets, is
//! not used. A peer that is not captured sends longer records; those are split here into the
//! packets of that message.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use iba::{Gid, Mtu, Psn, Qpn};
use pcap::{Capture, Direction};
use transport::Time;
use wire::icrc::{self, Flow, Sealer};
use wire::ip::{Ipv4, Ipv6, Udp};
use wire::{Headers, Opcode, Position};

use crate::carrier::udp::queue::Batch;
use crate::carrier::udp::tx_sockets::Destination;
use crate::config::NicConfig;
use crate::memory::mr::MrKind;

/// The longest time until a recorded packet is in the file.
const LATENESS: Duration = Duration::from_millis(1);
/// More notes than datagrams can wait for the socket.
const MAX_NOTES: usize = 1024;
const UDP_HEADER: usize = 8;
const UDP: u8 = 17;

/// Records the packets that a NIC sends and receives.
#[derive(Debug)]
pub(crate) struct Tap {
    capture: Capture,
    /// When waiting packets must be written.
    deadline: Option<Time>,
    port: u16,
    sealer: Sealer,
    scratch: Vec<u8>,
    payload: Vec<u8>,
    /// The comment of the packet that is recorded.
    words: String,
    /// Notes on the datagrams that wait for the socket, by QP and sequence number, in their order.
    notes: VecDeque<((Qpn, Psn), Note)>,
}

/// The two ends of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) src: Gid,
    pub(crate) dst: Gid,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

/// What a comment says besides what the packet does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Note {
    /// Our QP.
    pub(crate) qpn: Option<Qpn>,
    /// The work request, for a request that we send.
    pub(crate) wr_id: Option<u64>,
    /// The key of our region that the payload comes from or goes to, and the kind of its memory.
    pub(crate) region: Option<(u32, Option<MrKind>)>,
}

impl Note {
    fn write_to(&self, words: &mut String) {
        use std::fmt::Write;
        words.clear();
        if let Some(qpn) = self.qpn {
            let _ = write!(words, "QP {qpn}");
        }
        if let Some(wr_id) = self.wr_id {
            let _ = write!(words, ", wr_id {wr_id:#x}");
        }
        if let Some((key, kind)) = self.region {
            let _ = write!(words, ", MR {key:#x}");
            words.push_str(match kind {
                Some(MrKind::Dmabuf) => " (dma-buf)",
                Some(MrKind::Peer) => " (peer memory)",
                Some(MrKind::Dm(_)) => " (device memory)",
                Some(MrKind::User) | None => "",
            });
        }
    }
}

impl Tap {
    /// A tap if the configuration names a file. If it cannot be written, the log says so, and there
    /// is no capture: the program must not fail for that.
    pub(super) fn open(config: &NicConfig, vf: u16) -> Option<Box<Self>> {
        let path = config.pcap.as_ref()?;
        let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let about = format!("{} (pid {}, VF {vf})", program.trim_end(), std::process::id());
        match Capture::open(path, &config.name, &about, SystemTime::now(), config.pcap_bytes) {
            Ok(capture) => Some(Box::new(Self {
                capture,
                deadline: None,
                port: config.udp_port,
                sealer: Sealer::new(),
                scratch: Vec::new(),
                payload: Vec::new(),
                words: String::new(),
                notes: VecDeque::new(),
            })),
            Err(error) => {
                tracing::error!(target: "peerdma::pcap", "no capture in {}: {error}", path.display());
                None
            }
        }
    }

    /// When waiting packets must be written.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// In a forked child, closes what belongs to the parent.
    pub(super) fn abandon_in_child(self) {
        self.capture.abandon_in_child();
    }

    /// Writes waiting packets. Returns false if the file cannot be written and the capture ends.
    #[must_use]
    pub(super) fn flush(&mut self, now: Time) -> bool {
        let flushed = self.capture.flush();
        self.deadline = (!self.capture.is_empty()).then(|| now + LATENESS);
        if let Err(error) = &flushed {
            tracing::error!(target: "peerdma::pcap", "the capture ends here: {error}");
        }
        flushed.is_ok()
    }

    /// Writes waiting packets, at the end.
    pub(super) fn finish(&mut self) {
        if let Err(error) = self.capture.finish() {
            tracing::error!(target: "peerdma::pcap", "the capture lacks the last packets: {error}");
        }
    }

    /// A buffer for the payload of the next packet.
    pub(crate) fn payload(&mut self, length: usize) -> Vec<u8> {
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        payload.resize(length, 0);
        payload
    }

    /// Records a packet that went through memory, and takes back the buffer of its payload.
    pub(crate) fn memory(
        &mut self,
        now: Time,
        way: Direction,
        (ends, mtu): (Ends, Mtu),
        headers: &Headers,
        payload: Vec<u8>,
        note: Note,
    ) {
        note.write_to(&mut self.words);
        let mtu = mtu.bytes() as usize;
        let count = payload.len().div_ceil(mtu).max(1);
        for index in 0..count {
            let part = &payload[index * mtu..payload.len().min((index + 1) * mtu)];
            let Some(headers) = part_of(headers, index, count) else { continue };
            if self.frame(&ends, &headers, part) {
                self.record(now, way);
            }
        }
        self.payload = payload;
    }

    /// Keeps the note on a datagram that was queued for the socket.
    pub(crate) fn queued(&mut self, headers: &Headers, note: Note) {
        if self.notes.len() >= MAX_NOTES {
            self.notes.pop_front();
        }
        self.notes.push_back(((headers.bth.dest_qp, headers.bth.psn), note));
    }

    /// Takes the note on a datagram, and drops those before it, whose datagrams were dropped.
    fn note_on(&mut self, datagram: &[u8]) -> Note {
        let Ok((headers, _)) = Headers::parse_prefix(datagram) else { return Note::default() };
        let key = (headers.bth.dest_qp, headers.bth.psn);
        match self.notes.iter().position(|(known, _)| *known == key) {
            Some(at) => {
                self.notes.drain(..=at).next_back().map(|(_, note)| note).unwrap_or_default()
            }
            None => Note::default(),
        }
    }

    /// Records datagrams that the socket accepted: `segment` bytes each, and the rest.
    fn sent(&mut self, now: Time, ends: &Ends, bytes: &[u8], segment: usize, from: u16) {
        for (index, datagram) in bytes.chunks(segment.max(1)).enumerate() {
            let note = self.note_on(datagram);
            // CAST: the kernel numbers the datagrams of a train from 0, and there are at most 64 Ki
            // of them.
            self.datagram(now, Direction::Outbound, ends, from, index as u16, datagram, note);
        }
    }

    /// Records a batch of datagrams that was sent.
    #[cold]
    pub(super) fn batch(&mut self, now: Time, batch: &Batch, from: u16) {
        let Destination { src, dst, traffic_class, hop_limit, .. } = batch.to;
        let ends = Ends { src, dst, traffic_class, hop_limit };
        self.sent(now, &ends, batch.bytes(), batch.segment, from);
    }

    /// Records a datagram that the socket received.
    pub(crate) fn received(
        &mut self,
        now: Time,
        ends: &Ends,
        from: u16,
        id: u16,
        bytes: &[u8],
        note: Note,
    ) {
        self.datagram(now, Direction::Inbound, ends, from, id, bytes, note);
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a datagram")]
    fn datagram(
        &mut self,
        now: Time,
        way: Direction,
        ends: &Ends,
        from: u16,
        id: u16,
        bytes: &[u8],
        note: Note,
    ) {
        self.scratch.clear();
        if self.ip(ends, from, id, bytes.len()) {
            self.scratch.extend(bytes);
            note.write_to(&mut self.words);
            self.record(now, way);
        }
    }

    /// Builds a packet, from its IP header to its ICRC, unless that is cut off. Returns false if
    /// its addresses belong to two families.
    fn frame(&mut self, ends: &Ends, headers: &Headers, payload: &[u8]) -> bool {
        let mut headers = *headers;
        let pad = payload.len().wrapping_neg() % 4;
        headers.bth.pad = pad as u8;
        let length = headers.len() + payload.len() + pad;
        self.scratch.clear();
        let from = self.port;
        if !self.ip(ends, from, 0, length + icrc::LEN) {
            return false;
        }
        let start = self.scratch.len();
        self.scratch.resize(start + length, 0);
        let packet = &mut self.scratch[start..];
        let header_len = headers.emit(packet);
        packet[header_len..header_len + payload.len()].copy_from_slice(payload);
        let (src, dst) = (ends.src.to_ip(), ends.dst.to_ip());
        if !self.capture.keeps(start + length + icrc::LEN) {
            self.scratch.extend([0; icrc::LEN]);
            return true;
        }
        let flow = Flow::new(SocketAddr::new(src, from), SocketAddr::new(dst, self.port));
        let icrc = flow.map_or(0, |flow| self.sealer.compute(&flow, 0, packet));
        self.scratch.extend(icrc.to_le_bytes());
        true
    }

    /// Writes the IP and UDP headers in front of `length` bytes.
    fn ip(&mut self, ends: &Ends, from: u16, id: u16, length: usize) -> bool {
        use zerocopy::IntoBytes;
        let length = length + UDP_HEADER;
        // CAST: a datagram is shorter than 64 KiB with all its headers.
        let udp = Udp { src_port: from, dst_port: self.port, length: length as u16, checksum: 0 };
        let (tos, ttl) = (ends.traffic_class, ends.hop_limit);
        match (ends.src.to_ip(), ends.dst.to_ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let total_len = (length + 20) as u16;
                let ip =
                    Ipv4 { tos, total_len, id, df: true, ttl, protocol: UDP, src, dst }.to_raw();
                self.scratch.extend(ip.as_bytes());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let ip = Ipv6 {
                    traffic_class: tos,
                    flow_label: 0,
                    payload_len: length as u16,
                    next_header: UDP,
                    hop_limit: ttl,
                    src,
                    dst,
                };
                self.scratch.extend(ip.to_raw().as_bytes());
            }
            _ => return false,
        }
        self.scratch.extend(udp.to_raw().as_bytes());
        true
    }

    fn record(&mut self, now: Time, way: Direction) {
        let when = Duration::from_nanos(now.as_nanos());
        self.capture.packet(when, way, &self.scratch, &self.words);
        self.deadline.get_or_insert(now + LATENESS);
    }

    /// Whether enough packets wait that they should be written.
    pub(crate) fn is_full(&self) -> bool {
        self.capture.is_full()
    }
}

/// The headers of the `index`-th of the `count` packets that a long one represents.
fn part_of(headers: &Headers, index: usize, count: usize) -> Option<Headers> {
    if count == 1 {
        return Some(*headers);
    }
    let opcode = headers.bth.opcode;
    let whole = opcode.position();
    let is_first = index == 0 && matches!(whole, Position::First | Position::Only);
    let is_last = index + 1 == count && matches!(whole, Position::Last | Position::Only);
    let position = Position::new(is_first, is_last);
    let mut part =
        headers.with_opcode(Opcode::new(opcode.service(), opcode.operation(), position)?);
    // CAST: a message has at most 2^23 packets.
    part.bth.psn = headers.bth.psn.add(index as u32);
    part.bth.ackreq &= index + 1 == count;
    Some(part)
}
