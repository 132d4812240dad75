//! A fork: the child has the parent's pages until it has copied them, and the parent waits until
//! then.
//!
//! ```text
//!   prepare   lock, so that no block is half made
//!   child     copies the file, puts the copy in its place, says so, unlocks
//!   parent    waits until it is said, or the child is dead; unlocks
//! ```
//!
//! Other threads of the parent may write to their blocks meanwhile, as they may while the kernel
//! makes a fork; only here it takes longer. What a lock protects that the forking thread holds is
//! copied whole: the parent gives up its locks behind us, as ours is the first handler there is.
//!
//! `fork` and `forkpty` call handlers (`pthread_atfork`), and for `_Fork` and `clone` we stand in
//! front. A child that was made by a system call of the program's own still has its parent's
//! pages. It is found out when it comes here, by a page that the kernel empties in every child.

#![allow(unsafe_code, reason = "handlers, and a page that children find empty")]

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use core::time::Duration;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::pipe::PipeFlags;
use threads::futex;

use crate::copy;
use crate::heap::HEAP;

/// Where nothing tells the parent that its child is dead, it waits no longer than this.
const PATIENCE: u32 = 10_000;

static IS_BEGUN: AtomicBool = AtomicBool::new(false);
/// In a page that is empty in a child: whether this process has pages of its own.
static OWNED: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
/// In a page that a child shares: whether it has copied.
static COPIED: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
/// Both ends of the pipe of the fork under way, or -1. The lock of the heap protects them.
static PIPE: [AtomicI32; 2] = [AtomicI32::new(-1), AtomicI32::new(-1)];

/// Called before the heap is used. Stops a process that has another one's pages.
#[inline]
pub(crate) fn begin() {
    // ORDERING: whoever finds the pages missing goes on without them.
    if !IS_BEGUN.load(Ordering::Relaxed) {
        begin_once();
    }
    if !is_owner() {
        give_up("that a system call made has its parent's memory, and may not use it", None);
    }
}

#[cold]
fn begin_once() {
    if IS_BEGUN.swap(true, Ordering::Relaxed) {
        return;
    }
    // It looks for it once, which is better done without our lock.
    let _ = rustix::param::page_size();
    COPIED.store(word(MapFlags::SHARED), Ordering::Relaxed);
    let owned = word(MapFlags::PRIVATE);
    if !owned.is_null() {
        // SAFETY: the page was just made.
        let advised =
            unsafe { rustix::mm::madvise(owned.cast(), size_of::<u32>(), Advice::LinuxWipeOnFork) };
        if advised.is_ok() {
            set(owned, 1);
            OWNED.store(owned, Ordering::Release);
        }
    }
    // First in the child, and the last one before the fork.
    // SAFETY: the handlers are functions of this library.
    #[cfg(not(test))]
    unsafe {
        libc::pthread_atfork(Some(prepare), Some(parent), Some(child))
    };
}

/// A word in a page of its own.
fn word(kind: MapFlags) -> *mut AtomicU32 {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let made =
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), size_of::<u32>(), rights, kind) };
    made.map_or(ptr::null_mut(), |page| page.cast())
}

fn set(word: *mut AtomicU32, to: u32) {
    // SAFETY: null, or a word of a page that stays mapped.
    if let Some(word) = unsafe { word.as_ref() } {
        word.store(to, Ordering::Release);
    }
}

fn is_owner() -> bool {
    // SAFETY: null, or a word of a page that stays mapped.
    let word = unsafe { OWNED.load(Ordering::Acquire).as_ref() };
    word.is_none_or(|word| word.load(Ordering::Relaxed) != 0)
}

/// Before a fork.
pub(crate) extern "C" fn prepare() {
    begin();
    let blocks = HEAP.lock_of().lock();
    if blocks.pages().shared().is_some() {
        set(COPIED.load(Ordering::Relaxed), 0);
        if let Ok((from, to)) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC) {
            PIPE[0].store(from.into_raw_fd(), Ordering::Relaxed);
            PIPE[1].store(to.into_raw_fd(), Ordering::Relaxed);
        }
    }
    // `parent` and `child` unlock it.
    core::mem::forget(blocks);
}

/// In the parent, after a fork or a failed one.
pub(crate) extern "C" fn parent() {
    let (from, to) = (take(0), take(1));
    drop(to);
    // SAFETY: this thread locked it in `prepare`.
    let blocks = unsafe { HEAP.lock_of().make_guard_unchecked() };
    if blocks.pages().shared().is_none() {
        return;
    }
    match from {
        // The end comes when the child has copied, or is dead, or was never made.
        Some(from) => while rustix::io::read(&from, &mut [0_u8; 1]) == Err(Errno::INTR) {},
        None => wait_for_word(),
    }
}

/// In the child.
pub(crate) extern "C" fn child() {
    drop(take(0));
    // SAFETY: the only thread there is locked it in `prepare`.
    let blocks = unsafe { HEAP.lock_of().make_guard_unchecked() };
    futex::forget_waiters(&blocks);
    if let Err(errno) = copy::separate(blocks.pages()) {
        give_up("cannot have memory of its own", Some(errno));
    }
    set(OWNED.load(Ordering::Relaxed), 1);
    set(COPIED.load(Ordering::Relaxed), 1);
    drop(take(1));
}

/// An end of the pipe.
fn take(end: usize) -> Option<OwnedFd> {
    let fd = PIPE[end].swap(-1, Ordering::Relaxed);
    // SAFETY: it was made in `prepare`, and is taken once.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Without a pipe.
fn wait_for_word() {
    // SAFETY: null, or a word of a page that stays mapped.
    let Some(word) = (unsafe { COPIED.load(Ordering::Relaxed).as_ref() }) else { return };
    for _ in 0..PATIENCE {
        if word.load(Ordering::Acquire) != 0 {
            return;
        }
        let pause = rustix::thread::Timespec::try_from(Duration::from_millis(1));
        let _ = pause.map(|pause| rustix::thread::nanosleep(&pause));
    }
}

/// Ends this process, with a line on standard error: to go on would change another one's memory.
#[cold]
fn give_up(why: &str, errno: Option<Errno>) -> ! {
    // SAFETY: if the program closed it, the kernel refuses.
    let out = unsafe { BorrowedFd::borrow_raw(2) };
    let say = |text: &str| {
        let _ = rustix::io::write(out, text.as_bytes());
    };
    say("peerdma: shared heap: a child ");
    say(why);
    if let Some(errno) = errno {
        let mut digits = [0_u8; 10];
        let (mut at, mut left) = (digits.len(), errno.raw_os_error().unsigned_abs());
        while left > 0 && at > 0 {
            at -= 1;
            // CAST: a digit.
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
        }
        say(" (errno ");
        say(str::from_utf8(&digits[at..]).unwrap_or_default());
        say(")");
    }
    say(": it ends (docs/MEMORY.md)\n");
    // SAFETY: it does not return.
    unsafe { libc::abort() }
}
