//! The messages, one per packet of a `SOCK_SEQPACKET` socket.
//!
//! Every message is 64-bit words in the host's byte order (magic, kind, number, and the fields of
//! the kind), with texts as a length and bytes at the end. A number joins an answer to its request.

use rustix::io::Errno;

use super::codec::{Reader, Writer, index, one_of};
use crate::attached::{DeviceAddr, ImporterClass};
use crate::exporter::{Direction, ExporterError, ExporterErrorKind, Reach};

/// Requests of the importing process. It chooses the numbers of attachments, pins and maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// The first message of a connection. Descriptor: the socket for notes.
    Hello,
    /// Imports a buffer, if its file is this one.
    Import { buf: u64, dev: u64, ino: u64 },
    /// Gives the import back. No answer.
    Release { buf: u64 },
    /// Attaches an importer.
    Attach(Attach),
    /// Detaches it, with its pins and maps. No answer.
    Detach { attachment: u64 },
    /// Pins.
    Pin { attachment: u64, pin: u64 },
    /// Unpins. No answer.
    Unpin { attachment: u64, pin: u64 },
    /// Maps.
    Map { attachment: u64, map: u64, direction: Direction },
    /// Unmaps, unless the exporter has done so already. No answer.
    Unmap { attachment: u64, map: u64 },
    /// Begins access by the CPU.
    BeginCpu { buf: u64, direction: Direction },
    /// Ends it.
    EndCpu { buf: u64, direction: Direction },
    /// Whether a range may be mapped for the CPU.
    Mmap { buf: u64, offset: u64, len: u64 },
    /// Asks where the CPU maps a range, which stays there until the hold ends. Answered like a map,
    /// with one range; with Done if it is in the buffer's own file.
    Hold { buf: u64, hold: u64, offset: u64, len: u64 },
    /// Ends the hold. No answer.
    LetGo { hold: u64 },
    /// Checks whether the fences that an access waits for are signaled: refused (Again) if not.
    Poll { buf: u64, writes: bool },
    /// Asks for those fences as a file, which comes with the answer.
    ExportSync { buf: u64, flags: u64 },
    /// Adds a fence. Descriptor: its file.
    ImportSync { buf: u64, flags: u64 },
}

/// The importer to attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attach {
    pub(super) buf: u64,
    pub(super) attachment: u64,
    pub(super) class: ImporterClass,
    pub(super) peer2peer: bool,
    pub(super) device: Option<DeviceAddr>,
    pub(super) name: String,
}

/// Answers of the exporting process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Success.
    Done,
    /// The answer to an import. Descriptor: the gate, if there is one.
    Imported(Facts),
    /// The answer to an attach.
    Attached { peer2peer: bool },
    /// The answer to a map. Descriptors: the files.
    Mapped(Mapped),
    /// A refusal, as the exporter gave it.
    Refused(ExporterError),
}

/// Facts about a buffer that never change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) size: u64,
    pub(super) has_pinning: bool,
    pub(super) is_coherent: bool,
    pub(super) has_gate: bool,
    /// Whether the exporter's death revokes it.
    pub(super) dies: bool,
    pub(super) exporter: String,
}

/// Where the bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    pub(super) epoch: Option<u64>,
    pub(super) map_type: Reach,
    pub(super) entries: Vec<Entry>,
}

/// One contiguous range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The index of its descriptor in the message.
    pub(super) file: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// Notes of the exporting process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Note {
    /// The mappings of this attachment are invalid.
    Invalidate { buf: u64, attachment: u64 },
    /// The CPU's mapping of this hold is taken away.
    Zap { hold: u64 },
}

/// Why bytes are not a message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadMessage {
    #[error("it does not speak our protocol, or speaks another version of it")]
    Magic,
    #[error("it sent a message of unknown kind {0}")]
    Kind(u64),
    #[error("it sent a message that is too short or too long")]
    Length,
    #[error("it sent a message with a value that does not exist")]
    Value,
    #[error("descriptors of its message were lost: too many, or our process has none left")]
    Descriptors,
}

/// The number of a request without an answer.
pub(super) const NO_ANSWER: u64 = 0;
/// The number of the answer to a connection that is refused before its first request.
pub(super) const AT_THE_DOOR: u64 = u64::MAX;
/// The most ranges in one table.
pub(super) const ENTRIES_MAX: usize = 4096;
/// The most files in one table, and descriptors in one message.
pub(super) const FILES_MAX: usize = 16;
/// The most bytes in a name.
pub(super) const NAME_MAX: usize = 255;
/// The most bytes in the text of a refusal.
const WORDS_MAX: usize = 1024;
/// Longest message in bytes.
pub(super) const MESSAGE_MAX: usize = 64 + ENTRIES_MAX * 24 + WORDS_MAX;

