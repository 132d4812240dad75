//! Handles by which one process names its memory or its events to another.
//!
//! A handle is 64 bytes: a process, one of its descriptors, and the file that it referred to. The
//! process that opens the handle duplicates the descriptor (`pidfd_getfd`) and checks that it still
//! refers to that file: descriptor numbers are reused, files are not. So the handle of freed memory
//! is invalid, even if its address is in use again.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use umd::file::{self, Identity};

use crate::status::{Refusal, Result, invalid};

/// A handle as programs pass it: 64 bytes, by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Raw(pub(crate) [u8; 64]);

/// The kind of object that a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Memory,
    Event,
}

/// The content of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) what: What,
    pub(crate) pid: u32,
    fd: u32,
    file: Identity,
    /// Bytes of memory.
    pub(crate) len: u64,
    /// The number of the memory in its process; never reused there.
    id: u64,
    /// The first bytes of the GPU's UUID.
    pub(crate) gpu: [u8; 8],
    /// The offset in the memory of the file.
    pub(crate) offset: u64,
}

const MAGIC: [u8; 4] = *b"PDM1";

impl Handle {
    /// A handle of a file of this process. The file must stay open for as long as the handle is
    /// valid.
    ///
    /// # Errors
    ///
    /// The file cannot be identified (`fstat` fails).
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

    /// The same, with an offset into the memory.
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
    /// The bytes are not a handle of this kind.
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
            return Err(invalid(format!("these 64 bytes are not a handle of {what:?}")));
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

    /// The file, duplicated from the process that has it.
    ///
    /// # Errors
    ///
    /// The process is gone, belongs to another user, or has closed the file.
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
    fn a_decoded_handle_is_the_encoded_one() {
        let file = std::fs::File::open("/dev/null").expect("there is one");
        let handle = Handle::new(What::Memory, file.as_fd(), 4096, 7, [3; 16]).expect("a handle");
        let raw = handle.encode();
        assert_eq!(Handle::decode(&raw, What::Memory), Ok(handle));
        assert!(Handle::decode(&raw, What::Event).is_err());
        assert!(Handle::decode(&Raw([0; 64]), What::Memory).is_err());
        assert!(handle.fetch().is_ok());
        drop(file);
        assert!(handle.fetch().is_err(), "the descriptor is closed, or refers to another file");
    }
}
