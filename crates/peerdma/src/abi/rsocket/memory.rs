//! Memory that a peer writes, and the program's own, both as pointer and length.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use libc::iovec;
use umem::{Fault, Foreign};

use crate::abi::mr::{ibv_dereg_mr, ibv_reg_mr};
use crate::abi::rdmacm::{Answer, Failure};
use crate::abi::types::mr::Mr;
use crate::abi::types::pd::Pd;

/// `IBV_ACCESS_LOCAL_WRITE`.
pub(super) const LOCAL_WRITE: c_int = 1;
/// `IBV_ACCESS_REMOTE_WRITE`.
pub(super) const REMOTE_WRITE: c_int = 1 << 1;

/// A page of every machine we run on is a multiple of this.
const ALIGN: usize = 4096;

/// A registered buffer of the library's own.
pub(super) struct Memory {
    start: NonNull<u8>,
    layout: Layout,
    mr: *mut Mr,
}

// SAFETY: the buffer is only reached through `Foreign`, which tolerates others, and the region is
// never changed.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// `length` bytes of zeros, registered with `access`.
    ///
    /// # Safety
    ///
    /// `pd` is one of ours, and outlives the buffer.
    pub(super) unsafe fn register(pd: *mut Pd, length: usize, access: c_int) -> Answer<Self> {
        let no_memory =
            || Failure::new(libc::ENOMEM, format!("rsocket: a buffer of {length} bytes"));
        let layout = Layout::from_size_align(length.max(1), ALIGN).map_err(|_| no_memory())?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(no_memory)?;
        let addr: *mut c_void = start.as_ptr().cast();
        // SAFETY: the caller's promise; the memory is ours, and the region goes first.
        let mr = unsafe { ibv_reg_mr(pd, addr, layout.size(), access) };
        if mr.is_null() {
            let failure = Failure::last();
            // SAFETY: it was allocated just now with this layout.
            unsafe { dealloc(start.as_ptr(), layout) };
            return Err(failure);
        }
        Ok(Self { start, layout, mr })
    }

    /// Its bytes, which a peer may write at any moment.
    pub(super) fn bytes(&self) -> Foreign<'_> {
        // SAFETY: the memory lives as long as this value, and no reference to it is ever made.
        unsafe { Foreign::new(self.start.as_ptr(), self.layout.size()) }
    }

    /// `length` bytes at `at`, which lie inside.
    pub(super) fn part(&self, at: u32, length: u32) -> Foreign<'_> {
        self.bytes()
            .slice(at as usize, length as usize)
            .expect("the stream knows the size of its buffers")
    }

    /// Where it begins.
    pub(super) fn addr(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }

    /// The key by which this side uses it.
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: the region lives as long as this value.
        unsafe { (*self.mr).lkey }
    }

    /// The key by which a peer writes it.
    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.mr).rkey }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the region is ours, and whoever used it is gone.
        unsafe { ibv_dereg_mr(self.mr) };
        // SAFETY: it was allocated with this layout, and nobody can reach it any more.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// What a copy from or to memory that is not there is refused with.
pub(super) fn unreachable(fault: Fault) -> Failure {
    Failure::new(libc::EFAULT, format!("rsocket: {fault}"))
}

/// Memory of the program, in pieces, of which some bytes were used.
#[derive(Clone)]
pub(super) struct Pieces<'a> {
    pieces: smallvec::SmallVec<[Foreign<'a>; 4]>,
    piece: usize,
    used: usize,
    left: usize,
}

impl<'a> Pieces<'a> {
    /// One piece.
    ///
    /// # Safety
    ///
    /// The memory is the program's for `'a`.
    pub(super) unsafe fn one(start: *mut c_void, length: usize) -> Self {
        // SAFETY: the caller's promise.
        let piece = unsafe { Foreign::new(start.cast(), length) };
        Self { pieces: smallvec::smallvec![piece], piece: 0, used: 0, left: length }
    }

    /// Several.
    ///
    /// # Errors
    /// EINVAL for a negative count, and for more bytes than a call can answer (`readv(2)`).
    ///
    /// # Safety
    ///
    /// The list is as long as said, and the memory it names is the program's for `'a`.
    pub(super) unsafe fn many(list: *const iovec, count: usize) -> Answer<Self> {
        const MOST: usize = 1024;
        if count > MOST {
            let what = format!("rsocket: {count} pieces of memory; {MOST} are the most");
            return Err(Failure::new(libc::EINVAL, what));
        }
        let mut pieces = smallvec::SmallVec::new();
        let mut left = 0_usize;
        for at in 0..count {
            // SAFETY: the caller's promise.
            let place = unsafe { list.add(at) };
            // SAFETY: as above.
            let piece = unsafe { place.read() };
            left = left
                .checked_add(piece.iov_len)
                .filter(|left| isize::try_from(*left).is_ok())
                .ok_or_else(|| Failure::new(libc::EINVAL, "rsocket: too many bytes"))?;
            // SAFETY: the caller's promise.
            pieces.push(unsafe { Foreign::new(piece.iov_base.cast(), piece.iov_len) });
        }
        Ok(Self { pieces, piece: 0, used: 0, left })
    }

    /// Bytes that were not used.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Copies the next bytes to `to`. There are enough. EFAULT if they are not there.
    pub(super) fn copy_to(&mut self, to: Foreign<'_>) -> Answer {
        self.walk(to, |own, other| other.copy_from_foreign(own))
    }

    /// Copies `from` to the next bytes. There are enough. EFAULT if they are not there.
    pub(super) fn copy_from(&mut self, from: Foreign<'_>) -> Answer {
        self.walk(from, |own, other| own.copy_from_foreign(other))
    }

    /// The next bytes, if they are in one piece.
    pub(super) fn next(&self, length: usize) -> Option<Foreign<'a>> {
        self.pieces.get(self.piece)?.slice(self.used, length)
    }

    /// Passes over bytes. There are enough.
    pub(super) fn skip(&mut self, bytes: usize) {
        let mut left = bytes;
        while left > 0 {
            let here = self.here(left);
            self.pass(here);
            left -= here;
        }
    }

    fn walk(
        &mut self,
        other: Foreign<'_>,
        copy: impl Fn(Foreign<'_>, Foreign<'_>) -> Result<(), Fault>,
    ) -> Answer {
        let mut done = 0;
        while done < other.len() {
            let here = self.here(other.len() - done);
            let own = self.next(here).expect("it is within the piece");
            copy(own, other.slice(done, here).expect("it is within the other"))
                .map_err(unreachable)?;
            self.pass(here);
            done += here;
        }
        Ok(())
    }

    /// How many of the next `wanted` bytes are in the piece that is used now; pieces without bytes
    /// are passed over.
    fn here(&mut self, wanted: usize) -> usize {
        while self.pieces[self.piece].len() == self.used {
            self.piece += 1;
            self.used = 0;
        }
        wanted.min(self.pieces[self.piece].len() - self.used)
    }

    fn pass(&mut self, bytes: usize) {
        self.used += bytes;
        self.left -= bytes;
    }
}
