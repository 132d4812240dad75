//! The descriptors that the background thread sleeps on, and those of the program that wait.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use descriptors::Known;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use threads::futex;

use crate::refusal::{Kind, Refusal, Result};

/// What ended a sleep, in the order of how much is to be checked then. Of several the last counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::exhaustive_enums, reason = "callers say what woke them")]
pub enum Woken {
    /// Nothing: the time has passed.
    Nothing,
    /// The descriptor that a thread of the program waits for.
    Readable,
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
const OF_PROGRAM: u64 = 4;

impl Woken {
    /// What events of a set say, by their `data` (`struct epoll_event`).
    pub fn by(events: impl Iterator<Item = u64>) -> Self {
        let woken = |data| match data {
            DATAGRAMS => Self::Datagrams,
            DOORBELL | WAKE => Self::Rung,
            OF_PROGRAM => Self::Readable,
            _ => Self::Otherwise,
        };
        events.map(woken).max().unwrap_or(Self::Nothing)
    }
}

/// Sleeps on a set until something happens or the time has passed. `each` sees the events.
pub(crate) fn sleep(
    set: impl AsFd,
    timeout: Option<Duration>,
    each: impl Fn(u64),
) -> rustix::io::Result<Woken> {
    let timeout = timeout.map(|wait| Timespec {
        tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    });
    let data = epoll::EventData::new_u64(OTHER);
    let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data }; 8];
    let count = epoll::wait(set, &mut events[..], timeout.as_ref())?;
    Ok(Woken::by(events[..count].iter().map(|event| event.data.u64()).inspect(|data| each(*data))))
}

/// Two sets of descriptors: those that always wake the thread, and these with those that wake it
/// only while the program does not poll, since a poll takes datagrams itself.
#[derive(Debug)]
pub(crate) struct Waits {
    always: Known,
    idle: Known,
    /// Wakes the thread from inside the process.
    wake: Known,
    /// Those of the program that datagrams wake (`hca::wait`).
    of_program: futex::Mutex<Vec<Weak<Known>>>,
    /// Odd while operations wait for others (`engine::held`); each change counts. The thread reads
    /// it without the lock.
    held: AtomicU64,
}

/// Sets for threads of the program that wait for one descriptor.
#[derive(Debug)]
pub(crate) struct SetsOfProgram {
    pub(crate) with_datagrams: Arc<Known>,
    pub(crate) without: Known,
}

impl Waits {
    pub(crate) fn new() -> Result<Self> {
        let refused =
            |error| Refusal::new(Kind::NoMemory, format!("descriptors to wait on: {error}"));
        let set = || epoll::create(epoll::CreateFlags::CLOEXEC).map(Known::new).map_err(refused);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(refused)?;
        let waits = Self {
            always: set()?,
            idle: set()?,
            wake: Known::new(wake),
            of_program: futex::Mutex::default(),
            held: AtomicU64::new(0),
        };
        waits.add_to_both(&waits.wake, WAKE);
        Ok(waits)
    }

    /// Adds a descriptor that wakes the thread at all times. Closing it removes it.
    pub(crate) fn add_always(&self, fd: impl AsFd) {
        self.add_to_both(fd, OTHER);
    }

    /// The same for the bell that peers ring. It wakes one thread of those that sleep on it.
    /// Returns whether it is there now.
    pub(crate) fn add_doorbell(&self, fd: impl AsFd) -> bool {
        [&self.always, &self.idle].map(|set| Self::add_for_one_or_all(set, &fd, DOORBELL))
            == [true; 2]
    }

