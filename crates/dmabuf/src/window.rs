//! The bus window: where devices find memory. The MMU plays the role of the IOMMU.
//!
//! ```text
//!   bus addresses   |----------|  placement  |---|  placement  |-----|  retired  |-------------|
//!                    no access   pages of a        pages of a          no access (or poison)
//!                                pool file         pool file
//! ```
//!
//! A placement maps pages of a file at an address that was not used before; retiring it removes
//! access. So a device that copies through an address that it should have given up *faults*, as
//! behind an IOMMU, and [`describe`] tells which buffer had the address, since when it has been
//! invalid, and why. Without an IOMMU ([`Iommu::Off`]) nothing faults: reads return garbage and
//! writes are lost, as on such a machine.
//!
//! Addresses are reused when the history drops them: after [`HISTORY`] retirements, or when nothing
//! else is free. Between two placements there is a page without access.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use descriptors::Known;
use rustix::io::Errno;

use crate::fork::{self, Locked, Room};
use crate::sys::{self, Reservation};

/// How many retired placements are remembered.
pub const HISTORY: usize = 1024;

/// The size of a process's own window, if the system permits that many addresses.
const DEFAULT_LEN: u64 = 64 << 30;

/// Whether an access through a retired address is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is one or there is none")]
pub enum Iommu {
    /// It faults.
    #[default]
    On,
    /// It reaches other bytes.
    Off,
}

/// Bus addresses of this process. A clone is the same window.
#[derive(Clone, Debug)]
pub struct BusWindow {
    inner: Arc<Inner>,
}

/// Pages of a file at a bus address. Dropping it retires the address.
#[must_use = "the address is retired when the placement is dropped"]
#[derive(Debug)]
pub struct Placement {
    inner: Arc<Inner>,
    at: usize,
    len: usize,
    what: String,
}

/// What is known about an address that is no longer in use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retired {
    /// What was there.
    pub what: String,
    /// The first address of the placement.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// When it was retired.
    pub when: SystemTime,
    /// The reason.
    pub why: String,
}

/// Why something got no bus address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// Only whole pages can be placed.
    #[error("{len:#x} bytes at offset {offset:#x} of a file are not whole pages")]
    Unaligned {
        /// The offset in the file.
        offset: u64,
        /// The length.
        len: u64,
    },
    /// The window has no such range left.
    #[error("the bus window of {window:#x} bytes has no {len:#x} free ones in a row")]
    Full {
        /// The requested length.
        len: u64,
        /// Length of the window.
        window: u64,
    },
    /// The kernel refused.
    #[error("mmap of {len:#x} bytes at offset {offset:#x} of a file failed: {errno}")]
    System {
        /// The offset in the file.
        offset: u64,
        /// The length.
        len: u64,
        /// The kernel's reason.
        errno: Errno,
    },
}

#[derive(Debug)]
struct Inner {
    range: Reservation,
    iommu: Iommu,
    /// The file behind retired addresses when there is no IOMMU.
    poison: Option<Known>,
    state: Mutex<State>,
    /// Accesses through retired addresses, as reported.
    stale: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// Free ranges: start and length. Adjacent ranges are merged.
    free: BTreeMap<usize, usize>,
    /// Where to search for the next free range, so that addresses are reused late.
    next: usize,
    /// Retired placements, the latest last.
    history: VecDeque<Entry>,
}

#[derive(Debug)]
struct Entry {
    at: usize,
    len: usize,
    retired: Retired,
}

impl BusWindow {
    /// A window of `len` bytes (rounded up to pages), or of as much as the system permits, but at
    /// least a gigabyte.
    ///
    /// # Errors
    ///
    /// The kernel's error if not even that can be reserved.
    pub fn new(len: u64, iommu: Iommu) -> std::io::Result<Self> {
        let page = rustix::param::page_size();
        let len = usize::try_from(len).unwrap_or(usize::MAX / 2).next_multiple_of(page);
        let mut want = len.max(page);
        let range = loop {
            match Reservation::new(want) {
                Ok(range) => break range,
                Err(_) if want > 1 << 30 => want = (want / 2).next_multiple_of(page),
                Err(errno) => return Err(errno.into()),
            }
        };
        let poison = match iommu {
            Iommu::On => None,
            Iommu::Off => Some(Known::new(sys::poison_file()?)),
        };
        let state =
            State { free: BTreeMap::from([(0, range.len())]), next: 0, history: VecDeque::new() };
        let inner = Arc::new(Inner {
            range,
            iommu,
            poison,
            state: Mutex::new(state),
            stale: AtomicU64::new(0),
        });
        let mut windows = windows();
        windows.all.retain(|window| window.strong_count() > 0);
        windows.all.push(Arc::downgrade(&inner));
        Ok(Self { inner })
    }

