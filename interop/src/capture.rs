//! Captured packets, and an independent computation of the invariant CRC.
//!
//! Nothing here uses peerdma's own packet code, so an error there cannot hide here.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::netns::{Netns, Veth};
use crate::program::{Mode, Program};
use crate::running::Running;
use crate::scratch::Scratch;

/// RoCEv2's UDP port.
const PORT: u16 = 4791;
/// The port of the datagram that marks the end of a capture, and its payload.
const END_PORT: u16 = 4790;
const END: &str = "end of capture";

/// `dumpcap` on the veth of a namespace, for UDP 4791.
#[derive(Debug)]
pub struct Capture {
    dumpcap: Running,
    netns: String,
    file: PathBuf,
    _scratch: Scratch,
}

/// One captured RoCEv2 packet, from its IP header to its ICRC.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The IP packet.
    pub ip: Vec<u8>,
}

impl Capture {
    /// Starts the capture and waits until packets are seen.
    #[track_caller]
    pub fn start(netns: &Netns) -> Self {
        let scratch = Scratch::new();
        let file = scratch.file("wire.pcap");
        let filter = format!("udp port {PORT} or udp port {END_PORT}");
        let mut dumpcap = Program::new("dumpcap")
            .args(["-q", "-P", "-B", "64", "-i", Veth::INTERFACE, "-f", &filter, "-w"])
            .args([&file])
            .mode(Mode::Plain)
            .in_netns(netns)
            .limit(Duration::from_secs(120))
            .start();
        dumpcap.wait_says("File:");
        Self { dumpcap, netns: netns.path(), file, _scratch: scratch }
    }

    /// Ends the capture. Everything sent before is in the file, which lives as long as the returned
    /// value.
    #[track_caller]
    pub fn stop(mut self) -> Captured {
        // An interrupted dumpcap drops what is still in the kernel's ring. A last datagram, behind
        // everything else, tells when the ring has been read. One of the two addresses is across
        // the veth.
        let script = format!(
            "for a in 10.77.0.1 10.77.0.2; do printf '{END}' > /dev/udp/$a/{END_PORT}; done"
        );
        let sent = Command::new("nsenter")
            .arg(format!("--net={}", self.netns))
            .args(["bash", "-c", &script])
            .status()
            .expect("`nsenter` starts");
        assert!(sent.success(), "the end of the capture could not be marked");
        let file = self.file.clone();
        self.dumpcap.wait_until("the end of the capture", |_| {
            fs::read(&file).is_ok_and(|seen| seen.windows(END.len()).any(|w| w == END.as_bytes()))
        });
        self.dumpcap.interrupt();
        let out = self.dumpcap.finish();
        // With lost packets the checks would prove nothing.
        out.success().says("/0 (").says("dropped on interface");
        let frames = read(&fs::read(&self.file).expect("dumpcap wrote it"));
        Captured { frames, file: self.file, _scratch: self._scratch }
    }
}

/// The result of a capture.
#[derive(Debug)]
pub struct Captured {
    /// The packets, in order.
    pub frames: Vec<Frame>,
    /// The pcap file.
    pub file: PathBuf,
    _scratch: Scratch,
}

impl Frame {
    /// The ICRC that the packet carries: its last four bytes, in the order of an Ethernet FCS.
    pub fn carried_icrc(&self) -> u32 {
        let tail = self.ip.last_chunk().expect("longer than an ICRC");
        u32::from_le_bytes(*tail)
    }

    /// The UDP ports, source and destination.
    pub fn ports(&self) -> [u16; 2] {
        let udp = &self.ip[self.udp()..];
        [u16::from_be_bytes([udp[0], udp[1]]), u16::from_be_bytes([udp[2], udp[3]])]
    }

    /// Where the UDP header starts. RoCEv2 packets have no IPv6 extension headers.
    fn udp(&self) -> usize {
        if self.is_v6() { 40 } else { usize::from(self.ip[0] & 0x0f) * 4 }
    }

    /// Whether it is an IPv6 packet.
    pub fn is_v6(&self) -> bool {
        self.ip[0] >> 4 == 6
    }
}

/// The invariant CRC of a RoCEv2 packet (IBA Annex A17): the Ethernet CRC-32 over eight bytes of
/// ones in place of a local route header, then the packet from its IP header to its last byte
/// before the ICRC, with every field that a router may change replaced by ones.
pub fn icrc(frame: &Frame) -> u32 {
    let mut bytes = frame.ip[..frame.ip.len() - 4].to_vec();
    if frame.is_v6() {
        // Traffic class and flow label; hop limit.
        bytes[0] |= 0x0f;
        bytes[1..4].fill(0xff);
        bytes[7] = 0xff;
    } else {
        // Type of service; time to live; header checksum.
        bytes[1] = 0xff;
        bytes[8] = 0xff;
        bytes[10..12].fill(0xff);
    }
    let udp = frame.udp();
    bytes[udp + 6..udp + 8].fill(0xff); // UDP checksum
    // BTH: FECN, BECN and the six reserved bits, if the packet is that long.
    if let Some(byte) = bytes.get_mut(udp + 8 + 4) {
        *byte = 0xff;
    }
    !crc32(&bytes, crc32(&[0xff; 8], !0))
}

/// One bit at a time: slow, but short and obviously the polynomial of IEEE 802.3.
fn crc32(bytes: &[u8], mut crc: u32) -> u32 {
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    crc
}

/// The UDP packets to or from port 4791 of a classic little-endian pcap file of Ethernet frames.
fn read(pcap: &[u8]) -> Vec<Frame> {
    let word = |at: usize| u32::from_le_bytes(pcap[at..at + 4].try_into().expect("four bytes"));
    assert!([0xa1b2_c3d4, 0xa1b2_3c4d].contains(&word(0)), "a classic pcap file");
    assert_eq!(word(20), 1, "Ethernet");
    let mut frames = Vec::new();
    let mut at = 24;
    while at + 16 <= pcap.len() {
        let (kept, whole) = (word(at + 8) as usize, word(at + 12) as usize);
        assert_eq!(kept, whole, "a packet was cut by the capture");
        let ethernet = &pcap[at + 16..at + 16 + kept];
        at += 16 + kept;
        let ip = &ethernet[14..];
        // Short frames are padded to Ethernet's minimum: the IP header has the length of the
        // packet.
        let len = match ip[0] >> 4 {
            4 => usize::from(u16::from_be_bytes([ip[2], ip[3]])),
            6 => 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]])),
            version => panic!("IP version {version}"),
        };
        let frame = Frame { ip: ip[..len].to_vec() };
        if frame.ports().contains(&PORT) {
            frames.push(frame);
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crc_is_the_one_of_ieee_802_3() {
        assert_eq!(!crc32(b"123456789", !0), 0xcbf4_3926);
    }

    #[test]
    fn mutable_fields_do_not_change_the_icrc() {
        let mut ip = vec![0; 20 + 8 + 12 + 4];
        ip[0] = 0x45;
        let before = icrc(&Frame { ip: ip.clone() });
        for at in [1, 8, 10, 11, 20 + 6, 20 + 7, 20 + 8 + 4] {
            let mut routed = ip.clone();
            routed[at] = 0x5a;
            assert_eq!(icrc(&Frame { ip: routed }), before, "byte {at} is mutable");
        }
        ip[20 + 8] = 0x64;
        assert_ne!(icrc(&Frame { ip }), before, "the opcode is not");
    }
}
