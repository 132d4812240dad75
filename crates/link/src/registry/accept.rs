//! Peers that connect to us: who they are, whether they are admitted, and what they are told.

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use descriptors::strangers::{self, PeerSocket};
use descriptors::{Inherited, PeerCred, peer_cred};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::claim::Claim;
use super::fetch::fetch;
use super::look::Asker;
use super::message::{Hello, Message, Received, Welcome, recv};
use super::quota::{SILENT_PER_USER, Share};
use super::socket::{PAUSE, dial, own_uid, spare_fd};
use super::{PeerInfo, VF_COUNT};
use crate::shm::{Consumer, Inbound, PeerBell};

/// Accepted sockets that may wait for their Hello. A peer sends it right after connecting, so only
/// strangers wait long; the oldest is dropped to make room.
const PENDING_MAX: usize = 128;

/// Connections taken in one call, so that a flood does not hold up the caller.
const ACCEPT_BATCH: usize = 64;

/// What [`Claim::poll_events`] reports.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A peer connected: the receiving end of its ring. There may be records in it already.
    NewInbound(Box<Inbound>),
    /// A peer connected and was turned away.
    Refused(RefusedPeer),
    /// A process of our user asks for our objects.
    Asked(Asker),
}

/// Which peer was turned away, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPeer {
    /// Its process id, if we can see it.
    pub pid: Option<u32>,
    /// Its effective uid.
    pub uid: u32,
    /// The reason, in words. It was told the same.
    pub reason: String,
}

/// The result of trying to accept a connection.
enum Accepted {
    Nobody,
    Gone,
    Peer(Pending),
    TurnedAway(Event),
}

/// The ring and the doorbell that came with a Hello, mapped, or the reason against them.
type Mapped = Result<(Consumer, PeerBell), String>;

/// A Hello of another user, with what it brought.
#[derive(Debug)]
pub(crate) struct Fetched {
    pending: Pending,
    hello: Hello,
    mapped: Mapped,
    share: Share,
}

/// An accepted socket that has not sent its first message.
#[derive(Debug)]
pub(super) struct Pending {
    socket: PeerSocket,
    cred: PeerCred,
}

impl Pending {
    pub(super) fn inherited(&self) -> Inherited {
        self.socket.inherited()
    }
}

