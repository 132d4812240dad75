//! A loom model: every interleaving of the bias owner's way in and that of everybody else.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p peerdma-threads --lib --release models`

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::bias::Bias;

/// What the lock is, and what it guards: a cell for which loom reports two accesses that are not
/// ordered.
struct Locked {
    bias: Bias,
    mutex: Mutex<()>,
    value: UnsafeCell<u32>,
}

impl Locked {
    /// Adds one as thread `me`.
    fn add(&self, me: usize) {
        // SAFETY: what this model proves; loom checks it.
        let add = || self.value.with_mut(|value| unsafe { *value += 1 });
        if self.bias.enter(me) {
            add();
            assert!(self.bias.leave(me), "left by the way it came");
            return;
        }
        let mutex = self.mutex.lock().expect("no panic");
        assert!(self.bias.take_over(me, None));
        add();
        assert!(!self.bias.leave(me), "left by the way it came");
        self.bias.consider(me);
        drop(mutex);
    }
}

/// `threads` threads that each take the lock `turns` times, the first of them the bias owner when
/// they begin.
fn exclusion(threads: usize, turns: u32) {
    loom::model(move || {
        let locked =
            Locked { bias: Bias::default(), mutex: Mutex::new(()), value: UnsafeCell::new(0) };
        let locked = Arc::new(locked);
        locked.add(1);
        let others: Vec<_> = (2..=threads)
            .map(|me| {
                let locked = locked.clone();
                thread::spawn(move || (0..turns).for_each(|_| locked.add(me)))
            })
            .collect();
        (0..turns).for_each(|_| locked.add(1));
        for other in others {
            other.join().expect("no panic");
        }
        assert!(!locked.bias.enter(threads + 1), "the bias is nobody else's");
        locked.mutex.lock().expect("no panic");
        assert!(locked.bias.take_over(threads + 1, None));
        // SAFETY: the lock is held.
        let value = locked.value.with(|value| unsafe { *value });
        assert_eq!(value, 1 + threads as u32 * turns);
    });
}

#[test]
fn the_bias_owner_and_another() {
    exclusion(2, 2);
}

#[test]
fn the_bias_owner_and_two_others() {
    exclusion(3, 1);
}
