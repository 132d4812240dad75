//! What a process leaves at its end, and the processes that keep it.
//!
//! A keeper of a nic listens on the abstract Unix socket `peerdma/N/keep/n`. A process of its user
//! that ends connects to every keeper and leaves bytes; a keeper that begins asks another one for
//! what has been left so far. What the bytes mean is not known here. When the last keeper has gone,
//! nobody knows them any more, and nothing needs cleaning up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use descriptors::strangers::{self, Listener, PeerSocket};
use descriptors::{SameUser, peer_cred};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, SocketFlags};

use super::list::wait;
use super::name::{SO_ACCEPTCON, numbered, sockets};
use super::socket::new_socket;

/// Keepers of a nic in a network namespace. More are not told, and see what others do only as far
/// as they look themselves.
const KEEPERS: u16 = 256;
/// Processes that may wait to leave something.
const BACKLOG: i32 = 1024;
/// Those that are served in one call.
const BATCH: usize = 64;
/// The longest message: no larger than the buffer of a socket.
const MESSAGE_MAX: usize = 128 << 10;
/// The most bytes that a process can leave, or a keeper can tell another one.
pub const LEFT_MAX: usize = MESSAGE_MAX - 1;
/// TIMEOUT: a process that connected and says nothing is not waited for longer. Its message comes
/// with the connection, unless it was stopped in between; on a busy machine it may be late.
const SILENCE: Duration = Duration::from_secs(1);

/// The first byte of a message.
const LEAVES: u8 = b'L';
const ASKS: u8 = b'A';

/// A keeper of a nic.
#[derive(Debug)]
pub struct Keeper {
    nic: String,
    number: u16,
    listener: Listener,
    is_sealed: bool,
}

/// What a process wants of a keeper.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "nothing else is done with a keeper")]
pub enum Visit {
    /// It ends, and leaves this.
    Left(Vec<u8>),
    /// It is a keeper that begins.
    Asked(NewKeeper),
}

/// A keeper that begins, and waits for what another one has.
#[derive(Debug)]
pub struct NewKeeper(PeerSocket);

impl NewKeeper {
    /// Answers it. It may have gone, or have no room: then it begins with nothing.
    pub fn answer(self, bytes: &[u8]) {
        let _ = rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL);
    }
}

impl Keeper {
    /// Begins to keep what processes of `nic` leave.
    ///
    /// # Errors
    ///
    /// If there are too many keepers, or no descriptors.
    pub fn open(nic: &str) -> io::Result<Self> {
        for number in 0..KEEPERS {
            let socket = new_socket()?;
            let is_sealed = strangers::refuse_descriptors(&socket);
            match rustix::net::bind(&socket, &address(nic, number)?) {
                Err(Errno::ADDRINUSE) => continue,
                bound => bound?,
            }
            rustix::net::listen(&socket, BACKLOG)?;
            let listener = Listener::new(socket);
            return Ok(Self { nic: nic.to_owned(), number, listener, is_sealed });
        }
        Err(io::Error::other(format!("{KEEPERS} processes keep what others of {nic} leave")))
    }

    /// The processes that came. Never waits longer than for messages that are on their way. Call
    /// this when the descriptor is readable.
    pub fn visits(&self) -> Vec<Visit> {
        let mut visits = Vec::new();
        for _ in 0..BATCH {
            match self.accept() {
                Ok(Some(socket)) => visits.extend(visit(socket)),
                Ok(None) => {}
                Err(_) => break,
            }
        }
        visits
    }