    /// Sets for threads of the program: each has the descriptor that they wait for and the
    /// doorbell, and one also the sockets of `datagrams`. These wake such a thread rather than the
    /// background thread.
    pub(crate) fn sets_of_program<'a>(
        &self,
        fd: impl AsFd,
        doorbell: BorrowedFd<'a>,
        datagrams: impl Iterator<Item = BorrowedFd<'a>>,
    ) -> rustix::io::Result<SetsOfProgram> {
        let set = || {
            let set = Known::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
            let data = epoll::EventData::new_u64(OF_PROGRAM);
            epoll::add(&set, &fd, data, epoll::EventFlags::IN)?;
            Self::add_for_one(&set, doorbell, DOORBELL)?;
            Ok(set)
        };
        let sets = SetsOfProgram { with_datagrams: Arc::new(set()?), without: set()? };
        let mut of_program = self.of_program.lock();
        of_program.retain(|set| set.strong_count() > 0);
        of_program.push(Arc::downgrade(&sets.with_datagrams));
        drop(of_program);
        // Of those that sleep, the kernel wakes the one whose set was first.
        self.remove_always(doorbell);
        let mut is_done = self.add_doorbell(doorbell);
        let sockets: Vec<_> = datagrams.collect();
        for socket in &sockets {
            let _ = epoll::delete(&self.idle, socket);
            is_done &= self.add_datagrams(socket);
        }
        if is_done {
            return Ok(sets);
        }
        // The kernel has a limit (epoll(7), `max_user_watches`). There is room for ours again.
        drop(sets);
        self.add_doorbell(doorbell);
        sockets.iter().for_each(|socket| _ = self.add_datagrams(socket));
        Err(Errno::NOSPC)
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

    /// Adds a socket of datagrams, which wakes the thread while the program does not poll, or one
    /// of the program that waits; one that is there already stays. Returns whether it is there now.
    pub(crate) fn add_datagrams(&self, fd: impl AsFd) -> bool {
        self.each_of_program(|set| _ = Self::add_for_one(set, &fd, DATAGRAMS));
        Self::add_for_one_or_all(&self.idle, fd, DATAGRAMS)
    }

    /// Removes a socket that [`Waits::add_datagrams`] added, if it is there.
    ///
    /// A registered socket costs a ping-pong 0.25 us, whether or not a thread sleeps on the set:
    /// the kernel notifies the set of each datagram that arrives, and of the room that each one
    /// sent frees.
    pub(crate) fn remove_datagrams(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.idle, &fd);
        self.each_of_program(|set| _ = epoll::delete(set, &fd));
    }

    fn each_of_program(&self, mut each: impl FnMut(&Known)) {
        let of_program = self.of_program.lock();
        of_program.iter().filter_map(Weak::upgrade).for_each(|set| each(&set));
    }

    /// Adds a descriptor that wakes one thread, of this set or of another.
    fn add_for_one(set: &Known, fd: impl AsFd, what: u64) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(what);
        epoll::add(set, fd, data, epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE)
    }

    /// The same, or one that wakes each, where the kernel cannot wake one alone.
    fn add_for_one_or_all(set: &Known, fd: impl AsFd, what: u64) -> bool {
        let added = Self::add_for_one(set, &fd, what);
        matches!(added, Ok(()) | Err(Errno::EXIST)) || Self::add(set, fd, what)
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
        let set = if program_polls { &self.always } else { &self.idle };
        let silence = |data| {
            if data == WAKE {
                let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
            }
        };
        // An interrupted wait is a short one.
        sleep(set, timeout, silence).unwrap_or(Woken::Nothing)
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

    #[test]
    fn one_thread_is_woken_and_the_background_thread_last() {
        let waits = &Waits::new().expect("descriptors are free");
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (doorbell, own) = (eventfd(0, flags).unwrap(), eventfd(0, flags).unwrap());
        waits.add_doorbell(&doorbell);
        let socket = UdpSocket::bind("127.0.0.1:0").expect("lo is up");
        let to = socket.local_addr().expect("bound");
        assert!(waits.add_datagrams(&socket));
        let watched = [socket.as_fd()].into_iter();
        let sets = waits.sets_of_program(&own, doorbell.as_fd(), watched).expect("free");
        let ring = || _ = rustix::io::write(&doorbell, &1u64.to_ne_bytes());
        let send = || _ = socket.send_to(b"x", to).expect("lo is up");
        // The set of the other thread that sleeps, whether the bell rings or a datagram comes, and
        // whether the two threads are woken: that one, and ours.
        let happens = |is_ring| if is_ring { ring() } else { send() };
        let cases = [
            (Some(&*sets.with_datagrams), true, [true, false]),
            (Some(&*sets.with_datagrams), false, [true, false]),
            (Some(&sets.without), true, [true, false]),
            (Some(&sets.without), false, [false, true]),
            (None, true, [false, true]),
        ];
        socket.set_nonblocking(true).unwrap();
        for (case, (set, is_ring, expected)) in cases.into_iter().enumerate() {
            let woken = || {
                std::thread::scope(|scope| {
                    let time = Some(Duration::from_millis(300));
                    let ours = scope.spawn(move || waits.wait(time, false));
                    let is_woken = move |set| sleep(set, time, |_| {}) != Ok(Woken::Nothing);
                    let program = scope.spawn(move || set.is_some_and(is_woken));
                    std::thread::sleep(Duration::from_millis(100));
                    happens(is_ring);
                    let ours = ours.join().unwrap() != Woken::Nothing;
                    let woken = [program.join().unwrap(), ours];
                    let _ = rustix::io::read(&doorbell, &mut [0u8; 8]);
                    let _ = socket.recv(&mut [0u8; 8]);
                    woken
                })
            };
            // On a busy machine a thread may not sleep yet when it happens.
            assert!((0..20).any(|_| woken() == expected), "case {case}: {expected:?}");
        }
        drop(sets);
        waits.remove_datagrams(&socket);
    }
}
