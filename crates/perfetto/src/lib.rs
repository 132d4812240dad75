//! A trace that several processes write, in the format of Perfetto: ui.perfetto.dev and
//! `trace_processor` open it.
//!
//! ```text
//!   text | first packets of a process | events ... | first packets of another | events of both ...
//! ```
//!
//! Such a file is a sequence of packets of any writers, so each process appends whole ones
//! ([`records`]); its packets are a *sequence* of their own. The names of events, categories and
//! arguments are written once for each sequence, and then go by number ([`Names`]).
//!
//! A slice or an instant lies on a *track* ([`Trace::track`]); the slices of a track nest. *Flows*
//! are numbers that events share: the viewer draws an arrow from each event to the next one with
//! the same number. [`id`] makes such a number of what the flow stands for, so that two processes
//! find the same one without asking each other.
//!
//! Times are nanoseconds of CLOCK_BOOTTIME, which all processes of a host share. A snapshot of the
//! clocks in each sequence lets a reader compare traces of several hosts.
//!
//! The format: `protos/perfetto/trace/trace_packet.proto` of the Perfetto project.
//!
//! ```
//! use perfetto::{Kind, Names, Trace, id};
//!
//! let (events, args) = (&[(1, "step")], &["bytes"]);
//! let names = Names { categories: &["work"], events, args, words: &[] };
//! let path = std::env::temp_dir().join(format!("trace-{}", std::process::id()));
//! let mut trace = Trace::open(&path, &names)?;
//! let track = trace.track(trace.process(), "one after another", 0);
//! trace.event(perfetto::now(), Kind::Begin, track, 1).category(1).flow(id(&[7])).number(1, 64);
//! trace.event(perfetto::now(), Kind::End, track, 0);
//! trace.finish()?;
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod event;
mod proto;

use std::io;
use std::path::Path;

use records::{Format, Records};
use rustix::param::clock_ticks_per_second;
use rustix::time::{ClockId, clock_gettime};

pub use self::event::{Event, Kind};

/// Fields of `Trace` and `TracePacket`.
const PACKET: u32 = 1;
const CLOCK_SNAPSHOT: u32 = 6;
const TIMESTAMP: u32 = 8;
const SEQUENCE: u32 = 10;
const TRACK_EVENT: u32 = 11;
const INTERNED_DATA: u32 = 12;
const SEQUENCE_FLAGS: u32 = 13;
const TRACK_DESCRIPTOR: u32 = 60;
const FIRST_ON_SEQUENCE: u32 = 87;
const FOR_TESTING: u32 = 900;
/// Flags of a packet: names begin anew; it uses names.
const CLEARED: u64 = 1;
const NEEDS_NAMES: u64 = 2;
/// Clocks, by their numbers in `BuiltinClock`.
const REALTIME: u64 = 1;
const MONOTONIC: u64 = 3;
const BOOTTIME: u64 = 6;

/// How the text at the beginning of the file begins, and where: in a packet that readers ignore.
const FORMAT: Format =
    Format { what: "trace", written_by: "peerdma; sequences: ", text_at: 7, begin: beginning };

/// Bits of a sequence's number that are the writer's number in the file.
const WRITER_BITS: u32 = 14;
/// Numbers of tracks have this many bits: each event has one, and shorter ones take less room.
const TRACK_BITS: u32 = 42;

/// The names that events refer to by number.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct Names<'a> {
    /// Categories, by their index plus one.
    pub categories: &'a [&'a str],
    /// Events, by the number given here, which is not 0.
    pub events: &'a [(u64, &'a str)],
    /// Arguments, by their index plus one.
    pub args: &'a [&'a str],
    /// Texts of arguments, by the number given here, which is not 0.
    pub words: &'a [(u64, &'a str)],
}

/// One process's sequence in a trace.
#[derive(Debug)]
pub struct Trace {
    records: Records,
    sequence: u64,
    process: u64,
}

