use std::os::fd::AsFd;
use std::time::Duration;

use crate::gate::GateState;
use crate::sys;
use crate::window::{BusWindow, Iommu};
use crate::{Gate, GateSlot, Stale};

/// In a forked child everything of the parent is a husk, and nothing that the child does or drops
/// affects the parent.
#[test]
fn a_child_has_no_part_in_gates_and_windows() {
    let gate = Gate::new("BO 1").expect("memory exists");
    let slot = GateSlot::claim(gate.fd()).expect("a free slot");
    let epoch = gate.epoch();
    let window = BusWindow::new(1 << 20, Iommu::On).expect("addresses exist");
    let file = sys::sealed_memfd("pool", 4096).expect("memory exists");
    let placed = window.place(file.as_fd(), 0, 4096, "BO 1").expect("room");
    let guard = slot.enter(epoch).expect("open");
    let slot_fd = slot.fd().try_clone_to_owned().expect("a descriptor");

    let status = sys::in_child(|| {
        let husk = slot.enter(epoch).err() == Some(Stale::Husk)
            && slot.state() == GateState::Revoked
            && gate.close().is_err()
            && gate.revoke().is_err()
            && !window.contains(placed.addr())
            && window.place(file.as_fd(), 0, 4096, "BO 1").is_err();
        // The parent's gate is now that of another process. (This descriptor is not one that a fork
        // closes.)
        let claimed = GateSlot::claim(slot_fd.as_fd());
        let enters = claimed.as_ref().is_ok_and(|slot| slot.enter(epoch).is_ok());
        drop((guard, placed, window));
        i32::from(!husk) + 2 * i32::from(!enters)
    });
    assert_eq!(status, 0);
}

/// The parent's objects continue after a fork, and the child's end with the child.
#[test]
fn a_parent_continues_after_a_fork() {
    let gate = Gate::new("BO 1").expect("memory exists");
    let slot = GateSlot::claim(gate.fd()).expect("a free slot");
    let fd = gate.fd().try_clone_to_owned().expect("a descriptor");
    let guard = slot.enter(gate.epoch()).expect("open");
    let status = sys::in_child(|| {
        // Dies inside.
        let inside = GateSlot::claim(fd.as_fd()).map(|slot| {
            let state = slot.state();
            let entered = match state {
                GateState::Open { epoch } => slot.enter(epoch).map(std::mem::forget).is_ok(),
                _ => false,
            };
            std::mem::forget(slot);
            entered
        });
        i32::from(inside != Ok(true))
    });
    assert_eq!(status, 0);
    assert!(gate.close_within(Duration::from_millis(5)).is_err(), "we are inside");
    drop(guard);
    drop(gate.close().expect("the child is dead, and counted for itself"));
}
