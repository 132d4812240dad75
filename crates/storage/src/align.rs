//! What `O_DIRECT` requires of offsets, lengths and addresses.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, StatxFlags};

/// The smallest logical block there is, for files about which the kernel says nothing more; the
/// kernel itself then refuses what it cannot do.
const LEAST: u32 = 512;

/// The alignment that direct I/O on a file requires.
#[doc(alias = "STATX_DIOALIGN")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Alignment {
    /// Alignment of the address in memory.
    #[doc(alias = "stx_dio_mem_align")]
    pub memory: u32,
    /// Alignment of the offset in the file, and of the length.
    #[doc(alias = "stx_dio_offset_align")]
    pub offset: u32,
}

impl Alignment {
    /// No alignment: I/O through the page cache.
    pub const NONE: Self = Self { memory: 1, offset: 1 };

    /// The alignment of a file that was opened with `O_DIRECT`. `None`: its file system reports
    /// that it has no direct I/O for it.
    pub(crate) fn of(file: impl AsFd) -> rustix::io::Result<Option<Self>> {
        let fd = file.as_fd();
        let wanted = StatxFlags::DIOALIGN | StatxFlags::TYPE;
        let (mask, memory, offset) = match rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, wanted) {
            Ok(stat) => (stat.stx_mask, stat.stx_dio_mem_align, stat.stx_dio_offset_align),
            // Linux before 4.11, or a seccomp filter.
            Err(_) => (0, 0, 0),
        };
        if mask & StatxFlags::DIOALIGN.bits() != 0 {
            // Both are zero for a file without direct I/O.
            return Ok((memory != 0 && offset != 0).then_some(Self { memory, offset }));
        }
        let kind = FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode);
        let block = match kind {
            FileType::BlockDevice => rustix::fs::ioctl_blksszget(fd)?,
            _ => LEAST,
        };
        Ok(Some(Self { memory: block, offset: block }))
    }

    pub(crate) fn has_offset(self, value: u64) -> bool {
        value.is_multiple_of(self.offset.max(1).into())
    }

    pub(crate) fn has_address(self, value: u64) -> bool {
        value.is_multiple_of(self.memory.max(1).into())
    }
}
