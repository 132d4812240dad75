//! An identifier as the library has it: state, device, addresses, and where its events go.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use device::cm::{
    self, BindOptions, CmId as EndId, ConnParam, Ece, EventKind, PortSpace, Sink, Spec,
};
use iba::QpType;

use super::channel::{Channel, Entry, What};
use super::mcast::Join;
use super::nic::Nic;
use super::path::record;
use super::{Answer, Failure};
use crate::abi::acks::Acks;
use crate::abi::types::CEnum;
use crate::abi::types::pd::Pd;
use crate::abi::types::qp::QpInitAttr;
use crate::abi::types::rdma::{AddrInfo, CmId, SaPathRec, port_space};

/// What an identifier can do next (kernel: `enum rdma_cm_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Bound,
    AddrQuery,
    AddrResolved,
    RouteResolved,
    /// From `rdma_connect`, or from the request, to the end.
    Connecting,
    Listening,
}

/// An endpoint in the engine of one NIC. A wildcard has one on each NIC.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) nic: Arc<Nic>,
    pub(super) id: EndId,
}

/// What calls of the program change.
pub(super) struct Inner {
    pub(super) state: State,
    /// It told the program that its connection failed, and says no more.
    pub(super) has_failed: bool,
    pub(super) port_space: CEnum,
    pub(super) qp_type: CEnum,
    /// The NIC it is bound to: by an address, by resolving one, or by a request.
    pub(super) nic: Option<Arc<Nic>>,
    pub(super) ends: Vec<End>,
    pub(super) route: Route,
    pub(super) options: Options,
    pub(super) terms: Terms,
    pub(super) face: Face,
}

/// Between which addresses it is, and the way from one to the other.
#[derive(Default)]
pub(super) struct Route {
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    pub(super) path: Option<cm::Path>,
}

/// What `rdma_set_option` sets.
#[derive(Default)]
pub(super) struct Options {
    pub(super) bind: BindOptions,
    pub(super) tos: Option<u8>,
    pub(super) ack_timeout: Option<u8>,
}

/// What it tells its peer of the connection, and what the peer told.
#[derive(Default)]
pub(super) struct Terms {
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
    /// Vendor and options.
    pub(super) local_ece: Ece,
    pub(super) remote_ece: Ece,
    /// Private data that `rdma_getaddrinfo` found and every connection begins with.
    pub(super) connect_data: Vec<u8>,
}

/// What only an identifier of C has.
pub(super) struct Face {
    /// The domain that the identifiers of the NIC share.
    pub(super) pd: *mut Pd,
    /// The path, at an address that stays.
    pub(super) path_rec: Option<Box<SaPathRec>>,
    /// How the QPs of requests are made (`rdma_create_ep(3)`).
    pub(super) ep_attr: Option<QpInitAttr>,
    /// Its channel is its own, and calls wait for their events.
    pub(super) is_sync: bool,
    pub(super) joins: Vec<Arc<Join>>,
    pub(super) names: Names,
}

/// Where `rdma_resolve_addrinfo` is.
#[derive(Clone, Copy)]
pub(super) enum Names {
    None,
    Asked,
    Found(*mut AddrInfo),
}

/// Where events go.
struct Delivery {
    channel: Arc<Channel>,
    /// What the program knows it by, once it knows it.
    id: *mut CmId,
    /// Whether the program is told what happens: not before it accepted (kernel:
    /// `ucma_event_handler`).
    is_open: bool,
    /// It is being destroyed.
    is_gone: bool,
    /// Requests that no program has seen yet.
    children: Vec<(End, Arc<Endpoint>)>,
}

/// What is behind a `rdma_cm_id`.
pub(super) struct Endpoint {
    pub(super) acks: Acks,
    inner: Mutex<Inner>,
    delivery: Mutex<Delivery>,
}

// SAFETY: the pointers it holds are the program's or C structures of the library; they are only
// handed on, to calls whose contract is that of `abi`, and all state is behind mutexes.
unsafe impl Send for Endpoint {}
// SAFETY: as above.
unsafe impl Sync for Endpoint {}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").finish_non_exhaustive()
    }
}

/// Where the engine of one NIC leaves the events of an endpoint.
#[derive(Debug)]
struct PostBox {
    to: Weak<Endpoint>,
    nic: Arc<Nic>,
}

impl Sink for PostBox {
    /// The engine is locked.
    fn deliver(&self, event: cm::Event) {
        if let Some(endpoint) = self.to.upgrade() {
            endpoint.receive(&self.nic, event);
        }
    }
}