impl Claim {
    /// Accepts connections and greets peers. Never waits. Call this when the descriptor of the
    /// claim ([`AsFd`]) is readable.
    #[must_use]
    pub fn poll_events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..ACCEPT_BATCH {
            match self.accept() {
                Accepted::Nobody => break,
                Accepted::Gone => {}
                Accepted::Peer(pending) => {
                    if let Some(silent) = self.greet(pending, &mut events) {
                        self.park(silent);
                    }
                }
                Accepted::TurnedAway(event) => events.push(event),
            }
        }
        for pending in std::mem::take(&mut self.pending) {
            let silent = self.greet(pending, &mut events);
            self.pending.extend(silent);
        }
        for Fetched { pending, hello, mapped, share } in self.post.take() {
            events.push(self.welcome(pending, &hello, mapped, None, Some(share)));
        }
        events
    }

    fn accept(&mut self) -> Accepted {
        self.spare = self.spare.take().or_else(|| spare_fd(&self.epoll));
        if self.spare.is_none() || !strangers::has_room() {
            self.pause();
            return Accepted::Nobody;
        }
        if std::mem::take(&mut self.is_paused) {
            let data = epoll::EventData::new_u64(0);
            let _ = epoll::add(&self.epoll, &self.listener, data, epoll::EventFlags::IN);
        }
        match accept_one(&self.listener) {
            Ok(pending) => Accepted::Peer(pending),
            Err(Errno::MFILE | Errno::NFILE) => self.turn_away_for_want_of_fds(),
            Err(Errno::CONNABORTED | Errno::INTR | Errno::NOTCONN) => Accepted::Gone,
            Err(_) => Accepted::Nobody,
        }
    }

    /// Leaves connecting peers in the queue for a while.
    fn pause(&mut self) {
        if !std::mem::replace(&mut self.is_paused, true) {
            tracing::warn!(vf = self.vf, "no room for peers that connect; they wait");
        }
        let _ = epoll::delete(&self.epoll, &self.listener);
        self.post.ring_after(PAUSE);
    }

    /// Uses the spare descriptor to tell one peer; otherwise the listener would stay readable
    /// and the engine would spin.
    fn turn_away_for_want_of_fds(&mut self) -> Accepted {
        self.spare = None;
        match accept_one(&self.listener) {
            Ok(pending) => {
                Accepted::TurnedAway(refuse(&pending, "our process has no file descriptors left"))
            }
            Err(_) => Accepted::Nobody,
        }
    }

    /// Keeps a socket until its first message.
    fn park(&mut self, pending: Pending) {
        let uid = pending.cred.uid;
        let of_same = |other: &Pending| !other.socket.is_ours() && other.cred.uid == uid;
        let oldest = if self.pending.len() >= PENDING_MAX {
            Some(0)
        } else if self.pending.iter().filter(|other| of_same(other)).count() >= SILENT_PER_USER {
            self.pending.iter().position(of_same)
        } else {
            None
        };
        if let Some(oldest) = oldest {
            let oldest = self.pending.remove(oldest);
            self.forget(&oldest.socket);
        }
        let data = epoll::EventData::new_u64(1);
        if epoll::add(&self.epoll, &pending.socket, data, epoll::EventFlags::IN).is_ok() {
            self.pending.push(pending);
        }
    }

    /// Removes a socket from the epoll set. Closing it does so too, but not if a child of ours
    /// inherited it.
    fn forget(&self, socket: &PeerSocket) {
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// Reads the first message of a connection and answers it. Returns the connection if there was
    /// no message yet.
    fn greet(&self, pending: Pending, events: &mut Vec<Event>) -> Option<Pending> {
        let (message, fds) = match recv(&pending.socket) {
            Received::Nothing => return Some(pending),
            Received::Closed => {
                self.forget(&pending.socket);
                return None;
            }
            Received::Message(message, fds) => (message, fds),
            Received::Brings(message) => {
                self.forget(&pending.socket);
                events.extend(match message {
                    Ok(Message::Hello(hello)) => self.fetch(pending, hello),
                    Ok(_) => Some(refuse(&pending, "it sent descriptors that were not asked for")),
                    Err(e) => Some(refuse(&pending, &e.to_string())),
                });
                return None;
            }
        };
        self.forget(&pending.socket);
        match message {
            Ok(Message::Hello(hello)) => events.push(self.admit(pending, &hello, fds)),
            Ok(Message::Ping) => {
                // A process that asks and does not read gets no answer.
                let _ = Message::Pong { vf: self.vf }.send(&pending.socket, &[]);
            }
            Ok(Message::Look) if pending.cred.is_same_user() => {
                events.push(Event::Asked(Asker(pending.socket)));
            }
            Ok(Message::Look) => {
                events.push(refuse(&pending, "objects are shown to processes of the same user"));
            }
            Ok(_) => events.push(refuse(&pending, "its first message was no greeting")),
            Err(e) => events.push(refuse(&pending, &e.to_string())),
        }
        None
    }

    fn admit(&self, pending: Pending, hello: &Hello, fds: Vec<OwnedFd>) -> Event {
        let mapped = self.check(&pending, hello).and_then(|()| map(hello, &fds));
        let mut fds = fds.into_iter().skip(2);
        let (bell, table) = (fds.next(), fds.next());
        let mapped = mapped.map(|(ring, page)| (ring, page.with_eventfd(bell, pending.cred)));
        self.welcome(pending, hello, mapped, table, None)
    }

    /// Lets the thread for another user receive the descriptors of its Hello, once everything else
    /// about it is right.
    fn fetch(&self, pending: Pending, hello: Hello) -> Option<Event> {
        // A ring that is longer than allowed is refused when it is mapped.
        let ring = usize::try_from(hello.capacity).unwrap_or(usize::MAX);
        let share = self.check(&pending, &hello);
        let share = match share.and_then(|()| self.quotas.take(pending.cred.uid, ring)) {
            Ok(share) => share,
            Err(reason) => return Some(refuse(&pending, &reason)),
        };
        let (uid, post) = (pending.cred.uid, Arc::clone(&self.post));
        let is_taken = strangers::run(
            uid,
            Box::new(move || {
                let is_due = |message: &Message| *message == Message::Hello(hello);
                let mapped = fetch(&pending.socket, is_due, |fds| map(&hello, fds));
                post.leave(Fetched { pending, hello, mapped, share });
            }),
        );
        let reason = "too many descriptors from its user wait to be closed".to_owned();
        (!is_taken).then(|| Event::Refused(RefusedPeer { pid: None, uid, reason }))
    }

    fn welcome(
        &self,
        pending: Pending,
        hello: &Hello,
        mapped: Mapped,
        table: Option<OwnedFd>,
        share: Option<Share>,
    ) -> Event {
        let (consumer, bell) = match mapped {
            Ok(parts) => parts,
            Err(reason) => return refuse(&pending, &reason),
        };
        let peer = PeerInfo {
            vf: hello.vf,
            pid: pending.cred.pid,
            uid: pending.cred.uid,
            own_pid: hello.pid,
            own_uid: hello.uid,
            nonce: hello.nonce,
            probe: hello.probe,
        };
        let welcome = Message::Welcome(Welcome {
            vf: self.vf,
            pid: std::process::id(),
            uid: own_uid(),
            nonce: hello.nonce,
            probe: self.probe(),
        });
        match welcome.send(&pending.socket, &self.fds_for(pending.cred)) {
            Ok(()) => {}
            // It may have ended, but what it sent before that still counts.
            Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
            Err(e) => return refuse(&pending, &format!("it could not be welcomed: {e}")),
        }
        tracing::debug!(vf = self.vf, %peer, "a peer connected");
        let has_our_table = self.table.is_some() && pending.socket.is_ours();
        let inbound =
            Inbound::new(peer, pending.socket, consumer, bell, table, has_our_table, share);
        Event::NewInbound(Box::new(inbound))
    }

    /// What is wrong with a Hello, apart from the descriptors it brings.
    fn check(&self, pending: &Pending, hello: &Hello) -> Result<(), String> {
        if hello.nic != self.identity {
            return Err(format!("its nic is {}, and ours is {}", hello.nic, self.identity));
        }
        self.check_holder(pending.cred, hello.vf)
    }

    /// A peer that claims to be VF `vf` must hold the name of that VF; otherwise any process could
    /// speak for any other.
    fn check_holder(&self, cred: PeerCred, vf: u16) -> Result<(), String> {
        if vf >= VF_COUNT {
            return Err(format!("it claims to be VF {vf}, and there are {VF_COUNT}"));
        }
        match dial(&self.nic, vf, false) {
            Ok((_, holder)) if holder == cred => Ok(()),
            Ok((_, holder)) => Err(format!(
                "it claims to be VF {vf}, which is held by another process (uid {})",
                holder.uid
            )),
            // It sent its messages and ended. It held the VF when we connected to it, and no
            // process has held it since.
            Err(Errno::CONNREFUSED)
                if cred.pid.is_some() && self.dialled.get(&vf) == Some(&cred) =>
            {
                Ok(())
            }
            Err(e) => Err(format!("it claims to be VF {vf}, which does not answer: {e}")),
        }
    }
}

