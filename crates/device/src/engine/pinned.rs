//! Charging registered memory against the limit of locked memory, as a NIC does that pins it (`docs/semantics.md` 2.7).
//!
//! A region paged on demand is not charged, and one of a dma-buf never.

use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

use super::Engine;
use crate::refusal::{Result, refuse};

const PAGE: u64 = 4096;

/// Pages that a range touches.
pub(crate) fn pages(addr: u64, length: u64) -> u64 {
    let end = addr.saturating_add(length);
    end.div_ceil(PAGE).saturating_sub(addr / PAGE)
}

impl Engine {
    /// Charges the pages of a region to be registered, if the persona pins; how many those are. As the kernel's
    /// `ib_umem_get`: EPERM when the limit is 0, ENOMEM when it is not enough.
    pub(crate) fn charge_pins(&mut self, call: &str, addr: u64, length: u64) -> Result<u64> {
        if !self.core.config.pin_limit {
            return Ok(0);
        }
        let wanted = pages(addr, length);
        let is_free = rustix::thread::capabilities(None)
            .is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
        if !is_free && let Some(limit) = getrlimit(Resource::Memlock).current {
            if limit == 0 {
                refuse!(
                    NotPermitted,
                    "{call}: RLIMIT_MEMLOCK is 0, and this NIC pins what is registered"
                );
            }
            let (held, most) = (self.core.pinned_pages, limit / PAGE);
            if held + wanted > most {
                refuse!(
                    NoMemory,
                    "{call}: {wanted} pages to pin beside {held}; RLIMIT_MEMLOCK allows {most}"
                );
            }
        }
        self.core.pinned_pages += wanted;
        Ok(wanted)
    }

    /// Gives back what a region was charged.
    pub(crate) fn uncharge_pins(&mut self, pages: u64) {
        self.core.pinned_pages = self.core.pinned_pages.saturating_sub(pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_charged_every_page_it_touches() {
        assert_eq!(pages(0x1000, 0x1000), 1);
        assert_eq!(pages(0x1fff, 2), 2);
        assert_eq!(pages(0x1fff, 1), 1);
        assert_eq!(pages(0, u64::MAX), 1 << 52);
    }
}
