//! Names that belong to one process of a host at a time, and the process that has each.
//!
//! A VF claims a *name* of its nic, such as a port that its program listens on, by listening on the
//! abstract Unix socket `peerdma/N/cm/NAME`: the second process is told that it is in use, and the
//! name is free when its process is gone. Others look a name up by connecting; the holder answers
//! with its VF and keeps the connection, whose end means that the answer is no longer valid.
//!
//! Names have no owner before they are claimed, as TCP ports have none. The kernel tells which
//! process has one, from its socket (`SO_PEERCRED`), and a refusal names it.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use descriptors::strangers::{self, Listener, PeerSocket};
use descriptors::{Inherited, Known, PeerCred, peer_cred};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags};

use super::fetch::Post;
use super::message::{Message, Received, recv};
use super::probe::Probe;
use super::socket::{PAUSE, new_socket, spare_fd};

/// Connections of processes that ask, of which the oldest is dropped to make room: for our user's
/// processes, for those of all other users, and for those of one other user.
const MAX_CLIENTS: usize = 256;
const MAX_STRANGERS: usize = 128;
const MAX_OF_STRANGER: usize = 32;
/// Lookups that are kept; the oldest is dropped to make room.
const MAX_LOOKUPS: usize = 256;
/// Events taken in one call.
const BATCH: usize = 64;
const BACKLOG: i32 = 1024;
/// The number of entries whose descriptors are checked in one pass; the others have their turn in
/// the next.
const ENTRIES_PER_LOOK: usize = 64;
/// How long a holder may take to identify itself before the log names it.
const PATIENCE: Duration = Duration::from_secs(1);
/// The key of the event that is raised when processes that wait may be served again.
const RESUME: u64 = u64::MAX;

/// Why a name was not claimed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Another process has it.
    #[error("{name} is held by {by}")]
    InUse {
        /// The name.
        name: String,
        /// Its owner.
        by: Occupant,
    },
    /// The system refused.
    #[error("claiming {name}: {source}")]
    System {
        /// The name.
        name: String,
        /// The error.
        source: io::Error,
    },
}

/// The owner of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "all that can be known about a name")]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// A process that has not identified itself yet: [`Directory::poll`] tells.
    Asked,
    /// This VF.
    Vf(u16),
}

/// The owner of the socket that has a name, as the kernel reports: it need not be an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Occupant {
    /// It listens, and belongs to this process.
    Process(PeerCred),
    /// It listens, and its queue is full.
    Full,
    /// It does not listen, or is of another type: no engine has such a socket.
    NoEngine,
}

impl fmt::Display for Occupant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(PeerCred { pid: Some(pid), uid }) => write!(f, "pid {pid} (uid {uid})"),
            Self::Process(PeerCred { pid: None, uid }) => {
                write!(f, "a process of another pid namespace (uid {uid})")
            }
            Self::Full => f.write_str("a process that does not answer"),
            Self::NoEngine => f.write_str("a socket that takes no connections, so not an engine's"),
        }
    }
}

/// The answer of the holder of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// Nothing since then; whether the log has reported it.
    Nothing { since: Instant, is_told: bool },
    /// That it is this VF.
    Vf(u16),
    /// Something that no engine sends.
    Nonsense,
}

/// A socket of the directory.
#[derive(Debug)]
enum Entry {
    /// A name of ours.
    Name { name: String, listener: Listener, is_sealed: bool },
    /// A process that asked for one.
    Client { of: u64, socket: PeerSocket },
    /// A name that we asked for.
    Lookup { name: String, socket: PeerSocket, holder: Occupant, said: Said },
}

impl Entry {
    fn look(&self) -> Result<(), Errno> {
        match self {
            Self::Name { listener, .. } => listener.look(),
            Self::Client { socket, .. } | Self::Lookup { socket, .. } => socket.look(),
        }
    }

    fn inherited(&self) -> Inherited {
        match self {
            Self::Name { listener, .. } => listener.inherited(),
            Self::Client { socket, .. } | Self::Lookup { socket, .. } => socket.inherited(),
        }
    }
}

impl AsFd for Entry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Name { listener, .. } => listener.as_fd(),
            Self::Client { socket, .. } | Self::Lookup { socket, .. } => socket.as_fd(),
        }
    }
}

