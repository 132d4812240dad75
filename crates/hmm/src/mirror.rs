//! A range of the process that a device shares.
#![allow(unsafe_code, reason = "memory by address")]

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use rustix::mm::Advice;
use rustix::process::getpid;
use umem::{HostBuf, Umem};

use crate::error::{Error, Result, system};
use crate::moves::{Migrated, Target};
use crate::pagemap::PageMap;
use crate::pages::DevicePages;
use crate::range::{touched, whole};
use crate::shared::{Shared, as_ptr};
use crate::stats::Stats;
use crate::table::{Held, Place, Table};
use crate::uffd::Uffd;
use crate::{PAGE, fork, handler};

/// A range of the process's memory whose pages may live in a device. Dropping it brings all of them
/// back; what it allocated itself goes with it and with the last [`Umem`] of it.
#[derive(Debug)]
pub struct Mirror {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    buffer: Option<HostBuf>,
}

impl Mirror {
    /// `len` new bytes, in whole pages, of which some may live in the device.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] for a length of zero or not of whole pages; [`Error::System`] where the
    /// kernel has no userfaultfd.
    pub fn new(len: u64, device: DevicePages) -> Result<Self> {
        check_len(0, len)?;
        // CAST: Linux has no process with fewer bits than this.
        let buffer = HostBuf::anonymous(len as usize)?;
        let cpu = Umem::host(&buffer);
        Self::start(buffer.as_ptr().addr(), len, cpu, device, Some(buffer))
    }

    /// Memory that the program has already. Its bytes stay, under their addresses.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new); [`Error::System`] with EINVAL for memory that is not private and
    /// anonymous, EBUSY for memory of another mirror.
    ///
    /// # Safety
    ///
    /// The range is private anonymous memory, mapped now. No memory that it or another mirror
    /// covers is part of `device`, nor the stack of a thread of the library. The requirements of
    /// [`Umem::user`] also apply.
    pub unsafe fn over(addr: usize, len: u64, device: DevicePages) -> Result<Self> {
        check_len(addr as u64, len)?;
        // SAFETY: the caller's promise.
        let cpu = unsafe { Umem::user(addr, len) };
        Self::start(addr, len, cpu, device, None)
    }

    fn start(
        addr: usize,
        len: u64,
        cpu: Umem,
        device: DevicePages,
        buffer: Option<HostBuf>,
    ) -> Result<Self> {
        // A huge page would come back as one that is not.
        // SAFETY: advice about a range that is mapped; it changes no byte.
        let advised = unsafe {
            // CAST: as long as a mapping of this process.
            rustix::mm::madvise(as_ptr(addr), len as usize, Advice::LinuxNoHugepage)
        };
        if let Err(errno) = advised {
            tracing::debug!(target: "peerdma::hmm", "MADV_NOHUGEPAGE: {errno}");
        }
        let uffd = Uffd::open()?;
        uffd.register(addr, len).map_err(system("UFFDIO_REGISTER"))?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(system("eventfd"))?;
        let shared = Arc::new(Shared {
            uffd,
            table: Table::new(addr),
            pagemap: PageMap::open()?,
            cpu,
            len,
            device,
            held: OnceLock::new(),
            stop,
            pid: getpid(),
        });
        let ours = Arc::clone(&shared);
        let thread = threads::spawn("peerdma-hmm", move || handler::run(&ours))?;
        fork::register(&shared);
        Ok(Self { shared, thread: Some(thread), buffer })
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.shared.len
    }

    /// Never: it has at least one page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Its current address.
    pub fn addr(&self) -> usize {
        self.shared.table.lock().base
    }

    /// The range as the CPU sees it: a touch brings a page back.
    pub fn umem(&self) -> &Umem {
        &self.shared.cpu
    }

    /// The memory of a mirror that made its own, for a NIC to register.
    pub fn host_buf(&self) -> Option<&HostBuf> {
        self.buffer.as_ref()
    }

    /// Whether the kernel reports faults of user mode only, as the process has no privilege for
    /// more (`vm.unprivileged_userfaultfd`, CAP_SYS_PTRACE): a system call that touches a page in
    /// the device fails then.
    pub fn is_user_mode_only(&self) -> bool {
        self.shared.uffd.is_user_mode_only()
    }

    /// What has moved.
    pub fn stats(&self) -> Stats {
        self.shared.table.lock().stats
    }