    /// A connection of a process of our user.
    fn accept(&self) -> Result<Option<PeerSocket>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::accept_with(&self.listener, flags)?;
        let cred = peer_cred(socket.as_fd())?;
        let socket = PeerSocket::born(socket, cred, self.is_sealed);
        Ok(cred.is_same_user().then_some(socket))
    }

    /// What another keeper has, if there is one that answers in time, and what was left here
    /// meanwhile. For a keeper that begins: it has nothing to tell, so who asks it hears that at
    /// once, and no two wait for each other.
    pub fn ask_another(&self, patience: Duration) -> (Option<Vec<u8>>, Vec<Vec<u8>>) {
        let deadline = Instant::now() + patience;
        let others = keepers(&self.nic).unwrap_or_default();
        let mut left = Vec::new();
        for number in others.into_iter().filter(|number| *number != self.number) {
            let Some(socket) = say(&self.nic, number, &[ASKS]) else { continue };
            loop {
                match receive(&socket) {
                    Err(Errno::AGAIN) => {}
                    Ok(bytes) if !bytes.is_empty() => return (Some(bytes), left),
                    _ => break,
                }
                if !wait_for(&[socket.as_fd(), self.as_fd()], deadline) {
                    break;
                }
                left.extend(self.visits().into_iter().filter_map(|visit| match visit {
                    Visit::Left(bytes) => Some(bytes),
                    Visit::Asked(_) => None,
                }));
            }
        }
        (None, left)
    }
}

impl AsFd for Keeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Leaves bytes with every keeper of `nic` in this network namespace. A process calls this when it
/// ends. Never waits.
///
/// # Errors
///
/// If /proc/net/unix cannot be read.
pub fn leave(nic: &str, bytes: &[u8]) -> io::Result<()> {
    let message = [&[LEAVES], bytes].concat();
    for number in keepers(nic)? {
        // One that has ended meanwhile keeps nothing.
        let _ = say(nic, number, &message);
    }
    Ok(())
}

/// Connects to a keeper, if it is our user's, and says something.
///
/// The keeper waits for the message from the connection on, and it may be the supervisor that this
/// process asks before it opens a file (`launcher::door`). So none is opened in between.
fn say(nic: &str, number: u16, message: &[u8]) -> Option<PeerSocket> {
    let (address, us) = (address(nic, number).ok()?, SameUser::now());
    let socket = new_socket().ok()?;
    let is_sealed = strangers::refuse_descriptors(&socket);
    rustix::net::connect(&socket, &address).ok()?;
    let cred = peer_cred(socket.as_fd()).ok()?;
    let is_said =
        us.is(cred.uid) && rustix::net::send(&socket, message, SendFlags::NOSIGNAL).is_ok();
    is_said.then(|| PeerSocket::born(socket, cred, is_sealed))
}

fn visit(socket: PeerSocket) -> Option<Visit> {
    let deadline = Instant::now() + SILENCE;
    let mut message = loop {
        match receive(&socket) {
            Err(Errno::AGAIN) if wait_for(&[socket.as_fd()], deadline) => {}
            received => break received.ok()?,
        }
    };
    match message.first() {
        Some(&LEAVES) => Some(Visit::Left(message.split_off(1))),
        Some(&ASKS) => Some(Visit::Asked(NewKeeper(socket))),
        _ => None,
    }
}

/// One message, without any descriptors; none at the end, or if it is too long.
fn receive(socket: &PeerSocket) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; MESSAGE_MAX];
    let (_, length) = rustix::net::recv(socket, &mut bytes[..], RecvFlags::TRUNC)?;
    bytes.truncate(if length > MESSAGE_MAX { 0 } else { length });
    Ok(bytes)
}

/// Waits until one can be read. False after the deadline.
fn wait_for(sockets: &[BorrowedFd<'_>], deadline: Instant) -> bool {
    wait(sockets.iter().copied(), deadline).unwrap_or(false)
}

fn address(nic: &str, number: u16) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("peerdma/{nic}/keep/{number}").as_bytes())
}

