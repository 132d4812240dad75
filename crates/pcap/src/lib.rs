//! A capture file that several processes write: pcapng, which Wireshark and tshark read.
//!
//! ```text
//!   section header | interface 0 | packets ... | interface 1 | packets of both ...
//!                    of a process                of another
//! ```
//!
//! A text in the section header tells how many interfaces there are and how many bytes of blocks,
//! so that several processes can write ([`records`]). Packets begin with their IP header.
//!
//! The format: draft-ietf-opsawg-pcapng. All numbers are in the byte order of the machine, as the
//! format requires.

use std::io;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::{Duration, SystemTime};

use records::{Format, Records};

/// Block types.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
/// Tells the byte order of a section.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// LINKTYPE_RAW: packets begin with an IPv4 or IPv6 header.
const RAW_IP: u16 = 101;
/// Options of every block, of section headers, of interfaces, and of packets.
const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const USER_APPLICATION: u16 = 4;
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const IF_TIME_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;
/// Nanoseconds.
const RESOLUTION: u8 = 9;

/// How the text in the section header begins.
const WRITTEN_BY: &str = "peerdma; interfaces: ";
/// Where that text is: behind the fixed part of the section header, and of the option.
const TEXT_AT: u64 = 24 + 4;

const FORMAT: Format =
    Format { what: "capture", written_by: WRITTEN_BY, text_at: TEXT_AT, begin: section };

/// The direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is no third way")]
pub enum Direction {
    /// To this process.
    Inbound,
    /// From this process.
    Outbound,
}

/// One process's end of a capture file.
#[derive(Debug)]
pub struct Capture {
    records: Records,
    interface: u32,
    origin: SystemTime,
    /// Bytes of a packet that are kept.
    most: usize,
}

impl Capture {
    /// Makes an empty capture at `path`, in place of whatever was there.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn create(path: &Path) -> io::Result<()> {
        FORMAT.create(path)
    }

    /// Opens the capture at `path`, which is made if it is not there, and adds an interface of this
    /// `name`; `about` tells whose it is. `origin` is the wall-clock time from which packets count
    /// theirs. No more than the first `most` bytes of each packet are kept (the *snapshot length*
    /// of other tools), if there is such a limit.
    ///
    /// # Errors
    ///
    /// The kernel's error, or `InvalidData` for a file that is not such a capture.
    pub fn open(
        path: &Path,
        name: &str,
        about: &str,
        origin: SystemTime,
        most: Option<NonZeroU32>,
    ) -> io::Result<Self> {
        let join = |_| Ok(interface(name, about, most));
        let (records, interface) = Records::open(path, FORMAT, join)?;
        let most = most.map_or(usize::MAX, |most| most.get() as usize);
        Ok(Self { records, interface, origin, most })
    }

    /// Adds a packet, which begins with its IP header. `when` counts from the origin.
    pub fn packet(&mut self, when: Duration, way: Direction, ip: &[u8], comment: &str) {
        let time = self.origin.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + when;
        // CAST: nanoseconds since 1970 fit 64 bits until 2554.
        let time = time.as_nanos() as u64;
        let Ok(length) = u32::try_from(ip.len()) else { return };
        let interface = self.interface;
        let kept = &ip[..ip.len().min(self.most)];
        block(self.records.waiting(), PACKET, |out| {
            // CAST: no longer than the packet.
            for word in [interface, (time >> 32) as u32, time as u32, kept.len() as u32, length] {
                out.extend(word.to_ne_bytes());
            }
            out.extend(kept);
            pad(out);
            let way: u32 = if way == Direction::Inbound { 1 } else { 2 };
            option(out, PACKET_FLAGS, &way.to_ne_bytes());
            if !comment.is_empty() {
                option(out, COMMENT, comment.as_bytes());
            }
            option(out, END_OF_OPTIONS, &[]);
        });
    }

    /// Whether the end of a packet of this many bytes is kept.
    pub fn keeps(&self, length: usize) -> bool {
        length <= self.most
    }

    /// Whether enough waits that it should be written.
    pub fn is_full(&self) -> bool {
        self.records.is_full()
    }

    /// Whether anything waits to be written.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Forgets what waits: in the child of a fork, the parent writes it.
    pub fn abandon_in_child(self) {
        self.records.abandon_in_child();
    }

    /// Writes what waits, and waits a moment if another process is writing just then: for the last
    /// write of a process.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush).
    pub fn finish(&mut self) -> io::Result<()> {
        self.records.finish()
    }

    /// Writes what waits, unless another process is writing just then: it then waits longer.
    ///
    /// # Errors
    ///
    /// Those of [`Records::flush`].
    pub fn flush(&mut self) -> io::Result<()> {
        self.records.flush()
    }
}

