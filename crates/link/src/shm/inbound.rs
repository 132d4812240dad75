//! The receiving end of a connection from a peer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use descriptors::strangers::PeerSocket;
use descriptors::{Inherited, Known};
use umem::Foreign;

use super::bell::PeerBell;
use super::cursor::RingCorrupt;
use super::guard::Held;
use super::ring::Consumer;
use crate::registry::message::{Message, RECV_BATCH, Received, recv};
use crate::registry::{PeerInfo, Share};

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InboundState {
    /// The peer's process lives, running or stopped.
    Up,
    /// The peer's process is gone, or broke the rules of the connection. What it pushed before
    /// can still be popped.
    Gone,
}

/// The receiving end of a connection from a peer: the consumer of its ring, and its doorbell.
///
/// [`AsFd`] gives the socket, which is readable when [`poll`](Self::poll) has something to do.
#[derive(Debug)]
pub struct Inbound {
    peer: PeerInfo,
    state: InboundState,
    socket: PeerSocket,
    consumer: Consumer,
    bell: PeerBell,
    table: Option<Known>,
    /// Whether the peer was given our table, and so may copy by itself.
    has_our_table: bool,
    /// If the peer is gone, where its ring ended. Later records come from other processes that have
    /// the ring.
    last: Option<u64>,
    /// Its share of the quota, if the peer is another user's.
    _share: Option<Share>,
}

impl Inbound {
    pub(crate) fn new(
        peer: PeerInfo,
        socket: PeerSocket,
        consumer: Consumer,
        bell: PeerBell,
        table: Option<OwnedFd>,
        has_our_table: bool,
        share: Option<Share>,
    ) -> Self {
        let state = InboundState::Up;
        let (last, _share, table) = (None, share, table.map(Known::new));
        Self { peer, state, socket, consumer, bell, table, has_our_table, last, _share }
    }

    /// The sender.
    pub fn peer(&self) -> &PeerInfo {
        &self.peer
    }

    /// Reads the socket without waiting, and returns the state of the connection. Call it when the
    /// socket is readable. This also takes wakes that came through the socket.
    pub fn poll(&mut self) -> InboundState {
        for _ in 0..RECV_BATCH {
            if self.state == InboundState::Gone {
                break;
            }
            match recv(&self.socket) {
                Received::Nothing => break,
                Received::Message(Ok(Message::Wake), _) => {}
                Received::Closed => self.state = InboundState::Gone,
                Received::Brings(message) | Received::Message(message, _) => {
                    tracing::warn!(peer = %self.peer, ?message, "a message out of turn");
                    self.state = InboundState::Gone;
                }
            }
        }
        if self.state == InboundState::Gone && self.last.is_none() {
            self.last = Some(self.consumer.position() + self.consumer.capacity() as u64);
        }
        self.state
    }

    /// Whether the peer is gone, and the ring may still hold records that it pushed. Other
    /// processes may have the ring and continue: only as many records count as the ring could hold.
    pub fn may_hold_last_words(&mut self) -> bool {
        self.last.is_some_and(|last| self.consumer.position() < last) && !self.consumer.is_idle()
    }

    /// Ends the connection. What the peer pushed before can still be popped.
    pub fn hang_up(&mut self) {
        if self.socket.look().is_ok() {
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
        self.state = InboundState::Gone;
    }

    /// The state at the last [`poll`](Self::poll).
    pub fn state(&self) -> InboundState {
        self.state
    }

    /// The descriptor that the peer gave with its Hello, once. Opaque, and not to be trusted.
    pub fn take_table(&mut self) -> Option<Known> {
        self.table.take()
    }

    /// Passes the next record to `take`, if there is one; see [`Consumer::pop`]. Wakes the peer if
    /// it waits for space and sleeps.
    ///
    /// # Errors
    /// The ring is corrupt, and the connection must be closed.
    #[inline]
    pub fn pop<R>(
        &mut self,
        take: impl FnOnce(Foreign<'_>) -> R,
    ) -> Result<Option<R>, RingCorrupt> {
        self.pop_if(|record| Some(take(record)))
    }

    /// Like [`pop`](Self::pop), but a record for which `take` returns `None` stays the next one;
    /// see [`Consumer::pop_if`].
    ///
    /// # Errors
    /// As [`pop`](Self::pop).
    #[inline]
    pub fn pop_if<R>(
        &mut self,
        take: impl FnOnce(Foreign<'_>) -> Option<R>,
    ) -> Result<Option<R>, RingCorrupt> {
        let taken = self.consumer.pop_if(take)?;
        self.wake_producer();
        Ok(taken)
    }

    /// Whether a [`pop`](Self::pop) would find nothing; see [`Consumer::is_idle`].
    #[inline]
    pub fn is_idle(&mut self) -> bool {
        let is_idle = self.consumer.is_idle();
        self.wake_producer();
        is_idle
    }

    /// Tells the peer at once how far we have read; see [`Consumer::release`].
    pub fn release(&mut self) {
        self.consumer.release();
        self.wake_producer();
    }

    /// The page next to the ring that both engines may read and write; its first word is the guard
    /// slot.
    pub fn scratch(&self) -> Foreign<'_> {
        self.consumer.scratch()
    }

    /// Looks at the guard slot of the peer. No copy of the peer can reach what was withdrawn before
    /// this call, except the one that holds the slot now. That copy is over when this returns
    /// another value, or the peer is gone.
    ///
    /// Only a peer that was given our table copies. What others write there is ignored, so nothing
    /// waits for it.
    pub fn held(&self) -> Held {
        if self.has_our_table { self.consumer.held() } else { Held::default() }
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
        out.extend(self.bell.inherited());
    }

    /// For the child after a fork: closes the descriptors and touches nothing else.
    pub fn abandon_in_child(self) {
        crate::fork::abandon(self);
    }

    #[inline]
    fn wake_producer(&mut self) {
        if self.consumer.take_wake() {
            self.bell.ring_if_sleeping(&self.socket);
        }
    }
}

impl AsFd for Inbound {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
