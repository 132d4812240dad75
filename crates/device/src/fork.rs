//! What a fork does to open devices.
//!
//! A child inherits memory and descriptors, but neither the background thread nor the mappings
//! shared with peers, and the VF belongs to its parent. So in the child every open device becomes a
//! *husk*: descriptors are closed, what is in flight stays the parent's, destroying objects
//! succeeds, and posting fails with a reason. Opening the device again gives the child a VF of its
//! own.
//!
//! The C library calls the three functions here around `fork` (`pthread_atfork(3)`). The engines'
//! locks are held across it, and no device is being opened or closed during it, so that the child
//! sees nothing in the middle of a change.
//!
//! A signal handler may also fork, and may have interrupted a call of ours: then this very thread
//! holds a lock that cannot be released before the call continues. That device stays as it is, and
//! the child may not use it: it can execute another program, end, or open the device again. (POSIX
//! promises no more: since 2024 `fork` is not among the functions that a signal handler may call.)

use std::cell::RefCell;

use crate::hca::StillForFork;

thread_local! {
    static HELD: RefCell<Option<StillForFork>> = const { RefCell::new(None) };
}

/// Before the fork: waits until every engine is idle, and keeps it idle.
pub fn prepare() {
    HELD.set(Some(StillForFork::begin()));
}

/// After the fork, in the parent: lets the engines continue.
pub fn parent() {
    if let Some(held) = HELD.take() {
        held.end();
    }
}

/// After the fork, in the child: makes every device a husk.
pub fn child() {
    threads::barrier::forget_in_child();
    if let Some(held) = HELD.take() {
        held.abandon();
    }
}
