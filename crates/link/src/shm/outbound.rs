//! The sending end of a connection to a peer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use descriptors::strangers::{self, PeerSocket};
use descriptors::{Inherited, Known, PeerCred};
use umem::Foreign;

use super::bell::PeerBell;
use super::ring::{Producer, PushError};
use crate::registry::fetch::{Post, fetch};
use crate::registry::message::{Message, RECV_BATCH, Received, Welcome, recv};
use crate::registry::{Fetched, PeerInfo, Share};

/// The state of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutboundState {
    /// The peer has not accepted yet. Records can be pushed; its listening socket wakes it.
    Connecting,
    /// The peer reads the ring.
    Up(PeerInfo),
    /// The peer refused, with this reason. It has read nothing that was pushed.
    Refused(String),
    /// The peer's process is gone. A process that is only stopped stays [`Self::Up`].
    Gone,
}

/// The sending end of a connection to a peer: the producer of a ring, and the peer's doorbell.
///
/// [`AsFd`] gives the socket, which is readable when [`poll`](Self::poll) has something to do.
#[derive(Debug)]
pub struct Outbound {
    vf: u16,
    cred: PeerCred,
    nonce: u64,
    state: OutboundState,
    socket: Arc<PeerSocket>,
    producer: Producer,
    bell: Option<PeerBell>,
    table: Option<Known>,
    /// Rung when the Welcome that is received elsewhere has been read.
    post: Arc<Post<Fetched>>,
    /// The doorbell in another user's Welcome, while that user's thread receives it.
    elsewhere: Option<(Welcome, Found)>,
    /// Its share of the quota, if the peer is another user's.
    _share: Option<Share>,
}

/// The result, once there is one.
type Found = Arc<Mutex<Option<Result<PeerBell, String>>>>;

impl Outbound {
    pub(crate) fn new(
        vf: u16,
        socket: PeerSocket,
        producer: Producer,
        nonce: u64,
        cred: PeerCred,
        post: Arc<Post<Fetched>>,
        share: Option<Share>,
    ) -> Self {
        Self {
            vf,
            cred,
            nonce,
            state: OutboundState::Connecting,
            socket: Arc::new(socket),
            producer,
            bell: None,
            table: None,
            post,
            elsewhere: None,
            _share: share,
        }
    }

    /// The VF we send to.
    pub fn vf(&self) -> u16 {
        self.vf
    }

    /// Distinguishes this connection from all others, even from one to a later process with the
    /// same VF.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// The process we send to, as the kernel reports it: its pid, if we can see it, and its uid.
    pub fn peer_cred(&self) -> (Option<u32>, u32) {
        (self.cred.pid, self.cred.uid)
    }

    /// Reads the socket without waiting, and returns the state of the connection. Call it when the
    /// socket is readable.
    pub fn poll(&mut self) -> &OutboundState {
        for _ in 0..RECV_BATCH {
            if matches!(self.state, OutboundState::Refused(_) | OutboundState::Gone)
                || !self.is_back()
            {
                break;
            }
            match recv(&self.socket) {
                Received::Brings(Ok(Message::Welcome(welcome)))
                    if self.state == OutboundState::Connecting =>
                {
                    self.fetch(welcome);
                }
                Received::Brings(_) => {
                    let reason = format!("VF {} sent descriptors that were not asked for", self.vf);
                    self.state = OutboundState::Refused(reason);
                }
                Received::Nothing => break,
                Received::Closed => self.state = OutboundState::Gone,
                Received::Message(Ok(Message::Wake), _) => {}
                Received::Message(Ok(Message::Refused(words)), _) => {
                    self.state = OutboundState::Refused(words);
                }
                Received::Message(Ok(Message::Welcome(welcome)), fds)
                    if self.state == OutboundState::Connecting =>
                {
                    let mut fds = fds.into_iter();
                    let bell = bell_in(self.vf, fds.next().as_ref());
                    let bell = bell.map(|bell| bell.with_eventfd(fds.next(), self.cred));
                    self.table = fds.next().map(Known::new);
                    self.welcome(&welcome, bell);
                }
                Received::Message(Ok(_), _) => {
                    let reason = format!("VF {} sent a message out of turn", self.vf);
                    self.state = OutboundState::Refused(reason);
                }
                Received::Message(Err(e), _) => {
                    self.state = OutboundState::Refused(format!("VF {}: {e}", self.vf));
                }
            }
        }
        &self.state
    }

    /// The state at the last [`poll`](Self::poll).
    pub fn state(&self) -> &OutboundState {
        &self.state
    }

    /// The descriptor that the peer gave with its Welcome, once. Opaque, and not to be trusted.
    pub fn take_table(&mut self) -> Option<Known> {
        self.table.take()
    }

