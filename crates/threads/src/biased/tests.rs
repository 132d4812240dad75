use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Mutex;
use super::bias::HABIT;
use crate::barrier;

/// A process that takes part in heavy fences, if the kernel has them.
fn prepare() {
    barrier::prepare();
    let began = Instant::now();
    while !barrier::is_ready() && began.elapsed() < Duration::from_secs(1) {
        thread::yield_now();
    }
}

/// A lock whose bias owner is the calling thread.
fn biased_lock(value: u64) -> Arc<Mutex<u64>> {
    prepare();
    let mutex = Arc::new(Mutex::new(value));
    for _ in 0..HABIT {
        drop(mutex.lock());
    }
    mutex
}

#[test]
fn nothing_is_lost_between_a_bias_owner_and_others() {
    const TURNS: u64 = 200_000;
    let mutex = biased_lock(0);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    *mutex.lock() += 1;
                    *mutex.lock() -= 1;
                    // The bias owner is one again before the next time.
                    thread::sleep(Duration::from_micros(50));
                }
            });
        }
        for _ in 0..TURNS {
            let mut value = mutex.lock();
            let before = *value;
            *value = before + 1;
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(*mutex.lock(), TURNS);
}

#[test]
fn a_waiter_for_the_bias_owner_is_woken() {
    let mutex = biased_lock(1);
    let held = mutex.lock();
    let waiter = thread::spawn({
        let mutex = Arc::clone(&mutex);
        move || *mutex.lock()
    });
    thread::sleep(Duration::from_millis(50));
    assert!(!waiter.is_finished());
    drop(held);
    assert_eq!(waiter.join().expect("no panic"), 1);
}

#[test]
fn patience_ends_beside_a_bias_owner() {
    let mutex = biased_lock(0);
    let held = mutex.lock();
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(mutex.try_lock().is_none());
            let patience = Duration::from_millis(20);
            let began = Instant::now();
            assert!(mutex.try_lock_for(patience).is_none());
            assert!(began.elapsed() >= patience);
        });
    });
    drop(held);
    let is_free = thread::scope(|scope| {
        scope.spawn(|| mutex.try_lock_for(Duration::from_secs(60)).is_some()).join()
    });
    assert!(is_free.expect("no panic"));
}

#[test]
fn a_bias_owner_that_holds_the_lock_does_not_get_it_twice() {
    let mutex = biased_lock(0);
    let held = mutex.lock();
    assert!(mutex.try_lock().is_none());
    assert!(mutex.try_lock_for(Duration::from_millis(20)).is_none());
    drop(held);
    assert!(mutex.try_lock().is_some());
}

#[test]
fn a_guard_of_the_lock_itself_outlives_the_handle() {
    let mutex = biased_lock(7);
    let guard = mutex.lock_arc();
    drop(mutex);
    assert_eq!(*guard, 7);
}
