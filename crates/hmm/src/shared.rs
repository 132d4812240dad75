//! What the mirror and its thread share, and how each of them waits.

use std::os::fd::OwnedFd;
use std::sync::{MutexGuard, OnceLock};

use rustix::io::Errno;
use rustix::process::{Pid, getpid};
use umem::{HostBuf, Umem};

use crate::error::{Error, Result};
use crate::pagemap::PageMap;
use crate::pages::DevicePages;
use crate::table::{State, Table};
use crate::uffd::Uffd;

/// A mirror, as its calls, its thread and a fork see it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) uffd: Uffd,
    pub(crate) table: Table,
    pub(crate) pagemap: PageMap,
    /// The range, as the CPU sees it.
    pub(crate) cpu: Umem,
    pub(crate) len: u64,
    pub(crate) device: DevicePages,
    /// Memory for pages of which the device has exclusive use.
    pub(crate) held: OnceLock<DevicePages>,
    pub(crate) stop: OwnedFd,
    pub(crate) pid: Pid,
}

impl Shared {
    /// Refuses in the child of a fork.
    pub(crate) fn check(&self) -> Result<()> {
        if getpid() == self.pid { Ok(()) } else { Err(Error::Child) }
    }

    /// Memory for pages of which the device has exclusive use.
    pub(crate) fn held(&self) -> Result<&DevicePages> {
        if let Some(held) = self.held.get() {
            return Ok(held);
        }
        // CAST: as long as the range.
        let memory = HostBuf::anonymous(self.len as usize)?;
        Ok(self.held.get_or_init(|| DevicePages::new(Umem::host(&memory))))
    }

    /// The table, once no thread is moving the page.
    pub(crate) fn settled(&self, page: u64) -> MutexGuard<'_, State> {
        let mut state = self.table.lock();
        while state.is_moving(page) {
            state = self.table.wait(state);
        }
        state
    }

    /// Repeats a call while the kernel returns EAGAIN: a thread is changing the mapping, until the
    /// handler has read the event. So no thread may wait for that with the lock held.
    pub(crate) fn until_still<T>(
        &self,
        mut call: impl FnMut() -> std::result::Result<T, Errno>,
    ) -> std::result::Result<T, Errno> {
        loop {
            match call() {
                Err(Errno::AGAIN) => std::thread::yield_now(),
                other => return other,
            }
        }
    }
}

pub(crate) fn as_ptr(addr: usize) -> *mut std::ffi::c_void {
    std::ptr::with_exposed_provenance_mut(addr)
}
