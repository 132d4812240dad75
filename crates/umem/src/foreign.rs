//! Memory that another party may change while we look at it.

#![allow(unsafe_code, reason = "raw pointers to memory shared with other processes")]

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::fault::{Fault, Touch, check_aligned, check_range};
use crate::guard::plain::{self, Outcome};

/// A range of memory that another party may change at any time, but that nobody can take away: a
/// mapped ring whose memfd is sealed against shrinking, or memory of our own that a peer writes.
///
/// It is a pointer and a length, never a slice: a `&[u8]` would promise the compiler that nobody
/// writes. Bytes are copied in and out, words are atomics. Check a value after it was copied out,
/// never before.
///
/// The fault of a page that was never touched can still fail, if there is no memory for it. Copies
/// report that; a word access raises SIGBUS, so words are used only where the page was touched
/// before.
#[derive(Clone, Copy, Debug)]
pub struct Foreign<'a> {
    ptr: *mut u8,
    len: usize,
    memory: PhantomData<&'a AtomicU8>,
}

// SAFETY: the contents are only reached by copies outside Rust's memory model and by atomics, and
// both tolerate concurrent access from any thread; callers of `new` promise validity for `'a` on
// every thread.
unsafe impl Send for Foreign<'_> {}
// SAFETY: as for `Send`.
unsafe impl Sync for Foreign<'_> {}

