//! A shared receive queue whose messages are futures.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use iba::Qpn;

use super::cq::Cq;
use super::error::Error;
use super::last::watch_events;
use super::message::Message;
use super::shared::{Shared, Srq, SrqOptions};
use crate::{Pd, Result};

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
        Shared::new(self.handle(), pd, options).map(Srq::new)
    }
}

impl Srq {
    /// The next message of any of its QPs, and the number of the QP; or that a QP has ended, which
    /// is said once of each, behind its messages. QPs that have several take turns. Dropping the
    /// future loses nothing.
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
        let next = shared.cq().wait(cx, |state| state.next_of_any(shared.key(), cx));
        next.map(|next| {
            let message = next.result.map(|(wc, buffer)| {
                let home = Arc::<Shared>::clone(shared);
                Message::new(wc, buffer, home, next.header)
            });
            (next.qpn, message)
        })
    }
}
