//! Memory of the program that agents reach: locked by `hsa_amd_memory_lock`.
//!
//! Ranges may share pages, and a range may be locked more than once; it must then be unlocked as
//! often.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A locked range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

/// All locked ranges of a process.
#[derive(Debug, Default)]
pub(crate) struct Locked {
    /// The lengths, keyed by start address, in the order of the calls.
    ranges: Mutex<Ranges>,
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Ranges {
    by_start: BTreeMap<u64, Vec<u64>>,
    /// The length of the longest range so far.
    longest: u64,
}

impl Locked {
    pub(crate) fn add(&self, start: u64, len: u64) {
        let mut ranges = self.lock();
        ranges.by_start.entry(start).or_default().push(len);
        ranges.longest = ranges.longest.max(len);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes the newest range that begins there. Returns whether there was one.
    pub(crate) fn remove(&self, start: u64) -> bool {
        let mut ranges = self.lock();
        let Some(lens) = ranges.by_start.get_mut(&start) else { return false };
        lens.pop();
        if lens.is_empty() {
            ranges.by_start.remove(&start);
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// The range that contains an address; of several, the one that begins last.
    pub(crate) fn find(&self, addr: u64) -> Option<Range> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let ranges = self.lock();
        let first = addr.saturating_sub(ranges.longest);
        let mut before = ranges.by_start.range(first..=addr).rev();
        before.find_map(|(start, lens)| {
            let len = *lens.iter().max()?;
            (addr - start < len).then_some(Range { start: *start, len })
        })
    }

    /// Removes all ranges.
    pub(crate) fn clear(&self) {
        let mut ranges = self.lock();
        *ranges = Ranges::default();
        self.count.store(0, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_may_lie_in_each_other_and_are_unlocked_as_often_as_they_were_locked() {
        let locked = Locked::default();
        assert_eq!(locked.find(0x1000), None);
        locked.add(0x1000, 0x5000);
        locked.add(0x3000, 0x1000);
        locked.add(0x1000, 0x1000);
        let found = |addr| locked.find(addr).map(|range| (range.start, range.len));
        assert_eq!(found(0x3fff), Some((0x3000, 0x1000)));
        assert_eq!(found(0x4000), Some((0x1000, 0x5000)));
        assert_eq!(found(0x6000), None);
        assert!(locked.remove(0x1000) && locked.remove(0x3000));
        assert_eq!(found(0x3fff), Some((0x1000, 0x5000)));
        assert!(locked.remove(0x1000) && !locked.remove(0x1000));
        assert_eq!(found(0x3fff), None);
    }
}
