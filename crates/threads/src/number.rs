//! Which thread this is.

#![allow(unsafe_code, reason = "reads the address of the thread's control block")]

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
