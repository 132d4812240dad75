//! Event channels.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use device::ids::{CmId, CtxId};
use device::rdma_cm::{EventKind as Soft, PortSpace, Queue, RejReason, Spec};
use device::{Engine, Waiting};
use iba::QpType;
use sysverbs::CmEventKind as Hard;

use super::event::{ConnParam, Event, EventKind};
use super::id::{Id, Inner};
use crate::arm::{Arm, On, refused};
use crate::wait::{Waited, readable, wait_for_event};
use crate::{Context, Kind, Refusal, Result};

/// The events of any number of identifiers of one device. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "rdma_event_channel")]
pub struct EventChannel(pub(super) Arc<Channel>);

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) context: Context,
    pub(super) arm: Arm<SoftChannel, sysverbs::CmChannel>,
    ids: Mutex<HashMap<Key, Weak<Inner>>>,
}

/// A channel of the software device.
#[derive(Debug)]
pub(super) struct SoftChannel {
    pub(super) on: On<CtxId>,
    pub(super) queue: Arc<Queue>,
    waiting: Waiting,
}

/// What events call an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Soft(CmId),
    Hard(usize),
}

impl Channel {
    pub(super) fn ids(&self) -> MutexGuard<'_, HashMap<Key, Weak<Inner>>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // A library refuses the requests that nobody took when it destroys the channel.
        let Arm::Soft(soft) = &self.arm else { return };
        // Requests that the program never took, of listeners that are gone: identifiers hold the
        // channel.
        while let Some(event) = soft.queue.pop() {
            if let Soft::ConnectRequest { new, .. } = event.kind {
                let _ = soft.on.lock().cm_destroy(new);
            }
        }
    }
}

