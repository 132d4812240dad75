//! The descriptors of other users: a thread for which nothing waits ([`descriptors::strangers`])
//! determines which of them we may map, and leaves the mapping here.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use descriptors::strangers::PeerSocket;
use descriptors::{Inherited, Known};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::message::{Message, Received, receive};

/// Where such threads leave their results, and wake the engine for them.
#[derive(Debug)]
pub(crate) struct Post<T> {
    bell: Known,
    found: Mutex<Vec<T>>,
}

impl<T> Post<T> {
    pub(super) fn new() -> Result<Arc<Self>, Errno> {
        let bell = Known::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Arc::new(Self { bell, found: Mutex::default() }))
    }

    pub(super) fn leave(&self, found: T) {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).push(found);
        self.ring();
    }

    /// Wakes the engine, even if only for work that it had put off.
    pub(crate) fn ring(&self) {
        if self.bell.look().is_ok() {
            // An error can only be EAGAIN: it has been rung.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// Wakes the engine later. Without a thread it continues when something else happens.
    pub(super) fn ring_after(self: &Arc<Self>, pause: Duration)
    where
        T: Send + 'static,
    {
        let post = Arc::clone(self);
        let _ = threads::spawn("peerdma-pause", move || {
            std::thread::sleep(pause);
            post.ring();
        });
    }

    pub(super) fn take(&self) -> Vec<T> {
        // An error can only be EAGAIN: there was no ring.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn look(&self) -> Result<(), Errno> {
        self.bell.look()
    }

    pub(super) fn inherited(&self) -> Inherited {
        self.bell.inherited()
    }
}

impl<T> AsFd for Post<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Receives a message with the expected descriptors, passes them to `map`, and accepts no more from
/// then on. Closes the others, however long that takes.
///
/// # Errors
///
/// What is wrong, in words.
pub(crate) fn fetch<T>(
    socket: &PeerSocket,
    is_due: impl FnOnce(&Message) -> bool,
    map: impl FnOnce(&[OwnedFd]) -> Result<T, String>,
) -> Result<T, String> {
    let fds = match receive(socket.as_fd()) {
        Received::Message(Ok(message), fds) if is_due(&message) => fds,
        Received::Message(Err(bad), _) => return Err(bad.to_string()),
        _ => return Err("it took its message back".to_owned()),
    };
    let mapped = map(&fds)?;
    if socket.seal() {
        Ok(mapped)
    } else {
        Err("it sends descriptors that were not asked for".to_owned())
    }
}
