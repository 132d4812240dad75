use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lock_api::RawMutex as _;

use super::raw::Mutex;
use super::state::{IMPATIENT, LOCKED, ONE, WOKEN};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn one_holds_it_at_a_time() {
    let sum = Mutex::new((0_u64, 0_u64));
    let (threads, each) = (4, 20_000);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for round in 0..each {
                    let mut sum = sum.lock();
                    sum.0 += 1;
                    if round % 64 == 0 {
                        thread::yield_now();
                    }
                    sum.1 += 1;
                }
            });
        }
    });
    assert_eq!(*sum.lock(), (threads * each, threads * each));
}

#[test]
fn those_that_give_up_strand_nobody() {
    let lock = Mutex::new(0_u32);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for patience in [1, 20, 300, 700, 1500] {
            let (lock, is_over) = (&lock, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    drop(lock.try_lock_for(Duration::from_micros(patience)));
                }
            });
        }
        let waits = scope.spawn(|| {
            for _ in 0..2000 {
                let mut count = lock.lock();
                *count += 1;
                if *count % 16 == 0 {
                    thread::sleep(Duration::from_micros(50));
                }
            }
        });
        waits.join().expect("no panic");
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(*lock.lock(), 2000);
    assert_eq!(state(&lock), 0, "and nothing is left of those that waited");
}

#[test]
fn a_thread_that_gives_up_leaves_the_lock_to_its_holder() {
    let lock = Mutex::new(());
    let held = lock.lock();
    thread::scope(|scope| {
        let late = scope.spawn(|| lock.try_lock_for(Duration::from_millis(5)).is_none());
        assert!(late.join().expect("no panic"));
        assert!(scope.spawn(|| lock.try_lock().is_none()).join().expect("no panic"));
    });
    drop(held);
    assert!(lock.try_lock().is_some());
}

/// The holder of the lock takes it again at once, for ever.
#[test]
fn one_that_waits_is_handed_the_lock() {
    let lock = Arc::new(Mutex::new(()));
    let is_over = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (lock, is_over) = (Arc::clone(&lock), Arc::clone(&is_over));
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let _held = lock.lock();
                    let began = Instant::now();
                    while began.elapsed() < Duration::from_micros(100) {}
                }
            })
        })
        .collect();
    let (tell, told) = mpsc::channel();
    let waits = thread::spawn(move || {
        (0..100).for_each(|_| drop(lock.lock()));
        tell.send(()).expect("the test waits");
    });
    told.recv_timeout(LONG).expect("it had the lock a hundred times");
    is_over.store(true, Ordering::Relaxed);
    waits.join().expect("no panic");
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

#[test]
fn a_fair_unlock_without_waiters_leaves_it_free() {
    let lock = Mutex::new(());
    lock_api::MutexGuard::unlock_fair(lock.lock());
    assert_eq!(state(&lock), 0);
    assert!(lock.try_lock().is_some());
}

#[test]
fn a_lock_without_its_waiters_is_free_afterwards() {
    let lock = Mutex::new(());
    let held = lock.lock();
    // SAFETY: it is not unlocked.
    let raw = unsafe { lock.raw() };
    raw.state().word().store(LOCKED | IMPATIENT | (3 * ONE), Ordering::Relaxed);
    raw.forget_waiters();
    assert!(!raw.try_lock());
    drop(held);
    assert_eq!(state(&lock), 0);
}

/// A thread that was woken and has no processor yet is as the tests see it: a word that says so.
#[test]
fn whoever_was_woken_is_not_woken_again() {
    let lock = Mutex::new(());
    // SAFETY: it is not unlocked.
    let word = unsafe { lock.raw() }.state().word();
    word.store(ONE, Ordering::Relaxed);
    drop(lock.lock());
    assert_eq!(state(&lock), ONE | WOKEN, "it sleeps, and was woken");
    let held = lock.lock();
    assert_eq!(state(&lock), ONE | WOKEN | LOCKED, "the lock is free for others");
    drop(held);
    assert_eq!(state(&lock), ONE | WOKEN);
    word.store(0, Ordering::Relaxed);
}

fn state<T>(lock: &Mutex<T>) -> u32 {
    // SAFETY: it is not unlocked.
    unsafe { lock.raw() }.state().word().load(Ordering::Relaxed)
}
