//! Memory of the program, as pointer and length.

use std::ffi::c_void;

use libc::iovec;
use umem::{Fault, Foreign};

use crate::abi::rdmacm::{Answer, Failure};

/// The failure of a copy from or to memory that is not mapped.
pub(super) fn unreachable(fault: Fault) -> Failure {
    Failure::new(libc::EFAULT, format!("rsocket: {fault}"))
}

/// Memory of the program, in pieces, with the bytes that have been used.
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
    /// EINVAL for a negative count, and for more bytes than a call can return (`readv(2)`).
    ///
    /// # Safety
    ///
    /// The list has the given length, and the memory it names is the program's for `'a`.
    pub(super) unsafe fn many(list: *const iovec, count: usize) -> Answer<Self> {
        const MOST: usize = 1024;
        if count > MOST {
            let what = format!("rsocket: {count} pieces of memory; at most {MOST} are allowed");
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

    /// Copies the next bytes to `to`. There are enough. EFAULT if they are not mapped.
    pub(super) fn copy_to(&mut self, to: Foreign<'_>) -> Answer {
        let part = |done, length| to.slice(done, length).expect("it lies within the other");
        self.walk(to.len(), |own, done| part(done, own.len()).copy_from_foreign(own))
    }

    /// Copies `from` to the next bytes. There are enough. EFAULT if they are not mapped.
    pub(super) fn copy_from(&mut self, from: Foreign<'_>) -> Answer {
        let part = |done, length| from.slice(done, length).expect("it lies within the other");
        self.walk(from.len(), |own, done| own.copy_from_foreign(part(done, own.len())))
    }

    /// Copies the next bytes out. There are enough. EFAULT if they are not mapped.
    pub(super) fn read(&mut self, out: &mut [u8]) -> Answer {
        self.walk(out.len(), |own, done| own.copy_to(&mut out[done..][..own.len()]))
    }

    /// Copies `bytes` to the next bytes. There are enough. EFAULT if they are not mapped.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Answer {
        self.walk(bytes.len(), |own, done| own.copy_from(&bytes[done..][..own.len()]))
    }

    /// Walks the next `length` bytes, piece by piece; `copy` gets the number of bytes before each.
    fn walk(
        &mut self,
        length: usize,
        mut copy: impl FnMut(Foreign<'_>, usize) -> Result<(), Fault>,
    ) -> Answer {
        let mut done = 0;
        while done < length {
            let here = self.here(length - done);
            let own = self.pieces[self.piece].slice(self.used, here);
            copy(own.expect("it is within the piece"), done).map_err(unreachable)?;
            self.pass(here);
            done += here;
        }
        Ok(())
    }

    /// How many of the next `wanted` bytes are in the current piece; skips empty pieces.
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
