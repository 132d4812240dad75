//! Windows: what a QP grants its peer for a while.

use std::ops::RangeBounds;

use super::error::{Error, Outcome};
use super::op::Op;
use super::qp::{Qp, WorkRequest};
use super::request::{Request, Work};
use crate::Access;
use crate::owned::{Held, Local, RemoteSlice, Window};

impl Qp {
    /// Grants the peer `access` to values of the window's region, by a key that no earlier peer
    /// has. What is returned goes to the peer. Requests that are posted later find it bound.
    ///
    /// If the future is dropped, so is the window when the request has completed, and it grants
    /// nothing.
    ///
    /// # Errors
    ///
    /// Not posted: [`Kind::Busy`](crate::Kind::Busy) for a window that is bound,
    /// [`Kind::Invalid`](crate::Kind::Invalid) for values that the region does not have. Failed as
    /// MW_BIND_ERR if the region lacks [`Access::MW_BIND`], or what the access needs.
    #[doc(alias("IBV_WR_BIND_MW", "ibv_bind_mw"))]
    pub async fn bind<T>(
        &self,
        mut window: Window<T>,
        range: impl RangeBounds<u64>,
        access: Access,
    ) -> Outcome<RemoteSlice<T>, Window<T>> {
        let part = match window.part(range) {
            Ok(part) => part,
            Err(refusal) => return (Err(refusal.into()), window),
        };
        let (offset, length) = (part.offset, part.length);
        let request = Request::Bind { window: window.mw().clone(), offset, length, access };
        let result = self.with_window(request, &window).await;
        let bound = result.and_then(|()| Ok(window.bind(self.qpn(), &part)?));
        (bound, window)
    }

    /// Takes back what the window grants: requests of the peer that come later fail.
    ///
    /// # Errors
    ///
    /// Not posted: [`Kind::Invalid`](crate::Kind::Invalid) for a window that is not bound, or bound
    /// by another QP; it is dropped then, as is one whose QP is gone.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub async fn invalidate<T>(&self, mut window: Window<T>) -> Outcome<(), Window<T>> {
        let rkey = match window.key_of(self.qpn()) {
            Ok(rkey) => rkey,
            Err(refusal) => return (Err(refusal.into()), window),
        };
        let result = self.with_window(Request::LocalInv { rkey }, &window).await;
        if result.is_ok() {
            window.unbind();
        }
        (result, window)
    }

    /// A request that holds a window until it has completed, whatever becomes of its future.
    async fn with_window<T>(&self, request: Request, window: &Window<T>) -> Result<(), Error> {
        let held = Held::Window(window.mw().clone());
        let work = Work { request, memory: held };
        let (result, _held) = Op::new(self, work, None).await;
        result.map(drop)
    }

    /// Sends bytes to a receive of the peer, and gives back what the peer granted by a window: its
    /// key reaches nothing from then on. The peer's message says so
    /// ([`Message::invalidated`](super::Message::invalidated)).
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    pub fn send_with_inv<B: Local, T>(
        &self,
        memory: B,
        granted: RemoteSlice<T>,
    ) -> WorkRequest<'_, B> {
        self.request(Request::send_with_inv(granted), memory)
    }
}