    /// The window of this process in which buffers of other processes get their addresses.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn of_process() -> std::io::Result<Self> {
        if let Some(own) = &windows().own {
            return Ok(own.clone());
        }
        let made = Self::new(DEFAULT_LEN, Iommu::On)?;
        // The window of the thread that was first.
        Ok(windows().own.get_or_insert(made).clone())
    }

    /// Maps `len` bytes of `file` at `offset`, both multiples of the page size, at an address that
    /// is not in the history. `what` describes the bytes. A file that is open only for reading
    /// gives read-only addresses.
    ///
    /// # Errors
    ///
    /// [`PlaceError`].
    pub fn place(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        what: &str,
    ) -> Result<Placement, PlaceError> {
        let inner = &self.inner;
        let page = rustix::param::page_size() as u64;
        if len == 0 || !len.is_multiple_of(page) || !offset.is_multiple_of(page) {
            return Err(PlaceError::Unaligned { offset, len });
        }
        let system = |errno| PlaceError::System { offset, len, errno };
        let full = PlaceError::Full { len, window: inner.range.len() as u64 };
        let size = usize::try_from(len).map_err(|_| full.clone())?;
        let is_writable = sys::is_writable(file).map_err(system)?;
        let at = {
            let mut state = inner.state();
            loop {
                match state.allocate(size) {
                    Some(at) => break at,
                    None if state.forget_oldest(&inner.range, inner.iommu) => {}
                    None => return Err(full),
                }
            }
        };
        if let Err(errno) = inner.range.place(at, size, file, offset, is_writable) {
            inner.state().release(at, size);
            return Err(system(errno));
        }
        Ok(Placement { inner: Arc::clone(inner), at, len: size, what: what.to_owned() })
    }

    /// Retires a placement, and remembers why.
    ///
    /// # Panics
    ///
    /// If the placement belongs to another window.
    pub fn retire(&self, placement: Placement, why: impl Into<String>) {
        assert!(Arc::ptr_eq(&self.inner, &placement.inner), "a placement of this window");
        placement.retire(why);
    }

    /// Whether an address is in the window.
    pub fn contains(&self, addr: u64) -> bool {
        self.inner.offset(addr).is_some()
    }

    /// What had this address, if it was retired and is still in the history.
    pub fn describe(&self, addr: u64) -> Option<Retired> {
        let at = self.inner.offset(addr)?;
        let state = self.inner.state();
        let mut entries = state.history.iter().rev();
        let entry = entries.find(|entry| at >= entry.at && at - entry.at < entry.len)?;
        Some(entry.retired.clone())
    }

    /// As [`describe`](Self::describe), for code that caught a fault at `addr`: also counts the
    /// access if it was through a retired address.
    pub fn report_stale(&self, addr: u64) -> Option<Retired> {
        let retired = self.describe(addr)?;
        // ORDERING: counters that only grow and are only reported.
        self.inner.stale.fetch_add(1, Ordering::Relaxed);
        STALE.fetch_add(1, Ordering::Relaxed);
        Some(retired)
    }

    /// The number of reported accesses through retired addresses of this window.
    pub fn stale_accesses(&self) -> u64 {
        self.inner.stale.load(Ordering::Relaxed)
    }

    /// Whether accesses through retired addresses are stopped.
    pub fn iommu(&self) -> Iommu {
        self.inner.iommu
    }
}

/// What had this address, in any window of this process. For code that reports a fault that it
/// caught; not for a signal handler, since it takes locks.
pub fn describe(addr: u64) -> Option<Retired> {
    let windows: Vec<_> = windows().all.iter().filter_map(Weak::upgrade).collect();
    windows.into_iter().find_map(|inner| BusWindow { inner }.describe(addr))
}

/// As [`describe`], for code that caught a fault at `addr`: also counts the access if it was
/// through a retired address.
pub fn report_stale(addr: u64) -> Option<Retired> {
    let windows: Vec<_> = windows().all.iter().filter_map(Weak::upgrade).collect();
    windows.into_iter().find_map(|inner| BusWindow { inner }.report_stale(addr))
}

/// The number of reported accesses through retired addresses in this process, including windows
/// that are gone.
pub fn stale_accesses() -> u64 {
    STALE.load(Ordering::Relaxed)
}

