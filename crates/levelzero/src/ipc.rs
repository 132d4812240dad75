//! Handles by which one process names its memory or its event pools to another.
//!
//! A handle is 64 bytes, of which the first four are the number of a descriptor. Programs pass the
//! descriptor themselves (`SCM_RIGHTS`, `pidfd_getfd`) and write its number in the other process
//! into those four bytes; they may keep or drop the rest. So opening a handle first checks whether
//! the number is one of the process's own descriptors: of the file that the rest names, or of any
//! dma-buf if the rest is zero. Otherwise it duplicates the descriptor of the process that the rest
//! names.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use umd::file::{self, Identity};

use crate::status::{Result, invalid};

/// A handle as programs pass it: 64 bytes, by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Raw(pub(crate) [u8; 64]);

/// The kind of object that a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum What {
    Memory = 1,
    Events = 2,
    /// Memory that the CPU can access.
    HostMemory = 3,
}

const MAGIC: [u8; 4] = *b"PDZ1";

/// Creates a handle of a file of this process. The file must stay open for as long as the handle is
/// valid.
///
/// # Errors
///
/// The file cannot be identified (`fstat` fails).
pub(crate) fn handle(what: What, number: i32, file: BorrowedFd<'_>) -> Result<Raw> {
    let identity = Identity::of(file)?;
    file::allow();
    let mut bytes = [0; 64];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[4..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&(what as u32).to_le_bytes());
    bytes[12..16].copy_from_slice(&std::process::id().to_le_bytes());
    bytes[16..24].copy_from_slice(&identity.device.to_le_bytes());
    bytes[24..32].copy_from_slice(&identity.inode.to_le_bytes());
    Ok(Raw(bytes))
}

/// The descriptor in a handle.
pub(crate) fn number(raw: &Raw) -> i32 {
    i32::from_le_bytes(raw.0[..4].try_into().expect("four bytes"))
}

/// The file of a handle, and the kind of the handle: the first of `kinds` if the handle does not
/// tell.
///
/// # Errors
///
/// The bytes are not a handle of these kinds, or its file is gone.
pub(crate) fn open(kinds: &[What], raw: &Raw) -> Result<(What, OwnedFd)> {
    let word = |at: usize| u32::from_le_bytes(raw.0[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_le_bytes(raw.0[at..at + 8].try_into().expect("eight bytes"));
    let number = number(raw);
    if raw.0[4..].iter().all(|byte| *byte == 0) {
        let file = own(number);
        let file = file.ok_or_else(|| invalid(format!("there is no descriptor {number}")))?;
        return Ok((kinds[0], file));
    }
    let says = kinds.iter().find(|kind| word(8) == **kind as u32);
    let Some(what) = says.copied().filter(|_| raw.0[4..8] == MAGIC) else {
        return Err(invalid(format!("these 64 bytes are not a handle of {:?}", kinds[0])));
    };
    let identity = Identity { device: long(16), inode: long(24) };
    if let Some(own) = own(number)
        && Identity::of(own.as_fd())? == identity
    {
        return Ok((what, own));
    }
    Ok((what, file::take(word(12), number, identity)?))
}

/// Duplicates a descriptor of the program, if it is open.
fn own(number: i32) -> Option<OwnedFd> {
    if number < 0 {
        return None;
    }
    // SAFETY: if it is closed, the call fails, and it is not used otherwise.
    let given = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_dupfd_cloexec(given, 0).ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_handle_opens_its_file_by_the_number_alone_or_by_the_rest() {
        let file = std::fs::File::open("/dev/null").expect("there is one");
        let whole = handle(What::Memory, file.as_raw_fd(), file.as_fd()).expect("a handle");
        let is_it = |found: OwnedFd| {
            Identity::of(found.as_fd()).unwrap() == Identity::of(file.as_fd()).unwrap()
        };
        assert!(is_it(open(&[What::Memory], &whole).expect("it is there").1));
        let mut bare = Raw([0; 64]);
        bare.0[..4].copy_from_slice(&whole.0[..4]);
        assert!(is_it(open(&[What::Memory], &bare).expect("the number is enough").1));
        // The number of the descriptor in another process, with the rest unchanged.
        let mut moved = whole;
        let copy = file.try_clone().expect("another descriptor");
        moved.0[..4].copy_from_slice(&copy.as_raw_fd().to_le_bytes());
        assert!(is_it(open(&[What::Memory], &moved).expect("of the same file").1));
    }

    #[test]
    fn bytes_that_are_not_a_handle_are_refused() {
        let file = std::fs::File::open("/dev/null").expect("there is one");
        let events = handle(What::Events, file.as_raw_fd(), file.as_fd()).expect("a handle");
        assert!(open(&[What::Memory, What::HostMemory], &events).is_err());
        assert!(open(&[What::Memory], &Raw([0xff; 64])).is_err());
        let mut closed = Raw([0; 64]);
        closed.0[..4].copy_from_slice(&i32::MAX.to_le_bytes());
        assert!(open(&[What::Memory], &closed).is_err());
        // Another file has the number, here and in the process that created the handle.
        let mut stale = events;
        stale.0[24] ^= 1;
        assert!(open(&[What::Events], &stale).is_err());
    }
}
