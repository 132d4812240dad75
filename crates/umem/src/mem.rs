//! Memory that can back a memory region.

#![allow(unsafe_code, reason = "copies through the fault guard")]

mod inner;
mod pieces;

use std::fmt;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use descriptors::Known;
use dmabuf::{Direction, GateGuard, GateSlot, Mapping, Reach, SgTable};

use self::inner::{Gated, Inner, Kind, page_fault, pointer};
use crate::fault::{Fault, Touch, check_range};
use crate::guard::{self, plain};
use crate::{Foreign, HostBuf, ways};

pub use pieces::{crc32_pieces, sums_pieces};

/// Memory that can back a memory region, a device memory or a work request. A clone is another
/// handle to the same.
///
/// Offsets count from the beginning of the memory. Every access is checked against the length and
/// refused in words when it leaves; an access to a page that vanished is a [`Fault`] too, and never
/// a signal. A write makes its last bytes (the naturally aligned word of the last byte) visible
/// last, because programs poll on them.
///
/// The memory is an address range and not a set of pinned pages: after `munmap` and a new `mmap` at
/// the same address, accesses reach the new pages.
///
/// Each access to a dma-buf is bracketed as its exporter demands (`DMA_BUF_IOCTL_SYNC` for those of
/// the kernel). A message of several accesses brackets once by going through
/// [`cpu_access`](Self::cpu_access).
pub struct Umem {
    inner: Arc<Inner>,
    /// Set only in the handle inside a [`CpuAccess`]; not inherited by clones, which may outlive
    /// it.
    is_bracketed: bool,
}

/// Memory that is coherent for the CPU while this exists: accesses through it need no bracket of
/// their own.
#[must_use = "CPU access ends when the guard is dropped"]
pub struct CpuAccess<'a> {
    umem: Umem,
    _bracket: Option<dmabuf::CpuAccess<'a>>,
    _gate: Option<GateGuard<'a>>,
}

/// What the memory is made of, for callers that reach it without us.
#[derive(Debug)]
#[non_exhaustive]
pub enum Backing<'a> {
    /// Private to this process: another process reaches it by `process_vm_readv` and
    /// `process_vm_writev`.
    Process {
        /// Where it begins in this process.
        addr: usize,
    },
    /// Pages of a file: another process can map it.
    File {
        /// The file.
        fd: BorrowedFd<'a>,
        /// Where the memory begins in it.
        offset: u64,
    },
    /// A dma-buf whose accesses must be bracketed: another process can map it, if it brackets its
    /// accesses too. `process_vm_*` does not reach the pages of a dma-buf of the kernel.
    DmaBuf {
        /// The dma-buf.
        fd: BorrowedFd<'a>,
        /// Where the memory begins in it.
        offset: u64,
    },
    /// Several places, or one that only this process knows.
    Scattered,
}

impl<'a> Backing<'a> {
    /// Pages of a file, unless the program has another one at its number.
    fn of_file(file: &'a Known, offset: u64) -> Self {
        match file.is_ours() {
            true => Self::File { fd: file.as_fd(), offset },
            false => Self::Scattered,
        }
    }
}

impl Umem {
    /// `len` bytes of the program's memory at `addr`. The range may have holes, may lie anywhere
    /// and may be unmapped later: accesses then fault. Checks whether the fault guard is still in
    /// place.
    ///
    /// # Safety
    ///
    /// Until the last clone is gone the caller is willing to have the range read and written at any
    /// moment: no Rust reference and no allocation of its own depends on its contents, other than
    /// through atomics or raw pointers.
    pub unsafe fn user(addr: usize, len: u64) -> Self {
        guard::recheck();
        Self::new(addr, len, true, Kind::User)
    }

    /// The whole of a buffer of the library.
    pub fn host(buffer: &HostBuf) -> Self {
        let kind = Kind::Host { buffer: buffer.clone(), offset: 0 };
        Self::new(buffer.as_ptr().addr(), buffer.len() as u64, buffer.is_writable(), kind)
    }