type Result<T> = std::result::Result<T, BadMessage>;

impl Request {
    pub(super) fn encode(&self, number: u64) -> Vec<u8> {
        let mut out = Writer::new();
        match self {
            Self::Hello => out.begin(1, number, &[]),
            Self::Import { buf, dev, ino } => out.begin(2, number, &[*buf, *dev, *ino]),
            Self::Release { buf } => out.begin(3, number, &[*buf]),
            Self::Attach(attach) => {
                let Attach { buf, attachment, class, peer2peer, device, name } = attach;
                let class = index(&CLASSES, class);
                let (has, at) = device.map_or((0, 0), |DeviceAddr(at)| (1, at));
                let words = [*buf, *attachment, class, (*peer2peer).into(), has, at];
                out.begin(4, number, &words);
                out.text(name, NAME_MAX);
            }
            Self::Detach { attachment } => out.begin(5, number, &[*attachment]),
            Self::Pin { attachment, pin } => out.begin(6, number, &[*attachment, *pin]),
            Self::Unpin { attachment, pin } => out.begin(7, number, &[*attachment, *pin]),
            Self::Map { attachment, map, direction } => {
                out.begin(8, number, &[*attachment, *map, index(&DIRECTIONS, direction)]);
            }
            Self::Unmap { attachment, map } => out.begin(9, number, &[*attachment, *map]),
            Self::BeginCpu { buf, direction } => {
                out.begin(10, number, &[*buf, index(&DIRECTIONS, direction)]);
            }
            Self::EndCpu { buf, direction } => {
                out.begin(11, number, &[*buf, index(&DIRECTIONS, direction)]);
            }
            Self::Mmap { buf, offset, len } => out.begin(12, number, &[*buf, *offset, *len]),
            Self::Hold { buf, hold, offset, len } => {
                out.begin(13, number, &[*buf, *hold, *offset, *len]);
            }
            Self::LetGo { hold } => out.begin(14, number, &[*hold]),
            Self::Poll { buf, writes } => out.begin(15, number, &[*buf, (*writes).into()]),
            Self::ExportSync { buf, flags } => out.begin(16, number, &[*buf, *flags]),
            Self::ImportSync { buf, flags } => out.begin(17, number, &[*buf, *flags]),
        }
        out.bytes
    }

    /// The request in `bytes`, which a peer sent, and its number.
    pub(super) fn decode(bytes: &[u8]) -> Result<(u64, Self)> {
        let mut from = Reader { rest: bytes };
        let (kind, number) = from.begin()?;
        let request = match kind {
            1 => Self::Hello,
            2 => Self::Import { buf: from.word()?, dev: from.word()?, ino: from.word()? },
            3 => Self::Release { buf: from.word()? },
            4 => {
                let (buf, attachment) = (from.word()?, from.word()?);
                let (class, peer2peer) = (from.one_of(&CLASSES)?, from.flag()?);
                let (has, at) = (from.flag()?, from.word()?);
                let (device, name) = (has.then_some(DeviceAddr(at)), from.text(NAME_MAX)?);
                Self::Attach(Attach { buf, attachment, class, peer2peer, device, name })
            }
            5 => Self::Detach { attachment: from.word()? },
            6 => Self::Pin { attachment: from.word()?, pin: from.word()? },
            7 => Self::Unpin { attachment: from.word()?, pin: from.word()? },
            8 => {
                let (attachment, map) = (from.word()?, from.word()?);
                Self::Map { attachment, map, direction: from.one_of(&DIRECTIONS)? }
            }
            9 => Self::Unmap { attachment: from.word()?, map: from.word()? },
            10 => Self::BeginCpu { buf: from.word()?, direction: from.one_of(&DIRECTIONS)? },
            11 => Self::EndCpu { buf: from.word()?, direction: from.one_of(&DIRECTIONS)? },
            12 => Self::Mmap { buf: from.word()?, offset: from.word()?, len: from.word()? },
            13 => {
                let (buf, hold) = (from.word()?, from.word()?);
                Self::Hold { buf, hold, offset: from.word()?, len: from.word()? }
            }
            14 => Self::LetGo { hold: from.word()? },
            15 => Self::Poll { buf: from.word()?, writes: from.flag()? },
            16 => Self::ExportSync { buf: from.word()?, flags: from.word()? },
            17 => Self::ImportSync { buf: from.word()?, flags: from.word()? },
            kind => return Err(BadMessage::Kind(kind)),
        };
        from.end()?;
        Ok((number, request))
    }
}

