//! On-demand paging of a program's memory.
//!
//! The pages of such a region count as absent until the NIC has used them once, or was told to
//! prefetch them. Here that is bookkeeping, as the memory is read and written by its address: the
//! counters, the time that a fault takes and what a peer sees of it (an RNR NAK) are as with a NIC
//! that has a page table of its own. No notifier tells when the kernel takes a page away, so each
//! access asks (`umem`, `is_resident`), and a page that went faults again. If the program unmaps
//! pages, the access itself finds that, and fails with a reason.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::Duration;

use transport::Time;

const PAGE: u64 = 4096;

/// The pages of a region that are known to be present.
#[derive(Debug, Default)]
pub(crate) struct Odp {
    present: HashSet<u64>,
    /// Pages whose fault is being handled, and until when.
    pending: HashMap<u64, Time>,
}

/// The result of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Faulted {
    /// Whether every page is present now.
    pub(crate) is_done: bool,
    /// New faults among them.
    pub(crate) faults: u64,
}

impl Odp {
    /// Whether the pages of `length` bytes at `addr` are all present.
    pub(super) fn is_present(&self, addr: u64, length: u64) -> bool {
        pages(addr, length).all(|page| self.present.contains(&page))
    }

    /// Faults in the absent pages. A fault takes `latency`; until then the pages stay absent.
    pub(crate) fn fault(
        &mut self,
        addr: u64,
        length: u64,
        now: Time,
        latency: Duration,
    ) -> Faulted {
        let mut faulted = Faulted { is_done: true, faults: 0 };
        for page in pages(addr, length) {
            if self.present.contains(&page) {
                continue;
            }
            let ready = *self.pending.entry(page).or_insert_with(|| {
                faulted.faults += 1;
                now + latency
            });
            if ready <= now {
                self.pending.remove(&page);
                self.present.insert(page);
            } else {
                faulted.is_done = false;
            }
        }
        faulted
    }

    /// Forgets the pages that are no longer there, as a NIC does when the kernel's notifier tells
    /// it to; how many that were. `absent` tells which of the bytes at an address are not; it is
    /// asked once, unless no page counts as present.
    #[doc(alias = "mmu_interval_notifier")]
    pub(crate) fn forget(
        &mut self,
        addr: u64,
        length: u64,
        absent: impl FnOnce(u64, u64) -> Vec<Range<u64>>,
    ) -> u64 {
        if !pages(addr, length).any(|page| self.present.contains(&page)) {
            return 0;
        }
        let gone = absent(addr, length).into_iter();
        let gone = gone.flat_map(|gone| pages(gone.start, gone.end - gone.start));
        // Pages of the kernel may be smaller than those counted here.
        gone.filter(|page| self.present.remove(page)).count() as u64
    }

    /// Faults in pages ahead of any access, at once; returns how many.
    pub(crate) fn prefetch(&mut self, addr: u64, length: u64) -> u64 {
        pages(addr, length).filter(|page| self.present.insert(*page)).count() as u64
    }
}

fn pages(addr: u64, length: u64) -> impl Iterator<Item = u64> {
    let last = addr.saturating_add(length.max(1) - 1);
    addr / PAGE..=last / PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_faults_once() {
        let mut odp = Odp::default();
        assert!(!odp.is_present(0x1ff0, 32));
        let first = odp.fault(0x1ff0, 32, Time::ZERO, Duration::ZERO);
        assert_eq!(first, Faulted { is_done: true, faults: 2 });
        assert!(odp.is_present(0x1000, 0x2000));
        assert_eq!(
            odp.fault(0x1fff, 2, Time::ZERO, Duration::ZERO),
            Faulted { is_done: true, faults: 0 }
        );
    }

    #[test]
    fn a_slow_fault_is_counted_once_and_ends() {
        let mut odp = Odp::default();
        let at = Time::from_nanos;
        assert_eq!(
            odp.fault(0, 8, at(0), Duration::from_micros(5)),
            Faulted { is_done: false, faults: 1 }
        );
        assert_eq!(
            odp.fault(0, 8, at(4_999), Duration::from_micros(5)),
            Faulted { is_done: false, faults: 0 }
        );
        assert_eq!(
            odp.fault(0, 8, at(5_000), Duration::from_micros(5)),
            Faulted { is_done: true, faults: 0 }
        );
        assert!(odp.is_present(0, 8));
    }

    #[test]
    fn a_prefetched_page_does_not_fault() {
        let mut odp = Odp::default();
        assert_eq!(odp.prefetch(0x1001, 0x1000), 2);
        assert_eq!(odp.prefetch(0x1001, 0x1000), 0);
        assert_eq!(odp.fault(0x1001, 0x1000, Time::ZERO, Duration::from_micros(9)).faults, 0);
    }

    #[test]
    fn what_went_faults_again() {
        let mut odp = Odp::default();
        odp.prefetch(0x1000, 0x3000);
        let gone = odp.forget(0x1800, 0x1900, |addr, length| {
            assert_eq!((addr, length), (0x1800, 0x1900), "it is asked once");
            vec![0x2000..0x2800, 0x2900..0x3100]
        });
        assert_eq!(gone, 2);
        assert_eq!(odp.fault(0x1000, 0x3000, Time::ZERO, Duration::ZERO).faults, 2);
        let gone = odp.forget(0x9000, 0x1000, |_, _| panic!("nothing counts as present there"));
        assert_eq!(gone, 0);
    }

    #[test]
    fn the_last_page_of_the_address_space_is_a_page() {
        assert_eq!(pages(u64::MAX, 1).count(), 1);
        assert_eq!(pages(u64::MAX - 8191, u64::MAX).count(), 2);
    }
}
