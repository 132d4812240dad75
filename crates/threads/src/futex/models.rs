//! A loom model: every interleaving of threads that lock and unlock, of which some give up.
//!
//! A thread that sleeps without a limit and that nobody wakes is a deadlock, which loom reports. A
//! sleep with a limit ends at once, so a wake that comes too late to it is not seen.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p peerdma-threads --lib --release models`

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::state::State;

/// A lock, and what it guards: a cell for which loom reports two accesses that are not ordered.
struct Locked {
    state: State,
    value: UnsafeCell<u32>,
}

impl Locked {
    /// Adds one.
    fn add(&self, is_fair: bool) {
        self.state.lock();
        self.add_and_unlock(is_fair);
    }

    /// Adds one, unless others hold the lock too long.
    fn try_add(&self, looks: u32) -> u32 {
        if !self.state.lock_slowly(Some(looks)) {
            return 0;
        }
        self.add_and_unlock(false);
        1
    }

    fn add_and_unlock(&self, is_fair: bool) {
        // SAFETY: what this model proves; loom checks it.
        self.value.with_mut(|value| unsafe { *value += 1 });
        if is_fair { self.state.unlock_slowly(true) } else { self.state.unlock() }
    }
}

/// Each of these threads takes the lock so many times; the last one, if `has_deserter`, gives up
/// after two looks.
fn exclusion(turns: &'static [u32], is_fair: bool, has_deserter: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let locked = Arc::new(Locked { state: State::new(), value: UnsafeCell::new(0) });
        let others: Vec<_> = turns[1..]
            .iter()
            .map(|turns| {
                let locked = locked.clone();
                thread::spawn(move || (0..*turns).for_each(|_| locked.add(is_fair)))
            })
            .collect();
        let deserter = has_deserter.then(|| {
            let locked = locked.clone();
            thread::spawn(move || locked.try_add(2))
        });
        (0..turns[0]).for_each(|_| locked.add(is_fair));
        for other in others {
            other.join().expect("no panic");
        }
        let more = deserter.map_or(0, |deserter| deserter.join().expect("no panic"));
        assert!(locked.state.try_lock(), "nobody holds it, and it is handed to nobody");
        // SAFETY: the lock is held.
        let value = locked.value.with(|value| unsafe { *value });
        assert_eq!(value, turns.iter().sum::<u32>() + more);
        locked.state.unlock();
        let word = locked.state.word().load(loom::sync::atomic::Ordering::Relaxed);
        assert_eq!(word, 0, "and nothing is left of those that waited");
    });
}

#[test]
fn two_threads() {
    exclusion(&[2, 2], false, false);
}

#[test]
fn three_threads() {
    exclusion(&[2, 1, 1], false, false);
}

#[test]
fn two_threads_that_hand_it_over() {
    exclusion(&[2, 2], true, false);
}

#[test]
fn two_threads_and_one_that_gives_up() {
    exclusion(&[1, 1], false, true);
}
