//! The fences of a buffer: which work still uses the memory, and what waits for it.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Resv, ResvGuard};
use crate::fence::{Fence, TimedOut, deadline_of, left_until};

/// The kind of work of a fence in a [`Resv`]. The order is the rule: asking for a class returns
/// that class and all lower ones (`docs/semantics.md` 1.7).
#[doc(alias = "dma_resv_usage")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_enums, reason = "the classes the kernel knows")]
pub enum Usage {
    /// Memory management: a move, a clear. Every user waits for these before accessing the memory,
    /// unless it is pinned.
    Kernel,
    /// A submission that writes, for implicit synchronisation.
    Write,
    /// A submission that reads, for implicit synchronisation.
    Read,
    /// Nothing to do with implicit synchronisation: a TLB flush, a preemption, a job synchronised
    /// explicitly. Only code that moves or frees the memory waits for these.
    Bookkeep,
}

/// Why no slots were reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// None were requested (EINVAL).
    #[error("no slots for fences were requested: at least one is reserved")]
    Zero,
    /// There is no memory for this many (ENOMEM).
    #[error("no memory for {slots} slots for fences")]
    NoMemory {
        /// How many were requested.
        slots: usize,
    },
}

/// Why a fence was not added: a bug in the caller; debug builds panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddFenceError {
    /// No slot was reserved since the lock was taken.
    #[error(
        "a fence is added without a reserved slot: reserve_fences comes first, and its slots end with the lock"
    )]
    NoSlot,
    /// The fence holds others, each of which must be added.
    #[error("a fence array or chain is added as one fence: containers are unwrapped first")]
    Container,
}

#[derive(Default)]
pub(super) struct FenceList {
    entries: Vec<(Fence, Usage)>,
    /// How many entries there may be until the lock is released.
    max: usize,
}

impl Usage {
    /// All classes, lowest first.
    pub const ALL: [Self; 4] = [Self::Kernel, Self::Write, Self::Read, Self::Bookkeep];

    /// What a user with implicit synchronisation waits for: a writer waits for all readers and
    /// writers, a reader for all writers.
    #[doc(alias = "dma_resv_usage_rw")]
    pub fn implicit(is_write: bool) -> Self {
        if is_write { Self::Read } else { Self::Write }
    }

    /// As debugfs writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Write => "write",
            Self::Read => "read",
            Self::Bookkeep => "bookkeep",
        }
    }
}

impl Resv {
    /// The fences of class `usage` and lower that are not signaled, lowest class first.
    #[doc(alias = "dma_resv_for_each_fence")]
    #[doc(alias = "dma_resv_get_fences")]
    pub fn fences(&self, usage: Usage) -> Vec<(Fence, Usage)> {
        let mut entries = self.entries(usage);
        entries.retain(|(fence, _)| !fence.is_signaled());
        entries.sort_by_key(|(_, usage)| *usage);
        entries
    }

    /// One fence for all fences of class `usage` and lower; a signaled fence if there are none.
    #[doc(alias = "dma_resv_get_singleton")]
    pub fn singleton(&self, usage: Usage) -> Fence {
        let fences: Vec<_> = self.fences(usage).into_iter().map(|(fence, _)| fence).collect();
        Fence::all_of(fences)
    }

    /// Whether every fence of class `usage` and lower is signaled.
    #[doc(alias = "dma_resv_test_signaled")]
    pub fn test_signaled(&self, usage: Usage) -> bool {
        self.entries(usage).iter().all(|(fence, _)| fence.is_signaled())
    }

    /// Waits for the fences of class `usage` and lower: at most `limit`, or for as long as it
    /// takes. With the lock held or without. If all are signaled, even a limit of zero is enough.
    ///
    /// # Errors
    ///
    /// [`TimedOut`].
    #[doc(alias = "dma_resv_wait_timeout")]
    pub fn wait(&self, usage: Usage, limit: Option<Duration>) -> Result<(), TimedOut> {
        let deadline = deadline_of(limit);
        for (fence, _) in self.fences(usage) {
            fence.wait(left_until(deadline))?;
        }
        Ok(())
    }

    /// Tells the producers of the fences of class `usage` and lower by when a user would like them
    /// to be done.
    #[doc(alias = "dma_resv_set_deadline")]
    pub fn set_deadline(&self, usage: Usage, deadline: Instant) {
        for (fence, _) in self.fences(usage) {
            fence.set_deadline(deadline);
        }
    }

