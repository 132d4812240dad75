//! One side of a connection.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::OnceLock;
use std::task::{Context, Poll, ready};

use super::error::ConnectError;
use super::events::End;
use super::nic::{ConnectionOptions, Drive, Nic};
use crate::aio::Qp;
use crate::cm::{ConnParam, EventKind};
use crate::{Kind, Refusal};

/// One side of a connection: a [`Qp`] that is connected, with all of its requests, and what became
/// of it. Dropping it ends the connection.
///
/// When the peer ends it, the QP goes to the error state by itself: what has arrived can still be
/// taken, and then [`recv`](Qp::recv) says why there is no more.
#[derive(Debug)]
#[doc(alias = "rdma_cm_id")]
pub struct Connection {
    qp: Qp,
    end: End,
    param: ConnParam,
    closed: OnceLock<Closed>,
    nic: Nic,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Closed {
    /// A side ended it, and the other knows.
    Disconnected,
    /// This side ended it, and the peer failed to confirm that in time.
    TimedOut,
    /// The address went away, or the device failed.
    DeviceRemoval,
}

impl Connection {
    pub(super) fn new(nic: Nic, end: End, qp: Qp, param: ConnParam) -> Self {
        Self { qp, end, param, closed: OnceLock::new(), nic }
    }

    /// Connects to `HOST:PORT`, from the first device that has a route to it, which is opened for
    /// this connection. [`Nic::connect`] is for more than one.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`]; [`Kind::NoDevice`] if there is no device.
    pub async fn connect(to: &str) -> Result<Self, ConnectError> {
        Self::connect_with(to, &ConnectionOptions::default()).await
    }

    /// The same with other parameters.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub async fn connect_with(to: &str, options: &ConnectionOptions) -> Result<Self, ConnectError> {
        let mut last = None;
        for device in crate::devices()? {
            let nic = Nic::new(&device.open()?, Drive::default())?;
            match nic.connect(to, options).await {
                // Another device may have the route.
                Err(ConnectError::Refused(refusal)) if is_elsewhere(&refusal) => {
                    last.get_or_insert(refusal);
                }
                result => return result,
            }
        }
        let none = || Refusal::new(Kind::NoDevice, "rdma_connect: there is no device");
        Err(last.unwrap_or_else(none).into())
    }

    /// The NIC that it is of, for more connections with the same memory.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Its QP.
    pub fn qp(&self) -> &Qp {
        &self.qp
    }

    /// What the peer said in the handshake. Its private data are padded with zeros. On the side
    /// that accepted, they are those of the request.
    pub fn param(&self) -> &ConnParam {
        &self.param
    }

    /// Its own address.
    #[doc(alias = "rdma_get_local_addr")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.end.id().local_addr()
    }

    /// The peer's address.
    #[doc(alias = "rdma_get_peer_addr")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.end.id().peer_addr()
    }

    /// Waits until the connection has ended. Any number of tasks may wait.
    ///
    /// # Errors
    ///
    /// [`Kind::Io`] if its events cannot be had any more.
    pub async fn closed(&self) -> crate::Result<Closed> {
        poll_fn(|cx| self.poll_closed(cx)).await
    }

    fn poll_closed(&self, cx: &Context<'_>) -> Poll<crate::Result<Closed>> {
        loop {
            if let Some(closed) = self.closed.get() {
                return Poll::Ready(Ok(*closed));
            }
            let closed = match ready!(self.end.mailbox().poll(cx))?.kind {
                EventKind::Disconnected { timed_out: false } => Closed::Disconnected,
                EventKind::Disconnected { timed_out: true } => Closed::TimedOut,
                EventKind::DeviceRemoval => Closed::DeviceRemoval,
                _ => continue,
            };
            let _ = self.closed.set(closed);
            self.end.mailbox().wake();
        }
    }

    /// Ends the connection, and waits until the peer has confirmed that. What is in flight is
    /// flushed, on both sides: a message that has arrived fails at the peer if the acknowledgement
    /// has not. So the side that sends last awaits that, and then it ends the connection.
    ///
    /// # Errors
    ///
    /// As [`closed`](Self::closed).
    #[doc(alias = "rdma_disconnect")]
    pub async fn disconnect(self) -> crate::Result<Closed> {
        // Refused if the peer ended it before: then that is the next event.
        let _ = self.end.id().disconnect();
        self.closed().await
    }
}

impl Deref for Connection {
    type Target = Qp;

    fn deref(&self) -> &Qp {
        &self.qp
    }
}

/// Whether another device may have the address.
pub(super) fn is_elsewhere(refusal: &Refusal) -> bool {
    matches!(refusal.kind(), Kind::AddressNotAvailable | Kind::Unreachable | Kind::NoDevice)
}

/// Waits until a handshake is over.
pub(super) async fn established(end: &End) -> Result<ConnParam, ConnectError> {
    loop {
        if let Some(result) = outcome(end.next().await?.kind) {
            return result;
        }
    }
}

/// What an event says of a handshake.
pub(super) fn outcome(kind: EventKind) -> Option<Result<ConnParam, ConnectError>> {
    Some(match kind {
        EventKind::Established { param } => Ok(param),
        EventKind::ConnectError { why } => Err(why.into()),
        EventKind::Unreachable => Err(ConnectError::Unreachable),
        EventKind::Rejected { reason, private_data } => {
            Err(ConnectError::Rejected { reason, private_data })
        }
        EventKind::Disconnected { .. } => Err(ConnectError::Ended),
        EventKind::DeviceRemoval => Err(ConnectError::DeviceRemoval),
        _ => return None,
    })
}