/// The block of one more interface.
fn interface(name: &str, about: &str, most: Option<NonZeroU32>) -> Vec<u8> {
    let mut bytes = Vec::new();
    block(&mut bytes, INTERFACE, |out| {
        out.extend(RAW_IP.to_ne_bytes());
        out.extend([0; 2]);
        // 0: no limit of the captured length.
        out.extend(most.map_or(0, NonZeroU32::get).to_ne_bytes());
        option(out, IF_NAME, name.as_bytes());
        option(out, IF_DESCRIPTION, about.as_bytes());
        option(out, IF_TIME_RESOLUTION, &[RESOLUTION]);
        option(out, END_OF_OPTIONS, &[]);
    });
    bytes
}

/// The section header with a text.
fn section(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    block(&mut bytes, SECTION, |out| {
        out.extend(BYTE_ORDER.to_ne_bytes());
        out.extend(1u16.to_ne_bytes());
        out.extend(0u16.to_ne_bytes());
        // The format has a place for the length of the section, but not one that ends with whole
        // blocks.
        out.extend(u64::MAX.to_ne_bytes());
        option(out, USER_APPLICATION, text.as_bytes());
        option(out, END_OF_OPTIONS, &[]);
    });
    bytes
}

/// A block: its type, its length, what `fill` writes, and its length again.
fn block(out: &mut Vec<u8>, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_ne_bytes());
    out.extend([0; 4]);
    fill(out);
    // CAST: a packet is at most 64 KiB, and texts are short.
    let length = (out.len() - start + 4) as u32;
    out[start + 4..start + 8].copy_from_slice(&length.to_ne_bytes());
    out.extend(length.to_ne_bytes());
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    out.extend(code.to_ne_bytes());
    // CAST: cut above.
    out.extend((value.len() as u16).to_ne_bytes());
    out.extend(value);
    pad(out);
}

