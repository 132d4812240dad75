//! Reads and writes by the device, wherever pages are; where each page is, and whether it was
//! written.

use rustix::io::Errno;

use crate::PAGE;
use crate::error::{Error, Result, system};
use crate::shared::Shared;
use crate::table::{Held, Place};

impl Shared {
    pub(crate) fn read_page(&self, page: u64, at: u64, out: &mut [u8]) -> Result<()> {
        // The destination may itself be a page of the range, which must not be touched under the
        // lock.
        let mut bytes = [0; PAGE as usize];
        let bytes = &mut bytes[..out.len()];
        let mut state = self.settled(page);
        match &state.page(page).held {
            Held::Device(slot) | Held::Exclusive(slot) => slot.read(at - page, bytes)?,
            Held::Gone => return Err(Error::Unmapped { offset: page }),
            Held::System => {
                state.page(page).busy += 1;
                drop(state);
                let done = self.cpu.read(at, out);
                self.is_done(page);
                return Ok(done?);
            }
        }
        drop(state);
        out.copy_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn write_page(&self, page: u64, at: u64, from: &[u8]) -> Result<()> {
        let mut bytes = [0; PAGE as usize];
        let bytes = &mut bytes[..from.len()];
        bytes.copy_from_slice(from);
        let mut state = self.settled(page);
        let known = state.page(page);
        match &known.held {
            Held::Device(slot) | Held::Exclusive(slot) => slot.write(at - page, bytes)?,
            Held::Gone => return Err(Error::Unmapped { offset: page }),
            Held::System => {
                known.busy += 1;
                drop(state);
                let done = self.cpu.write(at, bytes);
                self.is_done(page);
                return Ok(done?);
            }
        }
        if known.is_protected {
            (known.is_protected, known.is_written) = (false, true);
        }
        Ok(())
    }

    /// An access of the device to the process's memory is over.
    fn is_done(&self, page: u64) {
        let mut state = self.table.lock();
        state.page(page).busy -= 1;
        state.tidy(page);
        drop(state);
        self.table.notify();
    }

    pub(crate) fn place(&self, page: u64) -> Result<Place> {
        let state = self.settled(page);
        let known = state.pages.get(&page);
        Ok(match known.map(|known| &known.held) {
            Some(Held::Device(_)) => Place::Device,
            Some(Held::Exclusive(_)) => Place::Exclusive,
            Some(Held::Gone) => Place::Unmapped,
            Some(Held::System) | None if !self.pagemap.has_bytes(state.addr(page))? => {
                Place::Nowhere
            }
            _ if known.is_some_and(|known| known.is_protected) => Place::Unwritten,
            _ => Place::System,
        })
    }

    pub(crate) fn track(&self, page: u64) -> Result<()> {
        self.until_still(|| {
            let mut state = self.settled(page);
            let addr = state.addr(page);
            let known = state.page(page);
            if !matches!(known.held, Held::Gone) {
                (known.is_protected, known.is_written) = (true, false);
            }
            let has_bytes = || self.pagemap.has_bytes(addr).unwrap_or(true);
            match known.held {
                Held::System if has_bytes() => self.uffd.protect(addr, true),
                Held::Gone => Err(Errno::NOENT),
                _ => Ok(()),
            }
        })
        .map_err(|errno| match errno {
            Errno::NOENT => Error::Unmapped { offset: page },
            errno => system("UFFDIO_WRITEPROTECT")(errno),
        })
    }
}