    /// The device reads, wherever the pages are.
    ///
    /// # Errors
    ///
    /// [`Error::Range`], [`Error::Unmapped`], [`Error::Memory`].
    #[doc(alias = "HMM_DMIRROR_READ")]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.shared.check()?;
        let mut rest = out;
        let mut at = offset;
        for page in touched("read", self.shared.len, offset, rest.len() as u64)? {
            let (part, more) = rest.split_at_mut(part_of(page, at, rest.len()));
            self.shared.read_page(page, at, part)?;
            (at, rest) = (at + part.len() as u64, more);
        }
        Ok(())
    }

    /// The device writes, wherever the pages are.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[doc(alias = "HMM_DMIRROR_WRITE")]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.shared.check()?;
        let (mut rest, mut at) = (bytes, offset);
        for page in touched("write", self.shared.len, offset, rest.len() as u64)? {
            let (part, more) = rest.split_at(part_of(page, at, rest.len()));
            self.shared.write_page(page, at, part)?;
            (at, rest) = (at + part.len() as u64, more);
        }
        Ok(())
    }

    /// Where each page of a range is. No page moves.
    ///
    /// # Errors
    ///
    /// [`Error::Range`]; [`Error::Thread`] if `/proc` cannot be read.
    #[doc(alias = "HMM_DMIRROR_SNAPSHOT")]
    pub fn snapshot(&self, offset: u64, len: u64) -> Result<Vec<Place>> {
        self.shared.check()?;
        let pages = whole("snapshot", self.shared.len, offset, len)?;
        pages.map(|page| self.shared.place(page)).collect()
    }

    /// From now on, tracks which of these pages the CPU or the device writes.
    ///
    /// # Errors
    ///
    /// [`Error::Range`], [`Error::System`].
    #[doc(alias = "UFFDIO_WRITEPROTECT")]
    pub fn track_writes(&self, offset: u64, len: u64) -> Result<()> {
        self.shared.check()?;
        for page in whole("track_writes", self.shared.len, offset, len)? {
            self.shared.track(page)?;
        }
        Ok(())
    }

    /// The offsets of the tracked pages that were written since. They are tracked anew.
    ///
    /// # Errors
    ///
    /// As [`track_writes`](Self::track_writes).
    pub fn take_written(&self, offset: u64, len: u64) -> Result<Vec<u64>> {
        self.shared.check()?;
        let mut written = Vec::new();
        for page in whole("take_written", self.shared.len, offset, len)? {
            let is_written =
                self.shared.table.lock().pages.get(&page).is_some_and(|known| known.is_written);
            if is_written {
                self.shared.track(page)?;
                written.push(page);
            }
        }
        Ok(written)
    }

    /// Moves pages to the device. The CPU gets each back by touching it.
    ///
    /// # Errors
    ///
    /// [`Error::Range`], [`Error::Unmapped`], [`Error::System`]; pages before that have moved. Lack
    /// of memory in the device is not an error: see [`Migrated::skipped`].
    #[doc(alias = "HMM_DMIRROR_MIGRATE_TO_DEV")]
    #[doc(alias = "migrate_vma_setup")]
    pub fn migrate_to_device(&self, offset: u64, len: u64) -> Result<Migrated> {
        self.leave("migrate_to_device", offset, len, Target::Device)
    }

    /// Brings pages back from the device. Pages of which it has exclusive use stay so.
    ///
    /// # Errors
    ///
    /// As [`migrate_to_device`](Self::migrate_to_device).
    #[doc(alias = "HMM_DMIRROR_MIGRATE_TO_SYS")]
    pub fn migrate_to_system(&self, offset: u64, len: u64) -> Result<()> {
        let shared = &self.shared;
        shared.check()?;
        for page in whole("migrate_to_system", shared.len, offset, len)? {
            shared.bring_from_device(page)?;
        }
        Ok(())
    }

    /// Takes pages out of the CPU's reach, so that the device can work on them atomically. The
    /// first touch of the CPU ends that.
    ///
    /// # Errors
    ///
    /// As [`migrate_to_device`](Self::migrate_to_device).
    #[doc(alias = "HMM_DMIRROR_EXCLUSIVE")]
    pub fn exclusive(&self, offset: u64, len: u64) -> Result<Migrated> {
        self.leave("exclusive", offset, len, Target::Exclusive)
    }

    /// Whether the device still has exclusive use of all these pages.
    ///
    /// # Errors
    ///
    /// [`Error::Range`].
    #[doc(alias = "HMM_DMIRROR_CHECK_EXCLUSIVE")]
    pub fn check_exclusive(&self, offset: u64, len: u64) -> Result<bool> {
        let shared = &self.shared;
        shared.check()?;
        let mut pages = whole("check_exclusive", shared.len, offset, len)?;
        Ok(pages.all(|page| {
            let state = shared.settled(page);
            state.pages.get(&page).is_some_and(|known| matches!(known.held, Held::Exclusive(_)))
        }))
    }

    fn leave(&self, call: &'static str, offset: u64, len: u64, target: Target) -> Result<Migrated> {
        let shared = &self.shared;
        shared.check()?;
        let mut migrated = Migrated::default();
        for page in whole(call, shared.len, offset, len)? {
            if shared.leave(page, target)? {
                migrated.pages += 1;
            } else {
                migrated.skipped += 1;
                shared.table.lock().stats.skipped += 1;
            }
        }
        Ok(migrated)
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.shared.check().is_err() {
            // Neither the thread nor the userfaultfd is the child's.
            std::mem::forget(thread);
            return;
        }
        self.shared.freeze();
        let base = self.shared.table.lock().base;
        if let Err(errno) = self.shared.uffd.unregister(base, self.shared.len) {
            tracing::debug!(target: "peerdma::hmm", "UFFDIO_UNREGISTER: {errno}");
        }
        if rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes()).is_ok() {
            let _ = thread.join();
        }
    }
}

fn check_len(addr: u64, len: u64) -> Result<()> {
    let why = if len == 0 {
        "a mirror has at least one page"
    } else if !len.is_multiple_of(PAGE) || !addr.is_multiple_of(PAGE) {
        "not of whole pages"
    } else {
        return Ok(());
    };
    Err(Error::Range { call: "mirror", offset: addr, len, why })
}

/// How many of the `rest` bytes from `at` on lie in a page.
fn part_of(page: u64, at: u64, rest: usize) -> usize {
    // CAST: at most a page.
    rest.min((page + PAGE - at) as usize)
}
