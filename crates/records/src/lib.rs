//! A file to which several processes append whole records at the same time.
//!
//! ```text
//!   beginning, with a text | records of a process | records of another | ...
//!     "...: 0002, bytes: 0000000000004711"
//! ```
//!
//! The beginning has a text that is overwritten in place. It tells how many writers have joined,
//! which gives each its number, and how many bytes of the file are whole records. A process appends
//! under a lock of the file and then counts what it wrote; if it dies in between, the next one
//! overwrites what was not counted. Only a process that joins waits for the lock: one that was
//! stopped while it held it delays those that join, and what the others write.
//!
//! What a record is, and what stands around the text, is the format's ([`Format`]).
//!
//! ```
//! use records::{Format, Records};
//!
//! let begin = |text: &str| format!("{text}\n").into_bytes();
//! let format = Format { what: "notes", written_by: "notes; writers: ", text_at: 0, begin };
//! let path = std::env::temp_dir().join(format!("notes-{}", std::process::id()));
//! format.create(&path)?;
//! let joins = |number| Ok(format!("{number} joins\n").into_bytes());
//! let (mut notes, number) = Records::open(&path, format, joins)?;
//! notes.waiting().extend(b"and says so\n");
//! notes.finish()?;
//! assert_eq!(number, 0);
//! assert!(std::fs::read_to_string(&path)?.ends_with("\n0 joins\nand says so\n"));
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), std::io::Error>(())
//! ```

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use descriptors::Known;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// What separates the two numbers of the text.
const BYTES: &str = ", bytes: ";
const WRITER_DIGITS: usize = 4;
const BYTE_DIGITS: usize = 16;
/// No more writers than this share one file.
const MAX_WRITERS: u32 = 9_999;

/// Records are kept back until there are this many bytes of them.
const ENOUGH: usize = 256 << 10;
/// At most this much is kept back while another process holds the file.
const TOO_MUCH: usize = 64 << 20;

/// How long a process that ends waits for its turn to write.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a file is, beside its records.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "formats build it")]
pub struct Format {
    /// What to call such a file: "capture".
    pub what: &'static str,
    /// How the text begins, up to the number of writers.
    pub written_by: &'static str,
    /// Where the text is in the file.
    pub text_at: u64,
    /// The beginning of a file with a text.
    pub begin: fn(text: &str) -> Vec<u8>,
}

impl Format {
    /// Makes an empty file at `path`, in place of whatever was there.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn create(self, path: &Path) -> io::Result<()> {
        File::create(path)?.write_all_at(&self.beginning(), 0)
    }

    /// The beginning of a file that nobody has joined.
    fn beginning(self) -> Vec<u8> {
        let with = |content: Content| (self.begin)(&self.text(content));
        let bytes = with(Content { writers: 0, bytes: 0 }).len() as u64;
        with(Content { writers: 0, bytes })
    }

    fn text(self, Content { writers, bytes }: Content) -> String {
        let begins = self.written_by;
        format!("{begins}{writers:0WRITER_DIGITS$}{BYTES}{bytes:0BYTE_DIGITS$}")
    }

    /// What the text says. The file is locked.
    fn read(self, file: &File) -> io::Result<Content> {
        let not_ours = || {
            let words = format!("it is not a {} of this library", self.what);
            io::Error::new(io::ErrorKind::InvalidData, words)
        };
        let length = self.written_by.len() + WRITER_DIGITS + BYTES.len() + BYTE_DIGITS;
        let mut text = vec![0; length];
        file.read_exact_at(&mut text, self.text_at).map_err(|_| not_ours())?;
        let text = std::str::from_utf8(&text).map_err(|_| not_ours())?;
        let numbers = text.strip_prefix(self.written_by).and_then(|text| text.split_once(BYTES));
        let parsed = numbers.and_then(|(writers, bytes)| {
            Some(Content { writers: writers.parse().ok()?, bytes: bytes.parse().ok()? })
        });
        let length = file.metadata()?.len();
        parsed.filter(|content| content.bytes <= length).ok_or_else(not_ours)
    }

    /// Adds whole records, and counts them and the writers when they are there. The file is locked.
    fn append(self, file: &File, content: Content, records: &[u8], writers: u32) -> io::Result<()> {
        if file.metadata()?.len() > content.bytes {
            // Left by a process that died before it was counted.
            file.set_len(content.bytes)?;
        }
        file.write_all_at(records, content.bytes)?;
        let now = Content { writers, bytes: content.bytes + records.len() as u64 };
        file.write_all_at(self.text(now).as_bytes(), self.text_at)
    }

    /// Counts one more writer, whose first records `join` makes from its number. The file is
    /// locked.
    fn join(self, file: &File, join: impl FnOnce(u32) -> io::Result<Vec<u8>>) -> io::Result<u32> {
        if file.metadata()?.len() == 0 {
            file.write_all_at(&self.beginning(), 0)?;
        }
        let content = self.read(file)?;
        if content.writers >= MAX_WRITERS {
            return Err(io::Error::other(format!("too many processes share the {}", self.what)));
        }
        let records = join(content.writers)?;
        self.append(file, content, &records, content.writers + 1)?;
        Ok(content.writers)
    }
}

/// What is in a file, as its text tells.
#[derive(Clone, Copy, Debug)]
struct Content {
    writers: u32,
    bytes: u64,
}

/// One process's end of a file.
#[derive(Debug)]
pub struct Records {
    file: Known<File>,
    format: Format,
    waiting: Vec<u8>,
}

impl Records {
    /// Opens the file at `path`, which is made if it is not there, and joins its writers. `join`
    /// gets our number, from 0, and returns our first records; nobody else writes meanwhile.
    ///
    /// # Errors
    ///
    /// The kernel's error, that of `join`, or `InvalidData` for a file of another kind.
    pub fn open(
        path: &Path,
        format: Format,
        join: impl FnOnce(u32) -> io::Result<Vec<u8>>,
    ) -> io::Result<(Self, u32)> {
        let options =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        let file = Known::new(options.open(path)?);
        flock(&file, FlockOperation::LockExclusive)?;
        let joined = format.join(&file, join);
        flock(&file, FlockOperation::Unlock)?;
        Ok((Self { file, format, waiting: Vec::new() }, joined?))
    }

    /// What waits to be written, to which whole records are added.
    pub fn waiting(&mut self) -> &mut Vec<u8> {
        &mut self.waiting
    }

    /// Whether enough waits that it should be written.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= ENOUGH
    }

    /// Whether anything waits to be written.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Forgets what waits: in the child of a fork, the parent writes it.
    pub fn abandon_in_child(mut self) {
        self.waiting.clear();
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
    /// The kernel's error; that the file is no longer one of this format; or that another process
    /// has held it for so long that too much waits. What waited is then forgotten.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        if let Err(errno) = self.file.look() {
            self.waiting = Vec::new();
            return Err(errno.into());
        }
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK | Errno::INTR) if self.waiting.len() <= TOO_MUCH => {
                return Ok(());
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => {
                self.waiting = Vec::new();
                return Err(io::Error::other("another process keeps the file locked"));
            }
            Err(errno) => return Err(errno.into()),
        }
        let content = self.format.read(&self.file);
        let written = content.and_then(|content| {
            self.format.append(&self.file, content, &self.waiting, content.writers)
        });
        self.waiting.clear();
        flock(&self.file, FlockOperation::Unlock)?;
        written
    }
}
