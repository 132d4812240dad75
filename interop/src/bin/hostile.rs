//! An attacker that speaks RoCEv2: for a given time it sends plausible packets to a device, on
//! connections that are not its own.
//!
//! ```text
//!   hostile TARGET OWN SECONDS SEED CORPUS [--knowing] [--aim QPN]...
//! ```
//!
//! OWN is an address of this host, the same as that of TARGET's real peer, so that the source
//! address of a packet proves nothing. Packets are derived from the corpus (a directory of `*.hex`)
//! or, with `--knowing`, from packets captured on this host a moment ago. Then QPN, PSN, key,
//! address, length, opcode, flags, payload and ICRC are changed, slightly or at random. Without
//! `--knowing` the attacker does not see the connections: everything is a guess, except the QPNs
//! given with `--aim`, to which some of the packets go. The seed and, with `--knowing`, the
//! captured packets determine what is sent.
//!
//! Nothing here uses peerdma's own packet code.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, UdpSocket};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use interop::{Frame, icrc};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType};

const PORT: u16 = 4791;
/// Bytes in front of a BTH: IPv4 or IPv6, and UDP.
const HEADERS: [usize; 2] = [20 + 8, 40 + 8];
/// Packets sent between two reads of the capture, and the pause after them: the peers share the
/// processors with us.
const BURST: usize = 16;
const PAUSE: Duration = Duration::from_millis(4);
/// The minimum number of packets, regardless of the time on a loaded machine.
const AT_LEAST: u64 = 1_000;
/// The first PSN of the connections under `--aim`.
const AIMED_PSN: u32 = 100;
/// The number of recent packets that are kept.
const REMEMBERED: usize = 64;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("hostile: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<String, Box<dyn std::error::Error>> {
    let [target, own, seconds, seed, corpus, rest @ ..] = args else {
        return Err("hostile TARGET OWN SECONDS SEED CORPUS [--knowing] [--aim QPN]...".into());
    };
    let is_knowing = rest.iter().any(|word| word == "--knowing");
    let aims = rest.windows(2).filter(|words| words[0] == "--aim").map(|words| words[1].parse());
    let (target, own): (IpAddr, IpAddr) = (target.parse()?, own.parse()?);
    let until = Instant::now() + Duration::from_secs_f64(seconds.parse()?);
    // Without a connection, and with the kernel's default for DF, the identification of every IPv4
    // packet is 0.
    let socket = UdpSocket::bind((own, 0))?;
    let flow = Flow { src: own, dst: target, src_port: socket.local_addr()?.port() };
    let wire = is_knowing.then(sniffer).transpose()?;
    let mut attack = Attack {
        rng: Rng(seed.parse::<u64>()?.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
        corpus: read_corpus(corpus)?,
        aims: aims.collect::<Result<_, _>>()?,
        seen: Vec::new(),
        learned: 0,
    };
    let mut sent = 0u64;
    while Instant::now() < until || sent < AT_LEAST {
        if let Some(wire) = &wire {
            attack.learn(wire, target)?;
        }
        for _ in 0..BURST {
            let packet = attack.next();
            let is_damaged = attack.rng.chance(3);
            match socket.send_to(&flow.sealed(packet, is_damaged), (target, PORT)) {
                Ok(_) => sent += 1,
                // A full queue, or an ICMP error of a closed port for an earlier packet.
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        std::thread::sleep(PAUSE);
    }
    Ok(format!("sent {sent} learned {} corpus {}", attack.learned, attack.corpus.len()))
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused)
        || error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error())
}

/// A socket that sees what this host sends and receives.
fn sniffer() -> io::Result<OwnedFd> {
    // ETH_P_ALL, in network order.
    let every = NonZeroU32::new(u32::from(3u16.to_be())).map(Protocol::from_raw);
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, every)?)
}

