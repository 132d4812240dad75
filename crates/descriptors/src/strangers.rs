//! Sockets whose other end belongs to another user, and what comes through them.
//!
//! A process that is connected to a Unix socket can put descriptors into its queue, of files that
//! the receiver never asked for. Closing such a file takes as long as its owner likes: a TCP socket
//! with SO_LINGER waits for its data to be sent, a FUSE file for an answer of its server. The
//! process that receives it closes it, or the one that closes the socket with the message still in
//! it. So for another user's socket
//!
//! * a message is peeked at before it is received ([`PeerSocket::next`]). One that
//!   brings descriptors is received only if some are expected, and by that user's own thread
//!   ([`run`]), for which nothing waits;
//! * the end is also closed by that thread, if anything with descriptors is left in it;
//! * where the kernel can (`SO_PASSRIGHTS`, Linux 6.16), it refuses them to the sender from the
//!   beginning, or from the moment when none are expected any more ([`PeerSocket::seal`]).
//!
//! A user has one thread, so one whose files do not close keeps only that user's other connections
//! waiting. What waits is bounded ([`has_room`]): callers that accept connections accept none while
//! the bound is reached.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, Shutdown, SocketFlags};

use crate::cred::{self, PeerCred};
use crate::fdinfo::queued_descriptors;
use crate::known::{Inherited, Known};

/// The most users that have a thread at a time; others wait until one is done.
const THREADS_MAX: usize = 16;
/// The most jobs that may wait for threads, of all users together, and of one.
const WAITING_MAX: usize = 128;
const WAITING_PER_USER: usize = 64;

/// An end of a connected Unix socket. It is closed where closing it keeps nothing waiting.
#[derive(Debug)]
pub struct PeerSocket {
    /// `None` only in its drop.
    fd: Option<Known>,
    uid: u32,
    /// Whether the other end is our user's, which can do anything to us anyway.
    is_ours: bool,
    /// Whether no descriptors are in it, and the kernel refuses more.
    is_sealed: AtomicBool,
}

impl PeerSocket {
    /// The socket whose other end is the process that the kernel reports.
    pub fn new(fd: OwnedFd, cred: PeerCred) -> Self {
        let is_sealed = AtomicBool::new(false);
        let fd = Some(Known::new(fd));
        Self { fd, uid: cred.uid, is_ours: cred.is_same_user(), is_sealed }
    }

    /// The same of a socket that was told to take no descriptors ([`refuse_descriptors`]) before it
    /// was connected, or whose listener was, if `is_sealed`.
    pub fn born(fd: OwnedFd, cred: PeerCred, is_sealed: bool) -> Self {
        let socket = Self::new(fd, cred);
        socket.is_sealed.store(is_sealed, Ordering::Relaxed);
        socket
    }

    /// Whether the other end is our user's.
    pub fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// Whose the other end is.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Checks whether the number still is that of the socket ([`Known::look`]).
    ///
    /// # Errors
    ///
    /// EBADF otherwise.
    pub fn look(&self) -> Result<(), Errno> {
        self.known().look()
    }

    /// For the child of a fork.
    pub fn inherited(&self) -> Inherited {
        self.known().inherited()
    }

    fn known(&self) -> &Known {
        self.fd.as_ref().expect("only a drop takes it")
    }

    /// Takes no more descriptors. Returns whether there are none in it now that were not expected.
    pub fn seal(&self) -> bool {
        if self.is_ours {
            return true;
        }
        let refuses = refuse_descriptors(self.as_fd());
        let queued = queued_descriptors(self.as_fd());
        if refuses && queued == Some(0) {
            self.is_sealed.store(true, Ordering::Relaxed);
        }
        queued.is_none_or(|queued| queued == 0)
    }

    #[inline]
    fn is_open(&self) -> bool {
        !self.is_ours && !self.is_sealed.load(Ordering::Relaxed)
    }

    /// Looks at the next message, which stays where it is, and puts its bytes into `bytes`. Only
    /// what is [`Next::Expected`] may be received here.
    ///
    /// A message that comes after the look has not been looked at. So a socket of another user that
    /// holds none yet is not to be received from: the message could arrive just then.
    pub fn next(&self, bytes: &mut [u8]) -> Next {
        if !self.is_open() {
            return Next::Expected;
        }
        loop {
            // Without room for them they stay in the message, and the flag tells that they are
            // there.
            let mut none = RecvAncillaryBuffer::default();
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            let mut parts = [IoSliceMut::new(bytes)];
            return match rustix::net::recvmsg(self, &mut parts, &mut none, flags) {
                Ok(got) if got.flags.contains(ReturnFlags::CTRUNC) => Next::Brings(got.bytes),
                Ok(_) => Next::Expected,
                Err(Errno::AGAIN) => Next::Nothing,
                // The kernel reports it once, before the last messages of a peer that closed.
                Err(Errno::CONNRESET | Errno::INTR) => continue,
                Err(_) => Next::Closed,
            };
        }
    }
}

/// What the next message of a socket is, as far as descriptors go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It brings none of another user, or the socket is one through which none can come, and then
    /// nobody looked whether there is a message at all.
    Expected,
    /// It brings descriptors of another user. It has this many bytes.
    Brings(usize),
    /// There is none yet.
    Nothing,
    /// None will come.
    Closed,
}

impl AsRawFd for PeerSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl AsFd for PeerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.known().as_fd()
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        if self.is_open() && fd.is_ours() {
            close(fd, self.uid);
        }
    }
}

