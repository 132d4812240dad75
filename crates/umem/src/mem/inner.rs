//! What all handles of a memory share: where the memory is, what it is made of, and whether an
//! access goes through the guard.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use dmabuf::{BusWindow, GateSlot, Mapping, SgBacking};

use super::Umem;
use crate::fault::{Fault, Touch, check_aligned, check_range};
use crate::guard::{self, Mode, plain};
use crate::{HostBuf, heap, ways};

pub(super) struct Inner {
    pub(super) base: usize,
    pub(super) len: u64,
    pub(super) kind: Kind,
    pub(super) is_writable: bool,
    /// A dma-buf whose accesses are bracketed.
    pub(super) is_incoherent: bool,
    /// The gate that each access enters, if the memory can be moved.
    pub(super) gate: Option<Gated>,
    /// How the memory is reached, if it is a dma-buf.
    pub(super) way: Option<ways::Way>,
    /// Counts accesses to know when to check the signal handlers. Increments may be lost: the count
    /// only has to advance.
    pub(super) since_check: AtomicU32,
}

pub(super) enum Kind {
    /// The program's memory. It may vanish, so it needs the guard. Some of it lies in the file of
    /// a shared heap, which is looked up once.
    User { place: OnceLock<Option<heap::Place>> },
    /// The library's own memory. It cannot vanish.
    Host { buffer: HostBuf, offset: u64 },
    /// A dma-buf mapped for the CPU. A sealed memfd cannot vanish; an exporter in the kernel may
    /// zap the mappings.
    DmaBuf { mapping: Mapping, offset: u64 },
    /// Pages at a bus address, which an exporter can retire at any moment. The addresses stay part
    /// of the window while this exists, so that no mapping of the program can take their place.
    Bus { backing: Option<SgBacking>, _window: BusWindow },
    /// Several of the others, concatenated: where each begins, and the part itself.
    Parts(Vec<(u64, Umem)>),
}

/// The gate that accesses enter, and the epoch in which the addresses are valid.
#[derive(Clone, Debug)]
pub(super) struct Gated {
    pub(super) slot: GateSlot,
    pub(super) epoch: u64,
}

/// Accesses between two checks of the signal handlers: spreads the cost of a check, two system
/// calls, over this many.
const CHECK_EVERY: u32 = 4096;

impl Inner {
    /// Whether accesses go through the guard. They do for memory that an exporter may take away
    /// from the CPU, and for kernel dma-bufs while the handlers are ours. When the program owns the
    /// handlers, kernel dma-bufs are accessed directly: `process_vm_writev` does not reach pages
    /// without a `struct page`.
    #[inline]
    pub(super) fn is_guarded(&self) -> bool {
        match &self.kind {
            // An address that the exporter retired faults, although the gate should have stopped
            // the access before that.
            Kind::User { .. } | Kind::Bus { .. } => true,
            Kind::Host { .. } | Kind::Parts(_) => false,
            Kind::DmaBuf { mapping, .. } => {
                mapping.can_vanish() || mapping.buf().is_kernel() && guard::mode() == Mode::Guarded
            }
        }
    }

    /// Whether the access that begins now goes through the guard. Counts the access if so.
    #[inline]
    pub(super) fn takes_guard(&self) -> bool {
        let is_guarded = self.is_guarded();
        if is_guarded {
            self.tick();
        }
        is_guarded
    }

    /// The address of a range that is inside and is accessed now.
    #[inline]
    pub(super) fn check(&self, offset: u64, len: u64) -> Result<usize, Fault> {
        let addr = check_range(self.base, self.len, offset, len)?;
        if let Some(way) = self.way {
            way.count(len);
        }
        Ok(addr)
    }

    /// As [`check`](Self::check), for memory to be written.
    #[inline]
    pub(super) fn check_write(&self, offset: u64, len: u64) -> Result<usize, Fault> {
        let addr = self.check(offset, len)?;
        if self.is_writable { Ok(addr) } else { Err(page_fault(Touch::Write, addr, len, None)) }
    }

    /// Counts an access to memory that needs the guard, and checks the signal handlers once in
    /// many.
    #[inline]
    pub(super) fn tick(&self) {
        let count = self.since_check.load(Ordering::Relaxed).wrapping_add(1);
        self.since_check.store(count, Ordering::Relaxed);
        if count.is_multiple_of(CHECK_EVERY) {
            guard::recheck();
        }
    }

    pub(super) fn word(&self, offset: u64) -> Result<*mut u64, Fault> {
        let addr = self.check_write(offset, 8)?;
        check_aligned(addr, 8)?;
        Ok(pointer(addr).cast())
    }

    /// # Safety
    ///
    /// `addr` came from `check` with the same length, and `out` may be written.
    pub(super) unsafe fn copy_out(
        &self,
        addr: usize,
        out: *mut u8,
        len: usize,
    ) -> Result<(), Fault> {
        if !self.takes_guard() {
            // SAFETY: the range is inside memory that cannot vanish.
            unsafe { plain::peerdma_umem_copy(out, pointer(addr), len) };
            return Ok(());
        }
        // SAFETY: the creator of the memory promised that it may be read; absent pages are caught.
        unsafe { guard::copy(out, pointer(addr), len) }
            .map_err(|at| page_fault(Touch::Read, addr, len as u64, at))
    }

    /// # Safety
    ///
    /// `addr` came from `check` with the same length, and `bytes` may be read.
    pub(super) unsafe fn copy_in(
        &self,
        addr: usize,
        bytes: *const u8,
        len: usize,
    ) -> Result<(), Fault> {
        if !self.takes_guard() {
            // SAFETY: the range is inside memory that cannot vanish.
            unsafe { plain::peerdma_umem_copy(pointer(addr), bytes, len) };
            return Ok(());
        }
        // SAFETY: the creator of the memory promised that it may be written; absent pages are
        // caught.
        unsafe { guard::copy(pointer(addr), bytes, len) }
            .map_err(|at| page_fault(Touch::Write, addr, len as u64, at))
    }
}

/// The memory belongs to the program, which handed over its address as a number.
pub(super) fn pointer(addr: usize) -> *mut u8 {
    ptr::with_exposed_provenance_mut(addr)
}

pub(super) fn page_fault(touch: Touch, addr: usize, len: u64, at: Option<usize>) -> Fault {
    Fault::Page { touch, addr: addr as u64, len, at: at.unwrap_or(addr) as u64 }
}