/// A number made of numbers: the same for the same ones, and most likely another for others.
pub fn id(parts: &[u64]) -> u64 {
    // The finalizer of SplitMix64.
    parts.iter().fold(0x9e37_79b9_7f4a_7c15, |sum, part| {
        let mut mixed = (sum ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    })
}

/// The time, in nanoseconds since the machine was started.
pub fn now() -> u64 {
    nanos(ClockId::Boottime)
}

fn nanos(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    // CAST: neither is negative, and 64 bits suffice until 2554.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Trace {
    /// Makes an empty trace at `path`, in place of whatever was there.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn create(path: &Path) -> io::Result<()> {
        FORMAT.create(path)
    }

    /// Opens the trace at `path`, which is made if it is not there, and adds a sequence and this
    /// process.
    ///
    /// # Errors
    ///
    /// The kernel's error, or `InvalidData` for a file that is not such a trace.
    pub fn open(path: &Path, names: &Names<'_>) -> io::Result<Self> {
        let process = Process::this();
        let mut sequence = 0;
        let (records, _) = Records::open(path, FORMAT, |writer| {
            // Traces of several hosts, one after the other in a file, are a trace as well: the
            // writer alone would not tell their sequences apart.
            let random = id(&[now(), process.track]) << WRITER_BITS;
            // CAST: cut to the 32 bits of the field.
            sequence = u64::from((random | u64::from(writer)) as u32);
            let mut out = Vec::new();
            introduce(&mut out, sequence, names);
            process.describe(&mut out, sequence);
            Ok(out)
        })?;
        Ok(Self { records, sequence, process: process.track })
    }

    /// The track of the process.
    pub fn process(&self) -> u64 {
        self.process
    }

    /// Describes the `index`-th track of this name below another one, and returns its number.
    /// Tracks of one name below the same one are shown as one, of several lines. Describing a track
    /// again is harmless, and returns the same number.
    pub fn track(&mut self, parent: u64, name: &str, index: u64) -> u64 {
        let below = name.bytes().fold(parent, |sum, byte| id(&[sum, byte.into()]));
        let track = id(&[below, index]) >> (64 - TRACK_BITS);
        let sequence = self.sequence;
        packet(self.records.waiting(), sequence, |out| {
            proto::message(out, TRACK_DESCRIPTOR, |out| {
                proto::number(out, 1, track);
                proto::number(out, 5, parent);
                proto::text(out, 2, name);
            });
        });
        track
    }

    /// Adds an event, of a name by its number; 0 for none, as the end of a slice. It is complete
    /// when the returned value is dropped.
    #[inline(always)]
    pub fn event(&mut self, at: u64, kind: Kind, track: u64, name: u64) -> Event<'_> {
        Event::begin(self.records.waiting(), (at, self.sequence), kind, track, name)
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

    /// Writes what waits, for the last time in this process.
    ///
    /// # Errors
    ///
    /// Those of [`Records::finish`].
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

/// The beginning of a file, with a text.
fn beginning(text: &str) -> Vec<u8> {
    // These lengths have one byte, as the text is short: it begins at the seventh byte.
    let mut event = Vec::new();
    proto::text(&mut event, 1, text);
    let mut packet = vec![0xa2, 0x38, event.len() as u8];
    debug_assert_eq!(u32::from(packet[0] & 0x7f) | u32::from(packet[1]) << 7, FOR_TESTING << 3 | 2);
    packet.extend(event);
    let mut trace = vec![(PACKET << 3 | 2) as u8, packet.len() as u8];
    trace.extend(packet);
    trace
}

fn packet(out: &mut Vec<u8>, sequence: u64, fill: impl FnOnce(&mut Vec<u8>)) {
    proto::message(out, PACKET, |out| {
        proto::number(out, SEQUENCE, sequence);
        fill(out);
    });
}

/// The first packets of a sequence: its clocks and its names.
fn introduce(out: &mut Vec<u8>, sequence: u64, names: &Names<'_>) {
    packet(out, sequence, |out| {
        proto::number(out, FIRST_ON_SEQUENCE, 1);
        proto::message(out, CLOCK_SNAPSHOT, |out| {
            let clocks = [
                (BOOTTIME, ClockId::Boottime),
                (MONOTONIC, ClockId::Monotonic),
                (REALTIME, ClockId::Realtime),
            ];
            for (number, clock) in clocks {
                proto::message(out, 1, |out| {
                    proto::number(out, 1, number);
                    proto::number(out, 2, nanos(clock));
                });
            }
            proto::number(out, 2, BOOTTIME);
        });
    });
    packet(out, sequence, |out| {
        proto::number(out, SEQUENCE_FLAGS, CLEARED);
        proto::message(out, INTERNED_DATA, |out| {
            let one = |out: &mut Vec<u8>, field, number, name: &str| {
                proto::message(out, field, |out| {
                    proto::number(out, 1, number);
                    proto::text(out, 2, name);
                });
            };
            for (number, name) in (1..).zip(names.categories) {
                one(out, 1, number, name);
            }
            for (number, name) in names.events {
                one(out, 2, *number, name);
            }
            for (number, name) in (1..).zip(names.args) {
                one(out, 3, number, name);
            }
            for (number, text) in names.words {
                one(out, 29, *number, text);
            }
        });
    });
}

/// This process, as all its sequences describe it.
struct Process {
    track: u64,
    /// When it began, as [`now`] counts: others may have its pid, in other namespaces or earlier.
    began: u64,
}

impl Process {
    fn this() -> Self {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        // The name of the program, in parentheses, may have spaces. `starttime` is the field 22.
        let behind_name = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
        let ticks = behind_name.split(' ').nth(19).and_then(|ticks| ticks.parse().ok());
        let began = ticks.unwrap_or(0) * (1_000_000_000 / clock_ticks_per_second().max(1));
        let namespace = namespace.as_os_str().as_encoded_bytes();
        let parts = namespace.iter().map(|byte| u64::from(*byte));
        let parts: Vec<u64> = parts.chain([std::process::id().into(), began]).collect();
        Self { track: id(&parts) >> (64 - TRACK_BITS), began }
    }

    fn describe(&self, out: &mut Vec<u8>, sequence: u64) {
        let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        packet(out, sequence, |out| {
            proto::message(out, TRACK_DESCRIPTOR, |out| {
                proto::number(out, 1, self.track);
                proto::message(out, 3, |out| {
                    proto::number(out, 1, u64::from(std::process::id()));
                    proto::text(out, 6, name.trim_end());
                    proto::number(out, 7, self.began);
                });
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("peerdma-perfetto-{name}-{}", std::process::id()))
    }

    const NAMES: Names<'_> = Names {
        categories: &["category"],
        events: &[(9, "event")],
        args: &["argument"],
        words: &[(5, "word")],
    };

    /// The packets of a file; panics where it is not well-formed.
    fn packets(bytes: &[u8]) -> Vec<&[u8]> {
        let (mut at, mut all) = (0, Vec::new());
        while at < bytes.len() {
            assert_eq!(bytes[at], 0x0a, "a packet");
            at += 1;
            let (mut length, mut shift) = (0, 0);
            loop {
                let byte = bytes[at];
                at += 1;
                length |= usize::from(byte & 0x7f) << shift;
                shift += 7;
                if byte & 0x80 == 0 {
                    break;
                }
            }
            all.push(&bytes[at..at + length]);
            at += length;
        }
        all
    }

    #[test]
    fn two_sequences_of_a_file_have_numbers_of_their_own() {
        let path = path("two");
        Trace::create(&path).expect("a directory for temporary files");
        let mut first = Trace::open(&path, &NAMES).expect("made above");
        let mut second = Trace::open(&path, &NAMES).expect("made above");
        assert_ne!(first.sequence, second.sequence);
        assert_eq!(first.process(), second.process());
        for trace in [&mut first, &mut second] {
            let track = trace.track(trace.process(), "a track", 0);
            trace
                .event(1, Kind::Begin, track, 9)
                .category(1)
                .number(1, 2)
                .word(1, 5)
                .text(1, "words");
            trace.event(2, Kind::End, track, 0);
            trace.finish().expect("room on the disk");
        }
        let bytes = std::fs::read(&path).expect("written above");
        std::fs::remove_file(&path).expect("ours");
        // The text; for each its clocks, names, process, track and two events.
        assert_eq!(packets(&bytes).len(), 1 + 2 * 6);
        let text = String::from_utf8_lossy(&bytes[7..]).into_owned();
        let count = format!("peerdma; sequences: 0002, bytes: {:016}", bytes.len());
        assert!(text.starts_with(&count), "{text:.60}");
    }

    #[test]
    fn another_file_is_left_alone() {
        let path = path("other");
        let text = "something that is dear to somebody, and long enough for a beginning";
        std::fs::write(&path, text).expect("a directory for temporary files");
        let refused = Trace::open(&path, &NAMES).expect_err("no trace");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        assert_eq!(std::fs::read_to_string(&path).expect("there"), text);
        std::fs::remove_file(&path).expect("ours");
    }

    #[test]
    fn numbers_of_different_things_differ() {
        let all: std::collections::HashSet<u64> =
            (0..1000).flat_map(|a| (0..10).map(move |b| id(&[a, b]))).collect();
        assert_eq!(all.len(), 10_000);
        assert_ne!(id(&[1, 2]), id(&[2, 1]));
    }
}