    /// A part of a buffer of the library.
    ///
    /// # Errors
    ///
    /// [`Fault::OutOfRange`].
    pub fn host_range(buffer: &HostBuf, offset: u64, len: u64) -> Result<Self, Fault> {
        let base = check_range(buffer.as_ptr().addr(), buffer.len() as u64, offset, len)?;
        let kind = Kind::Host { buffer: buffer.clone(), offset };
        Ok(Self::new(base, len, buffer.is_writable(), kind))
    }

    /// As [`host_range`](Self::host_range), of a buffer that somebody else can move: each access
    /// enters the gate first.
    ///
    /// # Errors
    ///
    /// [`Fault::OutOfRange`].
    pub fn host_range_behind(
        buffer: &HostBuf,
        offset: u64,
        len: u64,
        slot: GateSlot,
        epoch: u64,
    ) -> Result<Self, Fault> {
        let base = check_range(buffer.as_ptr().addr(), buffer.len() as u64, offset, len)?;
        let kind = Kind::Host { buffer: buffer.clone(), offset };
        let gate = Some(Gated { slot, epoch });
        Ok(Self::gated(base, len, buffer.is_writable(), kind, gate, None))
    }

    /// `len` bytes at `offset` of a mapped dma-buf. Checks whether the fault guard is still in
    /// place.
    ///
    /// # Errors
    ///
    /// [`Fault::OutOfRange`].
    pub fn dmabuf(mapping: Mapping, offset: u64, len: u64) -> Result<Self, Fault> {
        guard::recheck();
        let base = check_range(mapping.addr(), mapping.len(), offset, len)?;
        let is_writable = mapping.is_writable();
        let way = match mapping.buf().is_host_memory() {
            true => ways::Way::Mapped(Reach::System),
            false => ways::Way::Cpu,
        };
        let kind = Kind::DmaBuf { mapping, offset };
        Ok(Self::gated(base, len, is_writable, kind, None, Some(way)))
    }

    /// `len` bytes at `offset` of a buffer, through the addresses that its exporter gave for a
    /// device. Each access enters `gate` in the epoch of the table; once the exporter moved the
    /// buffer it is [`Fault::Stale`]. Checks whether the fault guard is still in place.
    ///
    /// # Errors
    ///
    /// [`Fault::OutOfRange`], also for addresses that are not on this process's bus
    /// ([`dmabuf::window::of`]): nothing else may be touched in an exporter's name.
    pub fn bus(
        table: &SgTable,
        offset: u64,
        len: u64,
        gate: Option<GateSlot>,
    ) -> Result<Self, Fault> {
        guard::recheck();
        check_range(0, table.len(), offset, len)?;
        let gate = gate.zip(table.epoch).map(|(slot, epoch)| Gated { slot, epoch });
        let mut parts = Vec::new();
        let (mut skip, mut left, mut at) = (offset, len, 0);
        for entry in &table.entries {
            if skip >= entry.len {
                skip -= entry.len;
                continue;
            }
            let here = (entry.len - skip).min(left);
            if here == 0 {
                break;
            }
            let base = entry.addr.wrapping_add(skip);
            let Some(window) = dmabuf::window::of(base, here) else {
                let (base, size) = (entry.addr, entry.len);
                return Err(Fault::OutOfRange { base, size, offset: skip, len: here });
            };
            let backing = entry.backing.clone().map(|mut backing| {
                backing.offset += skip;
                backing
            });
            let (kind, way) =
                (Kind::Bus { backing, _window: window }, Some(ways::Way::Mapped(table.map_type)));
            let part = Self::gated(base as usize, here, true, kind, gate.clone(), way);
            parts.push((at, part));
            (skip, left, at) = (0, left - here, at + here);
        }
        match parts.pop() {
            Some((_, only)) if parts.is_empty() => Ok(only),
            Some(last) => {
                parts.push(last);
                Ok(Self::new(0, len, true, Kind::Parts(parts)))
            }
            None => Err(Fault::OutOfRange { base: 0, size: table.len(), offset, len }),
        }
    }

