//! The accesses. Each first makes the memory coherent and holds it in place, then goes to the parts
//! if there are several, and through the guard if pages can vanish.

use std::ops::Range;

use dmabuf::Direction;

use super::Umem;
use super::inner::{Inner, Kind, page_fault, pointer};
use crate::Foreign;
use crate::fault::{Fault, Touch, check_range};
use crate::guard::{self, plain};

/// Where the bytes are.
pub(super) enum Place<'a> {
    One(&'a Inner),
    Parts(&'a [(u64, Umem)]),
}

impl Umem {
    /// Copies out `out.len()` bytes at `offset`.
    ///
    /// # Errors
    ///
    /// [`Fault`]; `out` may then be partly overwritten.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.bracketed(Direction::FromDevice, |umem| match umem.place() {
            Place::Parts(parts) => each(parts, offset, out.len() as u64, |part, at, piece| {
                part.read(at, &mut out[piece.start as usize..piece.end as usize])
            }),
            Place::One(memory) => {
                let addr = memory.check(offset, out.len() as u64)?;
                // SAFETY: `out` is ours to write.
                unsafe { memory.copy_out(addr, out.as_mut_ptr(), out.len()) }
            }
        })
    }

    /// As [`Umem::read`], and returns the CRC-32 (IEEE 802.3, as in the ICRC) `crc`, which is 0 at
    /// the start, continued over the bytes now in `out`. Cheaper than reading first and computing
    /// afterwards.
    ///
    /// # Errors
    ///
    /// As [`Umem::read`].
    pub fn read_crc32(&self, offset: u64, out: &mut [u8], crc: u32) -> Result<u32, Fault> {
        let len = out.len() as u64;
        self.bracketed(Direction::FromDevice, |umem| match umem.place() {
            Place::Parts(parts) => {
                let mut crc = crc;
                each(parts, offset, len, |part, at, piece| {
                    let out = &mut out[piece.start as usize..piece.end as usize];
                    crc = part.read_crc32(at, out, crc)?;
                    Ok(())
                })?;
                Ok(crc)
            }
            Place::One(memory) => {
                let addr = memory.check(offset, len)?;
                let read = if memory.takes_guard() {
                    // SAFETY: the creator of the memory promised that it may be read; absent pages
                    // are caught.
                    unsafe { guard::copy_crc32(out, pointer(addr), crc) }
                } else {
                    // SAFETY: the range is inside memory that cannot vanish.
                    unsafe { plain::copy_crc32(out, pointer(addr), crc) }
                };
                read.map_err(|at| page_fault(Touch::Read, addr, len, at))
            }
        })
    }

    /// Copies in `bytes` at `offset`, the last ones last.
    ///
    /// # Errors
    ///
    /// [`Fault`]; the memory may then be partly overwritten.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.bracketed(Direction::ToDevice, |umem| match umem.place() {
            Place::Parts(parts) => each(parts, offset, bytes.len() as u64, |part, at, piece| {
                part.write(at, &bytes[piece.start as usize..piece.end as usize])
            }),
            Place::One(memory) => {
                let addr = memory.check_write(offset, bytes.len() as u64)?;
                // SAFETY: `bytes` may be read.
                unsafe { memory.copy_in(addr, bytes.as_ptr(), bytes.len()) }
            }
        })
    }

    /// Copies `out.len()` bytes at `offset` to foreign memory.
    ///
    /// # Errors
    ///
    /// [`Fault`]; `out` may then be partly overwritten.
    pub fn read_to(&self, offset: u64, out: Foreign<'_>) -> Result<(), Fault> {
        self.bracketed(Direction::FromDevice, |umem| match umem.place() {
            Place::Parts(parts) => each(parts, offset, out.len() as u64, |part, at, piece| {
                part.read_to(at, piece_of(out, &piece))
            }),
            Place::One(memory) => {
                let addr = memory.check(offset, out.len() as u64)?;
                // SAFETY: a `Foreign` may be written for its whole length.
                unsafe { memory.copy_out(addr, out.as_ptr(), out.len()) }
            }
        })
    }

    /// Copies foreign memory to `offset`, the last bytes last.
    ///
    /// # Errors
    ///
    /// [`Fault`]; the memory may then be partly overwritten.
    pub fn write_from(&self, offset: u64, bytes: Foreign<'_>) -> Result<(), Fault> {
        self.bracketed(Direction::ToDevice, |umem| match umem.place() {
            Place::Parts(parts) => each(parts, offset, bytes.len() as u64, |part, at, piece| {
                part.write_from(at, piece_of(bytes, &piece))
            }),
            Place::One(memory) => {
                let addr = memory.check_write(offset, bytes.len() as u64)?;
                // SAFETY: a `Foreign` may be read for its whole length.
                unsafe { memory.copy_in(addr, bytes.as_ptr(), bytes.len()) }
            }
        })
    }

    /// Copies `len` bytes from `src` to `dst`, the last ones last. Overlapping ranges give
    /// unspecified bytes.
    ///
    /// # Errors
    ///
    /// [`Fault`] of either side; the destination may then be partly overwritten.
    pub fn copy(dst: &Self, dst_off: u64, src: &Self, src_off: u64, len: u64) -> Result<(), Fault> {
        src.bracketed(Direction::FromDevice, |src| {
            dst.bracketed(Direction::ToDevice, |dst| {
                Self::copy_bracketed(dst, dst_off, src, src_off, len)
            })
        })
    }

    fn copy_bracketed(
        dst: &Self,
        dst_off: u64,
        src: &Self,
        src_off: u64,
        len: u64,
    ) -> Result<(), Fault> {
        let (source, target) = match (src.place(), dst.place()) {
            (Place::Parts(parts), _) => {
                return each(parts, src_off, len, |part, at, piece| {
                    Self::copy(dst, dst_off + piece.start, part, at, piece.end - piece.start)
                });
            }
            (_, Place::Parts(parts)) => {
                return each(parts, dst_off, len, |part, at, piece| {
                    Self::copy(part, at, src, src_off + piece.start, piece.end - piece.start)
                });
            }
            (Place::One(source), Place::One(target)) => (source, target),
        };
        let to = target.check_write(dst_off, len)?;
        let from = source.check(src_off, len)?;
        let count = len as usize;
        if !target.is_guarded() && !source.is_guarded() {
            // SAFETY: both ranges are inside memory that cannot vanish.
            unsafe { plain::peerdma_umem_copy(pointer(to), pointer(from), count) };
            return Ok(());
        }
        target.tick();
        // SAFETY: the creators of both promised that they may be read and written; absent pages are
        // caught.
        unsafe { guard::copy(pointer(to), pointer(from), count) }.map_err(|at| {
            let at = at.unwrap_or(to);
            let in_source = (from..from + count).contains(&at);
            let (touch, addr) = if in_source { (Touch::Read, from) } else { (Touch::Write, to) };
            Fault::Page { touch, addr: addr as u64, len, at: at as u64 }
        })
    }

    /// Stores `swap` in the eight bytes at `offset` if they hold `compare`; returns what was there.
    /// Sequentially consistent, and atomic with respect to every other atomic access in this
    /// machine. Native byte order.
    ///
    /// # Errors
    ///
    /// [`Fault`], among them [`Fault::Misaligned`].
    pub fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.bracketed(Direction::Bidirectional, |umem| {
            let memory = match umem.place() {
                Place::Parts(parts) => {
                    let (part, at) = part_of_word(parts, offset)?;
                    return part.compare_swap(at, compare, swap);
                }
                Place::One(memory) => memory,
            };
            let word = memory.word(offset)?;
            if !memory.takes_guard() {
                // SAFETY: eight aligned bytes of memory that cannot vanish.
                return Ok(
                    unsafe { plain::peerdma_umem_compare_swap(word, compare, swap) }.value as u64
                );
            }
            // SAFETY: the creator of the memory promised that it may be written; `word` checked
            // that it is aligned.
            unsafe { guard::compare_swap(word, compare, swap) }
                .map_err(|at| page_fault(Touch::Atomic, word.addr(), 8, at))
        })
    }

    /// Adds `add` to the eight bytes at `offset`, wrapping; returns what was there. Otherwise as
    /// [`compare_swap`](Self::compare_swap).
    ///
    /// # Errors
    ///
    /// [`Fault`], among them [`Fault::Misaligned`].
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Fault> {
        self.bracketed(Direction::Bidirectional, |umem| {
            let memory = match umem.place() {
                Place::Parts(parts) => {
                    let (part, at) = part_of_word(parts, offset)?;
                    return part.fetch_add(at, add);
                }
                Place::One(memory) => memory,
            };
            let word = memory.word(offset)?;
            if !memory.takes_guard() {
                // SAFETY: eight aligned bytes of memory that cannot vanish.
                return Ok(unsafe { plain::peerdma_umem_fetch_add(word, add) }.value as u64);
            }
            // SAFETY: the creator of the memory promised that it may be written; `word` checked
            // that it is aligned.
            unsafe { guard::fetch_add(word, add) }
                .map_err(|at| page_fault(Touch::Atomic, word.addr(), 8, at))
        })
    }

    /// Stores `byte` `len` times from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Fault`]; the memory may then be partly overwritten.
    pub fn fill(&self, offset: u64, byte: u8, len: u64) -> Result<(), Fault> {
        self.bracketed(Direction::ToDevice, |umem| {
            let memory = match umem.place() {
                Place::Parts(parts) => {
                    return each(parts, offset, len, |part, at, piece| {
                        part.fill(at, byte, piece.end - piece.start)
                    });
                }
                Place::One(memory) => memory,
            };
            let addr = memory.check_write(offset, len)?;
            if !memory.takes_guard() {
                // SAFETY: the range is inside memory that cannot vanish.
                unsafe { plain::peerdma_umem_fill(pointer(addr), byte, len as usize) };
                return Ok(());
            }
            // SAFETY: the creator of the memory promised that it may be written; absent pages are
            // caught.
            unsafe { guard::fill(pointer(addr), byte, len as usize) }
                .map_err(|at| page_fault(Touch::Write, addr, len, at))
        })
    }

    /// Stores `pattern` repeatedly in `len` bytes from `offset` on; the last time, as much of it as
    /// fits. An empty pattern stores nothing.
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill).
    pub fn fill_with(&self, offset: u64, pattern: &[u8], len: u64) -> Result<(), Fault> {
        /// How many bytes are written at a time.
        const ROW: usize = 16 << 10;
        let Some(first) = pattern.first() else { return Ok(()) };
        if pattern.iter().all(|byte| byte == first) {
            return self.fill(offset, *first, len);
        }
        let times = (ROW / pattern.len()).max(1);
        let row = pattern.repeat(times);
        let mut done = 0;
        while done < len {
            let part = (row.len() as u64).min(len - done);
            // CAST: at most a row.
            self.write(offset + done, &row[..part as usize])?;
            done += part;
        }
        Ok(())
    }

    /// Performs one access, bracketed if the memory needs that.
    #[inline]
    pub(super) fn bracketed<R>(
        &self,
        direction: Direction,
        access: impl FnOnce(&Self) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        if self.needs_bracket() { self.bracket(direction, access) } else { access(self) }
    }

    #[cold]
    #[inline(never)]
    fn bracket<R>(
        &self,
        direction: Direction,
        access: impl FnOnce(&Self) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        access(&*self.cpu_access(direction)?)
    }

    #[inline]
    pub(super) fn place(&self) -> Place<'_> {
        match &self.inner.kind {
            Kind::Parts(parts) => Place::Parts(parts),
            _ => Place::One(&self.inner),
        }
    }

    /// Whether an access must first make the memory coherent, or hold it in place.
    #[inline]
    pub(super) fn needs_bracket(&self) -> bool {
        (self.inner.is_incoherent || self.inner.gate.is_some()) && !self.is_bracketed
    }

    #[inline]
    pub(super) fn parts(&self) -> Option<&[(u64, Self)]> {
        match &self.inner.kind {
            Kind::Parts(parts) => Some(parts),
            _ => None,
        }
    }
}