/// The keepers of `nic`, from the kernel's list of sockets.
fn keepers(nic: &str) -> io::Result<Vec<u16>> {
    let table = sockets()?;
    let mut numbers: Vec<u16> = table.lines().filter_map(|line| of_line(line, nic)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// The number of the keeper whose listener a line of /proc/net/unix describes.
fn of_line(line: &str, nic: &str) -> Option<u16> {
    let (flags, number) = numbered(line, nic, "keep")?;
    (flags & SO_ACCEPTCON != 0 && number < KEEPERS).then_some(number)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A nic of this test and process alone.
    fn nic(test: &str) -> String {
        format!("keeper-{test}-{}", std::process::id())
    }

    /// Everything that has come by now, once something has.
    fn visits(keeper: &Keeper) -> Vec<Visit> {
        let deadline = Instant::now() + Duration::from_secs(60);
        assert!(wait_for(&[keeper.as_fd()], deadline), "nobody came");
        keeper.visits()
    }

    #[test]
    fn what_is_left_is_with_every_keeper() {
        let nic = nic("left");
        let keepers = [Keeper::open(&nic).expect("one"), Keeper::open(&nic).expect("two")];
        leave(&nic, b"first").expect("told");
        leave(&nic, b"second").expect("told");
        for keeper in &keepers {
            let left = visits(keeper).into_iter().map(|visit| match visit {
                Visit::Left(bytes) => bytes,
                Visit::Asked(_) => panic!("nobody asks"),
            });
            assert_eq!(left.collect::<Vec<_>>(), [b"first".to_vec(), b"second".to_vec()]);
        }
    }

    #[test]
    fn a_keeper_that_begins_asks_another() {
        let nic = nic("asks");
        let old = Keeper::open(&nic).expect("one");
        assert_eq!(old.ask_another(Duration::from_secs(60)).0, None, "there is no other");
        let new = Keeper::open(&nic).expect("two");
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| new.ask_another(Duration::from_secs(60)));
            for visit in visits(&old) {
                match visit {
                    Visit::Asked(other) => other.answer(b"all of it"),
                    Visit::Left(bytes) => panic!("{bytes:?}"),
                }
            }
            let (told, left) = asked.join().expect("no panic");
            assert_eq!((told.as_deref(), left.len()), (Some(&b"all of it"[..]), 0));
        });
    }

    #[test]
    fn keepers_that_begin_at_the_same_time_do_not_wait_for_each_other() {
        let nic = nic("both");
        let keepers = [Keeper::open(&nic).expect("one"), Keeper::open(&nic).expect("two")];
        leave(&nic, b"meanwhile").expect("told");
        let done = AtomicUsize::new(0);
        let begin = |keeper: &Keeper| {
            // With more patience than a test has.
            let (told, left) = keeper.ask_another(Duration::from_secs(3600));
            done.fetch_add(1, Ordering::Relaxed);
            let mut left = left.len();
            // One that has begun answers.
            while done.load(Ordering::Relaxed) < 2 || left == 0 {
                left += keeper.visits().iter().filter(|it| matches!(it, Visit::Left(_))).count();
                std::thread::yield_now();
            }
            (told, left)
        };
        std::thread::scope(|scope| {
            let begun = keepers.each_ref().map(|keeper| scope.spawn(|| begin(keeper)));
            for begun in begun {
                assert_eq!(begun.join().expect("no panic"), (None, 1));
            }
        });
    }

    #[test]
    fn without_keepers_nothing_is_kept_and_nobody_waits() {
        let nic = nic("none");
        leave(&nic, b"lost").expect("no keeper is no error");
        let keeper = Keeper::open(&nic).expect("one");
        assert!(keeper.visits().is_empty());
    }

    #[test]
    fn only_listeners_with_a_number_are_keepers() {
        let line = |flags: &str, path: &str| {
            format!("ffff8881: 00000002 00000000 {flags} 0005 01 24567 {path}")
        };
        let number = |flags, path| of_line(&line(flags, path), "peerdma0");
        assert_eq!(number("00010000", "@peerdma/peerdma0/keep/3"), Some(3));
        assert_eq!(number("00000000", "@peerdma/peerdma0/keep/3"), None);
        assert_eq!(number("00010000", "@peerdma/peerdma0/keep/256"), None);
        assert_eq!(number("00010000", "@peerdma/peerdma0/vf/3"), None);
    }
}
