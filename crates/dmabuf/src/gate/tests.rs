use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use super::*;
use crate::sys;

#[test]
fn an_epoch_lets_in_until_the_buffer_moves() {
    let gate = Gate::new("BO 1").expect("memory exists");
    let slot = GateSlot::claim(gate.fd()).expect("a free slot");
    let epoch = gate.epoch();
    let guard = slot.enter(epoch).expect("open");
    drop(guard);

    let closed = gate.close().expect("nobody is inside");
    assert_eq!(slot.enter(epoch).err(), Some(Stale::Closed));
    assert_eq!(
        slot.enter(epoch + 1).err(),
        Some(Stale::Closed),
        "no epoch is that of a closed gate"
    );
    let next = closed.open();
    assert_eq!((gate.epoch(), slot.state()), (next, GateState::Open { epoch: next }));
    assert_eq!(slot.enter(epoch).err(), Some(Stale::Moved));
    assert!(slot.is_current(next) && !slot.is_current(epoch));
    drop(slot.enter(next).expect("the new epoch"));

    gate.close().expect("nobody is inside").reopen();
    drop(slot.enter(next).expect("nothing has changed"));

    gate.revoke().expect("nobody is inside");
    assert_eq!(slot.enter(next).err(), Some(Stale::Revoked));
    assert!(matches!(gate.close(), Err(GateError::Revoked { .. })));
}

#[test]
fn an_access_in_progress_is_waited_for_and_its_process_named() {
    let gate = Gate::new("BO 1").expect("memory exists");
    let slot = GateSlot::claim(gate.fd()).expect("a free slot");
    let epoch = gate.epoch();
    let (one, two) = (slot.enter(epoch).expect("open"), slot.enter(epoch).expect("guards nest"));
    drop(one);
    let held = gate.close_within(Duration::from_millis(1)).unwrap_err();
    let GateError::Held { pid, .. } = &held else { panic!("{held}") };
    assert_eq!(*pid, Some(std::process::id()));
    let words = held.to_string();
    assert!(words.contains("is in the middle of an access to BO 1"), "{words}");
    drop(slot.enter(epoch).expect("the gate is open as it was"));
    drop(two);
    drop(gate.close().expect("nobody is inside"));
}

#[test]
fn an_access_that_outlives_its_call_holds_the_gate_until_it_ends() {
    let gate = Gate::new("BO 1").expect("memory exists");
    let slot = GateSlot::claim(gate.fd()).expect("a free slot");
    let guard = slot.enter_owned(gate.epoch()).expect("open");
    drop(slot);
    assert!(matches!(gate.close_within(Duration::from_millis(1)), Err(GateError::Held { .. })));
    std::thread::spawn(move || drop(guard)).join().expect("no panic");
    let epoch = gate.close().expect("nobody is inside").open();
    let slot = GateSlot::claim(gate.fd()).expect("a free slot");
    assert_eq!(slot.enter_owned(epoch - 2).err(), Some(Stale::Moved));
    drop(slot.enter_owned(epoch).expect("the new epoch"));
    gate.close().expect("it was left").reopen();
}

#[test]
fn the_reason_of_a_revocation_is_readable_and_sanitised() {
    let gate = Gate::new("BO 1").expect("memory exists");
    let slot = GateSlot::claim(gate.fd()).expect("a free slot");
    assert_eq!(slot.why(), None);
    for (said, heard) in [
        ("unplugged", "unplugged"),
        ("exactly", "exactly"),
        ("a", "a"),
        ("", ""),
        ("\u{1b}[2J\n", "?[2J?"),
    ] {
        gate.tell(said);
        assert_eq!(slot.why().unwrap_or_default(), heard);
    }
    gate.tell(&"ä".repeat(WHY_MAX));
    let heard = slot.why().expect("the beginning of it");
    assert!(heard.starts_with("ää") && heard.len() <= WHY_MAX + 3);
    drop(slot.enter(gate.epoch()).expect("no slot was written over"));
}

#[test]
fn one_process_has_one_slot_and_gives_it_back() {
    let gate = Gate::new("BO 1").expect("memory exists");
    let one = GateSlot::claim(gate.fd()).expect("a free slot");
    let two = GateSlot::claim(one.fd()).expect("by any descriptor of the file");
    assert!(one.is_same(&two));
    let taken = (0..SLOTS as u64).filter(|slot| sys::is_locked(gate.fd(), *slot) == Ok(true));
    assert_eq!(taken.count(), 1);
    drop((one, two));
    soon(|| (0..SLOTS as u64).all(|slot| sys::is_locked(gate.fd(), slot) == Ok(false)));
}

