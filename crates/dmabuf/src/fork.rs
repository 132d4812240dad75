//! What `fork` does to gates, windows and connections.
//!
//! They belong to the process that made them. A child inherits neither the mappings
//! (`MADV_DONTFORK`) nor the parent's connections to other processes: its copies are *husks*. Their
//! operations fail, their drops do nothing, and the descriptors behind them are closed, so that a
//! lock or a connection ends with the process that it stands for. An import in the child starts
//! over, and treats a buffer of the parent as one of another process.
//!
//! Each file with a process-wide lock registers that before it takes the lock for the first time
//! ([`hold`]). A fork takes all these locks, so that the child finds the data that they guard
//! consistent.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use descriptors::fork;

/// The owners of such locks, in the order in which the locks nest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Given,
    Buffers,
    Server,
    Links,
    Windows,
    Slots,
    SyncFiles,
    Clients,
    Maps,
}

/// A lock that is held across a fork. In the parent it is dropped.
pub(crate) trait Locked {
    /// In the child: drops the parent's state.
    fn forget(&mut self);
}

/// Takes a lock.
type Hold = fn() -> Box<dyn Locked>;

static ROOMS: [OnceLock<Hold>; 9] = [const { OnceLock::new() }; 9];

/// The number of registered rooms. A thread that holds this lock holds no lock of a room.
static COUNT: Mutex<usize> = Mutex::new(0);

/// From now on, forks are watched ([`fork::watch`]).
pub fn watch() {
    fork::watch_also(|| Box::new(Held::all()));
}

/// From now on a fork takes the lock of this room. May be called with the locks of earlier rooms
/// held.
pub(crate) fn hold(room: Room, hold: Hold) {
    let place = &ROOMS[room as usize];
    if place.get().is_some() {
        return;
    }
    watch();
    let mut count = count();
    *count += usize::from(place.set(hold).is_ok());
}

fn count() -> MutexGuard<'static, usize> {
    COUNT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All locks, and the guarantee that no other is taken for the first time meanwhile.
struct Held {
    locks: Vec<Box<dyn Locked>>,
    _count: MutexGuard<'static, usize>,
}

impl Held {
    fn all() -> Self {
        loop {
            let locks: Vec<_> = ROOMS.iter().filter_map(OnceLock::get).map(|hold| hold()).collect();
            let count = count();
            // Otherwise there is a new one, which may nest outside those that are held.
            if *count == locks.len() {
                return Self { locks, _count: count };
            }
        }
    }
}

impl fork::Held for Held {
    fn forget(self: Box<Self>) {
        let Self { locks, _count } = *self;
        for mut lock in locks.into_iter().rev() {
            lock.forget();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
