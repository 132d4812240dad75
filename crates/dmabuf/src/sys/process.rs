//! Forks, and threads that leave the program's signals to the program.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// Has the C library call these three around each fork (`pthread_atfork(3)`).
pub(crate) fn at_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    // SAFETY: the functions live as long as the program: a library that holds them is linked so
    // that it is never unloaded, or is the program.
    let refused = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    if refused != 0 {
        tracing::warn!("pthread_atfork: errno {refused}: forked children keep our descriptors");
    }
}

/// Starts a thread in which every signal is blocked that is not about the thread's own
/// instructions, so that no handler of the program runs on it for anything the program did. A
/// blocked fault would end the process before anybody's handler sees it.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // A new thread inherits the mask of its creator: block before, restore after, and no signal can
    // slip between.
    let before = block_signals();
    let spawned = Builder::new().name(name.to_owned()).stack_size(256 << 10).spawn(run);
    // SAFETY: the pointer is to a set that lives through the call; no old mask is asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    spawned
}

/// Blocks what can be blocked without harm and returns the mask before.
fn block_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the pointer is valid for writing; sigfillset initialises the whole set.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY: initialised by sigfillset, which cannot fail for a valid pointer.
    let mut set: libc::sigset_t = unsafe { set.assume_init() };
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

/// Runs `body` in a forked child and gives its exit status.
#[cfg(test)]
pub(crate) fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs code of this crate, which copes with a fork, and the allocator, which
    // the C library has made whole; it leaves without running anything else.
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
