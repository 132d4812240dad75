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
    /// Refuses to pin anything when the limit is 0 (EPERM), if the persona pins: the kernel's `can_do_mlock`.
    pub(crate) fn check_may_pin(&self, call: &str) -> Result<()> {
        if self.pin_limit() == Some(0) {
            refuse!(
                NotPermitted,
                "{call}: RLIMIT_MEMLOCK is 0, and this NIC pins what is registered"
            );
        }
        Ok(())
    }

    /// Refuses a range whose pages, with those that are pinned, are more than the limit (ENOMEM); else how many those are, or
    /// none if the persona does not pin.
    pub(crate) fn check_pins(&self, call: &str, addr: u64, length: u64) -> Result<u64> {
        if !self.core.config.pin_limit {
            return Ok(0);
        }
        let wanted = pages(addr, length);
        if let Some(limit) = self.pin_limit() {
            let (held, most) = (self.core.pinned_pages, limit / PAGE);
            if held + wanted > most {
                refuse!(
                    NoMemory,
                    "{call}: {wanted} pages to pin beside {held}; RLIMIT_MEMLOCK allows {most}"
                );
            }
        }
        Ok(wanted)
    }

    /// Charges the pages of a region to be registered, if the persona pins; how many those are. As the kernel's
    /// `ib_umem_get`: EPERM when the limit is 0, ENOMEM when it is not enough.
    pub(crate) fn charge_pins(&mut self, call: &str, addr: u64, length: u64) -> Result<u64> {
        self.check_may_pin(call)?;
        let wanted = self.check_pins(call, addr, length)?;
        self.core.pinned_pages += wanted;
        Ok(wanted)
    }

    /// The bytes that may be pinned, if that is limited.
    fn pin_limit(&self) -> Option<u64> {
        let is_free = !self.core.config.pin_limit
            || rustix::thread::capabilities(None)
                .is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
        if is_free { None } else { getrlimit(Resource::Memlock).current }
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
