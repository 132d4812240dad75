//! A capture file that several processes write: pcapng, which Wireshark and tshark read.
//!
//! ```text
//!   section header | interface 0 | packets ... | interface 1 | packets of both ...
//!                    of a process                of another
//! ```
//!
//! The section header tells what is in the file, as text that is overwritten in place: how many
//! interfaces there are, which assigns their numbers, and how many bytes. A process appends whole
//! blocks under a lock of the file and then counts them; if it dies in between, the next one
//! overwrites what was not counted. No process waits for the lock: one that was stopped while it
//! held it delays what the others write, and nothing else. Packets begin with their IP header.
//!
//! The format: draft-ietf-opsawg-pcapng. All numbers are in the byte order of the machine, as the
//! format requires.

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU32;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use descriptors::Known;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

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

/// What the section header says about the writer and the contents of the file.
const WRITTEN_BY: &str = "peerdma; interfaces: ";
const BYTES: &str = ", bytes: ";
const INTERFACE_DIGITS: usize = 4;
const BYTE_DIGITS: usize = 16;
/// Where the numbers of that text end in the file: after the fixed part of the section header and
/// of the option.
const TEXT_AT: u64 = 24 + 4;
const TEXT_LEN: usize = WRITTEN_BY.len() + INTERFACE_DIGITS + BYTES.len() + BYTE_DIGITS;
/// No more processes than this share one file.
const MAX_INTERFACES: u32 = 9_999;

/// Blocks are kept back until there are this many bytes of them.
const ENOUGH: usize = 256 << 10;
/// At most this much is kept back while another process holds the file.
const TOO_MUCH: usize = 64 << 20;

/// How long a process that ends waits for its turn to write.
const PATIENCE: Duration = Duration::from_secs(1);

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
    file: Known<File>,
    interface: u32,
    blocks: Vec<u8>,
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
        File::create(path)?.write_all_at(&section(), 0)
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
        let options =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        let file = Known::new(options.open(path)?);
        flock(&file, FlockOperation::LockExclusive)?;
        let interface = add_interface(&file, name, about, most);
        flock(&file, FlockOperation::Unlock)?;
        let most = most.map_or(usize::MAX, |most| most.get() as usize);
        Ok(Self { file, interface: interface?, blocks: Vec::new(), origin, most })
    }

    /// Adds a packet, which begins with its IP header. `when` counts from the origin.
    pub fn packet(&mut self, when: Duration, way: Direction, ip: &[u8], comment: &str) {
        let time = self.origin.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + when;
        // CAST: nanoseconds since 1970 fit 64 bits until 2554.
        let time = time.as_nanos() as u64;
        let Ok(length) = u32::try_from(ip.len()) else { return };
        let interface = self.interface;
        let kept = &ip[..ip.len().min(self.most)];
        block(&mut self.blocks, PACKET, |out| {
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
        self.blocks.len() >= ENOUGH
    }

    /// Whether anything waits to be written.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Forgets what waits: in the child of a fork, the parent writes it.
    pub fn abandon_in_child(mut self) {
        self.blocks.clear();
    }

    /// Writes what waits, and waits a moment if another process is writing just then: for the last
    /// write of a process.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush).
    pub fn finish(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        self.flush()?;
        while !self.is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(100));
            self.flush()?;
        }
        Ok(())
    }

    /// Writes what waits, unless another process is writing just then: it then waits longer.
    ///
    /// # Errors
    ///
    /// The kernel's error; that the file is no longer a capture; or that another process has held
    /// it for so long that too much waits. What waited is then forgotten.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.blocks.is_empty() {
            return Ok(());
        }
        if let Err(errno) = self.file.look() {
            self.blocks = Vec::new();
            return Err(errno.into());
        }
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK | Errno::INTR) if self.blocks.len() <= TOO_MUCH => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {
                self.blocks = Vec::new();
                return Err(io::Error::other("another process keeps the file locked"));
            }
            Err(errno) => return Err(errno.into()),
        }
        let written = Content::read(&self.file)
            .and_then(|content| content.append(&self.file, &self.blocks, content.interfaces));
        self.blocks.clear();
        flock(&self.file, FlockOperation::Unlock)?;
        written
    }
}

/// What is in the file, as its section header tells.
#[derive(Clone, Copy, Debug)]
struct Content {
    interfaces: u32,
    bytes: u64,
}

impl Content {
    fn text(self) -> String {
        let Self { interfaces, bytes } = self;
        format!("{WRITTEN_BY}{interfaces:0INTERFACE_DIGITS$}{BYTES}{bytes:0BYTE_DIGITS$}")
    }

    fn read(file: &File) -> io::Result<Self> {
        let not_ours =
            || io::Error::new(io::ErrorKind::InvalidData, "it is not a capture of this library");
        let mut text = [0; TEXT_LEN];
        file.read_exact_at(&mut text, TEXT_AT).map_err(|_| not_ours())?;
        let text = std::str::from_utf8(&text).map_err(|_| not_ours())?;
        let numbers = text.strip_prefix(WRITTEN_BY).and_then(|text| text.split_once(BYTES));
        let parsed = numbers.and_then(|(interfaces, bytes)| {
            Some(Self { interfaces: interfaces.parse().ok()?, bytes: bytes.parse().ok()? })
        });
        let length = file.metadata()?.len();
        parsed.filter(|content| content.bytes <= length).ok_or_else(not_ours)
    }

    /// Adds whole blocks, and counts them when they are there. The file is locked.
    fn append(self, file: &File, blocks: &[u8], interfaces: u32) -> io::Result<()> {
        if file.metadata()?.len() > self.bytes {
            // Left by a process that died before it was counted.
            file.set_len(self.bytes)?;
        }
        file.write_all_at(blocks, self.bytes)?;
        let now = Self { interfaces, bytes: self.bytes + blocks.len() as u64 };
        file.write_all_at(now.text().as_bytes(), TEXT_AT)
    }
}

/// Counts one more interface in the file, and returns its number. The file is locked.
fn add_interface(
    file: &File,
    name: &str,
    about: &str,
    most: Option<NonZeroU32>,
) -> io::Result<u32> {
    if file.metadata()?.len() == 0 {
        file.write_all_at(&section(), 0)?;
    }
    let content = Content::read(file)?;
    if content.interfaces >= MAX_INTERFACES {
        return Err(io::Error::other("too many processes share the capture"));
    }
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
    content.append(file, &bytes, content.interfaces + 1)?;
    Ok(content.interfaces)
}

/// The section header of a file without interfaces.
fn section() -> Vec<u8> {
    let with = |content: Content| {
        let mut bytes = Vec::new();
        block(&mut bytes, SECTION, |out| {
            out.extend(BYTE_ORDER.to_ne_bytes());
            out.extend(1u16.to_ne_bytes());
            out.extend(0u16.to_ne_bytes());
            // The format has a place for the length of the section, but not one that ends with
            // whole blocks.
            out.extend(u64::MAX.to_ne_bytes());
            option(out, USER_APPLICATION, content.text().as_bytes());
            option(out, END_OF_OPTIONS, &[]);
        });
        bytes
    };
    let bytes = with(Content { interfaces: 0, bytes: 0 }).len() as u64;
    with(Content { interfaces: 0, bytes })
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
        drop(holder);
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
