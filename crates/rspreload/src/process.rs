//! The process that this memory belongs to.
//!
//! A child of `vfork` runs in its parent's memory until it executes a program, and closes
//! descriptors of its own there: their entries in the table are the parent's business. A child of
//! `fork` has a table of its own.

#![allow(unsafe_code, reason = "calls of C")]

use core::sync::atomic::{AtomicI32, Ordering};
use std::sync::Once;

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
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        OWNER.store(own_pid(), Ordering::Relaxed);
        // SAFETY: the function lives as long as the library, which is never unloaded: it was loaded
        // first.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    });
}

/// Whether this runs in the memory of another process.
pub(crate) fn is_guest() -> bool {
    OWNER.load(Ordering::Relaxed) != own_pid()
}
