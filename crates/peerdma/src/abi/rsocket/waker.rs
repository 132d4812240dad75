//! Threads that wait for several sockets at once, and how they are woken.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::abi::rdmacm::bell::Bell;
use crate::abi::rdmacm::{Answer, Failure};

/// What wakes a thread from `poll(2)`.
pub(super) struct Waker {
    bell: Bell,
    /// A forked child needs one of its own: the descriptor is shared with its parent.
    pid: u32,
}

thread_local! {
    static WAKER: RefCell<Option<Arc<Waker>>> = const { RefCell::new(None) };
}

impl Waker {
    /// A waker that belongs to no thread yet.
    pub(super) fn new() -> Answer<Arc<Self>> {
        let bell = Bell::new().map_err(|error| {
            Failure::new(
                error.raw_os_error(),
                format!("rsocket: no eventfd to wake a thread: {error}"),
            )
        })?;
        Ok(Arc::new(Self { bell, pid: std::process::id() }))
    }

    /// The waker of this thread.
    pub(super) fn of_thread() -> Answer<Arc<Self>> {
        WAKER.with_borrow_mut(|own| match own {
            Some(waker) if waker.pid == std::process::id() && waker.own_fd().is_some() => {
                Ok(Arc::clone(waker))
            }
            _ => Ok(Arc::clone(own.insert(Self::new()?))),
        })
    }

    /// The descriptor that becomes readable on a wake, unless the program has taken its number.
    pub(super) fn own_fd(&self) -> Option<RawFd> {
        let own = self.bell.descriptor();
        own.is_ours().then(|| own.as_raw_fd())
    }

    /// Wakes the threads that wait.
    pub(super) fn wake(&self) {
        self.bell.ring();
    }

    /// Clears the wake.
    pub(super) fn drain(&self) {
        self.bell.silence();
    }
}

/// The threads that wait for one socket.
#[derive(Default)]
pub(super) struct Watchers {
    /// Their number, so that a change that nobody waits for costs little.
    count: AtomicUsize,
    all: Mutex<Vec<Arc<Waker>>>,
}

impl Watchers {
    /// From now on, until the result is dropped, changes of the socket wake `waker`.
    pub(super) fn watch(&self, waker: &Arc<Waker>) -> Watch<'_> {
        self.all().push(Arc::clone(waker));
        // ORDERING: a thread that waits counts itself before it looks at the socket; a thread that
        // changes the socket looks here afterwards.
        self.count.fetch_add(1, Ordering::SeqCst);
        Watch { watchers: self, waker: Arc::clone(waker) }
    }

    /// The socket changed.
    pub(super) fn notify(&self) {
        // ORDERING: see `watch`.
        if self.count.load(Ordering::SeqCst) > 0 {
            self.all().iter().for_each(|waker| waker.wake());
        }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<Waker>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that waits for a socket.
pub(super) struct Watch<'a> {
    watchers: &'a Watchers,
    waker: Arc<Waker>,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut all = self.watchers.all();
        if let Some(at) = all.iter().position(|waker| Arc::ptr_eq(waker, &self.waker)) {
            all.swap_remove(at);
            self.watchers.count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
