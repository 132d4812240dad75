//! Threads that wait for several sockets at once, and who wakes them.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::abi::rdmacm::bell::Bell;
use crate::abi::rdmacm::{Answer, Failure};

/// What wakes a thread from `poll(2)`.
pub(super) struct Waker {
    bell: Bell,
    /// A child of a fork needs one of its own: the descriptor is shared with its parent.
    pid: u32,
}

thread_local! {
    static WAKER: RefCell<Option<Arc<Waker>>> = const { RefCell::new(None) };
}

impl Waker {
    /// One that belongs to nobody yet.
    pub(super) fn new() -> Answer<Arc<Self>> {
        let bell = Bell::new().map_err(|error| {
            Failure::new(error.raw_os_error(), format!("rsocket: what wakes a thread: {error}"))
        })?;
        Ok(Arc::new(Self { bell, pid: std::process::id() }))
    }

    /// The one of this thread.
    pub(super) fn of_thread() -> Answer<Arc<Self>> {
        WAKER.with_borrow_mut(|own| match own {
            Some(waker) if waker.pid == std::process::id() && waker.own_fd().is_some() => {
                Ok(Arc::clone(waker))
            }
            _ => Ok(Arc::clone(own.insert(Self::new()?))),
        })
    }

    /// Readable when it was woken, unless the program took its number.
    pub(super) fn own_fd(&self) -> Option<RawFd> {
        let own = self.bell.descriptor();
        own.is_ours().then(|| own.as_raw_fd())
    }

    /// Wakes whoever waits.
    pub(super) fn wake(&self) {
        self.bell.ring();
    }

    /// Forgets that it was woken.
    pub(super) fn drain(&self) {
        self.bell.silence();
    }
}

/// The threads that wait for one socket.
#[derive(Default)]
pub(super) struct Watchers {
    /// Their number, for those who would wake nobody.
    count: AtomicUsize,
    all: Mutex<Vec<Arc<Waker>>>,
}

impl Watchers {
    /// From now on, until the result is dropped, changes of the socket wake `waker`.
    pub(super) fn watch(&self, waker: &Arc<Waker>) -> Watch<'_> {
        self.all().push(Arc::clone(waker));
        // ORDERING: whoever waits counts itself before it looks at the socket; whoever changes it
        // looks here afterwards.
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
