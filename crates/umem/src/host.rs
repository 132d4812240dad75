//! Memory that the library owns.

#![allow(unsafe_code, reason = "mmap and munmap")]

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use descriptors::Known;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::Foreign;
use crate::fault::{Fault, Touch, check_range};
use crate::guard;

/// Page-aligned memory that the library owns and that is safe to use: buffers of the safe API,
/// device memory, rings.
///
/// A clone is another handle to the same memory; the last one unmaps it. Other parties may hold it
/// too (a peer maps the memfd, an MR covers it), so its contents are copied in and out and never
/// borrowed.
#[derive(Clone, Debug)]
pub struct HostBuf {
    shared: Arc<Shared>,
}

/// Why no memory could be obtained.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostBufError {
    /// Nothing of length zero can be mapped.
    #[error("a buffer needs at least one byte")]
    Empty,
    /// The kernel refused.
    #[error("{call} for {len:#x} bytes failed: {errno}{}", sandbox::hint(errno.raw_os_error()))]
    System {
        /// The call that failed.
        call: &'static str,
        /// The length asked for.
        len: usize,
        /// The kernel's reason.
        errno: Errno,
    },
    /// A received file can shrink under the mapping: it is not a memfd with `F_SEAL_SHRINK`.
    #[error(
        "the file of {len:#x} bytes is not sealed against shrinking (F_SEAL_SHRINK): its sender could make our accesses fault"
    )]
    CanShrink {
        /// The length asked for.
        len: usize,
    },
    /// A received file is in huge pages. These are reserved when the file is mapped or not at all,
    /// and can be taken away.
    #[error("the file of {len:#x} bytes is in huge pages, which can be taken away (hugetlbfs)")]
    HugePages {
        /// The length asked for.
        len: usize,
    },
    /// A received file is shorter than its sender announced.
    #[error("the file has {size:#x} bytes, but {len:#x} were announced")]
    TooShort {
        /// The announced length.
        len: usize,
        /// The actual length.
        size: u64,
    },
}

#[derive(Debug)]
struct Shared {
    ptr: *mut u8,
    len: usize,
    mapped: usize,
    writable: bool,
    file: Option<Known>,
}

// SAFETY: the pointer is to a mapping that this value owns; its contents are only reached through
// `Foreign`.
unsafe impl Send for Shared {}
// SAFETY: as for `Send`.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping made in `map`, and the last handle to it is going away.
        let _ = unsafe { rustix::mm::munmap(self.ptr.cast(), self.mapped) };
    }
}

impl HostBuf {
    /// `len` zeroed bytes of private memory, rounded up to pages.
    ///
    /// # Errors
    ///
    /// [`HostBufError`] when `len` is zero or the kernel has no memory.
    pub fn anonymous(len: usize) -> Result<Self, HostBufError> {
        let mapped = round_to_pages(len)?;
        guard::prepare();
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let ptr = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|errno| HostBufError::System { call: "mmap", len, errno })?;
        let shared = Shared { ptr: ptr.cast(), len, mapped, writable: true, file: None };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// `len` zeroed bytes that other processes can map: a memfd called `name`, sealed so that
    /// nobody can resize it.
    ///
    /// # Errors
    ///
    /// [`HostBufError`] when `len` is zero or the kernel refuses.
    pub fn memfd(name: &str, len: usize) -> Result<Self, HostBufError> {
        let (file, mapped) = new_memfd(name, len)?;
        seal(&file, len, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(file, len, mapped, true)
    }

    /// As [`memfd`](Self::memfd), but the receiver of the file can only read it: this handle is the
    /// last writable mapping.
    ///
    /// # Errors
    ///
    /// [`HostBufError`] when `len` is zero or the kernel refuses.
    pub fn memfd_read_only_for_others(name: &str, len: usize) -> Result<Self, HostBufError> {
        let (file, mapped) = new_memfd(name, len)?;
        let buffer = Self::map(file, len, mapped, true)?;
        // After the mapping: F_SEAL_FUTURE_WRITE leaves existing writable mappings alone and
        // forbids new ones.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        seal(buffer.fd().expect("made from a memfd"), len, seals)?;
        Ok(buffer)
    }

    /// Maps a memfd that another process made, after checking that it cannot shrink and is as long
    /// as announced.
    ///
    /// # Errors
    ///
    /// [`HostBufError::CanShrink`] and [`HostBufError::TooShort`] blame the sender; otherwise the
    /// kernel refused.
    pub fn received(file: impl Into<Known>, len: usize) -> Result<Self, HostBufError> {
        let file = file.into();
        let mapped = check_received(&file, len)?;
        Self::map(file, len, mapped, true)
    }

    /// As [`received`](Self::received), mapped without write permission. Writing through
    /// [`foreign`](Self::foreign) is impossible, since that method refuses; only loads are
    /// possible.
    ///
    /// # Errors
    ///
    /// As for [`received`](Self::received).
    pub fn received_read_only(file: impl Into<Known>, len: usize) -> Result<Self, HostBufError> {
        let file = file.into();
        let mapped = check_received(&file, len)?;
        Self::map(file, len, mapped, false)
    }

    /// Length in bytes, as asked for.
    pub fn len(&self) -> usize {
        self.shared.len
    }

    /// Never true: a buffer has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Where the memory begins. Reading or writing through the pointer races with all other users
    /// of the memory.
    pub fn as_ptr(&self) -> *mut u8 {
        self.shared.ptr
    }

    /// The memfd behind it, if there is one.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.file.as_ref().map(AsFd::as_fd)
    }

