//! An identifier as the library has it: its state, its endpoints on NICs, and where its events go.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use device::rdma_cm::{self, ConnParam, EventKind, Sink, Spec};
use iba::QpType;

use super::channel::{Channel, Taken};
use super::join::Join;
use super::nic::Nic;
use super::path::record;
use super::state::{End, Inner, State, destroy};
use super::{Answer, Failure};
use crate::abi::acks::Acks;
use crate::abi::cancel::After;
use crate::abi::types::CEnum;
use crate::abi::types::rdma::CmId;

/// What an event tells of an endpoint.
#[derive(Debug)]
pub(super) enum What {
    /// Its address was resolved, or why not.
    Addr(Answer),
    /// Its route is resolved.
    Route,
    /// Something happened to its connection.
    Cm(EventKind),
    /// It listens, and a peer asks for a connection.
    Request {
        /// The endpoint made for the request.
        child: Arc<Endpoint>,
        /// What the peer said.
        param: ConnParam,
    },
    /// It joined a multicast group.
    Join(Arc<Join>),
    /// A name was resolved for it.
    AddrInfo,
    /// An event that the program wrote itself.
    User {
        /// Its status.
        status: c_int,
        /// Its argument.
        arg: u64,
    },
}

/// One event that waits.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) what: What,
}

impl Entry {
    /// Takes the oldest event of a channel, which from then on waits for its acknowledgement.
    ///
    /// # Errors
    /// As [`Channel::take`].
    pub(super) fn take(channel: &Channel<Self>) -> Answer<Self> {
        // The queue is still locked, so that a thread that destroys the endpoint waits for this
        // event.
        channel.take(Self::give, Nic::about_to_wait)
    }

    /// The same in a call of a program whose thread may be cancelled.
    ///
    /// # Errors
    /// As [`Channel::take`].
    pub(super) fn take_in_steps(channel: &Channel<Self>, after: After) -> Answer<Taken<Self>> {
        channel.take_in_steps(after, Self::give, Nic::about_to_wait)
    }

    fn give(&self) {
        self.endpoint.acks.give();
    }
}

/// Where events go.
struct Delivery {
    channel: Arc<Channel<Entry>>,
    /// What the program knows it by, once it knows it.
    id: *mut CmId,
    /// Whether the program is told what happens: not before it accepted (kernel:
    /// `ucma_event_handler`).
    is_open: bool,
    /// It is being destroyed.
    is_gone: bool,
    /// Requests that no program has seen yet, the oldest first: most often it is seen next.
    children: VecDeque<(End, Arc<Endpoint>)>,
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
    fn deliver(&self, event: rdma_cm::Event) {
        if let Some(endpoint) = self.to.upgrade() {
            endpoint.receive(&self.nic, event);
        }
    }

    /// The engine is not locked by this thread.
    fn ring(&self) {
        if let Some(endpoint) = self.to.upgrade() {
            let channel = Arc::clone(&endpoint.delivery().channel);
            channel.ring();
        }
    }
}

impl Endpoint {
    pub(super) fn new(channel: Arc<Channel<Entry>>, port_space: CEnum, qp_type: CEnum) -> Self {
        Self {
            acks: Acks::default(),
            inner: Mutex::new(Inner::new(port_space, qp_type)),
            delivery: Mutex::new(Delivery {
                channel,
                id: std::ptr::null_mut(),
                is_open: true,
                is_gone: false,
                children: VecDeque::new(),
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

    /// Sends its events to another channel from now on, with those that wait.
    pub(super) fn move_to(self: &Arc<Self>, channel: Arc<Channel<Entry>>) {
        let mut delivery = self.delivery();
        for entry in self.waiting(&delivery, |_| true) {
            channel.push(entry);
        }
        delivery.channel = channel;
    }

    /// Adds an event of the library's own.
    pub(super) fn post(self: &Arc<Self>, what: What) {
        let delivery = self.delivery();
        self.add_to(&delivery, what);
        let channel = Arc::clone(&delivery.channel);
        drop(delivery);
        channel.ring();
    }

    fn add_to(self: &Arc<Self>, delivery: &Delivery, what: What) {
        if !delivery.is_gone {
            delivery.channel.add(Entry { endpoint: Arc::clone(self), what });
        }
    }

    /// Takes those of its events that wait and for which `is_it` holds out of its channel.
    fn waiting(self: &Arc<Self>, delivery: &Delivery, is_it: impl Fn(&What) -> bool) -> Vec<Entry> {
        let is_own = |entry: &Entry| Arc::ptr_eq(&entry.endpoint, self);
        delivery.channel.remove_if(|entry| is_own(entry) && is_it(&entry.what))
    }

    /// Takes an event of the engine, which is locked.
    fn receive(self: &Arc<Self>, nic: &Arc<Nic>, event: rdma_cm::Event) {
        let mut delivery = self.delivery();
        if delivery.is_gone {
            return;
        }
        let is = |end: &End, id| Arc::ptr_eq(&end.nic, nic) && end.id == id;
        if let EventKind::ConnectRequest { new, param } = event.kind {
            let child = Arc::new(self.child(&delivery));
            let end = End { nic: Arc::clone(nic), id: new };
            delivery.children.push_back((end, Arc::clone(&child)));
            self.add_to(&delivery, What::Request { child, param });
        } else if delivery.children.iter().any(|(end, _)| is(end, event.id)) {
            // The program learns of it when it accepts: that fails.
            tracing::debug!(target: "peerdma::cm", "before it was accepted: {:?}", event.kind);
        } else if delivery.is_open {
            self.add_to(&delivery, What::Cm(event.kind));
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
        let mut delivery = self.delivery();
        let place = delivery.children.iter().position(|(_, known)| Arc::ptr_eq(known, child));
        drop(place.map(|place| delivery.children.remove(place)));
        drop(delivery);
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

    /// Drops the event of a join that the program left before it took the event.
    pub(super) fn forget(self: &Arc<Self>, left: &Arc<Join>) {
        let is_it = |what: &What| matches!(what, What::Join(join) if Arc::ptr_eq(join, left));
        drop(self.waiting(&self.delivery(), is_it));
    }

    /// Stops all events, and drops those that wait. Gives the ends of the requests that the program
    /// has not seen.
    fn close(self: &Arc<Self>) -> Vec<End> {
        let mut delivery = self.delivery();
        delivery.is_gone = true;
        drop(self.waiting(&delivery, |_| true));
        std::mem::take(&mut delivery.children).into_iter().map(|(end, _)| end).collect()
    }

    /// Ends it: requests that the program has not seen are refused, a connection is ended. Gives
    /// its NIC, which the caller releases when the last object is gone.
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
