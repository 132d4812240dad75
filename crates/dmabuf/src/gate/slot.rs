//! The side that accesses.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use descriptors::PrivateFd;
use rustix::fs::SealFlags;
use rustix::io::Errno;

use super::page::Page;
use super::protocol::{self, REVOKED, Words};
use super::{LENGTH, MAGIC, MAGIC_AT, OWNER, PATIENCE, SLOTS, WHY_AT, WHY_MAX};
use crate::fork::{self, Locked, Room};
use crate::sys::{self, SharedWords};

/// The slot by which this process enters a gate. All claims of the same gate in one process share
/// one slot; a clone is the same slot.
#[derive(Clone, Debug)]
pub struct GateSlot {
    inner: Arc<Inner>,
}

/// Proof that the buffer does not move while this exists. Guards nest, in one thread and among
/// several.
#[must_use = "the access ends when the guard is dropped"]
#[derive(Debug)]
pub struct GateGuard<'a> {
    inner: &'a Inner,
}

/// A [`GateGuard`] that keeps its slot, for an access that outlives the call that began it, such as
/// one that the kernel makes.
#[must_use = "the access ends when the guard is dropped"]
#[derive(Debug)]
pub struct OwnedGateGuard {
    slot: GateSlot,
}

/// Why an access did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(clippy::exhaustive_enums, reason = "there are no other states")]
pub enum Stale {
    /// The buffer is being moved. Map again.
    #[error("the buffer is being moved")]
    Closed,
    /// The buffer was moved since it was mapped. Map again.
    #[error("the buffer was moved after it was mapped")]
    Moved,
    /// The memory was taken away for good.
    #[error("the buffer was revoked")]
    Revoked,
    /// This is a forked child, and the slot belongs to its parent.
    #[error("the mapping belongs to the process that this one was forked from")]
    Husk,
}

/// The state of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are no other states")]
pub enum GateState {
    /// Callers that know the epoch may enter.
    Open {
        /// The epoch.
        epoch: u64,
    },
    /// Open, and its owner is dead: nothing will move any more.
    Orphaned {
        /// The epoch.
        epoch: u64,
    },
    /// A move is in progress.
    Closed {
        /// The epoch of the move: an odd number, between the epochs before and after it.
        epoch: u64,
    },
    /// Closed for good. A gate whose owner died in the middle of a move counts as revoked: nobody
    /// knows where the bytes are.
    Revoked,
}

/// Why no slot was claimed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The file is something else.
    #[error("the file is no gate: {why}")]
    NotAGate {
        /// What is wrong with it.
        why: &'static str,
    },
    /// Too many processes use the buffer.
    #[error("all {SLOTS} slots of the gate are taken by other processes")]
    Full,
    /// The kernel refused.
    #[error("{call} for a gate failed: {errno}")]
    System {
        /// The call.
        call: &'static str,
        /// The kernel's reason.
        errno: Errno,
    },
}

#[derive(Debug)]
struct Inner {
    /// An open file description of our own, or that of the gate's owner in this process: it holds
    /// the lock of the slot.
    page: Arc<Page>,
    slot: usize,
}

impl GateSlot {
    /// Claims a slot of the gate behind `fd`, which the caller may close afterwards.
    ///
    /// # Errors
    ///
    /// [`ClaimError`].
    pub fn claim(fd: BorrowedFd<'_>) -> Result<Self, ClaimError> {
        let system = |call| move |errno| ClaimError::System { call, errno };
        let (id, size) = sys::identity(fd).map_err(system("fstat"))?;
        let mut slots = slots();
        if let Some(inner) = slots.get(&id).and_then(Weak::upgrade) {
            return Ok(Self { inner });
        }
        let sealed = SealFlags::SHRINK | SealFlags::GROW;
        if !sys::seals(fd).is_some_and(|seals| seals.contains(sealed)) {
            return Err(ClaimError::NotAGate { why: "it can change its size" });
        }
        if size != LENGTH {
            return Err(ClaimError::NotAGate { why: "it has another size" });
        }
        let file = PrivateFd::new(sys::reopen(fd).map_err(system("open /proc/self/fd"))?);
        // CAST: two pages.
        let words = SharedWords::map(file.as_fd(), LENGTH as usize).map_err(system("mmap"))?;
        if words.load(MAGIC_AT, Ordering::Acquire) != MAGIC {
            return Err(ClaimError::NotAGate { why: "it has another layout" });
        }
        let page = Page::new(file, words, id, false);
        Self::take(&mut slots, Arc::new(page))
    }