/// Maps the ring and the doorbell page that a Hello brought. Checks their type and their seals
/// before anything else.
fn map(hello: &Hello, fds: &[OwnedFd]) -> Mapped {
    let [ring, page, ..] = fds else {
        return Err("its greeting came without ring and doorbell".to_owned());
    };
    let capacity = usize::try_from(hello.capacity).unwrap_or(usize::MAX);
    let consumer = Consumer::open_checked(ring.as_fd(), capacity)
        .map_err(|e| format!("its ring is refused: {e}"))?;
    let bell = PeerBell::new(page).map_err(|e| format!("its doorbell is refused: {e}"))?;
    Ok((consumer, bell))
}

fn accept_one(listener: impl AsFd) -> Result<Pending, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::accept_with(listener, flags)?;
    let cred = peer_cred(socket.as_fd())?;
    Ok(Pending { socket: PeerSocket::new(socket, cred), cred })
}

/// Tells a peer why it is turned away.
fn refuse(pending: &Pending, reason: &str) -> Event {
    // A peer that is gone needs no reason.
    let _ = Message::Refused(reason.to_owned()).send(&pending.socket, &[]);
    let PeerCred { pid, uid } = pending.cred;
    tracing::warn!(?pid, uid, "turned a peer away: {reason}");
    Event::Refused(RefusedPeer { pid, uid, reason: reason.to_owned() })
}
