//! Where each page is, and what is being done with it.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::pages::Slot;
use crate::stats::Stats;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are no other places")]
pub enum Place {
    /// Nowhere: it was not touched yet, or the program dropped it. It reads as zeros.
    Nowhere,
    /// In the process.
    System,
    /// In the process, write-protected: nobody wrote it since [`Mirror::track_writes`].
    ///
    /// [`Mirror::track_writes`]: crate::Mirror::track_writes
    Unwritten,
    /// In the device.
    #[doc(alias = "HMM_DMIRROR_PROT_DEV_PRIVATE_LOCAL")]
    Device,
    /// Held for the device alone.
    #[doc(alias = "make_device_exclusive")]
    Exclusive,
    /// The program has unmapped it.
    Unmapped,
}

/// Where a page's bytes are.
#[derive(Debug, Default)]
pub(crate) enum Held {
    /// In the process, if anywhere.
    #[default]
    System,
    /// In the device.
    Device(Slot),
    /// In memory of the mirror.
    Exclusive(Slot),
    /// It is unmapped.
    Gone,
}

/// The progress of a page that leaves ([`crate::moves`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moving {
    /// Its bytes are copied. The CPU may read it.
    Copies,
    /// It is being dropped, or was never there. Faults wait.
    Drops,
}

/// A page that is anything but an ordinary one of the process.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) held: Held,
    /// Accesses of the device to the process's memory, under way without the lock.
    pub(crate) busy: u32,
    /// A thread is moving it.
    pub(crate) moving: Option<Moving>,
    /// Removals of ours that the kernel has yet to report.
    pub(crate) own_removals: u32,
    /// Writes are tracked, and there has been none yet.
    pub(crate) is_protected: bool,
    /// Writes are tracked, and there has been one.
    pub(crate) is_written: bool,
}

impl Page {
    /// Whether nothing needs to be remembered of it.
    pub(crate) fn is_ordinary(&self) -> bool {
        matches!(self.held, Held::System)
            && self.busy == 0
            && self.moving.is_none()
            && self.own_removals == 0
            && !self.is_protected
            && !self.is_written
    }
}

/// The table that the lock guards.
#[derive(Debug)]
pub(crate) struct State {
    /// Where the range begins now: the program may move it as a whole.
    pub(crate) base: usize,
    /// By their offsets in the range. Those that are not here are ordinary ones.
    pub(crate) pages: BTreeMap<u64, Page>,
    /// Pages that are away, of parts that the program moved out of the range: by their addresses.
    pub(crate) strays: BTreeMap<usize, Slot>,
    /// The process is about to fork: nothing leaves its memory.
    pub(crate) is_frozen: bool,
    pub(crate) stats: Stats,
}

/// The table of a mirror.
#[derive(Debug)]
pub(crate) struct Table {
    state: Mutex<State>,
    changed: Condvar,
}

impl Table {
    pub(crate) fn new(base: usize) -> Self {
        let stats = Stats::default();
        let (pages, strays) = (BTreeMap::new(), BTreeMap::new());
        let state = State { base, pages, strays, is_frozen: false, stats };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something changes.
    pub(crate) fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Something changed that others may wait for.
    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }
}

impl State {
    /// The page, to be changed.
    pub(crate) fn page(&mut self, offset: u64) -> &mut Page {
        self.pages.entry(offset).or_default()
    }

    /// Forgets a page of which nothing needs to be remembered.
    pub(crate) fn tidy(&mut self, offset: u64) {
        if self.pages.get(&offset).is_some_and(Page::is_ordinary) {
            self.pages.remove(&offset);
        }
    }

    /// Whether a thread is moving it, or accessing it for the device.
    pub(crate) fn is_moving(&self, offset: u64) -> bool {
        self.pages.get(&offset).is_some_and(|page| page.moving.is_some())
    }

    pub(crate) fn is_busy(&self, offset: u64) -> bool {
        self.pages.get(&offset).is_some_and(|page| page.moving.is_some() || page.busy > 0)
    }

    pub(crate) fn addr(&self, offset: u64) -> usize {
        // CAST: inside the range.
        self.base + offset as usize
    }
}