/// The names of one VF, and what it knows about those of others.
///
/// [`AsFd`] gives a descriptor that is readable when [`poll`](Self::poll) has something to do.
/// Nothing waits.
#[derive(Debug)]
pub struct Directory {
    nic: String,
    vf: u16,
    epoll: Known,
    /// Closed for a moment to turn away a process that asks, when there are no descriptors left.
    spare: Option<Known>,
    /// Names of ours for which processes that ask wait until there is a descriptor.
    paused: Vec<u64>,
    /// Whether the log has reported that.
    is_short: bool,
    resume: Arc<Post<()>>,
    entries: BTreeMap<u64, Entry>,
    /// The names that we asked for.
    asked: BTreeMap<String, u64>,
    next: u64,
    probe: Probe,
    /// The entry at which the next check of descriptors begins.
    looked: u64,
}

/// A claimed name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NameKey(u64);

impl Directory {
    /// A directory without names.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn new(nic: &str, vf: u16) -> io::Result<Self> {
        let epoll = Known::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let spare = spare_fd(&epoll);
        let resume = Post::new()?;
        epoll::add(&epoll, &*resume, epoll::EventData::new_u64(RESUME), epoll::EventFlags::IN)?;
        Ok(Self {
            nic: nic.to_owned(),
            vf,
            epoll,
            spare,
            paused: Vec::new(),
            is_short: false,
            resume,
            entries: BTreeMap::new(),
            asked: BTreeMap::new(),
            next: 0,
            probe: Probe::default(),
            looked: 0,
        })
    }

    fn address(&self, name: &str) -> Result<SocketAddrUnix, Errno> {
        SocketAddrUnix::new_abstract_name(format!("peerdma/{}/cm/{name}", self.nic).as_bytes())
    }

    /// Claims a name until [`release`](Self::release).
    ///
    /// # Errors
    /// See [`NameError`].
    pub fn claim(&mut self, name: &str) -> Result<NameKey, NameError> {
        let (listener, is_sealed) = self.bind(name).map_err(|error| match error {
            Errno::ADDRINUSE => {
                let by = self.occupant(name).unwrap_or(Occupant::NoEngine);
                NameError::InUse { name: name.to_owned(), by }
            }
            error => NameError::System { name: name.to_owned(), source: error.into() },
        })?;
        let entry = Entry::Name { name: name.to_owned(), listener, is_sealed };
        let key = self.add(entry);
        let key = key.map_err(|e| NameError::System { name: name.to_owned(), source: e.into() })?;
        Ok(NameKey(key))
    }

    fn bind(&self, name: &str) -> Result<(Listener, bool), Errno> {
        let socket = new_socket()?;
        let is_sealed = strangers::refuse_descriptors(&socket);
        rustix::net::bind(&socket, &self.address(name)?)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok((Listener::new(socket), is_sealed))
    }

    /// Connects to the process that has a name. It cannot send us descriptors, where the kernel can
    /// refuse them.
    fn dial(&self, name: &str) -> Result<(PeerSocket, Occupant), Errno> {
        let socket = new_socket()?;
        let is_sealed = strangers::refuse_descriptors(&socket);
        rustix::net::connect(&socket, &self.address(name)?)?;
        let cred = peer_cred(socket.as_fd())?;
        Ok((PeerSocket::born(socket, cred, is_sealed), Occupant::Process(cred)))
    }

    /// Gives a name back. Processes that looked it up learn of it.
    pub fn release(&mut self, key: NameKey) {
        self.remove(key.0);
        let is_of = |entry: &Entry| matches!(entry, Entry::Client { of, .. } if *of == key.0);
        let clients = self.entries.iter().filter(|(_, entry)| is_of(entry));
        for client in clients.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.remove(client);
        }
    }

    /// Whether a process listens on a name, ourselves included. Another process may have it a
    /// moment later.
    pub fn is_held(&self, name: &str) -> bool {
        self.occupant(name).is_some()
    }

    /// The same for any of several names.
    pub fn is_any_held(&mut self, names: &[String]) -> bool {
        names.iter().any(|name| match self.address(name) {
            Ok(at) => self.probe.is_held(&at),
            Err(_) => true,
        })
    }

    /// The process that listens. A socket that has the name but does not listen is noticed only
    /// when the name is claimed.
    pub fn occupant(&self, name: &str) -> Option<Occupant> {
        match self.dial(name) {
            Ok((_, occupant)) => Some(occupant),
            Err(Errno::CONNREFUSED) => None,
            Err(Errno::AGAIN) => Some(Occupant::Full),
            Err(_) => Some(Occupant::NoEngine),
        }
    }

    /// The owner of a name.
    pub fn lookup(&mut self, name: &str) -> Holder {
        if let Some(&key) = self.asked.get(name)
            && self.listen(key)
        {
            return self.answer(key);
        }
        let (socket, holder) = match self.dial(name) {
            Ok(dialled) => dialled,
            // A socket of another type: no engine has it.
            Err(Errno::CONNREFUSED | Errno::PROTOTYPE) => return Holder::Nobody,
            Err(error) => {
                tracing::info!(name, %error, "the holder of this name could not be asked");
                return Holder::Asked;
            }
        };
        self.make_room();
        let said = Said::Nothing { since: Instant::now(), is_told: false };
        let entry = Entry::Lookup { name: name.to_owned(), socket, holder, said };
        let Ok(key) = self.add(entry) else { return Holder::Asked };
        self.asked.insert(name.to_owned(), key);
        if self.listen(key) { self.answer(key) } else { Holder::Nobody }
    }

    fn make_room(&mut self) {
        if self.asked.len() < MAX_LOOKUPS {
            return;
        }
        if let Some(&oldest) = self.asked.values().min() {
            self.remove(oldest);
        }
    }

    fn answer(&mut self, key: u64) -> Holder {
        let Some(Entry::Lookup { name, holder, said, .. }) = self.entries.get_mut(&key) else {
            return Holder::Nobody;
        };
        match said {
            Said::Vf(vf) => Holder::Vf(*vf),
            Said::Nonsense => Holder::Nobody,
            Said::Nothing { since, is_told } => {
                if !*is_told && since.elapsed() > PATIENCE {
                    *is_told = true;
                    let name = name.as_str();
                    tracing::warn!(name, "held by {holder}, which does not identify itself");
                }
                Holder::Asked
            }
        }
    }

    /// Reads a holder's answer. False if it gave the name back.
    fn listen(&mut self, key: u64) -> bool {
        let Some(Entry::Lookup { name, socket, holder, said }) = self.entries.get_mut(&key) else {
            return false;
        };
        for _ in 0..BATCH {
            match recv(socket) {
                Received::Nothing => return true,
                Received::Closed => {
                    self.remove(key);
                    return false;
                }
                // The message stays in the socket.
                Received::Brings(_) if *said == Said::Nonsense => return true,
                // Anything else it sends is ignored.
                Received::Message(..) if *said == Said::Nonsense => {}
                Received::Message(Ok(Message::Pong { vf }), _) => *said = Said::Vf(vf),
                Received::Message(..) | Received::Brings(_) => {
                    let name = name.as_str();
                    tracing::warn!(
                        name,
                        "held by {holder}, which is not an engine: it sent an invalid answer"
                    );
                    *said = Said::Nonsense;
                    // Its end is seen when the name is looked up again.
                    let _ = epoll::delete(&self.epoll, &*socket);
                }
            }
        }
        true
    }

    /// Answers processes that ask, and reads answers. Returns whether anything was learnt: a name
    /// that was [`Holder::Asked`] may be worth looking up again.
    pub fn poll(&mut self) -> bool {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; BATCH];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.epoll, &mut events[..], Some(&now)).unwrap_or(0);
        let mut learnt = false;
        for event in &events[..count] {
            let key = event.data.u64();
            if key == RESUME {
                self.resume();
                continue;
            }
            match self.entries.get(&key) {
                Some(Entry::Name { .. }) => self.accept(key),
                // A process that asked sends nothing more: it has gone away.
                Some(Entry::Client { .. }) => drop(self.remove(key)),
                Some(Entry::Lookup { .. }) => {
                    self.listen(key);
                    learnt = true;
                }
                None => {}
            }
        }
        learnt
    }

    fn accept(&mut self, of: u64) {
        for _ in 0..BATCH {
            let Some(Entry::Name { listener, is_sealed, .. }) = self.entries.get(&of) else {
                return;
            };
            let is_sealed = *is_sealed;
            self.spare = self.spare.take().or_else(|| spare_fd(&self.epoll));
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let accepted = match rustix::net::accept_with(listener, flags) {
                Err(error @ (Errno::MFILE | Errno::NFILE)) if self.spare.is_some() => {
                    tracing::warn!(%error, "a process that asks for a name of ours is turned away");
                    // Otherwise the listener would stay readable, and we would spin.
                    self.spare = None;
                    rustix::net::accept_with(listener, flags).map(|socket| (socket, false))
                }
                accepted => accepted.map(|socket| (socket, true)),
            };
            let (socket, has_room) = match accepted {
                Ok(accepted) => accepted,
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    self.pause(of, error);
                    return;
                }
            };
            self.is_short = false;
            let Ok(cred) = peer_cred(socket.as_fd()) else { continue };
            let socket = PeerSocket::born(socket, cred, is_sealed);
            // A process that asks and does not read gets no answer.
            let _ = Message::Pong { vf: self.vf }.send(&socket, &[]);
            if has_room {
                self.make_room_for(&socket);
                // A connection that cannot be watched is closed, and its process asks again.
                let _ = self.add(Entry::Client { of, socket });
            }
        }
    }

    /// Leaves processes that ask for a name in the queue for a while: there is no event for when
    /// they can be answered.
    fn pause(&mut self, of: u64, error: Errno) {
        let Some(entry) = self.entries.get(&of) else { return };
        let _ = epoll::delete(&self.epoll, entry);
        if !std::mem::replace(&mut self.is_short, true) {
            tracing::warn!(%error, "a process that asks for a name of ours cannot be answered, and waits");
        }
        if self.paused.is_empty() {
            self.resume.ring_after(PAUSE);
        }
        self.paused.push(of);
    }

    /// Tries again to answer those that wait.
    fn resume(&mut self) {
        self.resume.take();
        for of in std::mem::take(&mut self.paused) {
            let Some(entry) = self.entries.get(&of) else { continue };
            let data = epoll::EventData::new_u64(of);
            if epoll::add(&self.epoll, entry, data, epoll::EventFlags::IN).is_ok() {
                self.accept(of);
            }
        }
    }

    /// Closes the oldest connection of those that ask, if there are too many of a kind.
    fn make_room_for(&mut self, socket: &PeerSocket) {
        let (uid, is_ours) = (socket.uid(), socket.is_ours());
        let clients = self.entries.iter().filter_map(|(key, entry)| match entry {
            Entry::Client { socket, .. } if socket.is_ours() == is_ours => {
                Some((*key, socket.uid()))
            }
            _ => None,
        });
        let clients: Vec<_> = clients.collect();
        let same = || clients.iter().filter(|(_, of)| *of == uid);
        let oldest = if !is_ours && same().count() >= MAX_OF_STRANGER {
            same().next()
        } else if clients.len() >= if is_ours { MAX_CLIENTS } else { MAX_STRANGERS } {
            clients.first()
        } else {
            None
        };
        if let Some((key, _)) = oldest {
            self.remove(*key);
        }
    }

    fn add(&mut self, entry: Entry) -> Result<u64, Errno> {
        let key = self.next;
        self.next += 1;
        let data = epoll::EventData::new_u64(key);
        epoll::add(&self.epoll, &entry, data, epoll::EventFlags::IN)?;
        self.entries.insert(key, entry);
        Ok(key)
    }

    /// Closes a socket, after removing it from the set, as a child of ours may have inherited it.
    fn remove(&mut self, key: u64) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        let _ = epoll::delete(&self.epoll, &entry);
        if let Entry::Lookup { name, .. } = &entry {
            self.asked.remove(name);
        }
        Some(entry)
    }

    /// The names we have, for people.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.values().filter_map(|entry| match entry {
            Entry::Name { name, .. } => Some(name.as_str()),
            _ => None,
        })
    }

    /// Checks that its descriptors are still the same files ([`Known::look`]): of many entries,
    /// some at a time.
    ///
    /// # Errors
    ///
    /// EBADF if one is not.
    pub fn look(&mut self) -> io::Result<()> {
        self.epoll.look()?;
        self.resume.look()?;
        let mut left = self.entries.range(self.looked..);
        left.by_ref().take(ENTRIES_PER_LOOK).try_for_each(|(_, entry)| entry.look())?;
        self.looked = left.next().map_or(0, |(key, _)| *key);
        Ok(())
    }

    /// For the child after a fork: closes the descriptors and touches nothing else, since the names
    /// are the parent's.
    pub fn abandon_in_child(self) {
        crate::fork::abandon(self);
    }

    pub(crate) fn inherited(&self, out: &mut Vec<Inherited>) {
        out.extend([self.epoll.inherited(), self.resume.inherited()]);
        out.extend(self.spare.as_ref().map(Known::inherited));
        out.extend(self.probe.inherited());
        out.extend(self.entries.values().map(Entry::inherited));
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(test: &str) -> (Directory, Directory) {
        let nic = format!("test-{test}-{}", std::process::id());
        let new = |vf| Directory::new(&nic, vf).expect("descriptors");
        (new(3), new(5))
    }

    #[test]
    fn a_name_has_one_holder_that_can_be_found() {
        let (mut a, mut b) = pair("holder");
        assert_eq!(b.lookup("x"), Holder::Nobody);
        let key = a.claim("x").expect("free");
        let error = b.claim("x").expect_err("it is taken").to_string();
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(error, format!("x is held by pid {} (uid {uid})", std::process::id()));
        assert!(b.is_held("x") && !b.is_held("y"));
        assert_eq!(a.names().collect::<Vec<_>>(), ["x"]);
        assert_eq!(b.lookup("x"), Holder::Asked);
        assert!(!a.poll());
        assert!(b.poll(), "an answer came");
        assert_eq!(b.lookup("x"), Holder::Vf(3));
        a.release(key);
        assert_eq!(b.lookup("x"), Holder::Nobody, "it is known at once");
        b.claim("x").expect("free again");
    }

    #[test]
    fn a_squatter_is_not_a_holder_and_is_named() {
        let (mut a, mut b) = pair("squatter");
        let (squatter, _) = a.bind("x").expect("free");
        assert!(b.claim("x").expect_err("it is taken").to_string().contains("held by pid"));
        assert_eq!(b.lookup("x"), Holder::Asked);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let asked = std::iter::from_fn(|| rustix::net::accept_with(&squatter, flags).ok());
        let asked = asked.last().expect("it was asked");
        for _ in 0..3 {
            rustix::io::write(&asked, b"nonsense").expect("there is room");
        }
        assert!(b.poll());
        assert_eq!(b.lookup("x"), Holder::Nobody);
        assert!(!b.poll(), "nothing that it sends keeps us awake");
        drop((asked, squatter));
        a.claim("x").expect("free again");
        assert_eq!(b.lookup("x"), Holder::Asked);
        // One that does not even listen.
        let mute = new_socket().expect("descriptors");
        rustix::net::bind(&mute, &a.address("y").expect("short")).expect("free");
        assert!(b.claim("y").expect_err("it is taken").to_string().contains("not an engine's"));
    }

    #[test]
    fn processes_that_ask_leave_nothing_behind() {
        let (mut a, mut b) = pair("leave");
        a.claim("x").expect("free");
        for _ in 0..3 {
            b.lookup("x");
            a.poll();
            b.poll();
            b = Directory::new(&b.nic, b.vf).expect("descriptors");
            a.poll();
        }
        // The check that it is held is also a connection.
        assert!(b.is_held("x"));
        // A child that another test forks has the descriptors until it ends.
        let began = Instant::now();
        while a.entries.len() > 1 && began.elapsed() < Duration::from_secs(30) {
            a.poll();
        }
        assert_eq!(a.entries.len(), 1);
        assert!(b.entries.is_empty());
    }

    #[test]
    fn a_name_that_was_given_back_can_be_claimed_by_another() {
        let (mut a, mut b) = pair("moves");
        let key = a.claim("x").expect("free");
        let mut c = Directory::new(&a.nic, 9).expect("descriptors");
        c.lookup("x");
        a.poll();
        c.poll();
        assert_eq!(c.lookup("x"), Holder::Vf(3));
        a.release(key);
        b.claim("x").expect("free");
        assert_eq!(c.lookup("x"), Holder::Asked);
        b.poll();
        assert_eq!(c.lookup("x"), Holder::Vf(5));
    }

    #[test]
    fn descriptors_are_checked_some_at_a_time() {
        let (mut a, _) = pair("look");
        let last = (0..=ENTRIES_PER_LOOK).map(|name| a.claim(&name.to_string()).expect("free"));
        let NameKey(last) = last.last().expect("there are some");
        for begins_at in [last, 0, last] {
            a.look().expect("nobody closed one");
            assert_eq!(a.looked, begins_at);
        }
        a.release(NameKey(last));
        a.look().expect("nobody closed one");
        assert_eq!(a.looked, 0);
    }

    #[test]
    fn the_oldest_question_makes_room() {
        let (mut a, mut b) = pair("room");
        for name in 0..=MAX_LOOKUPS {
            a.claim(&name.to_string()).expect("free");
            assert_eq!(b.lookup(&name.to_string()), Holder::Asked);
        }
        assert_eq!((b.asked.len(), b.entries.len()), (MAX_LOOKUPS, MAX_LOOKUPS));
        assert!(!b.asked.contains_key("0") && b.asked.contains_key("1"));
    }
}
