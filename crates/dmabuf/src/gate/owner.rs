//! The side that closes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use descriptors::PrivateFd;

use super::page::Page;
use super::protocol::{self, FIRST, REVOKED, Words};
use super::{ClaimError, GateSlot, LENGTH, MAGIC, MAGIC_AT, OWNER, SLOTS, WHY_AT, WHY_MAX};
use crate::sys::{self, SharedWords};

/// How long a mover waits for accesses in progress. A copy of [`PIECE`](super::PIECE) bytes takes
/// microseconds; a process that is inside for seconds is stopped, or hostile.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The exporter's side of a gate. A clone is the same gate.
#[derive(Clone, Debug)]
pub struct Gate {
    inner: Arc<Inner>,
}

/// The gate is closed and nobody is inside. Dropping it opens the gate in a new epoch.
#[must_use = "the gate opens when the guard is dropped"]
#[derive(Debug)]
pub struct Closed {
    /// Taken out when the guard is dropped.
    gate: Option<Arc<Inner>>,
}

/// Why a gate did not close.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// A process stayed inside for too long.
    #[error(
        "{} is in the middle of an access to {name} for {waited:?}, and nothing can move before it is done",
        who(*.pid)
    )]
    Held {
        /// The gate's name.
        name: String,
        /// The process that holds it, by its own account.
        pid: Option<u32>,
        /// How long we waited.
        waited: Duration,
    },
    /// The memory was taken away for good.
    #[error("{name} was revoked")]
    Revoked {
        /// The gate's name.
        name: String,
    },
    /// This is a forked child, and the gate belongs to its parent.
    #[error("the gate of {name} belongs to the process that this one was forked from")]
    Husk {
        /// The gate's name.
        name: String,
    },
}

#[derive(Debug)]
struct Inner {
    name: String,
    page: Arc<Page>,
    /// The slot of this process, once a thread has entered.
    slot: OnceLock<GateSlot>,
    state: Mutex<State>,
    opened: Condvar,
}

/// What the owner itself knows, whatever others write into the page.
#[derive(Debug)]
struct State {
    epoch: u64,
    is_closed: bool,
    is_revoked: bool,
}

impl Words for SharedWords {
    #[inline]
    fn load(&self, index: usize, order: Ordering) -> u64 {
        self.word(index).load(order)
    }

    #[inline]
    fn store(&self, index: usize, value: u64, order: Ordering) {
        self.word(index).store(value, order);
    }

    #[inline]
    fn add(&self, index: usize, order: Ordering) {
        self.word(index).fetch_add(1, order);
    }

    #[inline]
    fn sub(&self, index: usize, order: Ordering) {
        self.word(index).fetch_sub(1, order);
    }
}

impl Gate {
    /// An open gate for the buffer with this name.
    ///
    /// # Errors
    ///
    /// The kernel's error: no descriptors, or no memory.
    pub fn new(name: &str) -> io::Result<Self> {
        let file = PrivateFd::new(sys::sealed_memfd("peerdma-gate", LENGTH)?);
        // CAST: two pages.
        let words = SharedWords::map(file.as_fd(), LENGTH as usize)?;
        if !sys::try_lock(&file, OWNER)? {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        protocol::open(&words, FIRST);
        words.store(MAGIC_AT, MAGIC, Ordering::Release);
        let state = State { epoch: FIRST, is_closed: false, is_revoked: false };
        let (id, _) = sys::identity(file.as_fd())?;
        let page = Arc::new(Page::new(file, words, id, true));
        let (slot, state, opened) = (OnceLock::new(), Mutex::new(state), Condvar::new());
        Ok(Self { inner: Arc::new(Inner { name: name.to_owned(), page, slot, state, opened }) })
    }

    /// The slot by which this process enters its own gate. Only the first call costs anything.
    ///
    /// # Errors
    ///
    /// [`ClaimError`].
    pub fn slot(&self) -> Result<GateSlot, ClaimError> {
        let inner = &self.inner;
        if let Some(slot) = inner.slot.get() {
            return Ok(slot.clone());
        }
        let slot = GateSlot::of_owner(&inner.page)?;
        Ok(inner.slot.get_or_init(|| slot).clone())
    }

    /// The file, for accessors of this and other processes:
    /// [`GateSlot::claim`](super::GateSlot::claim).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inner.page.file.as_fd()
    }

    /// The epoch for a table made now. While the gate is closed it is the epoch that ended, with
    /// which nobody gets in.
    pub fn epoch(&self) -> u64 {
        if self.inner.page.words.is_husk() {
            return REVOKED;
        }
        self.inner.state().epoch
    }

    /// Whether an access with `epoch` could begin now.
    pub fn admits(&self, epoch: u64) -> bool {
        if self.inner.page.words.is_husk() {
            return false;
        }
        let state = self.inner.state();
        state.epoch == epoch && !state.is_closed && !state.is_revoked
    }

    /// Whether the memory was taken away for good.
    pub fn is_revoked(&self) -> bool {
        self.inner.page.words.is_husk() || self.inner.state().is_revoked
    }