/// Pads to a multiple of four bytes. Every block begins at one.
fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::unix::fs::FileExt;

    use rustix::fs::{FlockOperation, flock};

    use super::*;

    /// Type and content of every block; panics where the file is not well-formed.
    fn blocks(bytes: &[u8]) -> Vec<(u32, &[u8])> {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four"));
        let (mut at, mut all) = (0, Vec::new());
        while at < bytes.len() {
            let length = word(at + 4) as usize;
            assert!(length >= 12 && length.is_multiple_of(4));
            assert_eq!(word(at + length - 4) as usize, length, "the length at both ends");
            all.push((word(at), &bytes[at + 8..at + length - 4]));
            at += length;
        }
        all
    }

    fn path(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("peerdma-pcap-{name}-{}", std::process::id()))
    }

    #[test]
    fn two_writers_share_a_file() {
        let path = path("two");
        Capture::create(&path).expect("a directory for temporary files");
        let origin = SystemTime::UNIX_EPOCH;
        let mut first =
            Capture::open(&path, "peerdma0", "pid 1", origin, None).expect("made above");
        let mut second =
            Capture::open(&path, "peerdma0", "pid 2", origin, None).expect("made above");
        for round in 0..3u8 {
            for (number, capture) in [&mut first, &mut second].into_iter().enumerate() {
                let when = Duration::from_nanos(u64::from(round));
                let packet = vec![number as u8; usize::from(round) + 1];
                capture.packet(when, Direction::Outbound, &packet, "words");
                capture.flush().expect("room on the disk");
            }
        }
        let bytes = std::fs::read(&path).expect("written above");
        std::fs::remove_file(&path).expect("ours");
        let blocks = blocks(&bytes);
        let kinds: Vec<u32> = blocks.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds[..3], [SECTION, INTERFACE, INTERFACE]);
        let packets: Vec<_> = blocks[3..].iter().map(|(_, body)| body).collect();
        assert_eq!(packets.len(), 6);
        for (index, packet) in packets.iter().enumerate() {
            let interface = u32::from_ne_bytes(packet[..4].try_into().expect("four"));
            let length = u32::from_ne_bytes(packet[12..16].try_into().expect("four"));
            assert_eq!((interface as usize, length as usize), (index % 2, index / 2 + 1));
            assert_eq!(packet[20], (index % 2) as u8);
        }
    }

    #[test]
    fn a_long_packet_is_cut_and_its_length_is_kept() {
        let path = path("cut");
        let origin = SystemTime::UNIX_EPOCH;
        let mut capture = Capture::open(&path, "peerdma0", "pid 1", origin, NonZeroU32::new(128))
            .expect("made here");
        for length in [127, 128, 129, 4000] {
            capture.packet(Duration::ZERO, Direction::Inbound, &vec![7; length], "words");
        }
        assert!(capture.keeps(128) && !capture.keeps(129));
        capture.flush().expect("room on the disk");
        let bytes = std::fs::read(&path).expect("written above");
        std::fs::remove_file(&path).expect("ours");
        let blocks = blocks(&bytes);
        let word =
            |body: &[u8], at: usize| u32::from_ne_bytes(body[at..at + 4].try_into().expect("four"));
        assert_eq!(word(blocks[1].1, 4), 128, "the limit of the interface");
        let lengths: Vec<_> =
            blocks[2..].iter().map(|(_, body)| (word(body, 12), word(body, 16))).collect();
        assert_eq!(lengths, [(127, 127), (128, 128), (128, 129), (128, 4000)]);
    }

    #[test]
    fn what_a_dead_process_left_half_written_is_overwritten() {
        let path = path("torn");
        let origin = SystemTime::UNIX_EPOCH;
        let mut capture =
            Capture::open(&path, "peerdma0", "pid 1", origin, None).expect("made here");
        let whole = std::fs::metadata(&path).expect("there").len();
        let file = OpenOptions::new().write(true).open(&path).expect("there");
        file.write_all_at(&[6; 1001], whole).expect("room on the disk");
        capture.packet(Duration::ZERO, Direction::Inbound, &[7; 5], "");
        capture.flush().expect("room on the disk");
        let bytes = std::fs::read(&path).expect("written above");
        std::fs::remove_file(&path).expect("ours");
        let kinds: Vec<u32> = blocks(&bytes).iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [SECTION, INTERFACE, PACKET]);
    }

    #[test]
    fn a_writer_that_holds_the_file_is_not_waited_for() {
        let path = path("held");
        let origin = SystemTime::UNIX_EPOCH;
        let mut capture =
            Capture::open(&path, "peerdma0", "pid 1", origin, None).expect("made here");
        let holder = File::open(&path).expect("there");
        flock(&holder, FlockOperation::LockExclusive).expect("nobody else");
        capture.packet(Duration::ZERO, Direction::Inbound, &[7; 5], "");
        capture.flush().expect("later, then");
        assert!(!capture.is_empty(), "it still waits");
        // A child that another test forked meanwhile has the descriptor too.
        flock(&holder, FlockOperation::Unlock).expect("it is ours");
        capture.flush().expect("room on the disk");
        assert!(capture.is_empty());
        std::fs::remove_file(&path).expect("ours");
    }

    #[test]
    fn another_file_is_left_alone() {
        let path = path("other");
        let text = "something that is dear to somebody, and long enough for a header";
        std::fs::write(&path, text).expect("a directory for temporary files");
        let refused = Capture::open(&path, "peerdma0", "pid 1", SystemTime::UNIX_EPOCH, None);
        assert_eq!(refused.expect_err("no capture").kind(), io::ErrorKind::InvalidData);
        assert_eq!(std::fs::read_to_string(&path).expect("there"), text);
        std::fs::remove_file(&path).expect("ours");
    }
}