impl Endpoint {
    pub(super) fn new(channel: Arc<Channel>, port_space: CEnum, qp_type: CEnum) -> Self {
        Self {
            acks: Acks::default(),
            inner: Mutex::new(Inner {
                state: State::Idle,
                has_failed: false,
                port_space,
                qp_type,
                nic: None,
                ends: Vec::new(),
                route: Route::default(),
                options: Options::default(),
                terms: Terms::default(),
                face: Face {
                    pd: std::ptr::null_mut(),
                    path_rec: None,
                    ep_attr: None,
                    is_sync: false,
                    joins: Vec::new(),
                    names: Names::None,
                },
            }),
            delivery: Mutex::new(Delivery {
                channel,
                id: std::ptr::null_mut(),
                is_open: true,
                is_gone: false,
                children: Vec::new(),
            }),
        }
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn delivery(&self) -> MutexGuard<'_, Delivery> {
        self.delivery.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The identifier, for events.
    pub(super) fn id(&self) -> *mut CmId {
        self.delivery().id
    }

    /// The program knows it as `id` from now on.
    pub(super) fn set_id(&self, id: *mut CmId) {
        self.delivery().id = id;
    }

    /// Whether the program is told what happens.
    pub(super) fn set_open(&self, is_open: bool) {
        self.delivery().is_open = is_open;
    }

    /// Sends its events elsewhere from now on, and those that wait, too.
    pub(super) fn move_to(self: &Arc<Self>, channel: Arc<Channel>) {
        let mut delivery = self.delivery();
        for entry in delivery.channel.remove(self) {
            channel.push(entry);
        }
        delivery.channel = channel;
    }

    /// Adds an event of the library's own.
    pub(super) fn post(self: &Arc<Self>, what: What) {
        self.post_to(&self.delivery(), what);
    }

    fn post_to(self: &Arc<Self>, delivery: &Delivery, what: What) {
        if !delivery.is_gone {
            delivery.channel.push(Entry { endpoint: Arc::clone(self), what });
        }
    }

    /// Takes an event of the engine, which is locked.
    fn receive(self: &Arc<Self>, nic: &Arc<Nic>, event: cm::Event) {
        let mut delivery = self.delivery();
        if delivery.is_gone {
            return;
        }
        let is = |end: &End, id| Arc::ptr_eq(&end.nic, nic) && end.id == id;
        if let EventKind::ConnectRequest { new, param } = event.kind {
            let child = Arc::new(self.child(&delivery));
            let end = End { nic: Arc::clone(nic), id: new };
            delivery.children.push((end, Arc::clone(&child)));
            self.post_to(&delivery, What::Request { child, param });
        } else if delivery.children.iter().any(|(end, _)| is(end, event.id)) {
            // The program learns of it when it accepts: that fails.
            tracing::debug!(target: "peerdma::cm", "before it was accepted: {:?}", event.kind);
        } else if delivery.is_open {
            self.post_to(&delivery, What::Cm(event.kind));
        } else {
            tracing::debug!(target: "peerdma::cm", "before it was accepted: {:?}", event.kind);
        }
    }

    /// The endpoint of a request that came to this one. The listener's delivery is locked.
    fn child(&self, delivery: &Delivery) -> Self {
        // The space and the type never change, so that this waits for no call of the program.
        let child = Self::new(Arc::clone(&delivery.channel), 0, 0);
        child.delivery().is_open = false;
        child
    }

    /// The end of a request, which from then on has events of its own.
    fn claim(&self, child: &Arc<Self>) -> Option<End> {
        let end = {
            let delivery = self.delivery();
            let found = delivery.children.iter().find(|(_, known)| Arc::ptr_eq(known, child));
            found.map(|(end, _)| end.clone())?
        };
        let sink = child.post_box(&end.nic);
        let moved = end.nic.hca.lock().cm_set_sink(end.id, sink, 0);
        self.delivery().children.retain(|(_, known)| !Arc::ptr_eq(known, child));
        // It may be gone already: then its calls say so.
        drop(moved);
        Some(end)
    }

    /// Makes `child` the endpoint of a request that came to this one: it has the NIC, the addresses
    /// and the way of the request, and events of its own.
    pub(super) fn adopt(&self, child: &Arc<Self>, param: &ConnParam) -> Answer {
        let Some(end) = self.claim(child) else {
            return Err(Failure::new(libc::ENOENT, "its listener is being destroyed"));
        };
        let (space, qp_type, (tos, ack_timeout)) = {
            let inner = self.inner();
            (inner.port_space, inner.qp_type, (inner.options.tos, inner.options.ack_timeout))
        };
        let mut inner = child.inner();
        inner.state = State::Connecting;
        (inner.port_space, inner.qp_type) = (space, qp_type);
        (inner.options.tos, inner.options.ack_timeout) = (tos, ack_timeout);
        // What the event says is how many of ours the peer lets us have, and wants of us.
        inner.terms.initiator_depth = param.initiator_depth;
        inner.terms.responder_resources = param.responder_resources;
        inner.terms.remote_ece = param.ece;
        let nic = Arc::clone(&end.nic);
        let id = end.id;
        inner.ends.push(end);
        inner.hold(&nic)?;
        let mut engine = nic.hca.alive()?;
        engine.cm_taken(id)?;
        let addresses = engine.cm_addresses(id)?;
        let path = engine.cm_route(id)?;
        drop(engine);
        (inner.route.local, inner.route.remote) = (addresses.local, addresses.remote);
        inner.face.path_rec = Some(Box::new(record(&path)));
        inner.route.path = Some(path);
        Ok(())
    }

    /// The program is not told of a join that it left before.
    pub(super) fn forget(self: &Arc<Self>, left: &Arc<Join>) {
        let is_it = |what: &What| matches!(what, What::Join(join) if Arc::ptr_eq(join, left));
        drop(self.delivery().channel.remove_if(self, is_it));
    }

    /// Nobody is told of anything any more. Gives the requests that nobody has seen, and the events
    /// that wait.
    fn close(self: &Arc<Self>) -> Vec<End> {
        let mut delivery = self.delivery();
        delivery.is_gone = true;
        drop(delivery.channel.remove(self));
        std::mem::take(&mut delivery.children).into_iter().map(|(end, _)| end).collect()
    }

    /// Ends it: a request that nobody saw is refused, a connection is ended. Gives its NIC, whose
    /// hold ends when its last object is gone.
    pub(super) fn end(self: &Arc<Self>) -> Option<Arc<Nic>> {
        let unseen = self.close();
        let mut inner = self.inner();
        inner.drop_ends();
        inner.face.joins.clear();
        let nic = inner.nic.take();
        drop(inner);
        unseen.iter().for_each(destroy);
        nic
    }

    fn post_box(self: &Arc<Self>, nic: &Arc<Nic>) -> Arc<dyn Sink> {
        Arc::new(PostBox { to: Arc::downgrade(self), nic: Arc::clone(nic) })
    }

    /// Makes an endpoint on a NIC. Its events come here.
    pub(super) fn make_end(self: &Arc<Self>, nic: &Arc<Nic>, inner: &Inner) -> Answer<End> {
        let spec = Spec {
            port_space: inner.port_space()?,
            qp_type: QpType::from_code(inner.qp_type).ok_or_else(|| {
                Failure::new(libc::EINVAL, format!("there is no QP type {}", inner.qp_type))
            })?,
            cookie: 0,
        };
        let id = nic.hca.alive()?.cm_create(&spec, self.post_box(nic))?;
        let end = End { nic: Arc::clone(nic), id };
        if (inner.options.tos, inner.options.ack_timeout) != (None, None) {
            nic.hca.lock().cm_set_service(id, inner.options.tos, inner.options.ack_timeout)?;
        }
        Ok(end)
    }
}

impl Inner {
    /// The space of its ports.
    ///
    /// # Errors
    /// EPROTONOSUPPORT for the space of IPoIB and for those that are none, as of `cma_get_port` of
    /// the kernel.
    pub(super) fn port_space(&self) -> Answer<PortSpace> {
        let name =
            if self.port_space == port_space::IPOIB { "RDMA_PS_IPOIB" } else { "port space" };
        PortSpace::from_code(self.port_space).ok_or_else(|| {
            let code = self.port_space;
            Failure::new(
                libc::EPROTONOSUPPORT,
                format!("{name} ({code:#x}): there are RDMA_PS_TCP, RDMA_PS_UDP and RDMA_PS_IB"),
            )
        })
    }

