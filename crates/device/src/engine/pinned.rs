//! Charging what is registered against the limit of locked memory.

use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

use super::Engine;
use crate::memory::pins::{PAGE, Pins, pages};
use crate::refusal::{Result, refuse};

impl Engine {
    /// Refuses to pin anything when the limit is 0 (EPERM), if the persona pins: the kernel's
    /// `can_do_mlock`.
    pub(super) fn check_may_pin(&self, call: &str) -> Result<()> {
        if self.pin_limit() == Some(0) {
            refuse!(
                NotPermitted,
                "{call}: RLIMIT_MEMLOCK is 0, and this NIC pins what is registered{}",
                sandbox::HINT
            );
        }
        Ok(())
    }

    /// Refuses a range whose pages, with those that are pinned, are more than the limit (ENOMEM);
    /// otherwise returns how many those are, or none if the persona does not pin.
    pub(super) fn check_pins(&self, call: &str, addr: u64, length: u64) -> Result<u64> {
        if !self.common.nic.config.pin_limit {
            return Ok(0);
        }
        let wanted = pages(addr, length);
        let held = Pins::of_process();
        match self.pin_limit().map(|limit| limit / PAGE) {
            Some(most) if held.saturating_add(wanted) > most => over(call, wanted, held, most),
            _ => Ok(wanted),
        }
    }

    /// Charges the pages of a region to be registered, if the persona pins; how many those are. As
    /// the kernel's `ib_umem_get`: EPERM when the limit is 0, ENOMEM when it is not enough.
    pub(super) fn charge_pins(&mut self, call: &str, addr: u64, length: u64) -> Result<u64> {
        self.check_may_pin(call)?;
        let wanted = self.check_pins(call, addr, length)?;
        let most = self.pin_limit().map(|limit| limit / PAGE);
        match self.common.memory.pins.charge(wanted, most) {
            Ok(()) => Ok(wanted),
            // Another thread was faster, on another NIC.
            Err(held) => over(call, wanted, held, most.unwrap_or(u64::MAX)),
        }
    }

    /// The bytes that may be pinned, if that is limited.
    fn pin_limit(&self) -> Option<u64> {
        let is_free = !self.common.nic.config.pin_limit
            || rustix::thread::capabilities(None)
                .is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
        if is_free { None } else { getrlimit(Resource::Memlock).current }
    }

    /// Gives back what a region was charged.
    pub(super) fn uncharge_pins(&mut self, pages: u64) {
        self.common.memory.pins.uncharge(pages);
    }
}

fn over(call: &str, wanted: u64, held: u64, most: u64) -> Result<u64> {
    refuse!(
        NoMemory,
        "{call}: {wanted} pages to pin besides the {held} of this process; RLIMIT_MEMLOCK allows {most}{}",
        sandbox::HINT
    )
}
