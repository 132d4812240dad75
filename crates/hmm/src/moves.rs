//! Pages leave the process's memory, and come back.
//!
//! A page leaves in these steps, so that no write of the CPU is lost (`docs/semantics.md` 5.2):
//!
//! | step | what the CPU may do | a fault of the page |
//! |---|---|---|
//! | it is write-protected and copied ([`Moving::Copies`]) | read | waits, if it is a write |
//! | it is dropped ([`Moving::Drops`]) | nothing | waits |
//! | it is the device's | | brings it back |
//!
//! A page that was never touched has nothing to copy or to drop.
#![allow(unsafe_code, reason = "memory by address")]

use rustix::io::Errno;
use rustix::mm::Advice;

use crate::PAGE;
use crate::error::{Error, Result, system};
use crate::pages::{DevicePages, Slot};
use crate::shared::{Shared, as_ptr};
use crate::table::{Held, Moving, State};

/// What became of a range that had to leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "each page is one of these")]
pub struct Migrated {
    /// Pages that left, or had left before.
    pub pages: u64,
    /// Pages that stay, because there is no memory for them at the destination, because the
    /// kernel does not release them, or because the device has exclusive use of them.
    pub skipped: u64,
}

/// Where pages go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Device,
    Exclusive,
}

impl Target {
    fn hold(self, slot: Slot) -> Held {
        match self {
            Self::Device => Held::Device(slot),
            Self::Exclusive => Held::Exclusive(slot),
        }
    }

    fn count(self, state: &mut State) {
        match self {
            Self::Device => state.stats.to_device += 1,
            Self::Exclusive => state.stats.made_exclusive += 1,
        }
    }

    fn pages(self, shared: &Shared) -> Result<&DevicePages> {
        match self {
            Self::Device => Ok(&shared.device),
            Self::Exclusive => shared.held(),
        }
    }
}

impl Shared {
    /// Lets a page leave. Returns whether it did.
    pub(crate) fn leave(&self, page: u64, target: Target) -> Result<bool> {
        let mut state = self.table.lock();
        while state.is_frozen || state.is_busy(page) {
            state = self.table.wait(state);
        }
        let addr = state.addr(page);
        let is_there = match (&state.page(page).held, target) {
            (Held::Device(_), Target::Device) | (Held::Exclusive(_), Target::Exclusive) => true,
            // The kernel's migration collects no entry that is not the process's own or a device's.
            (Held::Exclusive(_), Target::Device) => return Ok(false),
            (Held::Gone, _) => return Err(Error::Unmapped { offset: page }),
            _ => false,
        };
        if is_there {
            return Ok(true);
        }
        let Some(slot) = target.pages(self)?.take() else {
            state.tidy(page);
            return Ok(false);
        };
        let known = state.page(page);
        if let Held::Device(old) = &known.held {
            let mut bytes = [0; PAGE as usize];
            old.read(0, &mut bytes)?;
            slot.write(0, &bytes)?;
            known.held = target.hold(slot);
            target.count(&mut state);
            return Ok(true);
        }
        known.moving = Some(Moving::Drops);
        drop(state);
        let left = self.take_out(page, addr, &slot);
        let mut state = self.table.lock();
        let known = state.page(page);
        known.moving = None;
        if let Ok(true) = left {
            known.held = target.hold(slot);
            target.count(&mut state);
        }
        state.tidy(page);
        drop(state);
        self.table.notify();
        // Threads that faulted meanwhile fault again.
        let _ = self.until_still(|| self.uffd.wake(addr));
        left
    }