/// The packets of a directory, each in a file of hexadecimal bytes from BTH to payload, with
/// comments after `#`.
fn read_corpus(dir: &str) -> Result<Vec<Vec<u8>>, Box<dyn std::error::Error>> {
    let mut files: Vec<_> = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
    files.sort_by_key(fs::DirEntry::file_name);
    let mut packets = Vec::new();
    for file in files {
        let text = fs::read_to_string(file.path())?;
        let digits: String = text
            .lines()
            .flat_map(|line| line.split('#').next().unwrap_or("").chars())
            .filter(|c| !c.is_whitespace())
            .collect();
        let bytes = (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..][..2], 16));
        packets.push(bytes.collect::<Result<Vec<u8>, _>>()?);
    }
    if packets.iter().any(|packet| packet.len() < 12) || packets.is_empty() {
        return Err(format!("{dir}: a packet of the corpus has a BTH, and there is one").into());
    }
    Ok(packets)
}

/// The destination of packets, for the ICRC.
struct Flow {
    src: IpAddr,
    dst: IpAddr,
    src_port: u16,
}

impl Flow {
    /// The packet with its ICRC, or with a wrong one.
    fn sealed(&self, packet: Vec<u8>, is_damaged: bool) -> Vec<u8> {
        let udp = (8 + packet.len() + 4) as u16;
        let mut ip = Vec::new();
        match (self.src, self.dst) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                ip.extend([0x60, 0, 0, 0]);
                ip.extend(udp.to_be_bytes());
                ip.extend([17, 64]);
                ip.extend(src.octets());
                ip.extend(dst.octets());
            }
            (src, dst) => {
                ip.extend([0x45, 0]);
                ip.extend((20 + udp).to_be_bytes());
                // Identification 0, DF, time to live, UDP, no checksum.
                ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
                ip.extend(octets(src));
                ip.extend(octets(dst));
            }
        }
        let headers = ip.len() + 8;
        for word in [self.src_port, PORT, udp, 0] {
            ip.extend(word.to_be_bytes());
        }
        ip.extend(packet);
        ip.extend([0; 4]);
        let frame = Frame { ip };
        let sum = icrc(&frame) ^ u32::from(is_damaged);
        let mut datagram = frame.ip[headers..].to_vec();
        let end = datagram.len() - 4;
        datagram[end..].copy_from_slice(&sum.to_le_bytes());
        datagram
    }
}

/// What the attacker knows, and the packets that it makes from that.
struct Attack {
    rng: Rng,
    corpus: Vec<Vec<u8>>,
    /// Known QPNs.
    aims: Vec<u32>,
    /// Recent packets to the target, from BTH to payload.
    seen: Vec<Vec<u8>>,
    learned: u64,
}

