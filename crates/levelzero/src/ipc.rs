//! Handles by which one process names its memory or its pools of events to another.
//!
//! A handle is 64 bytes, of which the first four are the number of a descriptor. Programs pass the
//! descriptor on by themselves (`SCM_RIGHTS`, `pidfd_getfd`), write the number that it has in the
//! other process into those four bytes, and keep the rest or not. So who opens a handle looks
//! whether the number is one of its own descriptors, of the file that the rest names, or of any
//! dma-buf if the rest is zero; and only else takes the descriptor from the process that the rest
//! names.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use umd::file::{self, Identity};

use crate::status::{Result, invalid};

/// A handle as programs pass it: 64 bytes, by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Raw(pub(crate) [u8; 64]);

/// What a handle is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum What {
    Memory = 1,
    Events = 2,
    /// Memory that the CPU reaches.
    HostMemory = 3,
}

const MAGIC: [u8; 4] = *b"PDZ1";

/// Writes a handle of a file of this process, which must stay open for as long as the handle is to
/// lead there.
///
/// # Errors
///
/// The file cannot be asked who it is.
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

/// The file behind a handle of one of these kinds, and which it is: the first if the handle does
/// not say it.
///
/// # Errors
///
/// The bytes are no handle of these kinds, or lead nowhere.
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
        return Err(invalid(format!("these 64 bytes are no handle of {:?}", kinds[0])));
    };
    let identity = Identity { device: long(16), inode: long(24) };
    if let Some(own) = own(number)
        && Identity::of(own.as_fd())? == identity
    {
        return Ok((what, own));
    }
    Ok((what, file::take(word(12), number, identity)?))
}

/// A descriptor of the program's, if it is open.
fn own(number: i32) -> Option<OwnedFd> {
    if number < 0 {
        return None;
    }
    // SAFETY: if it is closed, the call fails, and nothing else is done with it.
    let given = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_dupfd_cloexec(given, 0).ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_handle_leads_to_its_file_by_the_number_alone_and_by_the_rest() {
        let file = std::fs::File::open("/dev/null").expect("there is one");
        let whole = handle(What::Memory, file.as_raw_fd(), file.as_fd()).expect("a handle");
        let is_it = |found: OwnedFd| {
            Identity::of(found.as_fd()).unwrap() == Identity::of(file.as_fd()).unwrap()
        };
        assert!(is_it(open(&[What::Memory], &whole).expect("it is there").1));
        let mut bare = Raw([0; 64]);
        bare.0[..4].copy_from_slice(&whole.0[..4]);
        assert!(is_it(open(&[What::Memory], &bare).expect("the number is enough").1));
        // The number that the descriptor got elsewhere, with the rest as it was.
        let mut moved = whole;
        let copy = file.try_clone().expect("another descriptor");
        moved.0[..4].copy_from_slice(&copy.as_raw_fd().to_le_bytes());
        assert!(is_it(open(&[What::Memory], &moved).expect("of the same file").1));
    }

    #[test]
    fn what_is_no_handle_is_refused() {
        let file = std::fs::File::open("/dev/null").expect("there is one");
        let events = handle(What::Events, file.as_raw_fd(), file.as_fd()).expect("a handle");
        assert!(open(&[What::Memory, What::HostMemory], &events).is_err());
        assert!(open(&[What::Memory], &Raw([0xff; 64])).is_err());
        let mut closed = Raw([0; 64]);
        closed.0[..4].copy_from_slice(&i32::MAX.to_le_bytes());
        assert!(open(&[What::Memory], &closed).is_err());
        // Another file has the number now, here and in the process that made the handle.
        let mut stale = events;
        stale.0[24] ^= 1;
        assert!(open(&[What::Events], &stale).is_err());
    }
}
