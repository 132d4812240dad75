use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::fence::{Fence, FenceArray, TimedOut, Timeline};

#[test]
fn a_guard_knows_what_it_protects() {
    let (one, other) = (Resv::new(), Resv::new());
    let guard = one.lock();
    assert!(guard.protects(&one.clone()));
    assert!(!guard.protects(&other));
    assert!(one.try_lock().is_none());
    drop(guard);
    assert!(one.try_lock().is_some());
}

#[test]
fn work_waits_for_the_holder_and_keeps_its_order() {
    let resv = Resv::new();
    let log = Arc::new(Mutex::new(Vec::new()));
    let note = |word: &'static str| {
        let log = Arc::clone(&log);
        move || log.lock().expect("no panic").push(word)
    };
    let guard = resv.lock();
    let (unlocked, first, second) = (note("unlocked"), note("first"), note("second"));
    let inner = resv.clone();
    resv.when_unlocked(move || {
        assert!(inner.try_lock().is_some(), "the lock is free");
        unlocked();
    });
    resv.when_locked(move |_| first());
    resv.when_locked(move |_| second());
    assert!(log.lock().expect("no panic").is_empty());
    drop(guard);
    assert_eq!(*log.lock().expect("no panic"), ["first", "second", "unlocked"]);
}

#[test]
fn no_work_is_lost_between_threads() {
    let resv = Resv::new();
    let done = Arc::new(AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let done = Arc::clone(&done);
                    resv.when_locked(move |_| {
                        done.fetch_add(1, Ordering::Relaxed);
                    });
                    drop(resv.lock());
                }
            });
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), 8000);
}

/// The message of a panic.
fn words(body: impl FnOnce()) -> String {
    let thrown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_err();
    match thrown.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => (*other.downcast::<&str>().expect("words")).to_owned(),
    }
}

#[test]
fn taking_a_lock_twice_panics_instead_of_waiting() {
    let resv = Resv::new();
    let guard = resv.lock();
    assert!(resv.is_held());
    let text = words(|| drop(resv.lock()));
    assert!(text.starts_with("this thread holds the reservation lock already"), "{text}");
    drop(guard);
    assert!(!resv.is_held());
    drop(resv.lock());
}

#[cfg(debug_assertions)]
#[test]
fn two_locks_need_a_context() {
    let (one, two) = (Resv::new(), Resv::new());
    let guard = one.lock();
    let text = words(|| drop(two.lock()));
    assert!(text.contains("several are taken under one AcquireCtx"), "{text}");
    let ctx = AcquireCtx::new();
    let text = words(|| drop(two.lock_with(&ctx)));
    assert!(text.contains("several are taken under one AcquireCtx"), "{text}");
    assert!(two.try_lock().is_some(), "trying cannot wait");
    drop(guard);
    let guard = one.lock_with(&ctx).expect("nobody is in the way");
    assert!(two.lock_with(&ctx).is_ok());
    let text = words(|| drop(two.lock_slow(&ctx)));
    assert!(text.contains("lock_slow starts over"), "{text}");
    drop(guard);
}

#[test]
fn a_context_is_told_that_it_has_the_lock() {
    let resv = Resv::new();
    let ctx = AcquireCtx::new();
    let guard = resv.lock_with(&ctx).expect("nobody is in the way");
    assert_eq!(ctx.acquired(), 1);
    assert_eq!(resv.lock_with(&ctx).unwrap_err(), LockError::Already);
    drop(guard);
    assert_eq!(ctx.acquired(), 0);
}

/// A deadlock of two: each has what the other wants. The younger backs off, and the older gets
/// both.
#[test]
fn the_younger_backs_off_and_the_older_waits() {
    let resvs = [Resv::new(), Resv::new()];
    let (ready, both_hold_one) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let older = scope.spawn(|| {
            let ctx = AcquireCtx::new();
            ready.wait();
            let first = resvs[0].lock_with(&ctx).expect("free");
            both_hold_one.wait();
            let second = resvs[1].lock_with(&ctx);
            assert!(second.is_ok(), "the older one waits, and gets it");
            // In this order, since the younger waits for the first.
            drop(second);
            drop(first);
        });
        let younger = scope.spawn(|| {
            ready.wait();
            let ctx = AcquireCtx::new();
            let second = resvs[1].lock_with(&ctx).expect("free");
            both_hold_one.wait();
            assert_eq!(resvs[0].lock_with(&ctx).unwrap_err(), LockError::Deadlock);
            drop(second);
            let first = resvs[0].lock_slow(&ctx);
            let second = resvs[1].lock_with(&ctx);
            assert!(second.is_ok(), "nobody else is left");
            drop((first, second));
        });
        older.join().expect("the older one ends");
        younger.join().expect("the younger one ends");
    });
}

