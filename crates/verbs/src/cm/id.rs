//! Identifiers, and the state of their QPs.

use std::cmp;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::ids::{CmId, CtxId};
use device::rdma_cm::{BindOptions, ConnParam as Said, RejReason};
use iba::{AttrMask, QpAttr, QpState, QpType};

use super::channel::Channel;
use super::event::{ConnParam, MOST};
use crate::arm::On;
use crate::{Context, Kind, Qp, Refusal, Result};

/// A listener, or one side of a connection. Clones are the same one, and are equal.
///
/// Dropping the last clone ends what it stands for: a listener takes no more requests, a request is
/// refused, a connection is disconnected.
#[derive(Clone, Debug)]
#[doc(alias = "rdma_cm_id")]
pub struct Id(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    channel: Arc<Channel>,
    id: CmId,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The QP that is connected, or about to be.
    qp: Option<Qp>,
    /// READs and atomics that each side takes, as far as they are known.
    responder_resources: u8,
    initiator_depth: u8,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.channel.ids().remove(&self.id);
        self.to_error();
        // Fails only for an identifier that does not exist.
        let _ = self.channel.on.lock().cm_destroy(self.id);
    }
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Id {}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn to_error(&self) {
        if let Some(qp) = &self.state().qp {
            to_error(qp);
        }
    }
}

fn to_error(qp: &Qp) {
    // A QP in RESET refuses, and has nothing to flush.
    let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
    let _ = qp.modify(&attr, AttrMask::STATE);
}

impl Id {
    pub(super) fn new(channel: &Arc<Channel>, id: CmId, asked: &ConnParam) -> Self {
        let state = State {
            qp: None,
            responder_resources: asked.responder_resources,
            initiator_depth: asked.initiator_depth,
        };
        Self(Arc::new(Inner { channel: Arc::clone(channel), id, state: Mutex::new(state) }))
    }

    fn on(&self) -> &On<CtxId> {
        &self.0.channel.on
    }

    fn context(&self) -> &Context {
        &self.0.channel.context
    }