    pub(super) fn list(&self) -> MutexGuard<'_, FenceList> {
        self.inner.fences.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entries(&self, usage: Usage) -> Vec<(Fence, Usage)> {
        self.list().entries.iter().filter(|(_, of)| *of <= usage).cloned().collect()
    }
}

impl ResvGuard<'_> {
    /// Makes room for `slots` fences, so that [`add_fence`](Self::add_fence) cannot fail at a point
    /// of no return. The room is lost when the lock is released. Reserving twice does not add up.
    ///
    /// # Errors
    ///
    /// [`ReserveError`].
    #[doc(alias = "dma_resv_reserve_fences")]
    pub fn reserve_fences(&self, slots: usize) -> Result<(), ReserveError> {
        if slots == 0 {
            return Err(ReserveError::Zero);
        }
        let mut list = self.resv.list();
        // Make room before allocating more: signaled fences are of no use.
        let signaled = list.take_signaled();
        let result = list.entries.try_reserve(slots).map_err(|_| ReserveError::NoMemory { slots });
        if result.is_ok() {
            list.max = list.max.max(list.entries.len() + slots);
        }
        drop(list);
        drop(signaled);
        result
    }

    /// Adds a fence of class `usage`. It replaces an entry of the same context that is of the same
    /// or a higher class and not later, or a signaled entry, and otherwise takes a reserved slot.
    /// So a fence can be promoted, say from [`Bookkeep`](Usage::Bookkeep) to
    /// [`Read`](Usage::Read), but never demoted.
    ///
    /// # Errors
    ///
    /// [`AddFenceError`], in release builds.
    ///
    /// # Panics
    ///
    /// In debug builds, instead of returning an error.
    #[doc(alias = "dma_resv_add_fence")]
    #[track_caller]
    pub fn add_fence(&self, fence: &Fence, usage: Usage) -> Result<(), AddFenceError> {
        let result = if fence.is_container() {
            Err(AddFenceError::Container)
        } else {
            self.resv.list().add(fence, usage)
        };
        debug_assert!(result.is_ok(), "{}", result.expect_err("checked"));
        result
    }

    /// Replaces all fences of one context by `fence`, of class `usage`, when the work that they
    /// stood for can no longer happen.
    #[doc(alias = "dma_resv_replace_fences")]
    pub fn replace_fences(&self, context: u64, fence: &Fence, usage: Usage) {
        let mut list = self.resv.list();
        for entry in list.entries.iter_mut().filter(|(old, _)| old.context() == context) {
            *entry = (fence.clone(), usage);
        }
    }

    /// Adds the fences of `from` to this object, as when content moves between buffers.
    ///
    /// # Errors
    ///
    /// [`ReserveError::NoMemory`].
    #[doc(alias = "dma_resv_copy_fences")]
    pub fn copy_fences(&self, from: &Resv) -> Result<(), ReserveError> {
        let fences = from.fences(Usage::Bookkeep);
        if fences.is_empty() {
            return Ok(());
        }
        self.reserve_fences(fences.len())?;
        for (fence, usage) in fences {
            self.add_fence(&fence, usage)
                .expect("a slot was reserved for each, and none is a container");
        }
        Ok(())
    }
}

impl FenceList {
    fn add(&mut self, fence: &Fence, usage: Usage) -> Result<(), AddFenceError> {
        let is_replaced = |old: &Fence, old_usage: Usage| {
            (old.context() == fence.context() && old_usage >= usage && fence.is_later_or_same(old))
                || old.is_signaled()
        };
        if let Some(entry) = self.entries.iter_mut().find(|(old, of)| is_replaced(old, *of)) {
            *entry = (fence.clone(), usage);
            return Ok(());
        }
        if self.entries.len() >= self.max {
            return Err(AddFenceError::NoSlot);
        }
        self.entries.push((fence.clone(), usage));
        Ok(())
    }

    pub(super) fn forget_reserved(&mut self) {
        self.max = self.entries.len();
    }

    fn take_signaled(&mut self) -> Vec<(Fence, Usage)> {
        let (signaled, rest) = std::mem::take(&mut self.entries)
            .into_iter()
            .partition(|(fence, _)| fence.is_signaled());
        self.entries = rest;
        signaled
    }
}
