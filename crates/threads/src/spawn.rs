//! A thread that leaves the program's signals to the program.

#![allow(unsafe_code, reason = "the signal mask of a thread is set by libc")]

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// Starts a thread of this name in which every signal is blocked that is not about the thread's own
/// instructions, so that no handler of the program runs on it for anything the program did. Faults
/// stay unblocked: a blocked one would end the process before anybody's handler sees it.
///
/// # Errors
///
/// As [`Builder::spawn`].
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    start(Builder::new().name(name.to_owned()), run)
}

/// As [`spawn`], for a thread with a stack of its own size.
///
/// # Errors
///
/// As [`Builder::spawn`].
pub fn start(builder: Builder, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // A new thread inherits the mask of its creator: block before, restore after, and no signal can
    // slip between.
    let before = block_signals();
    let spawned = builder.spawn(run);
    // SAFETY: the pointer is to a set that lives through the call; no old mask is asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    spawned
}

/// Blocks every signal in this thread but those that its own instructions raise, and returns the
/// mask before.
fn block_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the pointer is valid for writing; sigfillset initialises the whole set.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY: initialised by sigfillset, which cannot fail for a valid pointer.
    let mut set: libc::sigset_t = unsafe { set.assume_init() };
    // SIGFPE, SIGILL and SIGTRAP kill without a handler when they are blocked, as faults do.
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
        // SAFETY: a valid set and a valid signal number.
        unsafe { libc::sigdelset(&mut set, signal) };
    }
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets are valid and live through the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &set, before.as_mut_ptr()) };
    // SAFETY: the call above cannot fail with valid arguments, and has initialised the set.
    unsafe { before.assume_init() }
}
