//! Identifiers, and the state of their QPs.

use std::cmp;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use device::ids::CmId;
use device::rdma_cm::{
    BindOptions, ConnParam as SoftSaid, RejReason, Sink, private_data as longest,
};
use iba::{AttrMask, QpAttr, QpState, QpType};
use sysverbs::ConnParam as HardSaid;

use super::channel::{EventChannel, Key};
use super::event::{ConnParam, MOST};
use crate::arm::{Arm, On, refused};
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
    arm: Arm<On<CmId>, sysverbs::CmId>,
    context: Context,
    /// Where its events go.
    channel: Mutex<EventChannel>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The QP that is connected, or about to be.
    qp: Option<Qp>,
    /// Whether address and route of a peer are known.
    is_resolved: bool,
    /// READs and atomics that each side takes, as far as they are known.
    responder_resources: u8,
    initiator_depth: u8,
    /// Whether the program was told that the peer ended the connection.
    peer_ended: bool,
}

/// Why a QP is in error whose side confirms that its connection has ended.
const PEER_ENDED: &str = "the peer ended its connection";

impl Drop for Inner {
    fn drop(&mut self) {
        self.channel().0.ids().remove(&key(&self.arm));
        self.end("the identifier of its connection was dropped");
        if let Arm::Soft(on) = &self.arm {
            // Fails only for an identifier that does not exist.
            let _ = on.lock().cm_destroy(on.id);
        }
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

    fn channel(&self) -> MutexGuard<'_, EventChannel> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends what is in flight on its QP, if it has one.
    fn end(&self, why: &'static str) {
        if let Some(qp) = &self.state().qp {
            qp.end(why);
        }
    }
}

fn key(arm: &Arm<On<CmId>, sysverbs::CmId>) -> Key {
    match arm {
        Arm::Soft(on) => Key::Soft(on.id),
        Arm::Hard(id) => Key::Hard(id.number()),
    }
}

impl Id {
    /// An identifier that was made on a channel, and is known there from now on.
    pub(super) fn new(
        channel: &EventChannel,
        arm: Arm<On<CmId>, sysverbs::CmId>,
        asked: &ConnParam,
    ) -> Self {
        let state = State {
            qp: None,
            is_resolved: false,
            responder_resources: asked.responder_resources,
            initiator_depth: asked.initiator_depth,
            peer_ended: false,
        };
        let key = key(&arm);
        let inner = Arc::new(Inner {
            arm,
            context: channel.context().clone(),
            channel: Mutex::new(channel.clone()),
            state: Mutex::new(state),
        });
        channel.0.ids().insert(key, Arc::downgrade(&inner));
        Self(inner)
    }

    fn context(&self) -> &Context {
        &self.0.context
    }

    /// A number that no other identifier of this process has at the same time.
    pub(crate) fn key(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Binds it to an address of the device, or to the wildcard. Port 0 is a free one. Returns what
    /// it is bound to.
    ///
    /// # Errors
    ///
    /// [`Kind::AddressInUse`] if the port is in use, by this process or another one of this host;
    /// [`Kind::AddressNotAvailable`] if either of the two addresses is the wildcard, or the address
    /// is not one of the device's; [`Kind::Invalid`] if it is bound already.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(&self, addr: SocketAddr) -> Result<SocketAddr> {
        match &self.0.arm {
            Arm::Soft(on) => on.alive()?.cm_bind(on.id, addr, BindOptions::default()),
            Arm::Hard(id) => {
                id.bind(addr).map_err(refused)?;
                self.check_device("rdma_bind_addr", id)?;
                Ok(id.local_addr().unwrap_or(addr))
            }
        }
    }

    /// Takes requests from now on. `backlog` is how many may wait for
    /// [`EventChannel::event`](super::EventChannel::event); the senders of further requests retry.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind), and [`Kind::Invalid`] if it is already in use for something else.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<()> {
        match &self.0.arm {
            Arm::Soft(on) => on.alive()?.cm_listen(on.id, backlog),
            Arm::Hard(id) => id.listen(backlog).map_err(refused),
        }
    }

    /// Resolves the route to a peer, from an address of this device if one is given, and binds to a
    /// free port unless it is bound. A library may wait two seconds for the peer's neighbour.
    ///
    /// # Errors
    ///
    /// [`Kind::AddressNotAvailable`], [`Kind::Unreachable`] or [`Kind::NoDevice`] if there is no
    /// route from that address, or it leaves from another device.
    #[doc(alias("rdma_resolve_addr", "rdma_resolve_route"))]
    pub fn resolve(&self, from: Option<SocketAddr>, to: SocketAddr) -> Result<()> {
        self.resolve_within(from, to, Duration::from_secs(2))
    }

    /// The same with another bound, for the address and again for the route.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Self::resolve), and [`Kind::TimedOut`].
    pub fn resolve_within(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        match &self.0.arm {
            Arm::Soft(on) => drop(on.alive()?.cm_resolve(on.id, from, to)?),
            Arm::Hard(id) => {
                id.resolve(from, to, timeout).map_err(refused)?;
                self.check_device("rdma_resolve_addr", id)?;
            }
        }
        self.0.state().is_resolved = true;
        Ok(())
    }

