//! A provider's memory, allocated by pages.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The page size of the pool.
pub(crate) const PAGE: u64 = 4096;

/// Pages of a device's memory. Dropping it gives them back.
#[doc(alias = "pci_alloc_p2pmem")]
#[derive(Debug)]
#[must_use = "the memory goes back when this is dropped"]
pub struct P2pmem {
    pool: Arc<Pool>,
    chunk: usize,
    offset: u64,
    pages: u64,
    len: u64,
    addr: u64,
    bus: u64,
}

/// One range for a device to transfer.
#[doc(alias = "scatterlist")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "an address and a length")]
pub struct SglEntry {
    /// The bus address.
    pub addr: u64,
    /// The length in bytes.
    pub len: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Pool {
    chunks: Mutex<Vec<Chunk>>,
}

/// One resource that was added to the pool.
#[derive(Debug)]
struct Chunk {
    addr: u64,
    bus: u64,
    size: u64,
    /// Offset and length of free ranges; adjacent ones are merged.
    free: BTreeMap<u64, u64>,
}

impl P2pmem {
    /// The CPU address.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// The bus address, for devices.
    #[doc(alias = "pci_p2pmem_virt_to_bus")]
    pub fn bus_addr(&self) -> u64 {
        self.bus
    }

    /// The requested length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Always false: there is at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The memory as a list for a device: one entry.
    #[doc(alias = "pci_p2pmem_alloc_sgl")]
    pub fn sgl(&self) -> [SglEntry; 1] {
        [SglEntry { addr: self.bus, len: self.len }]
    }
}

impl Drop for P2pmem {
    fn drop(&mut self) {
        let mut chunks = self.pool.chunks();
        let free = &mut chunks[self.chunk].free;
        let (mut from, mut len) = (self.offset, self.pages);
        if let Some((&before, &before_len)) = free.range(..from).next_back()
            && before + before_len == from
        {
            free.remove(&before);
            (from, len) = (before, before_len + len);
        }
        if let Some(after) = free.remove(&(from + len)) {
            len += after;
        }
        free.insert(from, len);
    }
}

impl Pool {
    /// Adds memory at CPU address `addr` and bus address `bus`.
    pub(crate) fn add(&self, addr: u64, bus: u64, size: u64) {
        let usable = size - size % PAGE;
        let free = (usable > 0).then_some((0, usable)).into_iter().collect();
        self.chunks().push(Chunk { addr, bus, size: usable, free });
    }

    pub(crate) fn alloc(self: &Arc<Self>, len: u64) -> Option<P2pmem> {
        let pages = len.checked_next_multiple_of(PAGE).filter(|pages| *pages > 0)?;
        let mut chunks = self.chunks();
        let (chunk, offset) = chunks.iter().enumerate().find_map(|(index, chunk)| {
            let (offset, _) = chunk.free.iter().find(|(_, free)| **free >= pages)?;
            Some((index, *offset))
        })?;
        let Chunk { addr, bus, free, .. } = &mut chunks[chunk];
        let left = free.remove(&offset).expect("just found") - pages;
        if left > 0 {
            free.insert(offset + pages, left);
        }
        let (addr, bus) = (*addr + offset, *bus + offset);
        Some(P2pmem { pool: Arc::clone(self), chunk, offset, pages, len, addr, bus })
    }

    pub(crate) fn size(&self) -> u64 {
        self.chunks().iter().map(|chunk| chunk.size).sum()
    }

    pub(crate) fn available(&self) -> u64 {
        self.chunks().iter().flat_map(|chunk| chunk.free.values()).sum()
    }

    fn chunks(&self) -> MutexGuard<'_, Vec<Chunk>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pages_are_allocated_and_merge_when_freed() {
        let pool = Arc::new(Pool::default());
        pool.add(0x10_0000, 0x90_0000, 3 * PAGE + 5);
        assert_eq!((pool.size(), pool.available()), (3 * PAGE, 3 * PAGE));
        let one = pool.alloc(1).expect("room");
        let two = pool.alloc(2 * PAGE).expect("room");
        assert_eq!((one.len(), two.bus_addr(), two.addr()), (1, 0x90_1000, 0x10_1000));
        assert_eq!(two.sgl(), [SglEntry { addr: 0x90_1000, len: 2 * PAGE }]);
        assert!(
            pool.alloc(1).is_none() && pool.alloc(0).is_none() && pool.alloc(u64::MAX).is_none()
        );
        drop(one);
        drop(two);
        assert_eq!(pool.alloc(3 * PAGE).expect("joined").addr(), 0x10_0000);
    }

    proptest! {
        #[test]
        fn no_page_has_two_owners(steps in prop::collection::vec((0_usize..20, 1_u64..40_000), 1..100)) {
            let pool = Arc::new(Pool::default());
            pool.add(0, 0, 16 * PAGE);
            pool.add(1 << 20, 1 << 20, 8 * PAGE);
            let mut held: Vec<P2pmem> = vec![];
            for (which, len) in steps {
                if which < held.len() {
                    drop(held.swap_remove(which));
                } else if let Some(memory) = pool.alloc(len) {
                    held.push(memory);
                }
                let mut ranges: Vec<_> =
                    held.iter().map(|m| (m.addr(), m.len().next_multiple_of(PAGE))).collect();
                ranges.sort_unstable();
                prop_assert!(ranges.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
                let used: u64 = ranges.iter().map(|r| r.1).sum();
                prop_assert_eq!(pool.available(), 24 * PAGE - used);
            }
        }
    }
}
