//! Handles by which one process names its memory or its events to another.
//!
//! A handle is 64 bytes: which process, which of its descriptors, and what file that was. Who opens
//! it takes the descriptor (`pidfd_getfd`), and looks whether it is still of that file: numbers are
//! used again, files are not. So the handle of memory that was freed leads nowhere, whatever is at
//! its address now.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use umd::file::{self, Identity};

use crate::status::{Refusal, Result, invalid};

/// A handle as programs pass it: 64 bytes, by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Raw(pub(crate) [u8; 64]);

/// What a handle is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Memory,
    Event,
}

/// What a handle says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) what: What,
    pub(crate) pid: u32,
    fd: u32,
    file: Identity,
    /// Bytes of memory.
    pub(crate) len: u64,
    /// Which memory of the process it is: never used twice in it.
    id: u64,
    /// The beginning of the UUID of the GPU.
    pub(crate) gpu: [u8; 8],
    /// Where in the memory that the file is of it begins.
    pub(crate) offset: u64,
}

const MAGIC: [u8; 4] = *b"PDM1";

impl Handle {
    /// Of a file of this process, which must stay open for as long as the handle is to lead there.
    ///
    /// # Errors
    ///
    /// The file cannot be asked who it is.
    pub(crate) fn new(
        what: What,
        file: BorrowedFd<'_>,
        len: u64,
        id: u64,
        gpu: [u8; 16],
    ) -> Result<Self> {
        let identity = Identity::of(file)?;
        file::allow();
        Ok(Self {
            what,
            pid: std::process::id(),
            fd: file.as_raw_fd().cast_unsigned(),
            file: identity,
            len,
            id,
            gpu: gpu[..8].try_into().expect("eight bytes"),
            offset: 0,
        })
    }

    /// The same, of what begins so far into the memory.
    pub(crate) fn at(self, offset: u64) -> Self {
        Self { offset, ..self }
    }

    pub(crate) fn encode(&self) -> Raw {
        let what = match self.what {
            What::Memory => 1_u32,
            What::Event => 2,
        };
        let mut bytes = [0; 64];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&MAGIC);
        put(&what.to_le_bytes());
        put(&self.pid.to_le_bytes());
        put(&self.fd.to_le_bytes());
        put(&self.file.device.to_le_bytes());
        put(&self.file.inode.to_le_bytes());
        put(&self.len.to_le_bytes());
        put(&self.id.to_le_bytes());
        put(&self.gpu);
        put(&self.offset.to_le_bytes());
        Raw(bytes)
    }

    /// # Errors
    ///
    /// The bytes are none.
    pub(crate) fn decode(raw: &Raw, what: What) -> Result<Self> {
        let word =
            |at: usize| u32::from_le_bytes(raw.0[at..at + 4].try_into().expect("four bytes"));
        let long =
            |at: usize| u64::from_le_bytes(raw.0[at..at + 8].try_into().expect("eight bytes"));
        let kind = match word(4) {
            1 => Some(What::Memory),
            2 => Some(What::Event),
            _ => None,
        };
        if raw.0[..4] != MAGIC || kind != Some(what) {
            return Err(invalid(format!("these 64 bytes are no handle of {what:?}")));
        }
        Ok(Self {
            what,
            pid: word(8),
            fd: word(12),
            file: Identity { device: long(16), inode: long(24) },
            len: long(32),
            id: long(40),
            gpu: raw.0[48..56].try_into().expect("eight bytes"),
            offset: long(56),
        })
    }

    /// The file, from the process that has it.
    ///
    /// # Errors
    ///
    /// The process is gone or another user's, or has the file no more.
    pub(crate) fn fetch(&self) -> Result<OwnedFd> {
        file::take(self.pid, self.fd.cast_signed(), self.file).map_err(|mut refusal| {
            refusal.what = format!("{:?} of {}", self.what, refusal.what).into();
            Refusal::from(refusal)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_handle_is_what_it_was() {
        let file = std::fs::File::open("/dev/null").expect("there is one");
        let handle = Handle::new(What::Memory, file.as_fd(), 4096, 7, [3; 16]).expect("a handle");
        let raw = handle.encode();
        assert_eq!(Handle::decode(&raw, What::Memory), Ok(handle));
        assert!(Handle::decode(&raw, What::Event).is_err());
        assert!(Handle::decode(&Raw([0; 64]), What::Memory).is_err());
        assert!(handle.fetch().is_ok());
        drop(file);
        assert!(handle.fetch().is_err(), "the descriptor is closed, or another file's");
    }
}
