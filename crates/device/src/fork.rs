//! What a fork does to open devices.
//!
//! A child inherits memory and descriptors, but neither the background thread nor the mappings shared with peers, and the
//! VF belongs to its parent. So in the child every open device becomes a *husk*: descriptors are closed, what is in
//! flight stays the parent's, destroying objects succeeds, and posting fails with a reason. Opening a device anew gives
//! the child a VF of its own.
//!
//! The C library calls the three functions here around `fork` (`pthread_atfork(3)`). The engines' locks are held across
//! it, so that the child sees no engine in the middle of a change.

use std::cell::RefCell;

use crate::hca::{self, ForkGuard};

thread_local! {
    static HELD: RefCell<Vec<ForkGuard>> = const { RefCell::new(Vec::new()) };
}

/// Before the fork: waits until every engine is at rest, and keeps it so.
pub fn prepare() {
    HELD.set(hca::lock_all());
}

/// After the fork, in the parent: lets the engines go on.
pub fn parent() {
    HELD.take();
}

/// After the fork, in the child: makes every device a husk.
pub fn child() {
    link::barrier::forget_in_child();
    for guard in HELD.take() {
        guard.abandon();
    }
}
