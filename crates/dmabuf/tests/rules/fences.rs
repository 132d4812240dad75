//! Which users wait for which fences of a buffer, by the rules of `docs/semantics.md` 1.4 and 1.6
//! to 1.9.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use crate::actors::{add, importer, memory};
use dmabuf::{Attachment, Direction, ImporterClass, PollEvents, Resv, StillInUse, Timeline, Usage};

/// Runs `body` on a thread, signals once the exporter was asked for `operation`, and checks that
/// `body` waited for the signal.
fn waits_for_the_fence(
    exporter: &crate::actors::Memory,
    operation: &str,
    engine: &Timeline,
    body: impl FnOnce() + Send,
) {
    let (heard, operations) = mpsc::channel();
    *exporter.heard.lock().expect("no panic") = Some(heard);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            body();
            assert_eq!(engine.signaled(), 1, "it came back too early");
        });
        assert!(operations.iter().any(|what| what == operation));
        engine.signal(1);
        waiter.join().expect("it waited");
    });
    *exporter.heard.lock().expect("no panic") = None;
}

#[test]
fn a_map_of_a_static_importer_waits_for_a_move_and_for_nothing_else() {
    for usage in Usage::ALL {
        let (buf, exporter) = memory();
        let engine = Timeline::new("gpu", "copy0");
        add(&buf, &engine.point(), usage);
        let gadget = importer("gadget", ImporterClass::Static);
        let attachment = buf.attach(&gadget).expect("anybody may attach");
        let map = || drop(attachment.map_unlocked(Direction::ToDevice).expect("mapped"));
        if usage == Usage::Kernel {
            waits_for_the_fence(&exporter, "map", &engine, map);
        } else {
            map();
        }
        assert_eq!(exporter.log(), ["pin", "map", "unmap", "unpin"], "{usage:?}");
    }
}

#[test]
fn other_importers_look_at_the_fences_themselves() {
    let (buf, _) = memory();
    let engine = Timeline::new("gpu", "copy0");
    add(&buf, &engine.point(), Usage::Kernel);
    let nic = importer("mlx5_0", ImporterClass::Dynamic);
    let attachment = buf.attach(&nic).expect("anybody may attach");
    let map = attachment.map_unlocked(Direction::ToDevice).expect("at once");
    assert!(!buf.resv().test_signaled(Usage::Kernel), "the device must not start yet");
    drop(map);
}

#[test]
fn a_map_that_fails_leaves_nothing_pinned() {
    let (buf, exporter) = memory();
    let gadget = importer("gadget", ImporterClass::Static);
    let attachment = buf.attach(&gadget).expect("anybody may attach");
    exporter.refuses_map.store(true, Ordering::Relaxed);
    let resv = buf.resv().lock();
    assert!(attachment.map(&resv, Direction::ToDevice).is_err());
    assert_eq!(exporter.log(), ["pin", "unpin"]);
}

#[test]
fn the_cpu_waits_for_writers_before_it_reads_and_for_everybody_before_it_writes() {
    use Direction::{Bidirectional, FromDevice, ToDevice};
    for direction in [FromDevice, ToDevice, Bidirectional] {
        for usage in Usage::ALL {
            let waits = match direction {
                FromDevice => usage <= Usage::Write,
                ToDevice | Bidirectional => usage <= Usage::Read,
            };
            let (buf, exporter) = memory();
            let engine = Timeline::new("gpu", "copy0");
            add(&buf, &engine.point(), usage);
            let mapping = buf.map(0, 4096).expect("offered");
            let access = || drop(mapping.begin_cpu_access(direction).expect("permitted"));
            if waits {
                waits_for_the_fence(&exporter, "begin", &engine, access);
            } else {
                access();
            }
            assert_eq!(exporter.log(), ["begin", "end"], "{direction:?} {usage:?}");
        }
    }
}

