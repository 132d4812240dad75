//! Why memory could not be touched.

use std::fmt;

/// The kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "memory is read, written or both")]
pub enum Touch {
    /// A load.
    Read,
    /// A store.
    Write,
    /// A read-modify-write.
    Atomic,
}

impl fmt::Display for Touch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Atomic => "atomic",
        })
    }
}

/// Why an access to foreign memory did not take place, or only in part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The access reaches outside its memory. Nothing was touched.
    #[error(
        "{len:#x} bytes at offset {offset:#x} reach outside the memory of {size:#x} bytes at address {base:#x}"
    )]
    OutOfRange {
        /// Where the memory begins.
        base: u64,
        /// How long it is.
        size: u64,
        /// Where the access would begin, counted from `base`.
        offset: u64,
        /// How long it would be.
        len: u64,
    },
    /// A page was not there, or did not permit the access. A prefix of the bytes may have been
    /// written.
    #[error(
        "{touch} of {len:#x} bytes at address {addr:#x} failed: the page of {at:#x} is not mapped or does not permit it"
    )]
    Page {
        /// The kind of access.
        touch: Touch,
        /// Where the access began.
        addr: u64,
        /// How long it was.
        len: u64,
        /// The first address that could not be touched, as the kernel reported it.
        at: u64,
    },
    /// An atomic or a word access was not naturally aligned. Nothing was touched.
    #[error("{size} byte access at address {addr:#x} is not naturally aligned")]
    Misaligned {
        /// Where the access would begin.
        addr: u64,
        /// Its size in bytes.
        size: u32,
    },
    /// The memory was moved, is being moved, or was taken away, since it was mapped here. Nothing
    /// was touched.
    #[error("{stale}")]
    Stale {
        /// Which of these happened.
        stale: dmabuf::Stale,
    },
    /// The exporter of a dma-buf refused to make it coherent for the CPU (`DMA_BUF_IOCTL_SYNC`).
    #[error("CPU access to the dma-buf was refused: {reason}")]
    Sync {
        /// The exporter's reason.
        reason: String,
    },
}

/// Checks that `len` bytes at `offset` lie within `size` bytes at `base`.
#[inline]
pub(crate) fn check_range(base: usize, size: u64, offset: u64, len: u64) -> Result<usize, Fault> {
    // The range may come from numbers that a program gave: it must not wrap around the address
    // space either.
    match offset.checked_add(len) {
        Some(end) if end <= size && (base as u64).checked_add(end).is_some() => {
            Ok(base + offset as usize)
        }
        _ => Err(Fault::OutOfRange { base: base as u64, size, offset, len }),
    }
}

/// Checks natural alignment.
#[inline]
pub(crate) fn check_aligned(addr: usize, size: u32) -> Result<(), Fault> {
    if addr.is_multiple_of(size as usize) {
        Ok(())
    } else {
        Err(Fault::Misaligned { addr: addr as u64, size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_may_end_at_the_end_but_not_after_it() {
        assert_eq!(check_range(0x1000, 0x100, 0xf8, 8), Ok(0x10f8));
        assert_eq!(check_range(0x1000, 0x100, 0x100, 0), Ok(0x1100));
        let fault = check_range(0x1000, 0x100, 0xf9, 8).unwrap_err();
        assert_eq!(
            fault.to_string(),
            "0x8 bytes at offset 0xf9 reach outside the memory of 0x100 bytes at address 0x1000"
        );
    }

    #[test]
    fn neither_the_offset_nor_the_address_wraps() {
        assert!(check_range(0x1000, 0x100, u64::MAX, 2).is_err());
        assert!(check_range(usize::MAX - 10, u64::MAX, 0, 20).is_err());
    }
}
