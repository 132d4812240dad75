//! Addresses separate from memory: reservations into which physical memory is mapped.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::copy::{At, Piece};
use crate::memory::Memory;
use crate::refusal::{Result, invalid};
use crate::view::View;

/// Memory that has no address of its own.
pub trait Physical {
    /// The memory.
    fn memory(&self) -> &Arc<Memory>;

    /// Whether the CPU sees it where it is mapped.
    fn is_for_cpu(&self) -> bool {
        false
    }
}

/// Addresses into which allocations are mapped.
#[derive(Debug)]
pub struct Reserved<A> {
    maps: Mutex<BTreeMap<u64, Arc<Mapped<A>>>>,
}

/// An allocation at an address.
#[derive(Debug)]
#[non_exhaustive]
pub struct Mapped<A> {
    /// The first address.
    pub start: u64,
    /// How many bytes.
    pub len: u64,
    /// Where in the allocation it begins.
    offset: u64,
    /// What is mapped.
    pub allocation: Arc<A>,
    /// Never used twice in a process.
    pub id: u64,
    /// What the GPU may do: 0 nothing, 1 read, 3 read and write.
    access: AtomicU8,
    /// What the CPU sees of it.
    view: Mutex<Option<View>>,
}

impl<A> Mapped<A> {
    /// The CPU no longer sees it.
    fn hide(&self) {
        drop(self.view.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Where it ends.
    pub fn stop(&self) -> u64 {
        self.start + self.len
    }

    /// Where in the allocation an address is.
    pub fn offset_of(&self, addr: u64) -> u64 {
        self.offset + (addr - self.start)
    }

    /// What the GPU may do: 0 nothing, 1 read, 3 read and write.
    pub fn access(&self) -> u8 {
        self.access.load(Ordering::Relaxed)
    }
}

impl<A> Default for Reserved<A> {
    fn default() -> Self {
        Self { maps: Mutex::default() }
    }
}

impl<A: Physical> Reserved<A> {
    /// The mapping that has an address.
    pub fn find(&self, addr: u64) -> Option<Arc<Mapped<A>>> {
        let maps = self.lock();
        let (_, mapped) = maps.range(..=addr).next_back()?;
        (addr < mapped.stop()).then(|| Arc::clone(mapped))
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Whether something is mapped in a range.
    pub fn has_any(&self, at: u64, len: u64) -> bool {
        let last = self.lock().range(..at.saturating_add(len)).next_back().map(|(_, m)| m.stop());
        last.is_some_and(|stop| stop > at)
    }

    /// All mappings of a range, if they cover it.
    ///
    /// # Errors
    ///
    /// They do not.
    pub fn covering(&self, addr: u64, len: u64) -> Result<Vec<Arc<Mapped<A>>>> {
        let end = addr.saturating_add(len);
        let (mut at, mut found) = (addr, Vec::new());
        while at < end {
            let mapped = self.find(at);
            let mapped = mapped.ok_or_else(|| invalid(format!("nothing is mapped at {at:#x}")))?;
            at = mapped.stop();
            found.push(mapped);
        }
        Ok(found)
    }

    /// The memory of a range.
    ///
    /// # Errors
    ///
    /// Not all of it is mapped, or the GPU was not given access.
    pub fn pieces(&self, addr: u64, len: u64) -> Result<Vec<Piece>> {
        let end = addr + len;
        let piece = |mapped: Arc<Mapped<A>>| {
            if mapped.access() == 0 {
                return Err(invalid(format!(
                    "{:#x} is mapped, and no GPU was given access",
                    mapped.start
                )));
            }
            let (from, to) = (addr.max(mapped.start), end.min(mapped.stop()));
            let offset = mapped.offset + (from - mapped.start);
            let memory = Arc::clone(mapped.allocation.memory());
            Ok(Piece { at: At::Device(memory, offset), len: to - from })
        };
        self.covering(addr, len)?.into_iter().map(piece).collect()
    }

    /// Maps an allocation, from `offset` on, under the number `id`. The addresses are of this
    /// reservation.
    ///
    /// # Errors
    ///
    /// Something is mapped there; the CPU must see the memory and cannot.
    pub fn map(
        &self,
        at: u64,
        len: u64,
        offset: u64,
        allocation: &Arc<A>,
        id: u64,
        access: u8,
    ) -> Result<()> {
        let mut maps = self.lock();
        if maps.range(..at + len).next_back().is_some_and(|(_, mapped)| mapped.stop() > at) {
            return Err(invalid(format!("something is mapped at {at:#x} already")));
        }
        let view = if allocation.is_for_cpu() {
            // SAFETY: the arena has no permissions where nothing is mapped, and nothing is here:
            // the map of it is locked.
            Some(unsafe { allocation.memory().view(at, offset, len) }?)
        } else {
            None
        };
        let (start, access, view) = (at, AtomicU8::new(access), Mutex::new(view));
        let allocation = Arc::clone(allocation);
        maps.insert(at, Arc::new(Mapped { start, len, offset, allocation, id, access, view }));
        Ok(())
    }

    /// Unmaps whole mappings.
    ///
    /// # Errors
    ///
    /// The range does not begin and end with one.
    pub fn unmap(&self, at: u64, len: u64) -> Result<()> {
        let covering = self.covering(at, len)?;
        let is_whole = covering.first().is_some_and(|first| first.start == at)
            && covering.last().is_some_and(|last| last.stop() == at + len);
        if !is_whole {
            return Err(invalid(format!("{len:#x} bytes at {at:#x} are not whole mappings")));
        }
        let mut maps = self.lock();
        for mapped in &covering {
            mapped.hide();
            maps.remove(&mapped.start);
        }
        drop(maps);
        for mapped in covering {
            mapped.allocation.memory().release(mapped.offset, mapped.len);
        }
        Ok(())
    }

    /// Sets what the GPUs may do with mapped memory.
    ///
    /// # Errors
    ///
    /// Not all of the range is mapped.
    pub fn set_access(&self, at: u64, len: u64, access: u8) -> Result<()> {
        for mapped in self.covering(at, len)? {
            mapped.access.store(access, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The addresses are no longer in use: the CPU sees nothing there.
    pub fn end(&self) {
        for mapped in self.lock().values() {
            mapped.hide();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Mapped<A>>>> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
