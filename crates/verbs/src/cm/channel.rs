//! Event channels.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use device::ids::{CmId, CtxId};
use device::rdma_cm::{EventKind as Kind, PortSpace, Queue, RejReason, Spec};
use iba::QpType;

use super::event::{ConnParam, Event, EventKind};
use super::id::{Id, Inner};
use crate::arm::On;
use crate::wait::readable;
use crate::{Context, Result};

/// The events of any number of identifiers of one device. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "rdma_event_channel")]
pub struct EventChannel(pub(super) Arc<Channel>);

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) context: Context,
    pub(super) on: On<CtxId>,
    queue: Arc<Queue>,
    ids: Mutex<BTreeMap<CmId, Weak<Inner>>>,
}

impl Channel {
    pub(super) fn ids(&self) -> MutexGuard<'_, BTreeMap<CmId, Weak<Inner>>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // Requests that the program never took, of listeners that are gone: identifiers hold the
        // channel.
        while let Some(event) = self.queue.pop() {
            if let Kind::ConnectRequest { new, .. } = event.kind {
                let _ = self.on.lock().cm_destroy(new);
            }
        }
    }
}

impl EventChannel {
    /// A channel without identifiers.
    ///
    /// # Errors
    ///
    /// [`Kind::NoMemory`](crate::Kind::NoMemory) if there are no descriptors left.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new(context: &Context) -> Result<Self> {
        let queue = Arc::new(Queue::new()?);
        let soft = context.arm().soft("rdma_create_event_channel")?;
        let on = soft.with(soft.id);
        let channel = Channel { context: context.clone(), on, queue, ids: Mutex::default() };
        Ok(Self(Arc::new(channel)))
    }

    /// The device it is of.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Makes an identifier for a reliable connection.
    ///
    /// # Errors
    ///
    /// [`Kind::NoMemory`](crate::Kind::NoMemory) at the limit of identifiers.
    #[doc(alias = "rdma_create_id")]
    pub fn create_id(&self) -> Result<Id> {
        let spec = Spec { port_space: PortSpace::Tcp, qp_type: QpType::Rc, cookie: 0 };
        let id = self.0.on.alive()?.cm_create(&spec, Arc::clone(&self.0.queue) as _)?;
        Ok(self.known(id, &ConnParam::default()))
    }

    fn known(&self, id: CmId, asked: &ConnParam) -> Id {
        let made = Id::new(&self.0, id, asked);
        self.0.ids().insert(id, Arc::downgrade(&made.0));
        made
    }

    /// The oldest event; waits up to `timeout` for it. Any number of threads may wait; each event
    /// goes to one of them.
    ///
    /// # Errors
    ///
    /// [`Kind::Io`](crate::Kind::Io) if the descriptor is gone.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn event(&self, timeout: Duration) -> Result<Option<Event>> {
        let began = Instant::now();
        loop {
            while let Some(event) = self.0.queue.pop() {
                if let Some(event) = self.event_of(event) {
                    return Ok(Some(event));
                }
            }
            if !readable(&*self.0.queue, timeout.saturating_sub(began.elapsed()))? {
                return Ok(None);
            }
        }
    }

    /// Converts an event of the device for the program. `None` if its identifier is gone.
    fn event_of(&self, event: device::rdma_cm::Event) -> Option<Event> {
        let find = |id: CmId| {
            let inner = self.0.ids().get(&id)?.upgrade()?;
            Some(Id(inner))
        };
        if let Kind::ConnectRequest { new, param } = event.kind {
            let param = ConnParam::from(param);
            let id = self.known(new, &param);
            // It no longer counts towards the backlog of its listener.
            let _ = self.0.on.lock().cm_taken(new);
            let kind = EventKind::ConnectRequest { param };
            return Some(Event { id, listener: find(event.id), kind });
        }
        let id = find(event.id)?;
        let kind = match event.kind {
            Kind::ConnectResponse { param } => match id.follow() {
                Ok(()) => EventKind::Established { param: param.into() },
                Err(why) => {
                    id.refuse(RejReason::CONSUMER_DEFINED, &[]);
                    EventKind::ConnectError { why }
                }
            },
            Kind::Established { param } => EventKind::Established { param: param.into() },
            Kind::Unreachable | Kind::SidrRefused { .. } => EventKind::Unreachable,
            Kind::Rejected { reason, private_data, .. } => {
                EventKind::Rejected { reason, private_data }
            }
            Kind::Disconnected { timed_out } => EventKind::Disconnected { timed_out },
            Kind::TimewaitExit => EventKind::TimewaitExit,
            Kind::DeviceRemoval => EventKind::DeviceRemoval,
            _ => return None,
        };
        Some(Event { id, listener: None, kind })
    }
}

impl AsFd for EventChannel {
    /// Readable while an event waits, for poll and epoll; [`EventChannel::event`] takes it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.queue.as_fd()
    }
}

impl From<device::rdma_cm::ConnParam> for ConnParam {
    fn from(param: device::rdma_cm::ConnParam) -> Self {
        Self {
            private_data: param.private_data,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
        }
    }
}