    /// The slot of the gate's own process.
    pub(super) fn of_owner(page: &Arc<Page>) -> Result<Self, ClaimError> {
        if page.words.is_husk() {
            return Err(ClaimError::NotAGate { why: "it is that of the process's parent" });
        }
        let mut slots = slots();
        if let Some(inner) = slots.get(&page.id).and_then(Weak::upgrade) {
            return Ok(Self { inner });
        }
        Self::take(&mut slots, Arc::clone(page))
    }

    fn take(slots: &mut Slots, page: Arc<Page>) -> Result<Self, ClaimError> {
        let slot = lock_a_slot(&page.file)?;
        // The count that a dead owner left is void.
        page.words.store(protocol::count_at(slot), 0, Ordering::SeqCst);
        page.words.store(protocol::pid_at(slot), std::process::id().into(), Ordering::Relaxed);
        if page.is_owners.load(Ordering::Relaxed) {
            page.own_slot.store(slot, Ordering::Release);
        }
        let id = page.id;
        let inner = Arc::new(Inner { page, slot });
        slots.retain(|_, slot| slot.strong_count() > 0);
        slots.insert(id, Arc::downgrade(&inner));
        Ok(Self { inner })
    }

    /// Begins an access through addresses that are valid in `epoch`.
    ///
    /// # Errors
    ///
    /// [`Stale`]: they are no longer valid.
    #[inline]
    pub fn enter(&self, epoch: u64) -> Result<GateGuard<'_>, Stale> {
        let inner = &*self.inner;
        if inner.page.words.is_husk() {
            return Err(Stale::Husk);
        }
        match protocol::enter(&inner.page.words, inner.slot, epoch) {
            Ok(()) => Ok(GateGuard { inner }),
            Err(state) => Err(stale(state)),
        }
    }

    /// As [`enter`](Self::enter), for an access that ends elsewhere. It must end soon: a mover
    /// waits for it, at most for [`PATIENCE`](super::PATIENCE).
    ///
    /// # Errors
    ///
    /// [`Stale`].
    pub fn enter_owned(&self, epoch: u64) -> Result<OwnedGateGuard, Stale> {
        // From here on the count belongs to the new guard.
        std::mem::forget(self.enter(epoch)?);
        Ok(OwnedGateGuard { slot: self.clone() })
    }

    /// Whether an access with `epoch` could begin now. This is a hint: only a guard holds the
    /// buffer.
    #[inline]
    pub fn is_current(&self, epoch: u64) -> bool {
        !self.inner.page.words.is_husk()
            && protocol::is_open(epoch)
            && protocol::state(&self.inner.page.words) == epoch
    }

    /// The current state. Asks the kernel whether the owner lives.
    pub fn state(&self) -> GateState {
        let inner = &*self.inner;
        if inner.page.words.is_husk() {
            return GateState::Revoked;
        }
        // The owner first: if it was dead, the state is final.
        let is_owned = self.is_owned();
        match (protocol::state(&inner.page.words), is_owned) {
            (REVOKED, _) => GateState::Revoked,
            (epoch, true) if protocol::is_open(epoch) => GateState::Open { epoch },
            (epoch, false) if protocol::is_open(epoch) => GateState::Orphaned { epoch },
            (epoch, true) => GateState::Closed { epoch },
            (_, false) => GateState::Revoked,
        }
    }

    /// Why the owner took the memory away, if it gave a reason. Any process that has the gate could
    /// have written it, so it is truncated, and has no control characters.
    pub fn why(&self) -> Option<String> {
        let words = &self.inner.page.words;
        if words.is_husk() {
            return None;
        }
        // ORDERING: pairs with the release in `Gate::tell`.
        let len = usize::try_from(words.load(WHY_AT, Ordering::Acquire)).unwrap_or(0).min(WHY_MAX);
        let pieces = (0..len.div_ceil(8)).map(|at| words.load(WHY_AT + 1 + at, Ordering::Relaxed));
        let mut bytes: Vec<u8> = pieces.flat_map(u64::to_ne_bytes).collect();
        bytes.truncate(len);
        let plain = |c: char| if c.is_control() { '?' } else { c };
        let why: String = String::from_utf8_lossy(&bytes).chars().map(plain).collect();
        (!why.is_empty()).then_some(why)
    }

    /// The file, for other processes that access the same buffer: they claim slots of their own.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inner.page.file.as_fd()
    }

    /// Whether both enter the same gate.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Waits until no thread of this process is inside with `epoch`, which has ended or is about
    /// to. The gate is shut before it is empty, so when a thread sees it shut, others may still be
    /// inside.
    pub(crate) fn settle(&self, epoch: u64) {
        let inner = &*self.inner;
        let deadline = Instant::now() + PATIENCE;
        while !inner.page.words.is_husk() && !protocol::is_idle(&inner.page.words, inner.slot) {
            let state = protocol::state(&inner.page.words);
            if protocol::is_open(state) && state != epoch {
                // The mover waited for us before it opened.
                return;
            }
            if Instant::now() >= deadline {
                tracing::warn!("a mapping ends while this process is in the middle of an access");
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Whether the gate's owner lives.
    pub(crate) fn is_owned(&self) -> bool {
        let inner = &*self.inner;
        inner.page.words.is_husk()
            || inner.page.is_owners.load(Ordering::Acquire)
            || sys::is_locked(&inner.page.file, OWNER).unwrap_or(true)
    }

    /// For the processes that remain when the owner is dead: ends all access for good, in every
    /// process.
    pub(crate) fn revoke_orphan(&self) {
        if !self.inner.page.words.is_husk() && !self.is_owned() {
            protocol::shut(&self.inner.page.words, REVOKED);
        }
    }
}

impl Drop for GateGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // A child that was forked in the middle of an access has a copy of the guard; the count
        // belongs to its parent.
        if !self.inner.page.words.is_husk() {
            protocol::leave(&self.inner.page.words, self.inner.slot);
        }
    }
}

impl Drop for OwnedGateGuard {
    fn drop(&mut self) {
        drop(GateGuard { inner: &self.slot.inner });
    }
}

#[cold]
fn stale(state: u64) -> Stale {
    match state {
        REVOKED => Stale::Revoked,
        state if protocol::is_open(state) => Stale::Moved,
        _ => Stale::Closed,
    }
}

fn lock_a_slot(file: &PrivateFd) -> Result<usize, ClaimError> {
    for slot in 0..SLOTS {
        let locked = sys::try_lock(file, slot as u64);
        if locked.map_err(|errno| ClaimError::System { call: "F_OFD_SETLK", errno })? {
            return Ok(slot);
        }
    }
    Err(ClaimError::Full)
}

type Slots = BTreeMap<(u64, u64), Weak<Inner>>;

/// The slots of this process, by the identity of the gate's file.
fn slots() -> MutexGuard<'static, Slots> {
    static CLAIMED: Mutex<Slots> = Mutex::new(BTreeMap::new());
    fork::hold(Room::Slots, || Box::new(slots()));
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Locked for MutexGuard<'static, Slots> {
    /// The slots belong to the parent.
    fn forget(&mut self) {
        self.clear();
    }
}
