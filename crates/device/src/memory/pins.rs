//! Charges registered memory against the limit of locked memory, as for a NIC that pins it
//! (`docs/semantics.md` 2.7).
//!
//! The kernel counts per process (`mm->pinned_vm`), over all NICs it pins for, and so does this: a
//! limit of 8 MiB is one of 8 MiB for all NICs together. An on-demand region is not charged, nor is
//! one of a dma-buf. A process with CAP_IPC_LOCK is also charged, but not refused.

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const PAGE: u64 = 4096;

/// The pages that all NICs of this process have pinned.
#[doc(alias = "pinned_vm")]
static PINNED: AtomicU64 = AtomicU64::new(0);

/// The pages that one NIC has pinned. They are released when it is closed.
#[derive(Debug, Default)]
pub(crate) struct Pins(u64);

impl Pins {
    /// How many pages all NICs of the process have pinned.
    pub(crate) fn of_process() -> u64 {
        PINNED.load(Ordering::Relaxed)
    }

    /// Adds pages if, with those of all NICs of the process, they are at most this many. Otherwise
    /// returns how many there are.
    pub(crate) fn charge(&mut self, pages: u64, most: Option<u64>) -> Result<(), u64> {
        let sum = |held: u64| held.checked_add(pages).filter(|sum| most.is_none_or(|m| *sum <= m));
        PINNED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum)?;
        self.0 += pages;
        Ok(())
    }

    pub(crate) fn uncharge(&mut self, pages: u64) {
        let pages = pages.min(self.0);
        self.0 -= pages;
        PINNED.fetch_sub(pages, Ordering::Relaxed);
    }

    /// In a forked child, whose memory is separate: nothing of it is pinned.
    pub(super) fn abandon_in_child(&mut self) {
        self.uncharge(self.0);
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        self.uncharge(self.0);
    }
}

/// The number of pages that a range touches.
pub(crate) fn pages(addr: u64, length: u64) -> u64 {
    let end = addr.saturating_add(length);
    end.div_ceil(PAGE).saturating_sub(addr / PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_charged_for_every_page_it_touches() {
        assert_eq!(pages(0x1000, 0x1000), 1);
        assert_eq!(pages(0x1fff, 2), 2);
        assert_eq!(pages(0x1fff, 1), 1);
        assert_eq!(pages(0, u64::MAX), 1 << 52);
    }

    #[test]
    fn the_limit_covers_all_nics_of_a_process_and_a_forked_child_has_pinned_nothing() {
        let (mut one, mut other) = (Pins::default(), Pins::default());
        one.charge(6, Some(8)).expect("6 of 8");
        assert_eq!(other.charge(3, Some(8)), Err(6), "3 beside the 6 of the other");
        other.charge(2, Some(8)).expect("8 of 8");
        // A process without a limit is counted all the same.
        other.charge(4, None).expect("no limit");
        assert_eq!(one.charge(1, Some(12)), Err(12));
        other.abandon_in_child();
        drop(one);
        assert_eq!(PINNED.load(Ordering::Relaxed), 0);
    }
}