    /// Appends a record; see [`Producer::push`]. The peer is not woken: call
    /// [`ring_doorbell_if_sleeping`](Self::ring_doorbell_if_sleeping) after the last of a batch.
    ///
    /// # Errors
    /// See [`Producer::push`].
    #[inline]
    pub fn push<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(Foreign<'_>) -> Result<(), E>,
    ) -> Result<(), PushError<E>> {
        self.producer.push(len, fill)
    }

    /// Wakes the peer if it sleeps and we have not woken it yet. Until the Welcome has come, this
    /// does nothing: the connection itself wakes the peer.
    #[inline]
    pub fn ring_doorbell_if_sleeping(&mut self) {
        if let Some(bell) = &mut self.bell {
            bell.ring_if_sleeping(&self.socket);
        }
    }

    /// The ring, for everything else: positions, space, scratch.
    pub fn ring(&mut self) -> &mut Producer {
        &mut self.producer
    }

    /// The page next to the ring that both engines may read and write; its first word is the guard
    /// slot.
    pub fn scratch(&self) -> Foreign<'_> {
        self.producer.scratch()
    }

    /// Holds the guard slot for `key`, which is not 0, until the guard is dropped. A peer that
    /// withdraws the memory behind the key waits for that. The caller must look up what to copy
    /// after this.
    #[inline]
    pub fn hold(&mut self, key: u32) -> CopyGuard<'_> {
        self.producer.hold(key);
        CopyGuard(&mut self.producer)
    }

    /// Checks that its descriptor is still the socket ([`descriptors::Known::look`]).
    ///
    /// # Errors
    ///
    /// EBADF otherwise.
    pub fn look(&self) -> std::io::Result<()> {
        Ok(self.socket.look()?)
    }

    /// All descriptors.
    pub(crate) fn inherited(&self, out: &mut Vec<Inherited>) {
        out.push(self.socket.inherited());
        out.extend(self.table.as_ref().map(Known::inherited));
        out.extend(self.bell.as_ref().and_then(PeerBell::inherited));
    }

    /// For the child after a fork: closes the descriptors and touches nothing else.
    pub fn abandon_in_child(self) {
        crate::fork::abandon(self);
    }

    /// Whether the next message is another user's and is being received elsewhere. Then do not wait
    /// for the socket: it may stay readable, and the owner of the claim is woken when it must be
    /// polled.
    pub fn is_elsewhere(&self) -> bool {
        self.elsewhere.is_some()
    }

    /// Lets the thread for another user receive the descriptors of its Welcome.
    fn fetch(&mut self, welcome: Welcome) {
        let found = Found::default();
        let (socket, post, to) =
            (Arc::clone(&self.socket), Arc::clone(&self.post), Arc::clone(&found));
        let vf = self.vf;
        let job = move || {
            let is_due = |message: &Message| *message == Message::Welcome(welcome);
            let bell = fetch(&socket, is_due, |fds| bell_in(vf, fds.first()));
            *to.lock().unwrap_or_else(PoisonError::into_inner) = Some(bell);
            post.ring();
        };
        if strangers::run(self.cred.uid, Box::new(job)) {
            self.elsewhere = Some((welcome, found));
        } else {
            let reason =
                format!("VF {}: too many descriptors from its user wait to be closed", self.vf);
            self.state = OutboundState::Refused(reason);
        }
    }

    /// Whether nothing is being received elsewhere any more.
    fn is_back(&mut self) -> bool {
        let Some((welcome, found)) = &self.elsewhere else { return true };
        let found = found.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(bell) = found else { return false };
        let welcome = *welcome;
        self.elsewhere = None;
        self.welcome(&welcome, bell);
        true
    }

    fn welcome(&mut self, welcome: &Welcome, bell: Result<PeerBell, String>) {
        if welcome.vf != self.vf || welcome.nonce != self.nonce {
            let reason = format!("VF {} sent its Welcome to another VF", self.vf);
            self.state = OutboundState::Refused(reason);
            return;
        }
        self.state = match bell {
            Ok(bell) => {
                self.bell = Some(bell);
                OutboundState::Up(PeerInfo {
                    vf: welcome.vf,
                    pid: self.cred.pid,
                    uid: self.cred.uid,
                    own_pid: welcome.pid,
                    own_uid: welcome.uid,
                    nonce: welcome.nonce,
                    probe: welcome.probe,
                })
            }
            Err(reason) => OutboundState::Refused(reason),
        };
        // The peer may have read the ring, found it empty and gone to sleep between its Welcome and
        // our last push.
        self.ring_doorbell_if_sleeping();
    }
}

fn bell_in(vf: u16, page: Option<&OwnedFd>) -> Result<PeerBell, String> {
    let page = page.ok_or_else(|| format!("VF {vf} has no doorbell"))?;
    PeerBell::new(page).map_err(|e| format!("the doorbell of VF {vf} is refused: {e}"))
}

/// The guard slot, held.
#[derive(Debug)]
pub struct CopyGuard<'a>(&'a mut Producer);

impl Drop for CopyGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.free();
    }
}

impl AsFd for Outbound {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
