//! Threads, and children for tests.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread with a small stack that blocks the program's signals.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    threads::start(Builder::new().name(name.to_owned()).stack_size(256 << 10), run)
}

/// Runs `body` in a forked child and returns its exit status.
#[cfg(test)]
pub(crate) fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs code of this crate, which copes with a fork, and the allocator, which
    // the C library keeps consistent; it exits without running anything else.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", io::Error::last_os_error()),
        0 => {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(caught.unwrap_or(101)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: our child, and a valid place for its status.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -status }
        }
    }
}
