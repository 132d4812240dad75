//! Messages, one by one.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;
use iba::RKey;

use super::error::Error;
use super::handle::Wanted;
use super::inbox::{Arrived, arrived};
use super::qp::Qp;
use super::receives::Home;
use super::table::{Entry, State, of_wr_id};
use crate::Wc;
use crate::owned::Buffer;

/// A message of the peer, as bytes. Its place in the receive queue is free again when it is
/// dropped: as many as the queue has can be held at once, then the peer waits (RNR NAK), and with a
/// shared queue all peers.
#[derive(Debug)]
pub struct Message {
    wc: Wc,
    /// Taken at the end.
    of: Option<(Buffer, Arc<dyn Home>)>,
    /// How many bytes of the buffer are not the message's: the GRH of a datagram.
    header: usize,
}

impl Message {
    pub(super) fn new(arrived: Arrived, home: Arc<dyn Home>, header: usize) -> Self {
        let (wc, buffer) = arrived;
        Self { wc, of: Some((buffer, home)), header }
    }

    /// The completion: immediate data, the invalidated key, the sender of a datagram.
    pub fn wc(&self) -> &Wc {
        &self.wc
    }

    /// Immediate data, if the peer sent any.
    pub fn imm(&self) -> Option<u32> {
        self.wc.imm
    }

    /// The key of a window of this side that the message invalidated, if it did, for
    /// [`Window::note_invalidated`](crate::owned::Window::note_invalidated).
    #[doc(alias = "IBV_WC_WITH_INV")]
    pub fn invalidated(&self) -> Option<RKey> {
        self.wc.invalidated
    }

    /// The buffer, for as long as the program wants it. A datagram begins at its 40th byte. The
    /// queue has one place less until the buffer is dropped.
    pub fn into_buffer(mut self) -> Buffer {
        let (buffer, home) = self.of.take().expect("there until the message is gone");
        home.lend();
        buffer
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let (buffer, _) = self.of.as_ref().expect("there until the message is gone");
        buffer.get(self.header..).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some((buffer, home)) = self.of.take() {
            home.take_back(buffer);
        }
    }
}

/// The next message of the QP with this number.
struct OfQp(usize);

impl Wanted for OfQp {
    type Found = Result<Arrived, Error>;

    fn find(&self, state: &mut State, task: Option<&Waker>) -> Option<Self::Found> {
        state.qps[self.0].inbox.take(task)
    }

    fn claim(&self, state: &mut State, wc: &Wc) -> Option<(Self::Found, Option<Waker>)> {
        let (key, _) = of_wr_id(wc.wr_id).filter(|_| wc.is_success())?;
        match state.entries.get(key) {
            Some(Entry::Receive(_, qp)) if *qp == self.0 => {}
            _ => return None,
        }
        let qp = &mut state.qps[self.0];
        if !qp.inbox.takes_next() {
            return None;
        }
        // Nothing keeps the QP but the program, which waits for this.
        let _ = qp.leave();
        let Entry::Receive(buffer, _) = state.entries.remove(key) else { unreachable!() };
        Some((Ok(arrived(*wc, buffer)), None))
    }
}

impl Qp {
    /// The next message of the peer. Dropping the future loses none.
    ///
    /// # Errors
    ///
    /// The QP is in error, and everything that arrived before was taken; or it has no receives.
    #[doc(alias = "ibv_post_recv")]
    pub async fn recv(&self) -> Result<Message, Error> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// [`Qp::recv`] for those that write futures by hand.
    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Message, Error>> {
        let inner = self.inner();
        if let Err(refusal) = inner.check_receives() {
            return Poll::Ready(Err(refusal.into()));
        }
        // Buffers that the program had may be back.
        inner.fill_receives();
        let header = inner.header();
        let message = inner.cq().wait(cx, &OfQp(inner.key()));
        message.map_ok(|arrived| Message::new(arrived, inner.home(), header))
    }

    /// The messages of the peer as a stream. It ends behind the error that ends the QP.
    pub fn messages(&self) -> Messages<'_> {
        Messages { qp: self, has_ended: false }
    }
}

/// The messages of a peer.
#[derive(Debug)]
#[must_use = "a stream does nothing until it is polled"]
pub struct Messages<'qp> {
    qp: &'qp Qp,
    has_ended: bool,
}

impl Stream for Messages<'_> {
    type Item = Result<Message, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let next = self.qp.poll_recv(cx);
        self.has_ended = matches!(next, Poll::Ready(Err(_)));
        next.map(Some)
    }
}
