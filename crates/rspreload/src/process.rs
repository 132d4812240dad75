//! The process that this memory belongs to.
//!
//! A child of `vfork` runs in its parent's memory until it executes a program, and closes
//! descriptors of its own there: their entries in the table are the parent's business. A child of
//! `fork` has a table of its own.

#![allow(unsafe_code, reason = "calls of C")]

use core::sync::atomic::{AtomicI32, Ordering};

use threads::first::First;
use threads::fork::Handlers;

/// The process that this memory belongs to, once there is a socket.
static OWNER: AtomicI32 = AtomicI32::new(0);

fn own_pid() -> i32 {
    // SAFETY: there are no arguments.
    unsafe { libc::getpid() }
}

extern "C" fn after_fork() {
    OWNER.store(own_pid(), Ordering::Relaxed);
}

/// The first socket is about to be made.
pub(crate) fn watch() {
    static WATCH: First = First::new();
    WATCH.call(|| {
        OWNER.store(own_pid(), Ordering::Relaxed);
        Handlers { child: Some(after_fork), ..Handlers::default() }.register();
    });
}

/// Whether this runs in the memory of another process.
pub(crate) fn is_guest() -> bool {
    OWNER.load(Ordering::Relaxed) != own_pid()
}