impl EventChannel {
    /// A channel without identifiers. For a NIC of a library, it is one of the `librdmacm.so.1`
    /// that belongs to the library.
    ///
    /// # Errors
    ///
    /// [`Kind::NoMemory`] if there are no descriptors left, [`Kind::NotSupported`] if there is no
    /// librdmacm.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new(context: &Context) -> Result<Self> {
        let arm = match context.arm() {
            Arm::Soft(soft) => {
                let queue = Arc::new(Queue::new()?);
                Arm::Soft(SoftChannel {
                    on: soft.with(soft.id),
                    queue,
                    waiting: Waiting::default(),
                })
            }
            Arm::Hard(hard) => {
                let library = hard.library().connections().map_err(|why| {
                    let what = format!("rdma_create_event_channel: no librdmacm: {why}");
                    Refusal::new(Kind::NotSupported, what)
                })?;
                Arm::Hard(library.create_channel().map_err(refused)?)
            }
        };
        Ok(Self(Arc::new(Channel { context: context.clone(), arm, ids: Mutex::default() })))
    }

    /// The device it is of.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Makes an identifier for a reliable connection.
    ///
    /// # Errors
    ///
    /// [`Kind::NoMemory`] at the limit of identifiers.
    #[doc(alias = "rdma_create_id")]
    pub fn create_id(&self) -> Result<Id> {
        let arm = match &self.0.arm {
            Arm::Soft(soft) => {
                let spec = Spec { port_space: PortSpace::Tcp, qp_type: QpType::Rc, cookie: 0 };
                let id = soft.on.alive()?.cm_create(&spec, Arc::clone(&soft.queue) as _)?;
                Arm::Soft(soft.on.with(id))
            }
            Arm::Hard(channel) => {
                Arm::Hard(channel.create_id(sysverbs::PortSpace::Tcp).map_err(refused)?)
            }
        };
        Ok(Id::new(self, arm, &ConnParam::default()))
    }

    /// The oldest event; waits up to `timeout` for it. Any number of threads may wait; each event
    /// goes to one of them.
    ///
    /// # Errors
    ///
    /// [`Kind::Io`] if the descriptor is gone.
    #[doc(alias("rdma_get_cm_event", "rdma_ack_cm_event"))]
    pub fn event(&self, timeout: Duration) -> Result<Option<Event>> {
        let began = Instant::now();
        let mut taken = None;
        loop {
            let event = match &self.0.arm {
                Arm::Soft(soft) => {
                    let event = taken.take().or_else(|| soft.queue.pop());
                    event.map(|event| self.of_soft(soft, event))
                }
                Arm::Hard(channel) => {
                    channel.event().map_err(refused)?.map(|event| self.of_hard(event))
                }
            };
            match event {
                Some(Some(event)) => return Ok(Some(event)),
                // Of an identifier that is gone.
                Some(None) => continue,
                None => {}
            }
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            if let Arm::Soft(soft) = &self.0.arm {
                soft.on.hca.about_to_wait();
                let take = |_: &mut Engine| {
                    taken = soft.queue.pop();
                    taken.is_some()
                };
                let waited = wait_for_event(&soft.waiting, &soft.on.hca, &*soft.queue, take, left);
                if waited != Waited::Unable {
                    continue;
                }
            }
            if !readable(self, left)? {
                return Ok(None);
            }
        }
    }

    fn find(&self, key: Key) -> Option<Id> {
        self.0.ids().get(&key)?.upgrade().map(Id)
    }

    /// Converts an event of the device for the program. `None` if its identifier is gone.
    fn of_soft(&self, soft: &SoftChannel, event: device::rdma_cm::Event) -> Option<Event> {
        if let Soft::ConnectRequest { new, param } = event.kind {
            let param = ConnParam::from(param);
            let id = Id::new(self, Arm::Soft(soft.on.with(new)), &param);
            let mut engine = soft.on.lock();
            // It no longer counts towards the backlog of its listener, which may have moved here.
            let _ = engine.cm_taken(new);
            let _ = engine.cm_set_sink(new, Arc::clone(&soft.queue) as _, 0);
            drop(engine);
            let listener = self.find(Key::Soft(event.id));
            return Some(Event { id, listener, kind: EventKind::ConnectRequest { param } });
        }
        let id = self.find(Key::Soft(event.id))?;
        let kind = match event.kind {
            Soft::ConnectResponse { param } => followed(&id, param.into()),
            Soft::Established { param } => EventKind::Established { param: param.into() },
            Soft::Unreachable | Soft::SidrRefused { .. } => EventKind::Unreachable,
            Soft::Rejected { reason, private_data, .. } => {
                EventKind::Rejected { reason, private_data }
            }
            Soft::Disconnected { timed_out } => disconnected(&id, timed_out),
            Soft::TimewaitExit => EventKind::TimewaitExit,
            Soft::DeviceRemoval => EventKind::DeviceRemoval,
            _ => return None,
        };
        Some(Event { id, listener: None, kind })
    }

    /// Converts an event of a library for the program. `None` if its identifier is gone.
    fn of_hard(&self, event: sysverbs::CmEvent) -> Option<Event> {
        if let Hard::ConnectRequest(said) = event.kind {
            let hard = self.0.context.arm().same_hard()?;
            if event.id.is_of(hard) != Some(true) {
                // A listener at all addresses hears other NICs, too. The request is refused when
                // its identifier is dropped.
                return None;
            }
            let param = ConnParam::from(said);
            let listener =
                event.listener.and_then(|listener| self.find(Key::Hard(listener.number())));
            let id = Id::new(self, Arm::Hard(event.id), &param);
            return Some(Event { id, listener, kind: EventKind::ConnectRequest { param } });
        }
        let id = self.find(Key::Hard(event.id.number()))?;
        let kind = match event.kind {
            Hard::ConnectResponse(said) => followed(&id, said.into()),
            Hard::Established(said) => EventKind::Established { param: said.into() },
            Hard::ConnectError(why) => EventKind::ConnectError { why: refused(why) },
            Hard::Unreachable(_) => EventKind::Unreachable,
            Hard::Rejected { reason, private_data } => {
                let reason = RejReason(u16::try_from(reason).unwrap_or(0));
                EventKind::Rejected { reason, private_data }
            }
            Hard::Disconnected { timed_out } => disconnected(&id, timed_out),
            Hard::TimewaitExit => EventKind::TimewaitExit,
            Hard::DeviceRemoval | Hard::AddrChange => EventKind::DeviceRemoval,
            _ => return None,
        };
        Some(Event { id, listener: None, kind })
    }
}

/// The peer accepted: the QP follows.
fn followed(id: &Id, param: ConnParam) -> EventKind {
    match id.follow() {
        Ok(()) => EventKind::Established { param },
        Err(why) => {
            id.refuse();
            EventKind::ConnectError { why }
        }
    }
}

fn disconnected(id: &Id, timed_out: bool) -> EventKind {
    if !timed_out {
        id.note_peer_ended();
    }
    EventKind::Disconnected { timed_out }
}

impl AsFd for EventChannel {
    /// Readable while an event waits, for poll and epoll; [`EventChannel::event`] takes it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0.arm {
            Arm::Soft(soft) => soft.queue.as_fd(),
            Arm::Hard(channel) => channel.as_fd(),
        }
    }
}

impl AsRawFd for EventChannel {
    /// The same descriptor, for `tokio::io::unix::AsyncFd`, which takes a channel as it is.
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
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

impl From<sysverbs::Said> for ConnParam {
    fn from(said: sysverbs::Said) -> Self {
        Self {
            private_data: said.private_data,
            responder_resources: said.responder_resources,
            initiator_depth: said.initiator_depth,
            retry_count: said.retry_count,
            rnr_retry_count: said.rnr_retry_count,
        }
    }
}
