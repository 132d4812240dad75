//! Doorbells: how a peer wakes an engine, but only when it sleeps.
//!
//! Each claim has one page with one word that counts up whenever its engine falls asleep (odd) or
//! wakes (even), and one eventfd. Peers can read the page and never write it (it is sealed with
//! `F_SEAL_FUTURE_WRITE`), so no peer can make us miss another's wake.
//!
//! ```text
//!   sleeper                              waker
//!   sleep word becomes odd               publish (record, head, ...)
//!   fence                                fence
//!   poll everything once more            is the sleep word odd? ring
//! ```
//!
//! At least one of the two sees the other. A waker rings at most once for each odd value.
//!
//! The waker's fence would be most of the cost of a small message, and an engine that is polled
//! seldom sleeps. So such an engine *promises* to take its promise back before it sleeps, and then
//! to make a fence in every process at once; while the promise stands, the waker's fence is a light
//! one ([`barrier`]):
//!
//! ```text
//!   sleeper                              waker
//!   promise = 0                          publish (record, head, ...)
//!   sleep word becomes odd               light fence
//!   heavy fence                          is it promised? else fence
//!   poll everything once more            is the sleep word odd? ring
//! ```

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use descriptors::strangers::PeerSocket;
use descriptors::{Inherited, Known, PeerCred};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::net::SendFlags;
use threads::barrier;

use super::layout::{BELL_LEN, PROMISE, SLEEP};
use super::memfd::{BadMemory, Mapping, SEALS};
use crate::registry::message::WAKE;
use crate::sync::{Ordering, Words, fence};

/// Our own doorbell: peers ring it when there is work and we announced that we sleep.
#[derive(Debug)]
pub struct Doorbell {
    page: Mapping,
    page_fd: Known,
    bell: Known,
}

