//! A shared receive queue whose messages are futures.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use iba::{Qpn, Srqn};

use super::cq::Cq;
use super::error::Error;
use super::handle::Wanted;
use super::last::watch_events;
use super::members::Next;
use super::message::Message;
use super::shared::{Shared, Srq, SrqOptions};
use super::table::State;
use crate::{Pd, Result, Xrcd};

impl Cq {
    /// Creates a shared receive queue for QPs of this completion queue, and posts its receives.
    ///
    /// # Errors
    ///
    /// [`Kind::NoMemory`](crate::Kind::NoMemory) if the completion queue has no room for as many
    /// messages; [`Kind::Io`](crate::Kind::Io) if the process has no descriptor or thread left;
    /// otherwise the device's.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, pd: &Pd, options: &SrqOptions) -> Result<Srq> {
        watch_events(pd.context())?;
        Shared::new(self.handle(), pd, options, None).map(Srq::new)
    }

    /// Creates a shared receive queue in an XRC domain, and posts its receives. Requests of
    /// [`QpOptions::xrc_send`](super::QpOptions::xrc_send) name it.
    ///
    /// # Errors
    ///
    /// [`Kind::NoMemory`](crate::Kind::NoMemory) if the completion queue has no room for as many
    /// messages; [`Kind::Invalid`](crate::Kind::Invalid) for a domain of another device; otherwise
    /// the device's.
    #[doc(alias("ibv_create_srq_ex", "IBV_SRQT_XRC"))]
    pub fn create_xrc_srq(&self, pd: &Pd, xrcd: &Xrcd, options: &SrqOptions) -> Result<Srq> {
        Shared::new(self.handle(), pd, options, Some(xrcd)).map(Srq::new)
    }
}

/// The next message of the shared queue with this number. It claims none, as its QPs take turns.
struct OfSrq(usize);

impl Wanted for OfSrq {
    type Found = Next;

    fn find(&self, state: &mut State, task: Option<&Waker>) -> Option<Next> {
        state.next_of_any(self.0, task)
    }
}

impl Srq {
    /// The number by which requests name a queue of an XRC domain.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](crate::Kind::Invalid) for any other queue.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> Result<Srqn> {
        self.shared().srq().number()
    }

    /// The next message of any of its QPs, and the number of the QP; or that a QP has ended, which
    /// is said once of each, behind its messages. QPs that have several take turns. Dropping the
    /// future loses nothing.
    ///
    /// A queue of an XRC domain gives messages in the order in which they arrived, with the number
    /// of the [`XrcRecvQp`](crate::XrcRecvQp), and each receive that failed.
    pub async fn recv(&self) -> (Qpn, std::result::Result<Message, Error>) {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// [`Srq::recv`] for those that write futures by hand.
    pub fn poll_recv(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<(Qpn, std::result::Result<Message, Error>)> {
        let shared = self.shared();
        // Buffers that the program had may be back.
        shared.fill();
        let next = shared.cq().wait(cx, &OfSrq(shared.key()));
        next.map(|Next { qpn, header, result }| {
            let home = || Arc::<Shared>::clone(shared);
            (qpn, result.map(|arrived| Message::new(arrived, home(), header)))
        })
    }
}