impl Attack {
    /// Takes the packets captured since the last call.
    fn learn(&mut self, wire: &OwnedFd, target: IpAddr) -> io::Result<()> {
        let mut buffer = vec![0u8; 1 << 16];
        loop {
            let length = match rustix::net::recv(wire, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, length)) => length,
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            // The first packet of a train is enough.
            if let Some(packet) = request_to(target, &buffer[..length]) {
                self.learned += 1;
                let packet = packet.to_vec();
                if self.seen.len() < REMEMBERED {
                    self.seen.push(packet);
                } else {
                    let at = self.rng.below(REMEMBERED as u64) as usize;
                    self.seen[at] = packet;
                }
            }
        }
    }

    /// The next packet, without its ICRC.
    fn next(&mut self) -> Vec<u8> {
        let rng = &mut self.rng;
        let known = self.seen.last().cloned();
        let mut packet = if !self.seen.is_empty() && rng.chance(50) {
            self.seen[rng.below(self.seen.len() as u64) as usize].clone()
        } else {
            self.corpus[rng.below(self.corpus.len() as u64) as usize].clone()
        };
        if packet.len() < 12 {
            packet.resize(12, 0);
        }
        // The QP: of a known connection, or a guess. A VF has ten bits, an index fourteen.
        let qpn = match &known {
            Some(known) if rng.chance(80) => word(known, 4) & 0xff_ffff,
            _ => match rng.below(8) {
                0 => 0,
                1 => 1,
                2 => 0xff_ffff,
                3 | 4 => rng.next() as u32 & 0xff_ffff,
                _ => (rng.below(4) << 14 | rng.below(64)) as u32,
            },
        };
        let aim = match self.aims.len() as u64 {
            count @ 1.. if rng.chance(40) => Some(self.aims[rng.below(count) as usize]),
            _ => None,
        };
        let qpn = aim.unwrap_or(qpn);
        if packet[0] != 0x64 || rng.chance(20) {
            // The reserved bits above it are random, now and then.
            let reserved = if rng.chance(5) { rng.next() as u32 & 0xff00_0000 } else { 0 };
            put(&mut packet, 4, qpn | reserved);
        }
        let base = known.as_ref().map_or_else(|| rng.next() as u32, |known| word(known, 8));
        let psn = match rng.below(8) {
            _ if aim.is_some() && rng.chance(50) => AIMED_PSN,
            0 => rng.next() as u32,
            1..3 => base.wrapping_add(rng.below(1 << 12) as u32),
            3..5 => base.wrapping_sub(rng.below(1 << 12) as u32),
            _ => base.wrapping_add(rng.below(9) as u32).wrapping_sub(4),
        };
        let ask = u32::from(rng.chance(50)) << 31;
        put(&mut packet, 8, psn & 0xff_ffff | ask);
        self.change(&mut packet);
        packet
    }

    /// Changes what follows PSN and QPN, now and then.
    fn change(&mut self, packet: &mut Vec<u8>) {
        let rng = &mut self.rng;
        if rng.chance(10) {
            packet[0] = rng.next() as u8;
        }
        if rng.chance(5) {
            packet[1] = rng.next() as u8;
        }
        if rng.chance(3) {
            packet[2..4].copy_from_slice(&(rng.next() as u16).to_be_bytes());
        }
        // A RETH or AtomicETH, wherever there is one: address, key, length.
        if packet.len() >= 28 {
            if rng.chance(20) {
                let addr = word(packet, 16).wrapping_add(rng.below(1 << 16) as u32);
                put(packet, 16, if rng.chance(30) { rng.next() as u32 } else { addr });
            }
            if rng.chance(20) {
                let key = word(packet, 20) ^ 1 << rng.below(32);
                put(packet, 20, if rng.chance(50) { rng.next() as u32 } else { key });
            }
            if rng.chance(20) {
                let length = [0, 1, 4096, 1 << 31, u32::MAX, rng.next() as u32];
                put(packet, 24, length[rng.below(length.len() as u64) as usize]);
            }
        }
        if rng.chance(20) {
            let most = if rng.chance(50) { 64 } else { 1400 };
            let length = 12 + rng.below(most) as usize;
            packet.resize(length, rng.next() as u8);
        }
        if rng.chance(20) {
            for _ in 0..1 + rng.below(8) {
                let at = rng.below(packet.len() as u64) as usize;
                packet[at] ^= 1 << rng.below(8);
            }
        }
        // Truncate it, even below the length of a header.
        if rng.chance(2) {
            packet.truncate(rng.below(12) as usize);
        }
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// The bytes of an Ethernet frame between UDP and the ICRC, if it goes to the target's RoCEv2 port
/// and comes from such a port: our own packets have another source port.
fn request_to(target: IpAddr, frame: &[u8]) -> Option<&[u8]> {
    let (ethernet, ip) = frame.split_at_checked(14)?;
    // IPv4 without options.
    let (protocol, dst) = if target.is_ipv4() { (9, 16..20) } else { (6, 24..40) };
    let headers = HEADERS[usize::from(target.is_ipv6())];
    let kind: &[u8] = if target.is_ipv4() { &[0x08, 0x00] } else { &[0x86, 0xdd] };
    let is_request = ethernet[12..] == *kind
        && ip.len() >= headers + 16
        && (ip[0] == 0x45 || target.is_ipv6())
        && ip[protocol] == 17
        && ip[dst] == octets(target)
        && ip[headers - 8..headers - 4] == [PORT.to_be_bytes(); 2].concat();
    is_request.then(|| &ip[headers..ip.len() - 4])
}

fn word(packet: &[u8], at: usize) -> u32 {
    packet[at..].first_chunk().map_or(0, |word| u32::from_be_bytes(*word))
}

fn put(packet: &mut [u8], at: usize, value: u32) {
    packet[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Pseudo-random numbers: xorshift64*.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
