//! Handles by which one process names its memory to another.
//!
//! A handle is 32 bytes: a process, one of its descriptors, and the file that it referred to. The
//! process that attaches duplicates the descriptor (`pidfd_getfd`), and checks that it still refers
//! to that file. So the handle of freed memory is invalid, whatever is at its address now.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use umd::file::{self, Identity};

use crate::status::{Result, invalid};

/// A handle as programs pass it.
#[doc(alias = "hsa_amd_ipc_memory_t")]
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Raw(pub(crate) [u32; 8]);

const MAGIC: u32 = u32::from_le_bytes(*b"PDH1");

/// Creates a handle of a file of this process. The file must stay open for as long as the handle is
/// valid. `pages` is its size in host pages.
///
/// # Errors
///
/// The file cannot be identified.
pub(crate) fn handle(file: BorrowedFd<'_>, pages: u32) -> Result<Raw> {
    let identity = Identity::of(file)?;
    file::allow();
    let half = |number: u64, high: bool| {
        // CAST: keeps the bits.
        if high { (number >> 32) as u32 } else { number as u32 }
    };
    Ok(Raw([
        MAGIC,
        std::process::id(),
        file.as_raw_fd().cast_unsigned(),
        pages,
        half(identity.device, false),
        half(identity.device, true),
        half(identity.inode, false),
        half(identity.inode, true),
    ]))
}

/// The file of a handle, and its size in host pages.
///
/// # Errors
///
/// The bytes are not a handle, or its file is gone.
pub(crate) fn open(raw: &Raw) -> Result<(OwnedFd, u32)> {
    let [magic, pid, fd, pages, device, device_high, inode, inode_high] = raw.0;
    if magic != MAGIC {
        return Err(invalid("these 32 bytes are not a handle of memory"));
    }
    let long = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    let file = Identity { device: long(device, device_high), inode: long(inode, inode_high) };
    Ok((file::take(pid, fd.cast_signed(), file)?, pages))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_handle_leads_to_its_file_until_that_is_closed() {
        let file = std::fs::File::open("/dev/null").expect("there is one");
        let raw = handle(file.as_fd(), 16).expect("a handle");
        assert_eq!(open(&raw).expect("it is open").1, 16);
        assert!(open(&Raw([0; 8])).is_err());
        drop(file);
        assert!(open(&raw).is_err(), "the descriptor is closed, or another file's");
    }
}