/// The two waits: fences of every class, then the last mapping.
#[test]
fn a_revoke_waits_for_the_work_and_then_for_the_mappings() {
    let (buf, _) = memory();
    let engine = Timeline::new("nic", "flush");
    add(&buf, &engine.point(), Usage::Bookkeep);
    // The importer is told to let go, and does not.
    let nic = importer("irdma0", ImporterClass::Dynamic);
    let attachment: Attachment = buf.attach(&nic).expect("anybody may attach");
    let map = attachment.map_unlocked(Direction::Bidirectional).expect("mapped");
    let now = Some(Duration::ZERO);
    let mut told = 0;
    let mut revoke = || buf.revoke(|_| told += 1, now);
    assert_eq!(revoke(), Err(StillInUse::Fences { count: 1 }));
    engine.signal(1);
    assert_eq!(revoke(), Err(StillInUse::Mapped { count: 1 }));
    drop(map);
    assert_eq!(revoke(), Ok(()));
    assert_eq!(told, 3);
}

#[test]
fn polling_looks_at_the_class_of_the_direction() {
    for usage in Usage::ALL {
        let (buf, _) = memory();
        let engine = Timeline::new("gpu", "copy0");
        add(&buf, &engine.point(), usage);
        let mut expected = PollEvents::empty();
        expected.set(PollEvents::READ, usage > Usage::Write);
        expected.set(PollEvents::WRITE, usage > Usage::Read);
        assert_eq!(buf.poll(PollEvents::all()), expected, "{usage:?}");
        assert_eq!(buf.poll(PollEvents::empty()), PollEvents::empty());
        engine.signal(1);
        assert_eq!(buf.poll(PollEvents::all()), PollEvents::all());
    }
}

#[test]
fn a_direction_arms_one_callback_on_the_first_fence() {
    let (buf, _) = memory();
    let engines = [Timeline::new("gpu", "copy0"), Timeline::new("gpu", "copy1")];
    for engine in &engines {
        add(&buf, &engine.point(), Usage::Write);
    }
    let wakes = Arc::new(AtomicUsize::new(0));
    let listener = buf.poll_listen({
        let wakes = Arc::clone(&wakes);
        move |event| {
            assert_eq!(event, PollEvents::READ);
            wakes.fetch_add(1, Ordering::Relaxed);
        }
    });
    for _ in 0..3 {
        assert!(buf.poll(PollEvents::READ).is_empty());
    }
    engines[1].signal(1);
    assert_eq!(wakes.load(Ordering::Relaxed), 0, "the second fence has no callback");
    engines[0].signal(1);
    assert_eq!(wakes.load(Ordering::Relaxed), 1);
    drop(listener);
    assert_eq!(buf.poll(PollEvents::READ), PollEvents::READ);
    assert_eq!(wakes.load(Ordering::Relaxed), 1, "it does not listen any more");
}

#[test]
fn all_waiters_are_woken() {
    let (buf, _) = memory();
    let engine = Timeline::new("gpu", "copy0");
    add(&buf, &engine.point(), Usage::Write);
    assert!(buf.poll_wait(PollEvents::READ, Some(Duration::ZERO)).is_empty());
    thread::scope(|scope| {
        let waiters = [PollEvents::READ, PollEvents::READ, PollEvents::WRITE].map(|event| {
            (
                event,
                scope.spawn({
                    let buf = &buf;
                    move || buf.poll_wait(event, None)
                }),
            )
        });
        engine.signal(1);
        for (event, waiter) in waiters {
            assert_eq!(waiter.join().expect("no panic"), event);
        }
    });
}

#[test]
fn buffers_that_share_a_lock_share_fences() {
    let shared = Resv::new();
    let (one, _) = crate::actors::memory_with(shared.clone());
    let (two, _) = crate::actors::memory_with(shared);
    let engine = Timeline::new("gpu", "copy0");
    add(&one, &engine.point(), Usage::Write);
    assert!(two.poll(PollEvents::READ).is_empty());
    engine.signal(1);
}
