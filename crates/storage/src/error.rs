//! Why a read or write failed.

use std::fmt;

use rustix::io::Errno;

/// What a refused or failed call returns.
pub type Result<T> = std::result::Result<T, Error>;

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a file is read or written")]
pub enum Op {
    /// From the file into the buffer.
    Read,
    /// From the buffer into the file.
    Write,
}

/// A refusal or a failure, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file was not opened.
    #[error("{path}: {call}: {errno}")]
    Open {
        /// Its name.
        path: String,
        /// The call.
        call: &'static str,
        /// The kernel's reason.
        errno: Errno,
    },
    /// The file system has no direct I/O for the file, and the caller insists on it.
    #[error("{path}: its file system has no direct I/O (O_DIRECT) for it: {why}")]
    NoDirect {
        /// Its name.
        path: String,
        /// What was seen.
        why: String,
    },
    /// io_uring was asked for, and this process cannot have one.
    #[error("storage client {client}: there is no io_uring: {why}")]
    NoRing {
        /// The client.
        client: String,
        /// The kernel's reason.
        why: String,
    },
    /// The dma-buf's exporter refused.
    #[error("storage client {client}: {why}")]
    Attach {
        /// The client.
        client: String,
        /// The exporter's refusal, with its rule.
        why: String,
    },
    /// The request is not aligned as direct I/O requires.
    #[error(
        "{op} of {path}: {what} {value:#x} is no multiple of {multiple}, which direct I/O on this file asks for (STATX_DIOALIGN)"
    )]
    Unaligned {
        /// The operation.
        op: Op,
        /// The file.
        path: String,
        /// Offset, length or address.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What it must be a multiple of.
        multiple: u32,
    },
    /// The range exceeds the buffer, or is longer than a request may be.
    #[error(
        "{len:#x} bytes at {offset:#x} of a buffer of {size:#x}: a request must be within the buffer, with 1 to {limit:#x} bytes"
    )]
    OutOfRange {
        /// Where in the buffer.
        offset: u64,
        /// The length.
        len: u64,
        /// The size of the buffer.
        size: u64,
        /// The longest request.
        limit: u64,
    },
    /// The file, or the buffer's descriptor, was opened for reading only.
    #[error("{op} of {path}: {what} was opened for reading only")]
    ReadOnly {
        /// The operation.
        op: Op,
        /// The file.
        path: String,
        /// The file, or the buffer.
        what: &'static str,
    },
    /// The exporter took the memory away.
    #[error("the memory is gone: {why}")]
    Gone {
        /// The exporter's reason, if it gave one.
        why: String,
    },
    /// The exporter's move did not end in time.
    #[error("the buffer has been moving for {seconds} s: {why}")]
    Moving {
        /// How long the request waited.
        seconds: u64,
        /// What the last attempt saw.
        why: String,
    },
    /// More requests than the client has room for.
    #[error("storage client {client} has {depth} requests under way, and room for no more")]
    Full {
        /// The client.
        client: String,
        /// How many there may be.
        depth: u32,
    },
    /// The file system or the disk failed.
    #[error("{op} of {path} at {offset:#x} failed after {done:#x} bytes: {errno}")]
    Io {
        /// The operation.
        op: Op,
        /// The file.
        path: String,
        /// Where the request begins in the file.
        offset: u64,
        /// The bytes moved before the failure.
        done: u64,
        /// The kernel's reason.
        errno: Errno,
    },
    /// The kernel could not touch the buffer's pages, or the copy to or from them failed.
    #[error("{op} of {path}: the buffer's memory cannot be touched: {why}")]
    Memory {
        /// The operation.
        op: Op,
        /// The file.
        path: String,
        /// The reason in words.
        why: String,
    },
    /// The client no longer works, or belongs to the process that this one was forked from.
    #[error("storage client {client}: {why}")]
    Broken {
        /// Its name.
        client: String,
        /// What happened.
        why: String,
    },
}

impl Error {
    /// The kernel's errno, if the file system or the disk failed.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Open { errno, .. } | Self::Io { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}