    /// The gate that accesses pass, and the epoch in which they may. For memory in several parts,
    /// that of the first.
    pub fn gate(&self) -> Option<(&GateSlot, u64)> {
        match &self.inner.kind {
            Kind::Parts(parts) => parts.first()?.1.gate(),
            _ => self.inner.gate.as_ref().map(|gate| (&gate.slot, gate.epoch)),
        }
    }

    /// The same memory of another process, which reaches its dma-buf by this path.
    #[must_use]
    pub fn reached(self, way: Option<ways::Way>) -> Self {
        // A new one has no clone yet.
        let inner = Arc::try_unwrap(self.inner).map(|inner| Arc::new(Inner { way, ..inner }));
        let inner = inner.unwrap_or_else(|shared| shared);
        Self { inner, is_bracketed: self.is_bracketed }
    }

    /// For callers that store `bytes` of this memory in a buffer of their own, as a driver does
    /// when it cannot reach a device: counts them if the memory is a dma-buf's.
    pub fn bounced(&self, bytes: u64) {
        if self.way().is_some() {
            ways::count_bounced(bytes);
        }
    }

    /// To be called by whoever has the kernel copy `bytes` of this memory, which is then as good as
    /// a copy of its own: counts them if the memory is a dma-buf's.
    pub fn carried(&self, bytes: u64) {
        if let Some(way) = self.way() {
            way.count(bytes);
        }
    }

    /// How the memory is reached, if it is a dma-buf. For memory in several parts, that of the
    /// first.
    pub fn way(&self) -> Option<ways::Way> {
        match &self.inner.kind {
            Kind::Parts(parts) => parts.first()?.1.way(),
            _ => self.inner.way,
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.inner.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.inner.len == 0
    }

    /// Where the memory begins in this process.
    pub fn addr(&self) -> usize {
        self.inner.base
    }

    /// What the memory is made of.
    pub fn backing(&self) -> Backing<'_> {
        match &self.inner.kind {
            Kind::Host { buffer, offset } => match buffer.known() {
                Some(file) => Backing::of_file(file, *offset),
                None => Backing::Process { addr: self.inner.base },
            },
            Kind::DmaBuf { mapping, offset } => {
                let Ok(fd) = mapping.buf().known_fd() else { return Backing::Scattered };
                let offset = mapping.offset() + offset;
                if mapping.needs_brackets() {
                    Backing::DmaBuf { fd, offset }
                } else {
                    Backing::File { fd, offset }
                }
            }
            Kind::Bus { backing: Some(backing), .. } => {
                Backing::of_file(&backing.file, backing.offset)
            }
            Kind::User => Backing::Process { addr: self.inner.base },
            // Addresses of this process's bus mean nothing to another process.
            Kind::Bus { backing: None, .. } | Kind::Parts(_) => Backing::Scattered,
        }
    }

    /// Visits the contiguous parts under `len` bytes at `offset`, with the place and the length in
    /// each. Memory in one place is one part; so is a range that leaves the memory, which fails
    /// when it is touched.
    pub fn for_each_part(&self, offset: u64, len: u64, mut visit: impl FnMut(&Self, u64, u64)) {
        let found = self.parts().map(|parts| {
            each(parts, offset, len, |part, at, piece| {
                visit(part, at, piece.end - piece.start);
                Ok(())
            })
        });
        if !matches!(found, Some(Ok(()))) {
            visit(self, offset, len);
        }
    }