impl Reply {
    pub(super) fn encode(&self, number: u64) -> Vec<u8> {
        let mut out = Writer::new();
        match self {
            Self::Done => out.begin(1, number, &[]),
            Self::Imported(facts) => {
                let Facts { size, has_pinning, is_coherent, has_gate, dies, exporter } = facts;
                let flags = [*has_pinning, *is_coherent, *has_gate, *dies].map(u64::from);
                out.begin(2, number, &[*size]);
                out.words(&flags);
                out.text(exporter, NAME_MAX);
            }
            Self::Attached { peer2peer } => out.begin(3, number, &[(*peer2peer).into()]),
            Self::Mapped(Mapped { epoch, map_type, entries }) => {
                // No table has epoch 0.
                let map_type = index(&MAP_TYPES, map_type);
                out.begin(4, number, &[epoch.unwrap_or(0), map_type, entries.len() as u64]);
                for entry in entries {
                    out.words(&[entry.file, entry.offset, entry.len]);
                }
            }
            Self::Refused(ExporterError { kind, what }) => {
                let (kind, errno) = match kind {
                    // CAST: errnos are small positive numbers.
                    ExporterErrorKind::Kernel(errno) => (KERNEL, errno.raw_os_error() as u64),
                    kind => (index(&KINDS, kind), 0),
                };
                out.begin(5, number, &[kind, errno]);
                out.text(what, WORDS_MAX);
            }
        }
        out.bytes
    }

    /// The reply in `bytes`, which a peer sent, and the number of its request.
    pub(super) fn decode(bytes: &[u8]) -> Result<(u64, Self)> {
        let mut from = Reader { rest: bytes };
        let (kind, number) = from.begin()?;
        let reply = match kind {
            1 => Self::Done,
            2 => Self::Imported(Facts {
                size: from.word()?,
                has_pinning: from.flag()?,
                is_coherent: from.flag()?,
                has_gate: from.flag()?,
                dies: from.flag()?,
                exporter: from.text(NAME_MAX)?,
            }),
            3 => Self::Attached { peer2peer: from.flag()? },
            4 => {
                let (epoch, map_type) = (from.word()?, from.one_of(&MAP_TYPES)?);
                let count = from.word()?;
                if count > ENTRIES_MAX as u64 || from.rest.len() as u64 != count * 24 {
                    return Err(BadMessage::Length);
                }
                let mut entries = Vec::with_capacity(count as usize);
                for _ in 0..count {
                    let (file, offset, len) = (from.word()?, from.word()?, from.word()?);
                    entries.push(Entry { file, offset, len });
                }
                let epoch = (epoch != 0).then_some(epoch);
                Self::Mapped(Mapped { epoch, map_type, entries })
            }
            5 => {
                let (kind, errno) = (from.word()?, from.word()?);
                let kind = match kind {
                    KERNEL => {
                        let errno = i32::try_from(errno).map_err(|_| BadMessage::Value)?;
                        if !(1..4096).contains(&errno) {
                            return Err(BadMessage::Value);
                        }
                        ExporterErrorKind::Kernel(Errno::from_raw_os_error(errno))
                    }
                    kind => one_of(&KINDS, kind)?,
                };
                Self::Refused(ExporterError::new(kind, from.text(WORDS_MAX)?))
            }
            kind => return Err(BadMessage::Kind(kind)),
        };
        from.end()?;
        Ok((number, reply))
    }
}

impl Note {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut out = Writer::new();
        match self {
            Self::Invalidate { buf, attachment } => out.begin(1, 0, &[buf, attachment]),
            Self::Zap { hold } => out.begin(2, 0, &[hold]),
        }
        out.bytes
    }

    /// The note in `bytes`, which a peer sent.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Reader { rest: bytes };
        let note = match from.begin()? {
            (1, 0) => Self::Invalidate { buf: from.word()?, attachment: from.word()? },
            (2, 0) => Self::Zap { hold: from.word()? },
            (kind, _) => return Err(BadMessage::Kind(kind)),
        };
        from.end()?;
        Ok(note)
    }
}

const CLASSES: [ImporterClass; 4] = [
    ImporterClass::Static,
    ImporterClass::Pinned,
    ImporterClass::PinnedRevocable,
    ImporterClass::Dynamic,
];
const DIRECTIONS: [Direction; 3] =
    [Direction::ToDevice, Direction::FromDevice, Direction::Bidirectional];
const MAP_TYPES: [Reach; 3] = [Reach::System, Reach::BusAddress, Reach::ThroughHostBridge];
const KINDS: [ExporterErrorKind; 8] = [
    ExporterErrorKind::Invalid,
    ExporterErrorKind::Busy,
    ExporterErrorKind::NotSupported,
    ExporterErrorKind::NoDevice,
    ExporterErrorKind::NotPermitted,
    ExporterErrorKind::NoMemory,
    ExporterErrorKind::Again,
    ExporterErrorKind::Unsupported,
];
/// The kind that comes with an errno.
const KERNEL: u64 = 99;

#[cfg(test)]
mod tests;
