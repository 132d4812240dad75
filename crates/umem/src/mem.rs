//! Memory that can back a memory region.

#![allow(unsafe_code, reason = "copies through the fault guard")]

mod access;
mod inner;
mod pieces;

use std::fmt;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};

use descriptors::Known;
use dmabuf::{Direction, GateGuard, GateSlot, Mapping, Reach, SgTable};

use self::access::each;
use self::inner::{Gated, Inner, Kind};
use crate::fault::{Fault, Touch, check_range};
use crate::{HostBuf, guard, heap, ways};

pub use pieces::{crc32_pieces, sums_pieces};

/// Memory that can back a memory region, a device memory or a work request. A clone is another
/// handle to the same memory.
///
/// Offsets count from the beginning of the memory. Every access is checked against the length, and
/// refused with a reason if it is out of range; an access to a page that vanished is a [`Fault`]
/// too, and never a signal. A write makes its last bytes (the naturally aligned word of the last
/// byte) visible last, because programs poll on them.
///
/// The memory is an address range and not a set of pinned pages: after `munmap` and a new `mmap` at
/// the same address, accesses reach the new pages.
///
/// Each access to a dma-buf is bracketed as its exporter demands (`DMA_BUF_IOCTL_SYNC` for those of
/// the kernel). A message of several accesses brackets once by going through
/// [`cpu_access`](Self::cpu_access).
pub struct Umem {
    inner: Arc<Inner>,
    /// Set only in the handle inside a [`CpuAccess`]; clones do not inherit it, since they may
    /// outlive that value.
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

/// What the memory is made of, for callers that access it without this crate.
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
    /// accesses too. `process_vm_*` does not reach the pages of a kernel dma-buf.
    DmaBuf {
        /// The dma-buf.
        fd: BorrowedFd<'a>,
        /// Where the memory begins in it.
        offset: u64,
    },
    /// Several places, or a place that only this process knows.
    Scattered,
}

impl<'a> Backing<'a> {
    /// Pages of a file, unless the program has another file at its descriptor number.
    fn of_file<T: AsFd>(file: &'a Known<T>, offset: u64) -> Self {
        match file.is_ours() {
            true => Self::File { fd: file.as_fd(), offset },
            false => Self::Scattered,
        }
    }
}

impl Umem {
    /// `len` bytes of the program's memory at `addr`. The range may have holes, may lie anywhere
    /// and may be unmapped later: accesses then fault. Checks whether the fault guard is still in
    /// place. Memory of the program's shared heap is [`Backing::File`].
    ///
    /// # Safety
    ///
    /// Until the last clone is gone, the caller permits reads and writes of the range at any
    /// moment: no Rust reference and no allocation of the caller depends on its contents, other
    /// than through atomics or raw pointers.
    pub unsafe fn user(addr: usize, len: u64) -> Self {
        guard::recheck();
        Self::new(addr, len, true, Kind::User { place: OnceLock::new() })
    }

    /// A whole buffer of the library.
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

    /// As [`host_range`](Self::host_range), of a buffer that its exporter can move: each access
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
    /// device. Each access enters `gate` in the epoch of the table; once the exporter has moved the
    /// buffer, an access is [`Fault::Stale`]. Checks whether the fault guard is still in place.
    ///
    /// # Errors
    ///
    /// [`Fault::OutOfRange`], also for addresses that are not on this process's bus
    /// ([`dmabuf::window::of`]): an exporter cannot have us touch anything else.
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

    /// The gate that accesses enter, and the epoch in which they may. For memory in several parts,
    /// the gate of the first.
    pub fn gate(&self) -> Option<(&GateSlot, u64)> {
        match &self.inner.kind {
            Kind::Parts(parts) => parts.first()?.1.gate(),
            _ => self.inner.gate.as_ref().map(|gate| (&gate.slot, gate.epoch)),
        }
    }

    /// The same memory for another process, which reaches the dma-buf by this path.
    #[must_use]
    pub fn reached(self, way: Option<ways::Way>) -> Self {
        // A new handle has no clone yet.
        let inner = Arc::try_unwrap(self.inner).map(|inner| Arc::new(Inner { way, ..inner }));
        let inner = inner.unwrap_or_else(|shared| shared);
        Self { inner, is_bracketed: self.is_bracketed }
    }

    /// For callers that store `bytes` of this memory in a bounce buffer, as a driver does when it
    /// cannot reach a device: counts them if the memory is that of a dma-buf.
    pub fn bounced(&self, bytes: u64) {
        if self.way().is_some() {
            ways::count_bounced(bytes);
        }
    }

    /// Callers that have the kernel copy `bytes` of this memory call this, since that is like a
    /// copy here: counts them if the memory is that of a dma-buf.
    pub fn carried(&self, bytes: u64) {
        if let Some(way) = self.way() {
            way.count(bytes);
        }
    }

    /// How the memory is reached, if it is a dma-buf. For memory in several parts, how the first
    /// is reached.
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
            Kind::User { place } => {
                // Not before somebody asks: memory that is only copied needs no file.
                let (addr, len) = (self.inner.base, self.inner.len);
                match place.get_or_init(|| heap::place(addr, len)) {
                    Some(place) => Backing::of_file(&place.file, place.offset),
                    None => Backing::Process { addr },
                }
            }
            // Addresses of this process's bus mean nothing to another process.
            Kind::Bus { backing: None, .. } | Kind::Parts(_) => Backing::Scattered,
        }
    }

    /// Whether it is [`Backing::DmaBuf`]. [`backing`](Self::backing) makes a system call for what
    /// is a file, and this for a dma-buf alone.
    pub fn is_dma_buf(&self) -> bool {
        matches!(self.inner.kind, Kind::DmaBuf { .. })
            && matches!(self.backing(), Backing::DmaBuf { .. })
    }

    /// Visits the contiguous parts under `len` bytes at `offset`, with the offset and the length in
    /// each. Memory in one place is one part; so is a range that is out of bounds, which fails when
    /// it is accessed.
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

    /// The address of a range that is inside and, as far as is known in advance, may be accessed in
    /// this way.
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
            Kind::User { .. } => "user",
            Kind::Host { .. } => "host",
            Kind::DmaBuf { .. } => "dma-buf",
            Kind::Bus { .. } => "bus",
            Kind::Parts(_) => "scattered",
        };
        write!(f, "Umem({kind} memory of {:#x} bytes at {:#x})", self.inner.len, self.inner.base)
    }
}