/// The window of this process that has all of these addresses, if any. While it is held, only a
/// placement can be there, whatever happens to its exporter: an access reaches placed pages,
/// faults, or finds poison, but never memory of the program.
pub fn of(addr: u64, len: u64) -> Option<BusWindow> {
    let last = addr.checked_add(len.max(1) - 1)?;
    let windows: Vec<_> = windows().all.iter().filter_map(Weak::upgrade).collect();
    let has = |inner: &Arc<Inner>| inner.offset(addr).is_some() && inner.offset(last).is_some();
    windows.into_iter().find(has).map(|inner| BusWindow { inner })
}

impl Placement {
    /// The bus address.
    pub fn addr(&self) -> u64 {
        (self.inner.range.addr() + self.at) as u64
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Never true: a placement has at least one page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Removes access, and remembers why.
    pub fn retire(mut self, why: impl Into<String>) {
        self.end(why.into());
    }

    fn end(&mut self, why: String) {
        let (inner, at, len) = (&self.inner, self.at, self.len);
        if len == 0 || inner.range.is_husk() {
            return;
        }
        self.len = 0;
        let done = match &inner.poison {
            None => inner.range.retire(at, len),
            // Without the file, nothing is mapped there.
            Some(poison) => {
                let poisoned = inner.range.poison(at, len, poison);
                poisoned.or_else(|_| inner.range.retire(at, len))
            }
        };
        if let Err(errno) = done {
            // The addresses are never reused, but their contents stay accessible, so log that.
            tracing::error!("{} could not be retired from the bus window: {errno}", self.what);
            return;
        }
        let addr = (inner.range.addr() + at) as u64;
        let what = std::mem::take(&mut self.what);
        let retired = Retired { what, addr, len: len as u64, when: SystemTime::now(), why };
        let mut state = inner.state();
        state.history.push_back(Entry { at, len, retired });
        if state.history.len() > HISTORY {
            state.forget_oldest(&inner.range, inner.iommu);
        }
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        self.end("it was given back".to_owned());
    }
}

impl std::fmt::Display for Retired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, addr, len, when, why } = self;
        let ago = when.elapsed().unwrap_or_default();
        write!(f, "{what} at {addr:#x}, {len:#x} bytes, void since {ago:?}: {why}")
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn offset(&self, addr: u64) -> Option<usize> {
        let at = usize::try_from(addr).ok()?.checked_sub(self.range.addr())?;
        (at < self.range.len() && !self.range.is_husk()).then_some(at)
    }
}

impl State {
    /// Takes a range, and a page after it that stays without access.
    fn allocate(&mut self, len: usize) -> Option<usize> {
        let whole = len.checked_add(rustix::param::page_size())?;
        let fits = |(_, free): &(&usize, &usize)| **free >= whole;
        let next = self.next;
        let mut found = self.free.range(next..).find(fits);
        if found.is_none() {
            found = self.free.range(..next).find(fits);
        }
        let (&at, &free) = found?;
        self.free.remove(&at);
        if free > whole {
            self.free.insert(at + whole, free - whole);
        }
        self.next = at + whole;
        Some(at)
    }

    /// Frees a range.
    fn release(&mut self, at: usize, len: usize) {
        let (mut start, mut whole) = (at, len + rustix::param::page_size());
        if let Some((&before, &free)) = self.free.range(..at).next_back()
            && before + free == at
        {
            self.free.remove(&before);
            (start, whole) = (before, free + whole);
        }
        if let Some(free) = self.free.remove(&(start + whole)) {
            whole += free;
        }
        self.free.insert(start, whole);
    }

    /// Frees the addresses that were retired first. False if there are none.
    fn forget_oldest(&mut self, range: &Reservation, iommu: Iommu) -> bool {
        let Some(Entry { at, len, .. }) = self.history.pop_front() else { return false };
        // Free addresses have no access, unlike retired ones, which may.
        if iommu == Iommu::On || range.retire(at, len).is_ok() {
            self.release(at, len);
        }
        true
    }
}

/// The count behind [`stale_accesses`].
static STALE: AtomicU64 = AtomicU64::new(0);

/// The windows of this process.
#[derive(Debug)]
struct Windows {
    /// The window of [`BusWindow::of_process`].
    own: Option<BusWindow>,
    all: Vec<Weak<Inner>>,
}

fn windows() -> MutexGuard<'static, Windows> {
    static WINDOWS: Mutex<Windows> = Mutex::new(Windows { own: None, all: Vec::new() });
    fork::hold(Room::Windows, || Box::new(windows()));
    WINDOWS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Locked for MutexGuard<'static, Windows> {
    /// The windows belong to the parent.
    fn forget(&mut self) {
        // Dropping a husk does nothing, whichever thread holds its lock.
        self.own = None;
        self.all.clear();
    }
}

#[cfg(test)]
mod tests;
