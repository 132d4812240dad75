//! The descriptors that the background thread sleeps on.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use descriptors::Known;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use crate::refusal::{Kind, Refusal, Result};

/// What ended a wait, in the order of how much is to be checked then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Woken {
    /// Nothing: the time has passed.
    Nothing,
    /// A bell: of a peer that put something into its ring, or of this process.
    Rung,
    /// Datagrams, and at most a bell besides.
    Datagrams,
    /// Anything else.
    Otherwise,
}

/// How a descriptor is registered with epoll.
const OTHER: u64 = 0;
const DATAGRAMS: u64 = 1;
const DOORBELL: u64 = 2;
const WAKE: u64 = 3;

/// Two sets of descriptors: those that always wake the thread, and these with those that wake it
/// only while the program does not poll, since a poll takes datagrams itself.
#[derive(Debug)]
pub(crate) struct Waits {
    always: Known,
    idle: Known,
    /// Wakes the thread from inside the process.
    wake: Known,
    /// Odd while operations wait for others (`engine::held`); each change counts. The thread reads
    /// it without the lock.
    held: AtomicU64,
}

impl Waits {
    pub(crate) fn new() -> Result<Self> {
        let refused =
            |error| Refusal::new(Kind::NoMemory, format!("descriptors to wait on: {error}"));
        let set = || epoll::create(epoll::CreateFlags::CLOEXEC).map(Known::new).map_err(refused);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(refused)?;
        let waits =
            Self { always: set()?, idle: set()?, wake: Known::new(wake), held: AtomicU64::new(0) };
        waits.add_to_both(&waits.wake, WAKE);
        Ok(waits)
    }

    /// Adds a descriptor that wakes the thread at all times. Closing it removes it.
    pub(crate) fn add_always(&self, fd: impl AsFd) {
        self.add_to_both(fd, OTHER);
    }

    /// The same for the bell that peers ring.
    pub(crate) fn add_doorbell(&self, fd: impl AsFd) {
        self.add_to_both(fd, DOORBELL);
    }

    /// In one set within the other, it would not be known which of them is readable.
    fn add_to_both(&self, fd: impl AsFd, what: u64) {
        Self::add(&self.always, &fd, what);
        Self::add(&self.idle, &fd, what);
    }