impl<'a> Foreign<'a> {
    /// Refers to `len` bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// For all of `'a`: the bytes are mapped readable and writable and stay so (nobody can truncate
    /// the file behind them), and no Rust reference to them exists other than to atomics.
    pub const unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len, memory: PhantomData }
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the bytes begin, for system calls and for naming them in a message.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// `len` bytes from `offset` on, if they are all inside.
    pub fn slice(&self, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Self {
            ptr: self.ptr.wrapping_add(offset),
            len,
            memory: PhantomData,
        })
    }

    /// Copies everything out. `out` has the same length; otherwise the shorter length counts.
    ///
    /// # Errors
    ///
    /// [`Fault::Page`]. The contents of `out` are then unspecified.
    #[inline]
    pub fn copy_to(&self, out: &mut [u8]) -> Result<(), Fault> {
        debug_assert_eq!(
            out.len(),
            self.len,
            "the caller sliced the memory to the buffer's length"
        );
        let len = self.len.min(out.len());
        // SAFETY: `len` is within both; `new` promised the source, and `out` is ours alone.
        let copied = unsafe { plain::peerdma_umem_copy(out.as_mut_ptr(), self.ptr, len) };
        self.judge(Touch::Read, len, copied)
    }

    /// Copies `bytes` in, the last ones last. They have the same length; otherwise the shorter
    /// length counts.
    ///
    /// # Errors
    ///
    /// [`Fault::Page`]. Some bytes may have been written.
    #[inline]
    pub fn copy_from(&self, bytes: &[u8]) -> Result<(), Fault> {
        debug_assert_eq!(
            bytes.len(),
            self.len,
            "the caller sliced the memory to the data's length"
        );
        let len = self.len.min(bytes.len());
        // SAFETY: `len` is within both; `new` promised the destination.
        let copied = unsafe { plain::peerdma_umem_copy(self.ptr, bytes.as_ptr(), len) };
        self.judge(Touch::Write, len, copied)
    }

    /// Copies from other foreign memory, the last bytes last. The two have the same length;
    /// otherwise the shorter length counts. They should not overlap: the bytes would be
    /// unspecified.
    ///
    /// # Errors
    ///
    /// [`Fault::Page`], of either. Some bytes may have been written.
    pub fn copy_from_foreign(&self, source: Foreign<'_>) -> Result<(), Fault> {
        debug_assert_eq!(source.len, self.len, "the caller sliced both to the same length");
        let len = self.len.min(source.len);
        // SAFETY: `len` is within both, and `new` promised both.
        let copied = unsafe { plain::peerdma_umem_copy(self.ptr, source.ptr, len) };
        let is_ours = copied.value.wrapping_sub(self.ptr.addr()) < len;
        if is_ours {
            self.judge(Touch::Write, len, copied)
        } else {
            source.judge(Touch::Read, len, copied)
        }
    }

    /// Prefetches the first cache line of the memory for writing: it arrives during other work, so
    /// that the store need not wait for it. This is a hint, and does nothing on some machines.
    #[inline]
    pub fn expect_write(&self) {
        // SAFETY: a hint, which accesses nothing and cannot fault.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) self.ptr, options(nostack, preserves_flags));
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            std::arch::asm!("prfm pstl1keep, [{}]", in(reg) self.ptr, options(nostack, preserves_flags));
        }
    }

    /// Stores `byte` everywhere.
    ///
    /// # Errors
    ///
    /// As for [`copy_from`](Self::copy_from).
    pub fn fill(&self, byte: u8) -> Result<(), Fault> {
        // SAFETY: the range is ours to write, as `new` promised.
        let filled = unsafe { plain::peerdma_umem_fill(self.ptr, byte, self.len) };
        self.judge(Touch::Write, self.len, filled)
    }

    /// The result of a copy of `len` bytes from the start of the memory, or to it.
    #[inline]
    fn judge(&self, touch: Touch, len: usize, outcome: Outcome) -> Result<(), Fault> {
        outcome.into_result().map(|_| ()).map_err(|at| {
            let addr = self.ptr.addr() as u64;
            Fault::Page { touch, addr, len: len as u64, at: at.map_or(addr, |at| at as u64) }
        })
    }

    /// The aligned 32-bit word at `offset`.
    ///
    /// # Errors
    ///
    /// [`Fault::OutOfRange`] or [`Fault::Misaligned`].
    #[inline]
    pub fn atomic_u32(&self, offset: usize) -> Result<&'a AtomicU32, Fault> {
        let addr = self.word(offset, 4)?;
        // SAFETY: in range and aligned (just checked), valid for `'a` by the promise of `new`, and
        // all other parties are required to use atomics on words they share.
        Ok(unsafe { AtomicU32::from_ptr(addr.cast()) })
    }

    /// The aligned 64-bit word at `offset`.
    ///
    /// # Errors
    ///
    /// [`Fault::OutOfRange`] or [`Fault::Misaligned`].
    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> Result<&'a AtomicU64, Fault> {
        let addr = self.word(offset, 8)?;
        // SAFETY: as in `atomic_u32`.
        Ok(unsafe { AtomicU64::from_ptr(addr.cast()) })
    }

    /// Loads the aligned 32-bit word at `offset`.
    ///
    /// # Errors
    ///
    /// [`Fault::OutOfRange`] or [`Fault::Misaligned`].
    #[inline]
    pub fn load_u32(&self, offset: usize, order: Ordering) -> Result<u32, Fault> {
        Ok(self.atomic_u32(offset)?.load(order))
    }

    /// Loads the aligned 64-bit word at `offset`.
    ///
    /// # Errors
    ///
    /// [`Fault::OutOfRange`] or [`Fault::Misaligned`].
    #[inline]
    pub fn load_u64(&self, offset: usize, order: Ordering) -> Result<u64, Fault> {
        Ok(self.atomic_u64(offset)?.load(order))
    }

    /// Stores the aligned 32-bit word at `offset`.
    ///
    /// # Errors
    ///
    /// [`Fault::OutOfRange`] or [`Fault::Misaligned`].
    pub fn store_u32(&self, offset: usize, value: u32, order: Ordering) -> Result<(), Fault> {
        self.atomic_u32(offset)?.store(value, order);
        Ok(())
    }

    /// Stores the aligned 64-bit word at `offset`.
    ///
    /// # Errors
    ///
    /// [`Fault::OutOfRange`] or [`Fault::Misaligned`].
    pub fn store_u64(&self, offset: usize, value: u64, order: Ordering) -> Result<(), Fault> {
        self.atomic_u64(offset)?.store(value, order);
        Ok(())
    }

    #[inline]
    fn word(&self, offset: usize, size: u32) -> Result<*mut u8, Fault> {
        let addr = check_range(self.ptr.addr(), self.len as u64, offset as u64, u64::from(size))?;
        check_aligned(addr, size)?;
        Ok(self.ptr.wrapping_add(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostBuf;

    #[test]
    fn slices_stay_inside() {
        let memory = HostBuf::anonymous(64).expect("64 bytes exist");
        let all = memory.foreign();
        assert_eq!(all.slice(60, 4).map(|s| s.len()), Some(4));
        assert!(all.slice(60, 5).is_none());
        assert!(all.slice(usize::MAX, 2).is_none());
    }

    #[test]
    fn every_length_and_alignment_is_copied_exactly() {
        let memory = HostBuf::anonymous(8192).expect("two pages exist");
        let pattern: Vec<u8> = (0..5100_u32).map(|i| (i * 7 + i / 256) as u8).collect();
        let lengths = (0..300).chain([511, 2047, 2048, 2055, 2056, 2057, 2111, 4096, 4999]);
        for len in lengths {
            for shift in [0, 1, 3, 4, 7, 8, 15, 63] {
                memory.foreign().fill(0xee).expect("there");
                let target = memory.foreign().slice(64 + shift, len).expect("within two pages");
                target.copy_from(&pattern[shift % 5..shift % 5 + len]).expect("there");
                let mut all = vec![0; 8192];
                memory.foreign().copy_to(&mut all).expect("there");
                let (before, rest) = all.split_at(64 + shift);
                let (copied, after) = rest.split_at(len);
                assert_eq!(copied, &pattern[shift % 5..shift % 5 + len], "{len} bytes at {shift}");
                assert!(before.iter().all(|b| *b == 0xee), "wrote before {len} bytes at {shift}");
                assert!(after.iter().all(|b| *b == 0xee), "wrote after {len} bytes at {shift}");
            }
        }
    }

    #[test]
    fn words_must_be_inside_and_aligned() {
        let memory = HostBuf::anonymous(16).expect("16 bytes exist");
        let all = memory.foreign();
        all.store_u64(8, 5, Ordering::Release).expect("inside and aligned");
        assert_eq!(all.load_u64(8, Ordering::Acquire), Ok(5));
        assert!(matches!(all.load_u32(16, Ordering::Relaxed), Err(Fault::OutOfRange { .. })));
        assert!(matches!(all.load_u32(6, Ordering::Relaxed), Err(Fault::Misaligned { .. })));
    }
}