/// Calls a function for each part that `len` bytes at `offset` touch: with the part, the offset in
/// it, and which of the bytes it is.
pub(super) fn each(
    parts: &[(u64, Umem)],
    offset: u64,
    len: u64,
    mut touch: impl FnMut(&Umem, u64, Range<u64>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let size = parts.last().map_or(0, |(at, last)| at + last.len());
    check_range(0, size, offset, len)?;
    let first = parts.partition_point(|(at, part)| at + part.len() <= offset);
    let mut done = 0;
    for (at, part) in &parts[first..] {
        if done == len {
            break;
        }
        let start = offset + done - at;
        let count = (part.len() - start).min(len - done);
        touch(part, start, done..done + count)?;
        done += count;
    }
    Ok(())
}

/// The part that holds the eight bytes at `offset`: parts meet at page boundaries.
fn part_of_word(parts: &[(u64, Umem)], offset: u64) -> Result<(&Umem, u64), Fault> {
    let found = parts.iter().rev().find(|(at, _)| *at <= offset);
    let (at, part) = found.ok_or(Fault::OutOfRange { base: 0, size: 0, offset, len: 8 })?;
    Ok((part, offset - at))
}

fn piece_of<'a>(bytes: Foreign<'a>, piece: &Range<u64>) -> Foreign<'a> {
    let (start, len) = (piece.start as usize, (piece.end - piece.start) as usize);
    bytes.slice(start, len).expect("pieces lie within the bytes they are pieces of")
}