#[test]
fn many_threads_take_many_locks_in_any_order() {
    const LOCKS: usize = 5;
    let resvs: Vec<_> = (0..LOCKS).map(|_| Resv::new()).collect();
    let inside: Vec<_> = (0..LOCKS).map(|_| AtomicUsize::new(0)).collect();
    thread::scope(|scope| {
        for thread in 0..4_usize {
            let (resvs, inside) = (&resvs, &inside);
            scope.spawn(move || {
                for round in 0..200 {
                    // Three of five, in this thread's own order, one of them twice.
                    let chosen =
                        [0, 1, 3, 0].map(|step| (thread * 2 + round + step * (thread + 1)) % LOCKS);
                    let wanted = chosen.map(|at| resvs[at].clone());
                    let ctx = AcquireCtx::new();
                    let guards = ctx.lock_all(&wanted);
                    let mut distinct = chosen.to_vec();
                    distinct.sort_unstable();
                    distinct.dedup();
                    assert_eq!(guards.len(), distinct.len());
                    for &at in &distinct {
                        assert_eq!(inside[at].fetch_add(1, Ordering::Relaxed), 0, "alone inside");
                    }
                    thread::yield_now();
                    for &at in &distinct {
                        inside[at].fetch_sub(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

#[test]
fn one_lock_for_several_buffers_is_one_lock() {
    let shared = Resv::new();
    let wanted = [shared.clone(), shared.clone()];
    let ctx = AcquireCtx::new();
    assert_eq!(ctx.lock_all(&wanted).len(), 1);
}

// Fences (`docs/semantics.md` 1.7).

/// A resv with an unsignaled fence of each class, and their producers.
fn one_of_each() -> (Resv, Vec<Timeline>) {
    let resv = Resv::new();
    let engines: Vec<_> =
        Usage::ALL.iter().map(|usage| Timeline::new("gpu", usage.name())).collect();
    let guard = resv.lock();
    guard.reserve_fences(4).expect("memory");
    // Added in the wrong order on purpose.
    for (engine, usage) in engines.iter().zip(Usage::ALL).rev() {
        guard.add_fence(&engine.point(), usage).expect("reserved");
    }
    drop(guard);
    (resv, engines)
}

#[test]
fn a_class_stands_for_itself_and_all_lower_ones() {
    let (resv, engines) = one_of_each();
    for (at, usage) in Usage::ALL.into_iter().enumerate() {
        let found: Vec<_> = resv.fences(usage).into_iter().map(|(_, usage)| usage).collect();
        assert_eq!(found, Usage::ALL[..=at], "{usage:?}");
    }
    // Signaled from the lowest up: each class is done as soon as it and the lower ones are.
    for (at, engine) in engines.iter().enumerate() {
        let done = |usage| resv.test_signaled(usage);
        assert_eq!(Usage::ALL.map(done), [0, 1, 2, 3].map(|class| class < at));
        engine.signal(1);
    }
    assert!(resv.fences(Usage::Bookkeep).is_empty());
}

#[test]
fn a_deadline_reaches_the_producers_of_a_class_and_of_all_lower_classes() {
    let (resv, engines) = one_of_each();
    let soon = Instant::now();
    resv.set_deadline(Usage::Write, soon);
    let told: Vec<_> = engines.iter().map(Timeline::deadline).collect();
    assert_eq!(told, [Some(soon), Some(soon), None, None]);
}

#[test]
fn waiting_answers_at_once_when_nothing_is_left() {
    let (resv, engines) = one_of_each();
    assert_eq!(resv.wait(Usage::Kernel, Some(Duration::ZERO)), Err(TimedOut));
    engines[0].signal(1);
    assert_eq!(resv.wait(Usage::Kernel, Some(Duration::ZERO)), Ok(()));
    assert_eq!(resv.wait(Usage::Write, Some(Duration::from_millis(1))), Err(TimedOut));
    let (ready, started) = mpsc::channel();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            // With the lock held, as when a revocation waits.
            let guard = resv.lock();
            ready.send(()).expect("somebody listens");
            let result = guard.resv().wait(Usage::Bookkeep, None);
            drop(guard);
            result
        });
        started.recv().expect("it started");
        engines.iter().for_each(|engine| engine.signal(1));
        assert_eq!(waiter.join().expect("no panic"), Ok(()));
    });
}

#[test]
fn implicit_synchronisation_waits_for_writers_or_for_everybody() {
    assert_eq!(Usage::implicit(true), Usage::Read, "a writer waits for readers too");
    assert_eq!(Usage::implicit(false), Usage::Write, "a reader waits for writers");
}

#[test]
fn a_fence_replaces_what_it_follows() {
    use Usage::{Bookkeep, Kernel, Read, Write};
    struct Row {
        what: &'static str,
        /// Class, and point on one timeline.
        first: (Usage, u64),
        second: (Usage, u64),
        left: &'static [(Usage, u64)],
    }
    let rows = [
        Row { what: "later, same class", first: (Read, 1), second: (Read, 2), left: &[(Read, 2)] },
        Row { what: "again", first: (Read, 1), second: (Read, 1), left: &[(Read, 1)] },
        Row { what: "promoted", first: (Bookkeep, 1), second: (Write, 1), left: &[(Write, 1)] },
        Row {
            what: "never demoted",
            first: (Kernel, 1),
            second: (Bookkeep, 2),
            left: &[(Kernel, 1), (Bookkeep, 2)],
        },
        Row {
            what: "earlier does not replace",
            first: (Read, 2),
            second: (Read, 1),
            left: &[(Read, 2), (Read, 1)],
        },
    ];
    for row in rows {
        let engine = Timeline::new("gpu", "copy0");
        let points = [engine.point(), engine.point()];
        let resv = Resv::new();
        let guard = resv.lock();
        guard.reserve_fences(2).expect("memory");
        for (usage, seqno) in [row.first, row.second] {
            guard.add_fence(&points[seqno as usize - 1], usage).expect("reserved");
        }
        let left: Vec<_> =
            resv.fences(Bookkeep).into_iter().map(|(fence, of)| (of, fence.seqno())).collect();
        assert_eq!(left, row.left, "{}", row.what);
    }
}

#[test]
fn a_signaled_fence_gives_its_place_to_any_other() {
    let (one, two) = (Timeline::new("gpu", "one"), Timeline::new("gpu", "two"));
    let resv = Resv::new();
    let guard = resv.lock();
    guard.reserve_fences(1).expect("memory");
    guard.add_fence(&one.point(), Usage::Kernel).expect("reserved");
    one.signal(1);
    guard.add_fence(&two.point(), Usage::Bookkeep).expect("the place of the other");
    assert_eq!(resv.fences(Usage::Bookkeep).len(), 1);
}

#[test]
fn slots_are_reserved_at_least_one_and_lost_with_the_lock() {
    let engine = Timeline::new("gpu", "copy0");
    let resv = Resv::new();
    let guard = resv.lock();
    assert_eq!(guard.reserve_fences(0), Err(ReserveError::Zero));
    assert_eq!(guard.reserve_fences(usize::MAX), Err(ReserveError::NoMemory { slots: usize::MAX }));
    guard.reserve_fences(1).expect("memory");
    guard.add_fence(&engine.point(), Usage::Read).expect("reserved");
    drop(guard);
    let guard = resv.lock();
    guard.reserve_fences(2).expect("memory");
    drop(guard);
    let guard = resv.lock();
    let other = Timeline::new("gpu", "other");
    let refused = AddFenceError::NoSlot.to_string();
    if cfg!(debug_assertions) {
        let text = words(|| guard.add_fence(&other.point(), Usage::Read).expect("it panics"));
        assert_eq!(text, refused);
    } else {
        let error = guard.add_fence(&other.point(), Usage::Read).unwrap_err();
        assert_eq!(error.to_string(), refused);
    }
    // A later fence of the same context needs no slot.
    guard.add_fence(&engine.point(), Usage::Read).expect("it replaces");
}

#[cfg(debug_assertions)]
#[test]
fn containers_are_not_added() {
    let engine = Timeline::new("gpu", "copy0");
    let array = FenceArray::all(vec![engine.point()]).expect("one");
    let resv = Resv::new();
    let guard = resv.lock();
    guard.reserve_fences(1).expect("memory");
    let text = words(|| guard.add_fence(&array, Usage::Read).expect("it panics"));
    assert_eq!(text, AddFenceError::Container.to_string());
}

#[test]
fn a_context_can_be_replaced_and_fences_copied() {
    let (resv, engines) = one_of_each();
    let other = Resv::new();
    let guard = other.lock();
    guard.copy_fences(&resv).expect("memory");
    guard.replace_fences(engines[0].context(), &Fence::signaled_stub(), Usage::Bookkeep);
    assert_eq!(other.fences(Usage::Bookkeep).len(), 3);
    assert_eq!(resv.fences(Usage::Bookkeep).len(), 4);
    let one = resv.singleton(Usage::Write);
    assert_eq!(FenceArray::parts(&one).map(<[Fence]>::len), Some(2));
    assert!(Resv::new().singleton(Usage::Bookkeep).is_signaled());
}
