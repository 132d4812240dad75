//! A thread that leaves the program's signals to the program.

#![allow(unsafe_code, reason = "the signal mask of a thread is set by libc")]

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// Starts a thread in which every signal is blocked that is not about the thread's own
/// instructions, so that no handler of the program runs on it for anything the program did. Faults
/// stay unblocked: a blocked one would end the process before the fault guard sees it.
///
/// # Errors
///
/// As [`Builder::spawn`].
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // A new thread inherits the mask of its creator: block before, restore after, and no signal can
    // slip between.
    let before = block_all();
    let spawned = Builder::new().name(name.to_owned()).spawn(run);
    set_mask(&before);
    spawned
}

/// The mask before, once every signal is blocked that the guard can spare.
fn block_all() -> libc::sigset_t {
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: no new mask is given; the old one is written to a set that lives through the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), before.as_mut_ptr()) };
    umem::guard::block_signals();
    // SAFETY: the call above cannot fail with valid arguments, and has initialised the set.
    unsafe { before.assume_init() }
}

fn set_mask(mask: &libc::sigset_t) {
    // SAFETY: the pointer is to a set that lives through the call; no old mask is asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}

/// A number that tells the calling thread from every other that lives, and is never 0. What locks
/// ask for at each turn, so that it must take no call: it is where the thread keeps its own
/// storage.
#[cfg(not(loom))]
#[inline]
pub(crate) fn this_thread() -> usize {
    let number: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads one word: the first of the thread's control block holds the block's own address
    // (System V ABI for thread-local storage, variant II).
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) number, options(nostack, preserves_flags, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads the register that holds the address of the thread's control block.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) number, options(nostack, preserves_flags, nomem));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        std::thread_local!(static MARK: u8 = const { 0 });
        number = MARK.with(|mark| std::ptr::from_ref(mark).addr());
    }
    number
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::this_thread;

    #[test]
    fn threads_that_live_have_different_numbers() {
        let here = this_thread();
        assert_ne!(here, 0);
        assert_eq!(here, this_thread());
        let there = std::thread::spawn(this_thread).join().expect("no panic");
        assert_ne!(here, there);
    }
}