#[test]
fn the_process_that_owns_a_gate_enters_it_like_any_other() {
    let gate = Gate::new("BO 1").expect("memory exists");
    let slot = gate.slot().expect("a free slot");
    assert!(slot.is_same(&gate.slot().expect("again")));
    assert!(slot.is_same(&GateSlot::claim(gate.fd()).expect("by the descriptor")));
    let epoch = gate.epoch();
    let inside = slot.enter(epoch).expect("open");
    let held = gate.close_within(Duration::from_millis(1)).unwrap_err();
    assert!(matches!(held, GateError::Held { pid: Some(pid), .. } if pid == std::process::id()));
    drop(inside);
    let next = gate.close().expect("nobody is inside").open();
    assert_eq!(slot.enter(epoch).err(), Some(Stale::Moved));
    assert_eq!(slot.state(), GateState::Open { epoch: next });
    drop(gate);
    soon(|| slot.state() == GateState::Orphaned { epoch: next });
    drop(slot.enter(next).expect("the memory is still where it was"));
    slot.revoke_orphan();
    assert_eq!(slot.state(), GateState::Revoked);
}

#[test]
fn a_claim_by_descriptor_before_the_owners_is_waited_for_too() {
    let gate = Gate::new("BO 1").expect("memory exists");
    let claimed = GateSlot::claim(gate.fd()).expect("a free slot");
    let own = gate.slot().expect("the same");
    assert!(own.is_same(&claimed));
    drop(claimed);
    let inside = own.enter(gate.epoch()).expect("open");
    assert!(gate.close_within(Duration::from_millis(1)).is_err());
    drop(inside);
    drop(gate.close().expect("nobody is inside"));
}

#[test]
fn a_slot_that_nobody_has_locked_is_void() {
    let gate = Gate::new("BO 1").expect("memory exists");
    let slot = GateSlot::claim(gate.fd()).expect("a free slot");
    std::mem::forget(slot.enter(gate.epoch()).expect("open"));
    // This is what remains of a process that died inside: the open file description ends, and the
    // counter stays.
    drop(slot);
    drop(gate.close().expect("a dead owner blocks nobody"));
    let slot = GateSlot::claim(gate.fd()).expect("a free slot");
    drop(slot.enter(gate.epoch()).expect("the next owner begins at zero"));
    drop(gate.close().expect("nobody is inside"));
}

#[test]
fn a_gate_is_orphaned_or_revoked_when_its_owner_is_gone() {
    let gate = Gate::new("BO 1").expect("memory exists");
    let slot = GateSlot::claim(gate.fd()).expect("a free slot");
    let epoch = gate.epoch();
    slot.revoke_orphan();
    assert_eq!(slot.state(), GateState::Open { epoch }, "it is no orphan");
    drop(gate);
    soon(|| slot.state() == GateState::Orphaned { epoch });
    drop(slot.enter(epoch).expect("the memory is still where it was"));
    slot.revoke_orphan();
    assert_eq!(slot.state(), GateState::Revoked);

    let gate = Gate::new("BO 2").expect("memory exists");
    let slot = GateSlot::claim(gate.fd()).expect("a free slot");
    let before = gate.epoch();
    let closed = gate.close().expect("nobody is inside");
    assert_eq!(slot.state(), GateState::Closed { epoch: before + 1 });
    closed.open();
    std::mem::forget(gate.close().expect("nobody is inside"));
    assert_eq!(slot.state(), GateState::Closed { epoch: before + 3 }, "no two moves are the same");
}

/// A lock ends with the last copy of its descriptor, and a test that forks may have one for a
/// moment.
fn soon(is_so: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "it never came to pass");
        std::thread::yield_now();
    }
}

#[test]
fn other_files_are_no_gates() {
    let claim = |file: std::os::fd::OwnedFd| GateSlot::claim(file.as_fd()).unwrap_err().to_string();
    let null = std::fs::File::open("/dev/null").expect("exists").into();
    assert_eq!(claim(null), "the file is no gate: it can change its size");
    let short = sys::sealed_memfd("peerdma-gate", 4096).expect("memory exists");
    assert_eq!(claim(short), "the file is no gate: it has another size");
    let empty = sys::sealed_memfd("peerdma-gate", 8192).expect("memory exists");
    assert_eq!(claim(empty), "the file is no gate: it has another layout");
}

/// A mover changes two words that belong together, and accessors compare them. Without the gate
/// they would sometimes differ.
#[test]
fn nobody_sees_a_move_half_done() {
    let gate = Gate::new("BO 1").expect("memory exists");
    let slot = GateSlot::claim(gate.fd()).expect("a free slot");
    let (left, right, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(relaxed) {
                    let epoch = gate.epoch();
                    if let Ok(guard) = slot.enter(epoch) {
                        assert_eq!(left.load(relaxed), right.load(relaxed));
                        drop(guard);
                    }
                }
            });
        }
        for round in 1..=500 {
            let closed = gate.close().expect("copies are short");
            left.store(round, relaxed);
            right.store(round, relaxed);
            closed.open();
        }
        done.store(true, relaxed);
    });
}