    /// The memfd with its identity.
    pub fn known(&self) -> Option<&Known> {
        self.shared.file.as_ref()
    }

    /// Whether the memory may be written through this handle.
    pub fn is_writable(&self) -> bool {
        self.shared.writable
    }

    /// The whole memory, for copies and atomics.
    ///
    /// # Panics
    ///
    /// If it was received read-only.
    pub fn foreign(&self) -> Foreign<'_> {
        assert!(self.shared.writable, "the caller maps for writing what it writes");
        self.any_foreign()
    }

    /// Copies out `out.len()` bytes at `offset`.
    ///
    /// # Errors
    ///
    /// [`Fault::OutOfRange`], or [`Fault::Page`] if there was no memory for a page of it.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Fault> {
        self.part(offset, out.len())?.copy_to(out)
    }

    /// Copies in `bytes` at `offset`, the last ones last.
    ///
    /// # Errors
    ///
    /// [`Fault::OutOfRange`], or [`Fault::Page`] if it was received read-only or there was no
    /// memory for a page of it.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Fault> {
        self.writable_part(offset, bytes.len())?.copy_from(bytes)
    }

    /// Stores `byte` `len` times from `offset` on.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    pub fn fill(&self, offset: usize, byte: u8, len: usize) -> Result<(), Fault> {
        self.writable_part(offset, len)?.fill(byte)
    }

    /// Loads the aligned 32-bit word at `offset`.
    ///
    /// # Errors
    ///
    /// [`Fault::OutOfRange`] or [`Fault::Misaligned`].
    #[inline]
    pub fn load_u32(&self, offset: usize, order: Ordering) -> Result<u32, Fault> {
        self.any_foreign().load_u32(offset, order)
    }

    /// Loads the aligned 64-bit word at `offset`.
    ///
    /// # Errors
    ///
    /// [`Fault::OutOfRange`] or [`Fault::Misaligned`].
    #[inline]
    pub fn load_u64(&self, offset: usize, order: Ordering) -> Result<u64, Fault> {
        self.any_foreign().load_u64(offset, order)
    }

    /// Stores the aligned 64-bit word at `offset`.
    ///
    /// # Errors
    ///
    /// [`Fault::OutOfRange`], [`Fault::Misaligned`], or [`Fault::Page`] if it was received
    /// read-only.
    pub fn store_u64(&self, offset: usize, value: u64, order: Ordering) -> Result<(), Fault> {
        self.writable_part(offset, 8)?.store_u64(0, value, order)
    }

    /// Adds to the aligned 64-bit word at `offset`, wrapping; returns what was there.
    ///
    /// # Errors
    ///
    /// As for [`store_u64`](Self::store_u64).
    pub fn fetch_add_u64(&self, offset: usize, add: u64, order: Ordering) -> Result<u64, Fault> {
        Ok(self.writable_part(offset, 8)?.atomic_u64(0)?.fetch_add(add, order))
    }

    /// Stores `swap` in the aligned 64-bit word at `offset` if it holds `compare`; returns what was
    /// there.
    ///
    /// # Errors
    ///
    /// As for [`store_u64`](Self::store_u64).
    pub fn compare_swap_u64(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, Fault> {
        let word = self.writable_part(offset, 8)?.atomic_u64(0)?;
        Ok(word
            .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
            .unwrap_or_else(|old| old))
    }

    /// Leaves the memory out of children made by `fork` (`MADV_DONTFORK`): a child that touches it
    /// faults, and its exit cannot disturb what the parent shares with peers.
    ///
    /// # Errors
    ///
    /// [`HostBufError::System`].
    pub fn dont_fork(&self) -> Result<(), HostBufError> {
        let Shared { ptr, len, mapped, .. } = *self.shared;
        // SAFETY: the range is a whole mapping of ours; the advice does not change its contents in
        // this process.
        unsafe { rustix::mm::madvise(ptr.cast(), mapped, Advice::LinuxDontFork) }
            .map_err(|errno| HostBufError::System { call: "madvise", len, errno })
    }

    /// Asks the kernel for huge pages (`MADV_HUGEPAGE`), of which it gives as many as it has.
    ///
    /// # Errors
    ///
    /// [`HostBufError::System`]: a kernel without transparent huge pages says EINVAL.
    pub fn prefer_huge_pages(&self) -> Result<(), HostBufError> {
        let Shared { ptr, len, mapped, .. } = *self.shared;
        // SAFETY: the range is a whole mapping of ours; the advice does not change its contents.
        unsafe { rustix::mm::madvise(ptr.cast(), mapped, Advice::LinuxHugepage) }
            .map_err(|errno| HostBufError::System { call: "madvise", len, errno })
    }

    fn map(file: Known, len: usize, mapped: usize, writable: bool) -> Result<Self, HostBufError> {
        guard::prepare();
        let protection =
            if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let ptr = unsafe {
            rustix::mm::mmap(ptr::null_mut(), mapped, protection, MapFlags::SHARED, &file, 0)
        }
        .map_err(|errno| HostBufError::System { call: "mmap", len, errno })?;
        let shared = Shared { ptr: ptr.cast(), len, mapped, writable, file: Some(file) };
        Ok(Self { shared: Arc::new(shared) })
    }

    #[inline]
    fn any_foreign(&self) -> Foreign<'_> {
        // SAFETY: the mapping lives as long as `self`; it is anonymous or of a file that is sealed
        // against shrinking, and no reference to its contents is ever made. Callers store only
        // after checking `writable`.
        unsafe { Foreign::new(self.shared.ptr, self.shared.len) }
    }

    fn part(&self, offset: usize, len: usize) -> Result<Foreign<'_>, Fault> {
        let all = self.any_foreign();
        check_range(all.as_ptr().addr(), all.len() as u64, offset as u64, len as u64)?;
        Ok(all.slice(offset, len).expect("the range was just checked"))
    }

    fn writable_part(&self, offset: usize, len: usize) -> Result<Foreign<'_>, Fault> {
        let part = self.part(offset, len)?;
        if self.shared.writable {
            return Ok(part);
        }
        let addr = part.as_ptr().addr() as u64;
        Err(Fault::Page { touch: Touch::Write, addr, len: len as u64, at: addr })
    }
}