    /// Copies a page out and drops it. Returns whether it did.
    fn take_out(&self, page: u64, addr: usize, slot: &Slot) -> Result<bool> {
        let mut bytes = [0; PAGE as usize];
        if !self.pagemap.has_bytes(addr)? {
            slot.write(0, &bytes)?;
            return Ok(true);
        }
        self.table.lock().page(page).moving = Some(Moving::Copies);
        match self.until_still(|| self.uffd.protect(addr, true)) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Err(Error::Unmapped { offset: page }),
            Err(errno) => return Err(system("UFFDIO_WRITEPROTECT")(errno)),
        }
        let copied = self.cpu.read(page, &mut bytes).and_then(|()| slot.write(0, &bytes));
        let is_protected = {
            let mut state = self.table.lock();
            let known = state.page(page);
            known.moving = Some(Moving::Drops);
            known.own_removals += 1;
            known.is_protected
        };
        let dropped = match &copied {
            Ok(()) => drop_page(addr),
            Err(_) => Err(Errno::CANCELED),
        };
        if let Err(errno) = dropped {
            self.table.lock().page(page).own_removals -= 1;
            if !is_protected {
                let _ = self.until_still(|| self.uffd.protect(addr, false));
            }
            tracing::debug!(target: "peerdma::hmm", "a page stays: {errno}");
        }
        copied?;
        Ok(dropped.is_ok())
    }

    /// Brings a page back that is in the device.
    pub(crate) fn bring_from_device(&self, page: u64) -> Result<()> {
        match self.settled(page).pages.get(&page).map(|known| &known.held) {
            Some(Held::Gone) => return Err(Error::Unmapped { offset: page }),
            Some(Held::Device(_)) => {}
            Some(Held::Exclusive(_) | Held::System) | None => return Ok(()),
        }
        self.bring_back(page)
    }

    /// Brings a page back, if it is not there.
    pub(crate) fn bring_back(&self, page: u64) -> Result<()> {
        loop {
            let mut state = self.settled(page);
            match self.restore(&mut state, page, false) {
                Ok(was_away) => {
                    state.stats.brought_back += u64::from(was_away);
                    state.tidy(page);
                    return Ok(());
                }
                Err(Restore::Again) => {}
                Err(Restore::Lost(fault)) => return Err(fault.into()),
                Err(Restore::System(Errno::NOENT)) => {
                    return Err(Error::Unmapped { offset: page });
                }
                Err(Restore::System(errno)) => return Err(system("UFFDIO_COPY")(errno)),
            }
            drop(state);
            std::thread::yield_now();
        }
    }

    /// Puts the bytes of a page that is away where the CPU finds them, and wakes the threads that
    /// wait for them. Returns whether it was away.
    pub(crate) fn restore(
        &self,
        state: &mut State,
        page: u64,
        is_write: bool,
    ) -> std::result::Result<bool, Restore> {
        let addr = state.addr(page);
        let Some(known) = state.pages.get_mut(&page) else { return Ok(false) };
        let (Held::Device(slot) | Held::Exclusive(slot)) = &known.held else { return Ok(false) };
        let mut bytes = [0; PAGE as usize];
        slot.read(0, &mut bytes).map_err(Restore::Lost)?;
        let stays_protected = known.is_protected && !is_write;
        match self.uffd.copy(addr, &bytes, stays_protected) {
            // There is a page if the program mapped a new one there.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(Errno::AGAIN) => return Err(Restore::Again),
            Err(errno) => return Err(Restore::System(errno)),
        }
        if known.is_protected && is_write {
            (known.is_protected, known.is_written) = (false, true);
        }
        known.held = Held::System;
        Ok(true)
    }

    /// Brings all pages back, and lets none leave from now on.
    pub(crate) fn freeze(&self) {
        let mut state = self.table.lock();
        state.is_frozen = true;
        let away: Vec<u64> = state.pages.keys().copied().collect();
        let strays: Vec<usize> = state.strays.keys().copied().collect();
        drop(state);
        for addr in strays {
            let _ = self.until_still(|| self.has_strayed(&mut self.table.lock(), addr));
        }
        for page in away {
            if let Err(error) = self.bring_back(page) {
                tracing::error!(target: "peerdma::hmm", "a page is lost: {error}");
            }
        }
    }

    /// Pages may leave again.
    pub(crate) fn thaw(&self) {
        self.table.lock().is_frozen = false;
        self.table.notify();
    }
}

/// Why a page is not back.
pub(crate) enum Restore {
    /// The program is changing the mapping.
    Again,
    /// Its bytes cannot be read any more.
    Lost(umem::Fault),
    /// The kernel refuses.
    System(Errno),
}

/// Drops a page of the process.
fn drop_page(addr: usize) -> std::result::Result<(), Errno> {
    // SAFETY: the bytes were copied, nobody can have written them since (they are write-protected),
    // and any thread that touches the page finds those bytes again, which this crate ensures. The
    // range is the mirror's by `Mirror::over`.
    unsafe { rustix::mm::madvise(as_ptr(addr), PAGE as usize, Advice::LinuxDontNeed) }
}