    /// Binds it to an address of the device, or to the wildcard. Port 0 is a free one. Returns what
    /// it is bound to.
    ///
    /// # Errors
    ///
    /// [`Kind::AddressInUse`](crate::Kind::AddressInUse) if the port is in use, by this process or
    /// another one of this host; [`Kind::AddressNotAvailable`](crate::Kind) if either of the two
    /// addresses is the wildcard, or the address is not one of the device's;
    /// [`Kind::Invalid`](crate::Kind::Invalid) if it is bound already.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(&self, addr: SocketAddr) -> Result<SocketAddr> {
        self.on().alive()?.cm_bind(self.0.id, addr, BindOptions::default())
    }

    /// Takes requests from now on. `backlog` is how many may wait for
    /// [`EventChannel::event`](super::EventChannel::event); the senders of further requests retry.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind), and [`Kind::Invalid`](crate::Kind::Invalid) if it is already in use
    /// for something else.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<()> {
        self.on().alive()?.cm_listen(self.0.id, backlog)
    }

    /// Resolves the route to a peer, from an address of this device if one is given, and binds to a
    /// free port unless it is bound.
    ///
    /// # Errors
    ///
    /// [`Kind::AddressNotAvailable`](crate::Kind::AddressNotAvailable) if there is no route from
    /// that address.
    #[doc(alias("rdma_resolve_addr", "rdma_resolve_route"))]
    pub fn resolve(&self, from: Option<SocketAddr>, to: SocketAddr) -> Result<()> {
        self.on().alive()?.cm_resolve(self.0.id, from, to).map(drop)
    }

    /// Its own address, once it is bound.
    #[doc(alias = "rdma_get_local_addr")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.on().lock().cm_addresses(self.0.id).ok()?.local
    }

    /// The peer's address, once it is resolved or has sent its request.
    #[doc(alias = "rdma_get_peer_addr")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.on().lock().cm_addresses(self.0.id).ok()?.remote
    }

    /// The QP that is connected, or about to be.
    pub fn qp(&self) -> Option<Qp> {
        self.0.state().qp.clone()
    }

    /// Requests a connection of this QP from the peer. The QP is an RC QP of this device that is
    /// not connected; receives may already be posted to it. The outcome is an event.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](crate::Kind::Invalid) if it is not [resolved](Self::resolve), is already
    /// in use for something else, the QP is not such a QP, or the private data are too long.
    #[doc(alias = "rdma_connect")]
    pub fn connect(&self, qp: &Qp, param: &ConnParam) -> Result<()> {
        self.take("rdma_connect", qp, |state| {
            let most = self.most();
            state.responder_resources = cmp::min(param.responder_resources, most);
            state.initiator_depth = cmp::min(param.initiator_depth, most);
            let said = said(qp, param, state);
            self.on().alive()?.cm_connect(self.0.id, &said)
        })
    }

    /// Accepts the request that it was made for, with a QP as for [`connect`](Self::connect), which
    /// can receive from now on. [`EventKind::Established`](super::EventKind::Established) follows.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](crate::Kind::Invalid) if there is no request, or no longer one, the QP is
    /// not such a QP, or the private data are too long.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, qp: &Qp, param: &ConnParam) -> Result<()> {
        self.take("rdma_accept", qp, |state| {
            let most = self.most();
            // No more than the peer asked for.
            let bound = |own: u8, asked: u8| own.min(asked).min(most);
            state.responder_resources = bound(param.responder_resources, state.responder_resources);
            state.initiator_depth = bound(param.initiator_depth, state.initiator_depth);
            self.to_rts(qp, state)?;
            let said = said(qp, param, state);
            let accepted = self.on().alive()?.cm_accept(self.0.id, &said);
            if accepted.is_err() {
                to_error(qp);
            }
            accepted
        })
    }

    /// Refuses the request that it was made for, in the program's name, with private data.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](crate::Kind::Invalid) if there is no request, or no longer one, or the
    /// private data are too long.
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        let mut engine = self.on().alive()?;
        engine.cm_reject(self.0.id, RejReason::CONSUMER_DEFINED, &[], private_data)
    }

    /// Ends the connection, or confirms that the peer ended it: posted requests are flushed.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](crate::Kind::Invalid) if it never was a connection.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<()> {
        self.0.to_error();
        self.on().alive()?.cm_disconnect(self.0.id)
    }

    /// Moves the QP to RTS as the peer's answer asks, and tells the peer.
    pub(super) fn follow(&self) -> Result<()> {
        {
            let state = self.0.state();
            if let Some(qp) = &state.qp {
                self.to_rts(qp, &state)?;
            }
        }
        self.on().alive()?.cm_ready(self.0.id, &[])
    }

    pub(super) fn refuse(&self, reason: RejReason, private_data: &[u8]) {
        self.0.to_error();
        // The connection may have ended by now.
        let _ = self.on().lock().cm_reject(self.0.id, reason, &[], private_data);
    }

    /// Takes a QP, unless `call` refuses.
    fn take(&self, call: &str, qp: &Qp, act: impl FnOnce(&mut State) -> Result<()>) -> Result<()> {
        self.context().check_same(qp.pd().context(), call, "QP")?;
        let refuse = |what: &str| Err(Refusal::new(Kind::Invalid, format!("{call}: {what}")));
        if qp.spec().qp_type != QpType::Rc {
            return refuse("the QP is not RC");
        }
        let mut state = self.0.state();
        if state.qp.is_some() {
            return refuse("the identifier has a QP");
        }
        act(&mut state)?;
        state.qp = Some(qp.clone());
        Ok(())
    }

    /// READs and atomics that the device has room for.
    fn most(&self) -> u8 {
        let attr = self.context().device_attr();
        let most = attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom);
        u8::try_from(most).unwrap_or(MOST)
    }

    /// From INIT by RTR to RTS.
    fn to_rts(&self, qp: &Qp, state: &State) -> Result<()> {
        for to in [QpState::Rtr, QpState::Rts] {
            let (mut attr, mask) = self.on().alive()?.cm_qp_attr(self.0.id, to)?;
            match to {
                QpState::Rtr => attr.max_dest_rd_atomic = state.responder_resources,
                _ => attr.max_rd_atomic = state.initiator_depth,
            }
            qp.modify(&attr, mask)?;
        }
        Ok(())
    }
}

/// The program's parameters, with those that the identifier adds.
fn said(qp: &Qp, param: &ConnParam, state: &State) -> Said {
    Said {
        private_data: param.private_data.clone(),
        responder_resources: state.responder_resources,
        initiator_depth: state.initiator_depth,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        srq: qp.spec().srq.is_some(),
        qpn: qp.qpn(),
        ..Said::default()
    }
}