fn round_to_pages(len: usize) -> Result<usize, HostBufError> {
    if len == 0 {
        return Err(HostBufError::Empty);
    }
    len.checked_next_multiple_of(rustix::param::page_size()).ok_or(HostBufError::System {
        call: "mmap",
        len,
        errno: Errno::NOMEM,
    })
}

fn new_memfd(name: &str, len: usize) -> Result<(Known, usize), HostBufError> {
    let mapped = round_to_pages(len)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags).map_err(|errno| HostBufError::System {
        call: "memfd_create",
        len,
        errno,
    })?;
    rustix::fs::ftruncate(&file, mapped as u64).map_err(|errno| HostBufError::System {
        call: "ftruncate",
        len,
        errno,
    })?;
    Ok((Known::new(file), mapped))
}

fn seal(file: impl AsFd, len: usize, seals: SealFlags) -> Result<(), HostBufError> {
    rustix::fs::fcntl_add_seals(file, seals).map_err(|errno| HostBufError::System {
        call: "F_ADD_SEALS",
        len,
        errno,
    })
}

/// Whether a file is one of hugetlbfs.
///
/// # Errors
///
/// The error of `fstatfs`.
pub fn is_in_huge_pages(file: impl AsFd) -> Result<bool, Errno> {
    /// `f_type` in statfs(2).
    const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
    Ok(rustix::fs::fstatfs(file)?.f_type as u64 == HUGETLBFS_MAGIC)
}