    /// Stops all access: when this returns, nobody is inside, and nobody enters until the guard is
    /// dropped. Waits for another mover of the same gate, and at most [`PATIENCE`] for accesses in
    /// progress.
    ///
    /// # Errors
    ///
    /// [`GateError`]. The gate is open as it was.
    pub fn close(&self) -> Result<Closed, GateError> {
        self.close_within(PATIENCE)
    }

    /// As [`close`](Self::close), with another limit for accesses in progress.
    ///
    /// # Errors
    ///
    /// [`GateError`]. The gate is open as it was.
    pub fn close_within(&self, limit: Duration) -> Result<Closed, GateError> {
        let inner = &self.inner;
        inner.check_husk()?;
        let mut state = inner.state();
        while state.is_closed && !state.is_revoked {
            state = inner.opened.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_revoked {
            return Err(GateError::Revoked { name: inner.name.clone() });
        }
        protocol::shut(&inner.page.words, state.epoch + 1);
        state.is_closed = true;
        drop(state);
        let closed = Closed { gate: Some(Arc::clone(inner)) };
        match inner.drain(limit) {
            Ok(()) => Ok(closed),
            Err(held) => {
                closed.reopen();
                Err(held)
            }
        }
    }

    /// Sets why the memory will be taken away, for processes that then find the gate shut:
    /// [`GateSlot::why`].
    pub fn tell(&self, why: &str) {
        let words = &self.inner.page.words;
        if words.is_husk() {
            return;
        }
        let len = why.len().min(WHY_MAX);
        words.store(WHY_AT, 0, Ordering::Relaxed);
        for (at, piece) in why.as_bytes()[..len].chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..piece.len()].copy_from_slice(piece);
            words.store(WHY_AT + 1 + at, u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        // ORDERING: pairs with the acquire in `GateSlot::why`.
        words.store(WHY_AT, len as u64, Ordering::Release);
    }

    /// Ends all access for good, and waits at most [`PATIENCE`] for accesses in progress. Does
    /// nothing if that was done before.
    ///
    /// # Errors
    ///
    /// [`GateError::Held`]: nobody enters any more, but an access is still in progress.
    /// [`GateError::Husk`].
    pub fn revoke(&self) -> Result<(), GateError> {
        self.inner.check_husk()?;
        self.inner.revoke();
        self.inner.drain(PATIENCE)
    }
}

impl Closed {
    /// Opens the gate in a new epoch, and returns that. Every earlier mapping is stale.
    pub fn open(mut self) -> u64 {
        self.gate.take().map_or(REVOKED, |gate| gate.open(2))
    }

    /// Opens the gate in the epoch in which it was closed: nothing has changed, and mappings stay
    /// valid.
    pub fn reopen(mut self) {
        if let Some(gate) = self.gate.take() {
            gate.open(0);
        }
    }

    /// Ends all access for good.
    pub fn revoke(mut self) {
        if let Some(gate) = self.gate.take() {
            gate.revoke();
        }
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        if let Some(gate) = self.gate.take() {
            gate.open(2);
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_husk(&self) -> Result<(), GateError> {
        if self.page.words.is_husk() {
            return Err(GateError::Husk { name: self.name.clone() });
        }
        Ok(())
    }

    fn open(&self, step: u64) -> u64 {
        let mut state = self.state();
        if state.is_closed && !state.is_revoked && !self.page.words.is_husk() {
            state.epoch += step;
            state.is_closed = false;
            protocol::open(&self.page.words, state.epoch);
            self.opened.notify_all();
        }
        state.epoch
    }

    fn revoke(&self) {
        let mut state = self.state();
        state.is_revoked = true;
        if !self.page.words.is_husk() {
            protocol::shut(&self.page.words, REVOKED);
        }
        self.opened.notify_all();
    }

    /// Waits until no living process is inside.
    fn drain(&self, limit: Duration) -> Result<(), GateError> {
        let start = Instant::now();
        for slot in 0..SLOTS {
            let mut rounds = 0u32;
            let mut nap = Duration::from_micros(20);
            while !protocol::is_idle(&self.page.words, slot) {
                rounds += 1;
                if rounds < 200 {
                    std::hint::spin_loop();
                    continue;
                }
                // If the lock cannot be queried, it is assumed to be held: better to wait than to
                // overwrite.
                // ORDERING: set before anybody entered by that slot, as the count that was seen
                // shows.
                if self.page.own_slot.load(Ordering::Acquire) != slot
                    && !sys::is_locked(&self.page.file, slot as u64).unwrap_or(true)
                {
                    break;
                }
                let waited = start.elapsed();
                if waited >= limit {
                    let pid = self.page.words.load(protocol::pid_at(slot), Ordering::Relaxed);
                    let pid = u32::try_from(pid).ok().filter(|pid| *pid != 0);
                    return Err(GateError::Held { name: self.name.clone(), pid, waited });
                }
                std::thread::sleep(nap);
                nap = (nap * 2).min(Duration::from_millis(2));
            }
        }
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A slot of this process may outlive this, and the file with it.
        self.page.is_owners.store(false, Ordering::Release);
        if !self.page.words.is_husk() {
            let _ = sys::unlock(&self.page.file, OWNER);
        }
    }
}

fn who(pid: Option<u32>) -> String {
    pid.map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"))
}