    /// Refuses an address of another device of the library.
    fn check_device(&self, call: &str, id: &sysverbs::CmId) -> Result<()> {
        let is_here = self.context().arm().same_hard().is_some_and(|hard| {
            // One that is bound to all addresses uses no device yet.
            id.is_of(hard).unwrap_or(true)
        });
        if is_here {
            return Ok(());
        }
        let device = id.device().unwrap_or_default();
        let what = format!("{call}: the address is one of {device}, not of this channel's device");
        Err(Refusal::new(Kind::AddressNotAvailable, what))
    }

    /// Its own address, once it is bound.
    #[doc(alias = "rdma_get_local_addr")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.0.arm {
            Arm::Soft(on) => on.lock().cm_addresses(on.id).ok()?.local,
            Arm::Hard(id) => id.local_addr(),
        }
    }

    /// The peer's address, once it is resolved or has sent its request.
    #[doc(alias = "rdma_get_peer_addr")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        match &self.0.arm {
            Arm::Soft(on) => on.lock().cm_addresses(on.id).ok()?.remote,
            Arm::Hard(id) => id.peer_addr(),
        }
    }

    /// The QP that is connected, or about to be.
    pub fn qp(&self) -> Option<Qp> {
        self.0.state().qp.clone()
    }

    /// Sends its events to another channel of the same device, with those that wait. Events of a
    /// listener's requests go where the listener's do until the requests are taken.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] for a channel of another device.
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&self, to: &EventChannel) -> Result<()> {
        self.context().check_same(to.context(), "rdma_migrate_id", "channel")?;
        let mut from = self.0.channel();
        if Arc::ptr_eq(&from.0, &to.0) {
            return Ok(());
        }
        // Known there before its events are.
        let key = key(&self.0.arm);
        to.0.ids().insert(key, Arc::downgrade(&self.0));
        let moved = self.move_events(&from, to);
        let other = if moved.is_ok() { &*from } else { to };
        other.0.ids().remove(&key);
        if moved.is_ok() {
            *from = to.clone();
        }
        moved
    }

    fn move_events(&self, from: &EventChannel, to: &EventChannel) -> Result<()> {
        match (&self.0.arm, &from.0.arm, &to.0.arm) {
            (Arm::Soft(on), Arm::Soft(from), Arm::Soft(to)) => {
                let mut engine = on.alive()?;
                engine.cm_set_sink(on.id, Arc::clone(&to.queue) as _, 0)?;
                // The engine is locked, so no event overtakes these.
                from.queue.take_of(on.id).into_iter().for_each(|event| to.queue.deliver(event));
                drop(engine);
                to.queue.ring();
                Ok(())
            }
            (Arm::Hard(id), _, Arm::Hard(to)) => id.migrate(to).map_err(refused),
            _ => Err(Refusal::new(Kind::Invalid, "rdma_migrate_id: another provider's channel")),
        }
    }

    /// Requests a connection of this QP from the peer. The QP is an RC QP of this device that is
    /// not connected; receives may already be posted to it. The outcome is an event.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if it is not [resolved](Self::resolve), is already in use for something
    /// else, the QP is not such a QP, or the private data are too long.
    #[doc(alias = "rdma_connect")]
    pub fn connect(&self, qp: &Qp, param: &ConnParam) -> Result<()> {
        const CALL: &str = "rdma_connect";
        self.take(CALL, qp, |state| {
            if !state.is_resolved {
                let what = format!("{CALL}: the route to the peer is not resolved");
                return Err(Refusal::new(Kind::Invalid, what));
            }
            check_length(CALL, &param.private_data, longest::REQ)?;
            let most = self.most();
            state.responder_resources = cmp::min(param.responder_resources, most);
            state.initiator_depth = cmp::min(param.initiator_depth, most);
            match &self.0.arm {
                Arm::Soft(on) => {
                    on.alive()?.cm_connect(on.id, &soft_said(qp, param, state))?;
                    on.hca.about_to_wait();
                    Ok(())
                }
                Arm::Hard(id) => {
                    let port = self.to_port(qp, id);
                    port.and_then(|()| id.connect(&hard_said(qp, param, state)).map_err(refused))
                }
            }
        })
    }

    /// Accepts the request that it was made for, with a QP as for [`connect`](Self::connect), which
    /// can receive from now on. [`EventKind::Established`](super::EventKind::Established) follows.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if there is no request, or no longer one, the QP is not such a QP, or the
    /// private data are too long.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, qp: &Qp, param: &ConnParam) -> Result<()> {
        const CALL: &str = "rdma_accept";
        self.take(CALL, qp, |state| {
            check_length(CALL, &param.private_data, longest::REP)?;
            let most = self.most();
            // No more than the peer asked for.
            let bound = |own: u8, asked: u8| own.min(asked).min(most);
            state.responder_resources = bound(param.responder_resources, state.responder_resources);
            state.initiator_depth = bound(param.initiator_depth, state.initiator_depth);
            if let Arm::Hard(id) = &self.0.arm {
                self.to_port(qp, id)?;
            }
            self.to_rts(qp, state)?;
            let accepted = match &self.0.arm {
                Arm::Soft(on) => {
                    let said = soft_said(qp, param, state);
                    let accepted = on.alive().and_then(|mut engine| engine.cm_accept(on.id, &said));
                    on.hca.about_to_wait();
                    accepted
                }
                Arm::Hard(id) => id.accept(&hard_said(qp, param, state)).map_err(refused),
            };
            if accepted.is_err() {
                qp.end("its connection could not be accepted");
            }
            accepted
        })
    }

    /// Refuses the request that it was made for, in the program's name, with private data.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if there is no request, or no longer one, or the private data are too long.
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        check_length("rdma_reject", private_data, longest::REJ)?;
        match &self.0.arm {
            Arm::Soft(on) => {
                let mut engine = on.alive()?;
                engine.cm_reject(on.id, RejReason::CONSUMER_DEFINED, &[], private_data)
            }
            Arm::Hard(id) => id.reject(private_data).map_err(refused),
        }
    }

    /// Ends the connection, or confirms that the peer ended it: posted requests are flushed.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if it never was a connection.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<()> {
        let is_confirmed = self.0.state().peer_ended;
        self.0.end(if is_confirmed { PEER_ENDED } else { "this side ended its connection" });
        match &self.0.arm {
            Arm::Soft(on) => on.alive()?.cm_disconnect(on.id),
            Arm::Hard(id) => id.disconnect().map_err(refused),
        }
    }

    /// Tells the connection manager that the QP received a message, which proves that the peer is
    /// connected even if its last message of the handshake was lost: for
    /// [`EventType::CommEst`](crate::EventType::CommEst).
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if it is not a connection.
    #[doc(alias = "rdma_notify")]
    pub fn notify_established(&self) -> Result<()> {
        match &self.0.arm {
            Arm::Soft(on) => on.alive()?.cm_established(on.id),
            Arm::Hard(id) => id.notify_established().map_err(refused),
        }
    }

    /// Moves the QP to RTS as the peer's answer asks, and tells the peer.
    pub(super) fn follow(&self) -> Result<()> {
        {
            let state = self.0.state();
            if let Some(qp) = &state.qp {
                self.to_rts(qp, &state)?;
            }
        }
        match &self.0.arm {
            Arm::Soft(on) => on.alive()?.cm_ready(on.id, &[]),
            Arm::Hard(id) => id.establish().map_err(refused),
        }
    }

    /// The peer ended the connection, and the program is told.
    pub(super) fn note_peer_ended(&self) {
        self.0.state().peer_ended = true;
    }

    /// Refuses the peer's answer.
    pub(super) fn refuse(&self) {
        self.0.end("its side refused what the peer answered to its request for a connection");
        // The connection may have ended by now.
        let _ = self.reject(&[]);
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
            let (mut attr, mask) = match &self.0.arm {
                Arm::Soft(on) => on.alive()?.cm_qp_attr(on.id, to)?,
                Arm::Hard(id) => id.qp_attr(to).map_err(refused)?,
            };
            match to {
                QpState::Rtr => attr.max_dest_rd_atomic = state.responder_resources,
                _ => attr.max_rd_atomic = state.initiator_depth,
            }
            qp.modify(&attr, mask)?;
        }
        Ok(())
    }

    /// Moves a QP in INIT to the port and the partition that a library chose.
    fn to_port(&self, qp: &Qp, id: &sysverbs::CmId) -> Result<()> {
        let (chosen, _) = id.qp_attr(QpState::Init).map_err(refused)?;
        if (chosen.port_num, chosen.pkey_index) == (qp.pd().context().port(), 0) {
            return Ok(());
        }
        let attr = QpAttr { port_num: chosen.port_num, pkey_index: chosen.pkey_index, ..chosen };
        qp.modify(&attr, AttrMask::STATE | AttrMask::PORT | AttrMask::PKEY_INDEX)
    }
}

fn check_length(call: &str, private_data: &[u8], most: usize) -> Result<()> {
    let length = private_data.len();
    if length <= most {
        return Ok(());
    }
    let what = format!("{call}: {length} bytes of private data; the message has room for {most}");
    Err(Refusal::new(Kind::Invalid, what))
}

/// The program's parameters, with those that the identifier adds.
fn soft_said(qp: &Qp, param: &ConnParam, state: &State) -> SoftSaid {
    SoftSaid {
        private_data: param.private_data.clone(),
        responder_resources: state.responder_resources,
        initiator_depth: state.initiator_depth,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        srq: qp.spec().srq.is_some(),
        qpn: qp.qpn(),
        ..SoftSaid::default()
    }
}

/// The same for a library.
fn hard_said<'a>(qp: &Qp, param: &'a ConnParam, state: &State) -> HardSaid<'a> {
    HardSaid {
        private_data: &param.private_data,
        responder_resources: state.responder_resources,
        initiator_depth: state.initiator_depth,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        qpn: qp.qpn(),
        srq: qp.spec().srq.is_some(),
    }
}