    /// Its endpoint, if it is bound to a NIC.
    ///
    /// # Errors
    /// EINVAL, as of the kernel, for an identifier without one.
    pub(super) fn end(&self, call: &str) -> Answer<End> {
        self.ends.first().filter(|_| self.nic.is_some()).cloned().ok_or_else(|| {
            Failure::new(libc::EINVAL, format!("{call}: the identifier has no device"))
        })
    }

    /// Checks that it is in one of `states`.
    ///
    /// # Errors
    /// EINVAL, as of the kernel.
    pub(super) fn expect(&self, call: &str, states: &[State]) -> Answer {
        if states.contains(&self.state) {
            return Ok(());
        }
        let state = self.state;
        Err(Failure::new(
            libc::EINVAL,
            format!("{call}: the identifier is {state:?}, not {states:?}"),
        ))
    }

    /// Whether it is of datagrams.
    pub(super) fn is_ud(&self) -> bool {
        self.qp_type == QpType::Ud as u32
    }

    /// Binds it to a NIC.
    pub(super) fn hold(&mut self, nic: &Arc<Nic>) -> Answer {
        if self.nic.is_none() {
            self.face.pd = nic.hold()?;
            self.nic = Some(Arc::clone(nic));
        }
        Ok(())
    }

    /// Destroys its endpoints.
    pub(super) fn drop_ends(&mut self) {
        for end in self.ends.drain(..) {
            destroy(&end);
        }
    }
}

/// Destroys an endpoint: a request is refused, a connection ended.
pub(super) fn destroy(end: &End) {
    // A NIC that failed, or that is the parent's, has nothing to destroy.
    let _ = end.nic.hca.lock().cm_destroy(end.id);
}
