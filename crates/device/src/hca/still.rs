//! Keeps all devices idle across a fork.

use std::cell::Cell;
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use threads::{biased, futex};

use super::{Hca, NicList, OPEN};
use crate::engine::Engine;

/// Longer than any running thread holds a lock of ours.
const PATIENCE: Duration = Duration::from_secs(5);

/// Devices that are being opened or closed, and forks that wait for that.
#[derive(Debug)]
struct Still {
    changes: u32,
    forks: u32,
}

/// Held across a fork: otherwise, if another thread were in the middle of opening or closing a
/// device, the child would have locks that are never released, and descriptors that are never
/// closed.
static STILL: Mutex<Still> = Mutex::new(Still { changes: 0, forks: 0 });
static SETTLED: Condvar = Condvar::new();

thread_local! {
    /// How many devices the thread is in the middle of opening or closing.
    static CHANGES: Cell<u32> = const { Cell::new(0) };
}

fn still() -> MutexGuard<'static, Still> {
    STILL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes that this thread is in the middle of. They are one for all that wait.
fn own_changes() -> u32 {
    CHANGES.try_with(Cell::get).unwrap_or(0).min(1)
}

/// A device is being opened or closed.
pub(super) struct Changing(());

impl Changing {
    /// Waits for forks, also for those that still wait themselves: threads that open and close
    /// devices all the time would keep them waiting.
    pub(super) fn begin() -> Self {
        // Nested, when a failed device is closed by opening it again: forks wait for this thread.
        if own_changes() == 0 {
            let settled = SETTLED.wait_while(still(), |still| still.forks > 0);
            settled.unwrap_or_else(PoisonError::into_inner).changes += 1;
        }
        let _ = CHANGES.try_with(|changes| changes.set(changes.get() + 1));
        Self(())
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        let _ = CHANGES.try_with(|changes| changes.set(changes.get() - 1));
        if own_changes() == 0 {
            still().changes -= 1;
            SETTLED.notify_all();
        }
    }
}

/// No device is opened or closed while this exists, unless waiting for that took too long.
struct Settled {
    still: MutexGuard<'static, Still>,
    is_whole: bool,
}

/// Waits until no other thread opens or closes a device, for `patience` at most.
fn settle(patience: Duration) -> Settled {
    let mut still = still();
    still.forks += 1;
    let settled = SETTLED.wait_timeout_while(still, patience, |still| still.changes > 0);
    let (mut still, _) = settled.unwrap_or_else(PoisonError::into_inner);
    still.forks -= 1;
    // Threads that waited for this fork wait for the lock now.
    SETTLED.notify_all();
    let is_whole = still.changes == 0;
    Settled { still, is_whole }
}

/// An engine that is kept idle across a fork.
struct Whole {
    /// Dropped before the device, so that the lock is free by then.
    engine: biased::ArcMutexGuard<Engine>,
    hca: Arc<Hca>,
}

/// Everything that is kept idle across a fork, as far as this thread can: it cannot wait for a call
/// of its own that was interrupted.
pub(crate) struct StillForFork {
    still: Option<Settled>,
    open: Option<futex::MutexGuard<'static, NicList>>,
    whole: Vec<Whole>,
    /// Those in the middle of a call.
    torn: Vec<Arc<Hca>>,
}

impl StillForFork {
    /// Waits until everything is idle, and keeps it idle.
    pub(crate) fn begin() -> Self {
        let open_hcas = || -> Vec<Arc<Hca>> {
            let open = OPEN.get().and_then(|open| open.try_lock_for(PATIENCE));
            open.iter().flat_map(|open| open.iter()).filter_map(|(_, hca)| hca.upgrade()).collect()
        };
        let is_changing = own_changes() > 0;
        let mut hcas = if is_changing { Vec::new() } else { open_hcas() };
        // Other waiting threads may wait for what this thread holds.
        let is_interrupted =
            is_changing || hcas.iter().any(|hca| biased::is_held_here(&hca.shared.engine));
        let patience = if is_interrupted { Duration::ZERO } else { PATIENCE };
        let still = if is_changing {
            STILL.try_lock().ok().map(|still| Settled { still, is_whole: false })
        } else {
            Some(settle(patience))
        };
        if !is_interrupted {
            // From here on, nobody opens another device.
            hcas = open_hcas();
        }
        let (mut whole, mut torn) = (Vec::new(), Vec::new());
        for hca in hcas {
            let engine = &hca.shared.engine;
            let is_ours = biased::is_held_here(engine);
            match if is_ours { None } else { engine.try_lock_arc_for(patience) } {
                Some(engine) => whole.push(Whole { engine, hca }),
                None => torn.push(hca),
            }
        }
        let is_whole = still.as_ref().is_some_and(|still| still.is_whole);
        let open = OPEN.get().filter(|_| is_whole).and_then(|open| open.try_lock_for(patience));
        Self { still, open, whole, torn }
    }

    /// In the parent: lets everything continue.
    pub(crate) fn end(self) {
        let Self { still, open, whole, torn } = self;
        drop((still, open));
        // The last owner of a device closes it.
        drop((whole, torn));
    }

    /// In the child: turns all devices into husks.
    pub(crate) fn abandon(self) {
        let Self { mut still, mut open, whole, torn } = self;
        let gone = whole.iter().map(|whole| &whole.hca).chain(&torn);
        let gone: Vec<*const Hca> = gone.map(Arc::as_ptr).collect();
        if let Some(open) = &mut open {
            open.retain(|(_, known)| !gone.contains(&known.as_ptr()));
        }
        // The other threads do not exist in the child.
        if let Some(Settled { still, .. }) = &mut still {
            **still = Still { changes: own_changes(), forks: 0 };
        }
        open.iter().for_each(futex::forget_waiters);
        drop((still, open));
        for Whole { mut engine, hca } in whole {
            biased::forget_others(&engine);
            engine.become_husk();
            hca.shared.stop.store(true, Ordering::Release);
            // The thread does not exist in the child; joining it would wait forever.
            mem::forget(hca.thread.lock().take());
            // We may be the last owner of the device, and its drop locks it.
            drop(engine);
            drop(hca);
        }
        // Only the interrupted call may continue with it.
        mem::forget(torn);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;
    use crate::{fork, rig};

    /// As a signal handler does that forks while its thread polls.
    #[test]
    fn a_fork_within_a_call_does_not_wait_for_that_call() {
        let hca = Hca::open(&rig::nic("fork-within")).expect("a VF is free");
        let began = Instant::now();
        let engine = hca.lock();
        fork::prepare();
        fork::parent();
        drop(engine);
        assert!(began.elapsed() < PATIENCE, "it waited for itself");
        assert!(hca.try_lock_for(PATIENCE).is_some(), "and left the lock as it was");
    }

    #[test]
    fn a_fork_waits_for_a_device_that_is_being_opened_and_others_wait_for_the_fork() {
        let (tell, told) = mpsc::channel();
        let changing = Changing::begin();
        let forker = std::thread::spawn(move || {
            fork::prepare();
            let _ = tell.send(());
            fork::parent();
        });
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "a device is being opened");
        drop(changing);
        told.recv_timeout(PATIENCE * 4).expect("now it goes on");
        forker.join().expect("no panic");
    }
}
