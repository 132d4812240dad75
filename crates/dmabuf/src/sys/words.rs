//! A file of words that several processes read and write.

use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::AtomicU64;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Words of a sealed memfd, mapped shared. A forked child does not have the mapping, so users first
/// check whether this is a husk.
#[derive(Debug)]
pub(crate) struct SharedWords {
    addr: usize,
    len: usize,
    generation: u32,
}

impl SharedWords {
    /// Maps `len` bytes of a file that is sealed against shrinking and at least that long.
    pub(crate) fn map(file: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let ptr =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, rights, MapFlags::SHARED, file, 0) }?;
        // Made first, so that it is unmapped if the advice fails.
        let words =
            Self { addr: ptr.expose_provenance(), len, generation: descriptors::generation() };
        // SAFETY: exactly the mapping made above; the advice changes nothing in this process.
        unsafe { rustix::mm::madvise(ptr, len, Advice::LinuxDontFork) }?;
        Ok(words)
    }

    /// Whether it was mapped in a parent of this process, so that nothing is at its address here.
    #[inline]
    pub(crate) fn is_husk(&self) -> bool {
        self.generation != descriptors::generation()
    }

    /// The word with this index.
    ///
    /// # Panics
    ///
    /// If the index is outside, or this is a husk.
    #[inline]
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len / 8 && !self.is_husk(), "a word of a mapping of this process");
        let ptr = ptr::with_exposed_provenance_mut::<u64>(self.addr + index * 8);
        // SAFETY: inside the mapping, which lives as long as the borrow and begins at a page; the
        // file cannot shrink; this process accesses these words only by atomics, and so do honest
        // peers. A dishonest peer can change what a load returns, as it could with atomics.
        unsafe { AtomicU64::from_ptr(ptr) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        if self.is_husk() {
            return;
        }
        let ptr = ptr::with_exposed_provenance_mut(self.addr);
        // SAFETY: exactly the range that `map` got; words are only borrowed from this value.
        let _ = unsafe { rustix::mm::munmap(ptr, self.len) };
    }
}