impl Doorbell {
    pub(crate) fn new() -> io::Result<Self> {
        let (page_fd, page) =
            Mapping::create("peerdma-doorbell", BELL_LEN, SEALS | SealFlags::FUTURE_WRITE)?;
        let bell = Known::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Self { page, page_fd: Known::new(page_fd), bell })
    }

    /// Tells peers that we are about to sleep. **Afterwards every ring must be polled until it is
    /// empty once more**, and every push that found its ring full must be tried again; only then
    /// may the caller wait for [`fd`](Self::fd). Each sleep needs its own call.
    pub fn set_sleeping(&self) {
        fall_asleep(&self.page);
    }

    /// Tells peers that we poll. Calling it twice is the same as once.
    pub fn set_awake(&self) {
        wake_up(&self.page);
    }

    /// Tells peers that we poll and will continue to: the check whether to wake us becomes cheaper,
    /// and the next [`set_sleeping`](Self::set_sleeping) some microseconds more expensive, also for
    /// other processes. Calling it twice is the same as once.
    pub fn set_polling(&self) {
        if barrier::is_ready() {
            promise(&self.page);
        }
        wake_up(&self.page);
    }

    /// The eventfd that becomes readable when a peer rings.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Makes [`fd`](Self::fd) unreadable until the next ring.
    pub fn drain(&self) {
        // An error can only be EAGAIN: there was no ring.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    /// Rings our own bell, to wake the thread that waits for it.
    pub fn ring(&self) {
        if self.bell.look().is_ok() {
            // An error can only be EAGAIN: the counter is full, so the bell has been rung.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// The sealed memfd with the sleep word, for peers.
    pub(crate) fn page_fd(&self) -> BorrowedFd<'_> {
        self.page_fd.as_fd()
    }

    pub(crate) fn look(&self) -> Result<(), Errno> {
        self.bell.look()
    }

    pub(crate) fn inherited(&self) -> [Inherited; 2] {
        [self.page_fd.inherited(), self.bell.inherited()]
    }
}

/// A peer's doorbell.
#[derive(Debug)]
pub(crate) struct PeerBell {
    page: Mapping,
    /// The eventfd, if it is one and the peer has our uid. A write to an eventfd blocks when its
    /// counter is full and the peer has cleared O_NONBLOCK, so strangers are woken by a message on
    /// their socket instead.
    bell: Option<Known>,
    watcher: Watcher,
}

impl PeerBell {
    /// Takes the page that the peer sent.
    pub(crate) fn new(page: &OwnedFd) -> Result<Self, BadMemory> {
        let page = Mapping::open(page.as_fd(), BELL_LEN, SEALS | SealFlags::FUTURE_WRITE)?;
        Ok(Self { page, bell: None, watcher: Watcher::default() })
    }

    /// Also takes the eventfd that the peer sent, if it is one and the peer is our user's.
    pub(crate) fn with_eventfd(self, bell: Option<OwnedFd>, peer: PeerCred) -> Self {
        let bell = bell.filter(|bell| peer.is_same_user() && is_eventfd(bell));
        Self { bell: bell.map(Known::new), ..self }
    }

    /// Wakes the peer if it sleeps. Call it after publishing; `socket` is the connection to it.
    pub(crate) fn ring_if_sleeping(&mut self, socket: &PeerSocket) {
        if !self.watcher.must_ring(&self.page) {
            return;
        }
        if let Some(bell) = &self.bell {
            let rung = bell.look().and_then(|()| rustix::io::write(bell, &1_u64.to_ne_bytes()));
            match rung {
                // EAGAIN: the counter is full, so the bell has been rung.
                Ok(_) | Err(Errno::AGAIN) => return,
                Err(_) => self.bell = None,
            }
        }
        if socket.look().is_err() {
            return;
        }
        // EAGAIN: its socket is full of unread messages, so it is readable already. Any other error
        // means that the peer is gone.
        let _ = rustix::net::send(socket, &WAKE, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    pub(crate) fn inherited(&self) -> Option<Inherited> {
        self.bell.as_ref().map(Known::inherited)
    }
}

/// Promises that no waker with a light fence misses a thread that falls asleep here.
pub(super) fn promise(words: &impl Words) {
    words.store(PROMISE, 1, Ordering::Relaxed);
}

/// Moves the sleep word to the next odd value: a new one even if it is odd, so that a waker that
/// rang for the last sleep rings for this one.
pub(super) fn fall_asleep(words: &impl Words) {
    let has_promised = words.load(PROMISE, Ordering::Relaxed) != 0;
    if has_promised {
        words.store(PROMISE, 0, Ordering::Relaxed);
    }
    words.update(SLEEP, |value| value.wrapping_add(1) | 1);
    if has_promised {
        // ORDERING: both words before the last poll of the rings; pairs with the light fence in
        // `Watcher::must_ring`: either that poll sees what a waker published before its fence, or
        // the waker loads a promise that was taken back.
        barrier::everywhere();
    } else {
        // ORDERING: the sleep word before the last poll of the rings; pairs with the fence in
        // `Watcher::must_ring` and the one in `Tx::want_space`.
        fence(Ordering::SeqCst);
    }
}

/// Moves the sleep word to the next even value, if it is odd.
pub(super) fn wake_up(words: &impl Words) {
    words.update(SLEEP, |value| value.wrapping_add(1) & !1);
}

/// What a waker remembers about a sleeper.
#[derive(Debug, Default)]
pub(super) struct Watcher {
    rung: u64,
}

impl Watcher {
    /// Whether the sleeper sleeps and has not been rung for this sleep.
    pub(super) fn must_ring(&mut self, words: &impl Words) -> bool {
        // ORDERING: what was published before the loads of the promise and, if it stands, of the
        // sleep word; pairs with the heavy fence in `fall_asleep`.
        barrier::light();
        if words.load(PROMISE, Ordering::Relaxed) == 0 || !barrier::is_ready() {
            // ORDERING: what was published before the load of the sleep word; pairs with the fence
            // in `fall_asleep`.
            fence(Ordering::SeqCst);
        }
        let value = words.load(SLEEP, Ordering::Relaxed);
        let ring = !value.is_multiple_of(2) && value != self.rung;
        if ring {
            self.rung = value;
        }
        ring
    }
}

/// Whether `fd` is an eventfd. Where /proc is not mounted the answer is no, and the peer is woken
/// through its socket.
fn is_eventfd(fd: &OwnedFd) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|l| l.as_os_str() == "anon_inode:[eventfd]")
}