/// A Unix socket that listens. Connections that wait to be accepted when it is closed keep nothing
/// waiting.
#[derive(Debug)]
pub struct Listener {
    /// `None` only in its drop.
    fd: Option<Known>,
}

impl Listener {
    /// Takes charge of a socket.
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd: Some(Known::new(fd)) }
    }

    /// Checks whether the number still is that of the socket ([`Known::look`]).
    ///
    /// # Errors
    ///
    /// EBADF otherwise.
    pub fn look(&self) -> Result<(), Errno> {
        self.known().look()
    }

    /// For the child of a fork.
    pub fn inherited(&self) -> Inherited {
        self.known().inherited()
    }

    fn known(&self) -> &Known {
        self.fd.as_ref().expect("only a drop takes it")
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.known().as_fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.fd.take().into_iter().for_each(close_listener);
    }
}

/// Makes the kernel refuse descriptors that are sent to a socket, or to those that are accepted
/// from it. False if it cannot.
pub fn refuse_descriptors(socket: impl AsFd) -> bool {
    cred::take_descriptors(socket.as_fd(), false)
}

/// Takes that back.
pub fn take_descriptors(socket: impl AsFd) {
    // It also fails where it could not be set.
    let _ = cred::take_descriptors(socket.as_fd(), true);
}

/// Closes a socket of another user, connected or listening, without waiting: here, if nothing is in
/// it whose closing could wait.
fn close(fd: Known, uid: u32) {
    // Nothing more can come in from now on.
    let _ = rustix::net::shutdown(&fd, Shutdown::Both);
    if queued_descriptors(fd.as_fd()) == Some(0) {
        return;
    }
    tracing::warn!(target: "peerdma::stranger", uid, "closing descriptors that were not asked for");
    give(uid, Box::new(move || drop(fd)));
}

/// Stops connections to a socket that listens, and closes those that wait to be accepted, which may
/// hold any descriptors of any user. Returns whether the socket can be closed now without waiting.
pub fn end_listening(listener: BorrowedFd<'_>) -> bool {
    // The queue can still be read.
    let _ = rustix::net::shutdown(listener, Shutdown::Both);
    if queued_descriptors(listener) != Some(0) {
        while let Ok(socket) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
            let Ok(cred) = cred::peer_cred(socket.as_fd()) else { continue };
            drop(PeerSocket::new(socket, cred));
        }
    }
    queued_descriptors(listener) == Some(0)
}

fn close_listener(listener: Known) {
    if listener.is_ours() && !end_listening(listener.as_fd()) {
        // No descriptors left to accept with: its name is free when it is closed.
        give(u32::MAX, Box::new(move || drop(listener)));
    }
}

/// What a user's thread does.
pub type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    waiting: BTreeMap<u32, VecDeque<Job>>,
    /// Users that have a thread.
    served: BTreeSet<u32>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("served", &self.served).finish_non_exhaustive()
    }
}

impl State {
    fn count(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }

    /// The next job of a user that has a thread, or of one that gets it.
    fn next(&mut self, uid: &mut u32) -> Option<Job> {
        if let Some(job) = self.waiting.get_mut(uid).and_then(VecDeque::pop_front) {
            return Some(job);
        }
        self.waiting.remove(uid);
        self.served.remove(uid);
        let (next, jobs) = self.waiting.iter_mut().find(|(uid, _)| !self.served.contains(uid))?;
        *uid = *next;
        self.served.insert(*next);
        jobs.pop_front()
    }
}

/// Gives a user's thread a job that may take as long as that user likes. False if too many wait.
#[must_use]
pub fn run(uid: u32, job: Job) -> bool {
    let waits = state().waiting.get(&uid).map_or(0, VecDeque::len);
    if waits >= WAITING_PER_USER || !has_room() {
        return false;
    }
    give(uid, job);
    true
}

/// Whether connections may be accepted that a thread may have to close.
pub fn has_room() -> bool {
    state().count() < WAITING_MAX
}

fn give(uid: u32, job: Job) {
    crate::fork::watch();
    let mut state = state();
    state.waiting.entry(uid).or_default().push_back(job);
    if state.served.contains(&uid) || state.served.len() >= THREADS_MAX {
        return;
    }
    let mut uid = uid;
    state.served.insert(uid);
    drop(state);
    let builder = Builder::new().name("peerdma-stranger".to_owned()).stack_size(256 << 10);
    let spawned = threads::start(builder, move || {
        loop {
            // The lock is released before the job begins.
            let Some(job) = self::state().next(&mut uid) else { return };
            job();
        }
    });
    if let Err(error) = spawned {
        // It stays where it is until the next one comes.
        self::state().served.remove(&uid);
        tracing::warn!(target: "peerdma::stranger", uid, "no thread for another user's descriptors: {error}");
    }
}

fn state() -> MutexGuard<'static, State> {
    static STATE: Mutex<State> =
        Mutex::new(State { waiting: BTreeMap::new(), served: BTreeSet::new() });
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What waits, locked across a fork.
pub(crate) struct HeldStrangers(MutexGuard<'static, State>);

pub(crate) fn hold() -> HeldStrangers {
    HeldStrangers(state())
}

/// In the child: it has none of the threads, and the jobs that wait for them are the parent's.
pub(crate) fn forget(HeldStrangers(mut state): HeldStrangers) {
    std::mem::forget(std::mem::take(&mut *state));
}

#[cfg(test)]
mod tests;