fn check_received(file: &Known, len: usize) -> Result<usize, HostBufError> {
    let mapped = round_to_pages(len)?;
    // Seals first: only a file that cannot shrink keeps the size that is read next.
    match rustix::fs::fcntl_get_seals(file) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => {}
        _ => return Err(HostBufError::CanShrink { len }),
    }
    let system = |call| move |errno| HostBufError::System { call, len, errno };
    // Even a sealed one can have a hole punched in it, its pages need not be present, and its
    // length must be a multiple of the huge page size.
    if is_in_huge_pages(file).map_err(system("fstatfs"))? {
        return Err(HostBufError::HugePages { len });
    }
    let stat = rustix::fs::fstat(file).map_err(|errno| HostBufError::System {
        call: "fstat",
        len,
        errno,
    })?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if size < len as u64 { Err(HostBufError::TooShort { len, size }) } else { Ok(mapped) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_begin_zeroed_and_keep_what_is_written() {
        for buffer in [HostBuf::anonymous(100), HostBuf::memfd("umem-test", 100)] {
            let buffer = buffer.expect("memory exists");
            let mut bytes = [1; 100];
            buffer.read(0, &mut bytes).expect("inside");
            assert_eq!(bytes, [0; 100]);
            buffer.write(92, b"the end.").expect("inside");
            assert_eq!(
                buffer.load_u64(88, Ordering::Relaxed),
                Ok(u64::from_le_bytes(*b"\0\0\0\0the "))
            );
            assert!(matches!(buffer.write(93, b"the end."), Err(Fault::OutOfRange { .. })));
        }
    }

    #[test]
    fn a_received_file_must_be_sealed_and_long_enough() {
        let sealed = HostBuf::memfd("umem-test", 8192).expect("memory exists");
        let dup = || sealed.fd().expect("memfd").try_clone_to_owned().expect("a free fd");
        let peer = HostBuf::received(dup(), 8192).expect("sealed and long enough");
        sealed.store_u64(8, 77, Ordering::Release).expect("inside");
        assert_eq!(peer.load_u64(8, Ordering::Acquire), Ok(77));
        assert!(matches!(
            HostBuf::received(dup(), 8193),
            Err(HostBufError::TooShort { size: 8192, .. })
        ));

        let open = rustix::fs::memfd_create("umem-test", MemfdFlags::ALLOW_SEALING).expect("memfd");
        rustix::fs::ftruncate(&open, 8192).expect("memory exists");
        assert!(matches!(HostBuf::received(open, 8192), Err(HostBufError::CanShrink { .. })));
    }

    #[test]
    fn a_received_file_in_huge_pages_is_refused() {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        // Creating a file needs no page; a kernel without huge pages cannot create one.
        let Ok(file) = rustix::fs::memfd_create("umem-test", flags) else { return };
        rustix::fs::ftruncate(&file, 1 << 30).expect("a whole number of huge pages");
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).expect("made for seals");
        assert!(matches!(
            HostBuf::received(file, 4096),
            Err(HostBufError::HugePages { len: 4096 })
        ));
    }

    #[test]
    fn a_page_that_cannot_come_is_an_error_and_not_other_bytes() {
        let buffer = HostBuf::memfd("umem-test", 8192).expect("memory exists");
        // A mapping beyond the end of its file has no pages either: the same SIGBUS, without
        // filling the machine's memory.
        let file = rustix::fs::memfd_create("umem-test", MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&file, 4096).expect("memory exists");
        guard::recheck();
        // SAFETY: the buffer's own range, whose bytes are only reached by copies.
        unsafe {
            rustix::mm::mmap(
                buffer.as_ptr().cast(),
                8192,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                &file,
                0,
            )
        }
        .expect("a place of our own");
        // Which byte is touched first depends on how the processor copies.
        let start = buffer.as_ptr().addr() as u64 + 4096;
        let page = start..start + 4096;
        let is_there = |fault, touch| matches!(fault, Err(Fault::Page { touch: t, at, .. }) if t == touch && page.contains(&at));
        assert!(is_there(buffer.write(4000, &[7; 200]), Touch::Write));
        assert!(is_there(buffer.read(4000, &mut [0; 200]), Touch::Read));
        assert!(is_there(buffer.fill(4096, 7, 8), Touch::Write));
        let other = HostBuf::anonymous(8192).expect("memory exists");
        assert!(is_there(other.foreign().copy_from_foreign(buffer.foreign()), Touch::Read));
        assert!(is_there(buffer.foreign().copy_from_foreign(other.foreign()), Touch::Write));
    }

    #[test]
    fn a_published_page_cannot_be_written_by_its_receiver() {
        let ours = HostBuf::memfd_read_only_for_others("umem-test", 4096).expect("memory exists");
        let dup = || ours.fd().expect("memfd").try_clone_to_owned().expect("a free fd");
        assert!(HostBuf::received(dup(), 4096).is_err(), "mapping it writable is refused");
        let theirs = HostBuf::received_read_only(dup(), 4096).expect("reading is permitted");
        ours.store_u64(0, 9, Ordering::Release).expect("we may write");
        assert_eq!(theirs.load_u64(0, Ordering::Acquire), Ok(9));
        assert!(matches!(theirs.write(0, b"no"), Err(Fault::Page { .. })));
    }
}