    /// Removes a descriptor that [`Waits::add_always`] added.
    pub(crate) fn remove_always(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.always, &fd);
        let _ = epoll::delete(&self.idle, &fd);
    }

    /// Adds a descriptor that wakes the thread while the program does not poll.
    pub(crate) fn add_idle(&self, fd: impl AsFd) {
        Self::add(&self.idle, fd, OTHER);
    }

    /// Adds a socket of datagrams, which wakes the thread while the program does not poll; one that
    /// is there already stays. Returns whether it is there now.
    pub(crate) fn add_datagrams(&self, fd: impl AsFd) -> bool {
        Self::add(&self.idle, fd, DATAGRAMS)
    }

    /// Removes a socket that [`Waits::add_datagrams`] added, if it is there.
    ///
    /// A registered socket costs a ping-pong 0.25 us, whether or not a thread sleeps on the set:
    /// the kernel notifies the set of each datagram that arrives, and of the room that each one
    /// sent frees.
    pub(crate) fn remove_datagrams(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.idle, fd);
    }

    fn add(set: &Known, fd: impl AsFd, what: u64) -> bool {
        let data = epoll::EventData::new_u64(what);
        match epoll::add(set, fd, data, epoll::EventFlags::IN) {
            Ok(()) | Err(Errno::EXIST) => true,
            Err(error) => {
                tracing::warn!(target: "peerdma::progress", "cannot wait on a descriptor: {error}");
                false
            }
        }
    }

    /// Checks that the program has left us these descriptors ([`Known::look`]).
    pub(crate) fn look(&self) -> std::result::Result<(), Errno> {
        [&self.always, &self.idle, &self.wake].into_iter().try_for_each(Known::look)
    }

    /// Sets whether operations wait. Returns whether that is a change. The caller has the lock of
    /// the engine.
    #[inline]
    pub(crate) fn set_held(&self, is_held: bool) -> bool {
        let count = self.held.load(Ordering::Relaxed);
        let is_change = (count & 1 == 1) != is_held;
        if is_change {
            self.held.store(count + 1, Ordering::Relaxed);
        }
        is_change
    }

    /// A number of the operations that wait now, if any do. The next ones have another number.
    pub(crate) fn held(&self) -> Option<u64> {
        Some(self.held.load(Ordering::Relaxed)).filter(|count| count & 1 == 1)
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        if self.wake.look().is_ok() {
            // A full eventfd already wakes its reader.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Sleeps until something happens or the time has passed.
    pub(crate) fn wait(&self, timeout: Option<Duration>, program_polls: bool) -> Woken {
        let timeout = timeout.map(|wait| Timespec {
            tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        });
        let set = if program_polls { &self.always } else { &self.idle };
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(OTHER),
        }; 8];
        // An interrupted wait is a short one.
        let count = epoll::wait(set, &mut events[..], timeout.as_ref()).unwrap_or(0);
        let woken = |event: &epoll::Event| match event.data.u64() {
            DATAGRAMS => Woken::Datagrams,
            DOORBELL => Woken::Rung,
            WAKE => {
                let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
                Woken::Rung
            }
            _ => Woken::Otherwise,
        };
        events[..count].iter().map(woken).max().unwrap_or(Woken::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_datagram_wakes_only_through_an_added_socket_however_old_it_is() {
        let waits = Waits::new().expect("descriptors are free");
        let socket = UdpSocket::bind("127.0.0.1:0").expect("lo is up");
        let to = socket.local_addr().expect("bound");
        socket.send_to(b"x", to).expect("lo is up");
        let woken = || waits.wait(Some(Duration::ZERO), false);
        assert_eq!(woken(), Woken::Nothing);
        assert!(waits.add_datagrams(&socket));
        assert!(waits.add_datagrams(&socket), "it is there already");
        assert_eq!(woken(), Woken::Datagrams);
        waits.remove_datagrams(&socket);
        waits.remove_datagrams(&socket);
        assert_eq!(woken(), Woken::Nothing);
        assert!(waits.add_datagrams(&socket));
        assert_eq!(woken(), Woken::Datagrams, "a datagram that came in the meantime still waits");
    }

    #[test]
    fn what_is_most_to_check_is_told_of_what_woke() {
        let waits = Waits::new().expect("descriptors are free");
        let polls = [false, true];
        let woken = |program_polls| waits.wait(Some(Duration::ZERO), program_polls);
        for program_polls in polls {
            waits.wake();
            assert_eq!(woken(program_polls), Woken::Rung);
            assert_eq!(woken(program_polls), Woken::Nothing, "it was silenced");
        }
        let bell = || eventfd(1, EventfdFlags::CLOEXEC).expect("descriptors are free");
        let doorbell = bell();
        waits.add_doorbell(&doorbell);
        assert_eq!(polls.map(woken), [Woken::Rung; 2]);
        let socket = UdpSocket::bind("127.0.0.1:0").expect("lo is up");
        socket.send_to(b"x", socket.local_addr().expect("bound")).expect("lo is up");
        assert!(waits.add_datagrams(&socket));
        assert_eq!(polls.map(woken), [Woken::Datagrams, Woken::Rung]);
        let other = bell();
        waits.add_always(&other);
        assert_eq!(polls.map(woken), [Woken::Otherwise; 2]);
        waits.remove_always(&other);
        assert_eq!(polls.map(woken), [Woken::Datagrams, Woken::Rung]);
        waits.add_idle(&other);
        assert_eq!(polls.map(woken), [Woken::Otherwise, Woken::Rung]);
    }
}