    /// Makes the memory coherent for several accesses, which go through the returned value. Costs
    /// nothing for memory that needs no brackets.
    ///
    /// # Errors
    ///
    /// [`Fault::Sync`].
    pub fn cpu_access(&self, direction: Direction) -> Result<CpuAccess<'_>, Fault> {
        let bracket = match &self.inner.kind {
            Kind::DmaBuf { mapping, .. } if self.inner.is_incoherent && !self.is_bracketed => {
                let bracket = mapping.begin_cpu_access(direction);
                Some(bracket.map_err(|error| Fault::Sync { reason: error.to_string() })?)
            }
            _ => None,
        };
        let gate = match &self.inner.gate {
            Some(gate) if !self.is_bracketed => {
                let entered = gate.slot.enter(gate.epoch);
                Some(entered.map_err(|stale| Fault::Stale { stale })?)
            }
            _ => None,
        };
        let umem = Self { inner: Arc::clone(&self.inner), is_bracketed: true };
        Ok(CpuAccess { umem, _bracket: bracket, _gate: gate })
    }

    /// Copies out `out.len()` bytes at `offset`.
    ///
    /// # Errors
    ///
    /// [`Fault`]; `out` may then be partly overwritten.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Fault> {
        if self.needs_bracket() {
            return self.cpu_access(Direction::FromDevice)?.read(offset, out);
        }
        if let Some(parts) = self.parts() {
            return each(parts, offset, out.len() as u64, |part, at, piece| {
                part.read(at, &mut out[piece.start as usize..piece.end as usize])
            });
        }
        let addr = self.inner.check(offset, out.len() as u64)?;
        // SAFETY: `out` is ours to write.
        unsafe { self.inner.copy_out(addr, out.as_mut_ptr(), out.len()) }
    }

    /// As [`Umem::read`], and returns the CRC-32 (IEEE 802.3, as in the ICRC) `crc`, which is 0 at
    /// the start, continued over what is in `out` now. Cheaper than reading first and computing
    /// afterwards.
    ///
    /// # Errors
    ///
    /// As [`Umem::read`].
    pub fn read_crc32(&self, offset: u64, out: &mut [u8], crc: u32) -> Result<u32, Fault> {
        if self.needs_bracket() {
            return self.cpu_access(Direction::FromDevice)?.read_crc32(offset, out, crc);
        }
        if let Some(parts) = self.parts() {
            let mut crc = crc;
            each(parts, offset, out.len() as u64, |part, at, piece| {
                let out = &mut out[piece.start as usize..piece.end as usize];
                crc = part.read_crc32(at, out, crc)?;
                Ok(())
            })?;
            return Ok(crc);
        }
        let addr = self.inner.check(offset, out.len() as u64)?;
        let len = out.len() as u64;
        let read = if self.inner.is_guarded() {
            self.inner.tick();
            // SAFETY: whoever made the memory promised that it may be read; absent pages are
            // caught.
            unsafe { guard::copy_crc32(out, pointer(addr), crc) }
        } else {
            // SAFETY: the range is inside memory that cannot vanish.
            unsafe { plain::copy_crc32(out, pointer(addr), crc) }
        };
        read.map_err(|at| page_fault(Touch::Read, addr, len, at))
    }

    /// Copies in `bytes` at `offset`, the last ones last.
    ///
    /// # Errors
    ///
    /// [`Fault`]; the memory may then be partly overwritten.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        if self.needs_bracket() {
            return self.cpu_access(Direction::ToDevice)?.write(offset, bytes);
        }
        if let Some(parts) = self.parts() {
            return each(parts, offset, bytes.len() as u64, |part, at, piece| {
                part.write(at, &bytes[piece.start as usize..piece.end as usize])
            });
        }
        let addr = self.inner.check_write(offset, bytes.len() as u64)?;
        // SAFETY: `bytes` may be read.
        unsafe { self.inner.copy_in(addr, bytes.as_ptr(), bytes.len()) }
    }

    /// Copies `out.len()` bytes at `offset` to foreign memory.
    ///
    /// # Errors
    ///
    /// [`Fault`]; `out` may then be partly overwritten.
    pub fn read_to(&self, offset: u64, out: Foreign<'_>) -> Result<(), Fault> {
        if self.needs_bracket() {
            return self.cpu_access(Direction::FromDevice)?.read_to(offset, out);
        }
        if let Some(parts) = self.parts() {
            return each(parts, offset, out.len() as u64, |part, at, piece| {
                part.read_to(at, piece_of(out, &piece))
            });
        }
        let addr = self.inner.check(offset, out.len() as u64)?;
        // SAFETY: a `Foreign` may be written for its whole length.
        unsafe { self.inner.copy_out(addr, out.as_ptr(), out.len()) }
    }

    /// Copies foreign memory to `offset`, the last bytes last.
    ///
    /// # Errors
    ///
    /// [`Fault`]; the memory may then be partly overwritten.
    pub fn write_from(&self, offset: u64, bytes: Foreign<'_>) -> Result<(), Fault> {
        if self.needs_bracket() {
            return self.cpu_access(Direction::ToDevice)?.write_from(offset, bytes);
        }
        if let Some(parts) = self.parts() {
            return each(parts, offset, bytes.len() as u64, |part, at, piece| {
                part.write_from(at, piece_of(bytes, &piece))
            });
        }
        let addr = self.inner.check_write(offset, bytes.len() as u64)?;
        // SAFETY: a `Foreign` may be read for its whole length.
        unsafe { self.inner.copy_in(addr, bytes.as_ptr(), bytes.len()) }
    }

    /// Copies `len` bytes from `src` to `dst`, the last ones last. Overlapping ranges give
    /// unspecified bytes.
    ///
    /// # Errors
    ///
    /// [`Fault`] of either side; the destination may then be partly overwritten.
    pub fn copy(dst: &Self, dst_off: u64, src: &Self, src_off: u64, len: u64) -> Result<(), Fault> {
        if src.needs_bracket() {
            let src = src.cpu_access(Direction::FromDevice)?;
            return Self::copy(dst, dst_off, &src, src_off, len);
        }
        if dst.needs_bracket() {
            let dst = dst.cpu_access(Direction::ToDevice)?;
            return Self::copy(&dst, dst_off, src, src_off, len);
        }
        if let Some(parts) = src.parts() {
            return each(parts, src_off, len, |part, at, piece| {
                Self::copy(dst, dst_off + piece.start, part, at, piece.end - piece.start)
            });
        }
        if let Some(parts) = dst.parts() {
            return each(parts, dst_off, len, |part, at, piece| {
                Self::copy(part, at, src, src_off + piece.start, piece.end - piece.start)
            });
        }
        let to = dst.inner.check_write(dst_off, len)?;
        let from = src.inner.check(src_off, len)?;
        let count = len as usize;
        if !dst.inner.is_guarded() && !src.inner.is_guarded() {
            // SAFETY: both ranges are inside memory that cannot vanish.
            unsafe { plain::peerdma_umem_copy(pointer(to), pointer(from), count) };
            return Ok(());
        }
        dst.inner.tick();
        // SAFETY: whoever made the two promised that they may be read and written; absent pages are
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
        if self.needs_bracket() {
            return self.cpu_access(Direction::Bidirectional)?.compare_swap(offset, compare, swap);
        }
        if let Some(parts) = self.parts() {
            let (part, at) = part_of_word(parts, offset)?;
            return part.compare_swap(at, compare, swap);
        }
        let word = self.inner.word(offset)?;
        if !self.inner.is_guarded() {
            // SAFETY: eight aligned bytes of memory that cannot vanish.
            return Ok(
                unsafe { plain::peerdma_umem_compare_swap(word, compare, swap) }.value as u64
            );
        }
        self.inner.tick();
        // SAFETY: whoever made the memory promised that it may be written; it is aligned (checked
        // by `word`).
        unsafe { guard::compare_swap(word, compare, swap) }
            .map_err(|at| page_fault(Touch::Atomic, word.addr(), 8, at))
    }

    /// Adds `add` to the eight bytes at `offset`, wrapping; returns what was there. Otherwise as
    /// [`compare_swap`](Self::compare_swap).
    ///
    /// # Errors
    ///
    /// [`Fault`], among them [`Fault::Misaligned`].
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Fault> {
        if self.needs_bracket() {
            return self.cpu_access(Direction::Bidirectional)?.fetch_add(offset, add);
        }
        if let Some(parts) = self.parts() {
            let (part, at) = part_of_word(parts, offset)?;
            return part.fetch_add(at, add);
        }
        let word = self.inner.word(offset)?;
        if !self.inner.is_guarded() {
            // SAFETY: eight aligned bytes of memory that cannot vanish.
            return Ok(unsafe { plain::peerdma_umem_fetch_add(word, add) }.value as u64);
        }
        self.inner.tick();
        // SAFETY: whoever made the memory promised that it may be written; it is aligned (checked
        // by `word`).
        unsafe { guard::fetch_add(word, add) }
            .map_err(|at| page_fault(Touch::Atomic, word.addr(), 8, at))
    }

    /// Stores `byte` `len` times from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Fault`]; the memory may then be partly overwritten.
    pub fn fill(&self, offset: u64, byte: u8, len: u64) -> Result<(), Fault> {
        if self.needs_bracket() {
            return self.cpu_access(Direction::ToDevice)?.fill(offset, byte, len);
        }
        if let Some(parts) = self.parts() {
            return each(parts, offset, len, |part, at, piece| {
                part.fill(at, byte, piece.end - piece.start)
            });
        }
        let addr = self.inner.check_write(offset, len)?;
        if !self.inner.is_guarded() {
            // SAFETY: the range is inside memory that cannot vanish.
            unsafe { plain::peerdma_umem_fill(pointer(addr), byte, len as usize) };
            return Ok(());
        }
        self.inner.tick();
        // SAFETY: whoever made the memory promised that it may be written; absent pages are caught.
        unsafe { guard::fill(pointer(addr), byte, len as usize) }
            .map_err(|at| page_fault(Touch::Write, addr, len, at))
    }

    /// Stores `pattern` repeatedly in `len` bytes from `offset` on; the last time, as much of it as
    /// there is room for. An empty pattern stores nothing.
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill).
    pub fn fill_with(&self, offset: u64, pattern: &[u8], len: u64) -> Result<(), Fault> {
        /// What is written at a time.
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

    /// The address of a range that is inside and may be touched in this way, as far as is known in
    /// advance.
    pub(crate) fn check(&self, touch: Touch, offset: u64, len: u64) -> Result<usize, Fault> {
        match touch {
            Touch::Read => self.inner.check(offset, len),
            Touch::Write | Touch::Atomic => self.inner.check_write(offset, len),
        }
    }

    fn new(base: usize, len: u64, is_writable: bool, kind: Kind) -> Self {
        Self::gated(base, len, is_writable, kind, None, None)
    }

    fn gated(
        base: usize,
        len: u64,
        is_writable: bool,
        kind: Kind,
        gate: Option<Gated>,
        way: Option<ways::Way>,
    ) -> Self {
        let is_incoherent =
            matches!(&kind, Kind::DmaBuf { mapping, .. } if mapping.needs_brackets());
        let since_check = AtomicU32::new(0);
        let inner = Inner { base, len, kind, is_writable, is_incoherent, gate, way, since_check };
        Self { inner: Arc::new(inner), is_bracketed: false }
    }

    /// Whether an access must first make the memory coherent, or hold it where it is.
    #[inline]
    fn needs_bracket(&self) -> bool {
        (self.inner.is_incoherent || self.inner.gate.is_some()) && !self.is_bracketed
    }

    #[inline]
    fn parts(&self) -> Option<&[(u64, Self)]> {
        match &self.inner.kind {
            Kind::Parts(parts) => Some(parts),
            _ => None,
        }
    }
}

impl Clone for Umem {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), is_bracketed: false }
    }
}

impl Deref for CpuAccess<'_> {
    type Target = Umem;

    fn deref(&self) -> &Umem {
        &self.umem
    }
}

impl fmt::Debug for Umem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.inner.kind {
            Kind::User => "user",
            Kind::Host { .. } => "host",
            Kind::DmaBuf { .. } => "dma-buf",
            Kind::Bus { .. } => "bus",
            Kind::Parts(_) => "scattered",
        };
        write!(f, "Umem({kind} memory of {:#x} bytes at {:#x})", self.inner.len, self.inner.base)
    }
}

/// Does something for each part that `len` bytes at `offset` touch: with the part, where in it, and
/// which of the bytes.
fn each(
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
