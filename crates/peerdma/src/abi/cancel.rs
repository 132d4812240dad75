//! Waits at which a thread may be cancelled (`pthread_cancel(3)`), as it may in the C library's
//! `read(2)` and `write(2)`, which `ibv_get_cq_event(3)`, `ibv_get_async_event(3)` and
//! `rdma_get_cm_event(3)` are made of elsewhere.
//!
//! The C library unwinds the stack of such a thread. `catch_unwind` would catch that, at which the
//! process ends. So a call that waits consists of steps, each within the boundary
//! ([`super::boundary`]), and sleeps between them: with nothing locked, and nothing on the stack
//! that has a destructor. What the call holds is in storage of the thread, which the C library
//! drops when the thread ends. Within a step nobody is cancelled, whatever it calls.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::mem;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::Woken;

use super::boundary::{Answer, control};
use super::errno;

/// What a call does next.
#[derive(Clone, Copy, Debug)]
pub(in crate::abi) enum Step {
    /// Returns this.
    Return(c_int),
    /// Reads one count from an eventfd.
    Read(RawFd),
    /// Waits until a socket is readable.
    Peek(RawFd),
    /// Sleeps on an epoll set.
    Sleep(RawFd),
}

impl Answer for Step {}

/// What came before a step.
#[derive(Clone, Copy, Debug)]
pub(in crate::abi) enum After {
    /// Nothing: it is the first.
    Begin,
    /// One count was read, or the socket is readable.
    Read,
    /// A sleep of this length.
    Sleep(Woken, Duration),
    /// A sleep that failed with this errno.
    SleepFailed(c_int),
    /// A read, or a wait for a socket, that failed with this errno.
    Failed(c_int),
}

thread_local! {
    /// What the calls of this thread hold: one, and those of signal handlers.
    static HELD: RefCell<Vec<Arc<dyn Any + Send + Sync>>> = const { RefCell::new(Vec::new()) };
}

/// Carries out a call that returns -1 and sets errno on failure. `hold` finds what all steps need,
/// or the errno.
pub(in crate::abi) fn in_steps<T: Send + Sync + 'static>(
    verb: &'static str,
    hold: impl FnOnce() -> Result<Arc<T>, c_int>,
    mut step: impl FnMut(&T, After) -> Step,
) -> c_int {
    let before = set_cancellable(PTHREAD_CANCEL_DISABLE);
    let held = control(verb, ptr::null(), || match hold() {
        Ok(held) => keep(held),
        Err(error) => {
            errno::set(error);
            ptr::null()
        }
    });
    let mut after = After::Begin;
    let answer = loop {
        if held.is_null() {
            break -1;
        }
        // SAFETY: it is held until the end of the call.
        let next = control(verb, Step::Return(-1), || step(unsafe { &*held }, after));
        if let Step::Return(answer) = next {
            release();
            break answer;
        }
        set_cancellable(before);
        after = wait(next);
        set_cancellable(PTHREAD_CANCEL_DISABLE);
    };
    set_cancellable(before);
    answer
}

/// Keeps it until [`release`], or until the thread ends.
fn keep<T: Send + Sync + 'static>(held: Arc<T>) -> *const T {
    let at = Arc::as_ptr(&held);
    if let Err(ended) = HELD.try_with(|all| all.borrow_mut().push(Arc::clone(&held) as _)) {
        tracing::debug!(target: "peerdma::abi", "a thread waits at its end: {ended}");
        // The storage of the thread is gone, so this is never dropped.
        mem::forget(held);
    }
    at
}

/// Drops what the call holds.
fn release() {
    let last = HELD.try_with(|all| all.borrow_mut().pop());
    drop(last);
}

/// Sets whether the thread can be cancelled, and returns how it was.
fn set_cancellable(state: c_int) -> c_int {
    let mut before = state;
    // SAFETY: there is room for the old state. It keeps errno, and fails for no state of its own.
    let _ = unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Waits as a step wants it, in a call that is no cancellation point.
pub(in crate::abi) fn wait_uncancelled(step: Step) -> After {
    let before = set_cancellable(PTHREAD_CANCEL_DISABLE);
    let after = wait(step);
    set_cancellable(before);
    after
}

/// Waits as a step wants it.
fn wait(step: Step) -> After {
    match step {
        Step::Read(fd) => read_count(fd).map_or_else(After::Failed, |()| After::Read),
        Step::Peek(fd) => peek(fd).map_or_else(After::Failed, |()| After::Read),
        Step::Sleep(set) => {
            let began = Instant::now();
            match sleep(set) {
                Ok(woken) => After::Sleep(woken, began.elapsed()),
                Err(error) => After::SleepFailed(error),
            }
        }
        Step::Return(_) => After::Begin,
    }
}

/// `PTHREAD_CANCEL_DISABLE` of `pthread.h`.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

// Of the C library, as functions that unwind.
unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, oldstate: *mut c_int) -> c_int;
    fn read(fd: c_int, buf: *mut c_void, count: usize) -> isize;
    fn recv(socket: c_int, buf: *mut c_void, count: usize, flags: c_int) -> isize;
    fn epoll_wait(
        epfd: c_int,
        events: *mut libc::epoll_event,
        maxevents: c_int,
        timeout: c_int,
    ) -> c_int;
}

fn read_count(fd: RawFd) -> Result<(), c_int> {
    let mut count = 0u64;
    // SAFETY: the buffer has the eight bytes that an eventfd gives.
    let got = unsafe { read(fd, (&raw mut count).cast(), size_of::<u64>()) };
    match usize::try_from(got) {
        Ok(size) if size == size_of::<u64>() => Ok(()),
        Ok(_) => Err(libc::EIO),
        Err(_) => Err(errno::get()),
    }
}

fn peek(socket: RawFd) -> Result<(), c_int> {
    let mut byte = 0u8;
    // SAFETY: there is room for one byte.
    let got = unsafe { recv(socket, (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
    if got < 0 { Err(errno::get()) } else { Ok(()) }
}

fn sleep(set: RawFd) -> Result<Woken, c_int> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    // CAST: four.
    let (at, room) = (events.as_mut_ptr(), events.len() as c_int);
    // SAFETY: there is room for so many events.
    let found = unsafe { epoll_wait(set, at, room, -1) };
    let Ok(found) = usize::try_from(found) else { return Err(errno::get()) };
    Ok(Woken::by(events.iter().take(found).map(|event| event.u64)))
}
