//! Devices, open devices and protection domains.

use std::sync::Arc;
use std::time::Duration;

use descriptors::Known;
use device::config::NicConfig;
use device::ids::{CtxId, PdId};
use device::{DeviceAttr, EngineGuard, EventSource, GidEntry, Hca, NicInfo, PortAttr};
use iba::{EventType, Qpn};

use crate::wait::{clone_for_waiting, take_one};
use crate::{Kind, Refusal, Result};

/// The NICs of this machine.
#[doc(alias = "ibv_get_device_list")]
pub fn devices() -> Result<Vec<Device>> {
    Ok(device::nics()?.into_iter().map(|info| Device { info }).collect())
}

/// A NIC, not yet open.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_device")]
pub struct Device {
    info: NicInfo,
}

impl Device {
    /// A NIC that the program itself configures, rather than the file that `PEERDMA_CONFIG` names.
    /// No other NIC of the process may have its name.
    pub fn from_config(config: NicConfig) -> Result<Self> {
        Ok(Self { info: NicInfo::new(config)? })
    }

    /// Its name.
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> &str {
        &self.info.config.name
    }

    /// Opens it.
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context> {
        Self::context(Hca::open(&self.info)?)
    }

    /// Opens it as another process would, as a virtual function of its own: packets between two
    /// such contexts travel as between two processes of one host, not within this one. For programs
    /// that have several roles, and for tests.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open): no number is free among the NIC's 1023, or the system has no
    /// descriptors or threads left.
    pub fn open_another(&self) -> Result<Context> {
        Self::context(Hca::open_another(&self.info)?)
    }

    fn context(hca: Arc<Hca>) -> Result<Context> {
        let mut engine = hca.alive()?;
        let id = engine.open_ctx()?;
        let events = engine.async_fd(id).map(clone_for_waiting);
        drop(engine);
        let Some(Ok(events)) = events else {
            hca.close_ctx(id);
            return Err(Refusal::new(Kind::NoMemory, "open_device: no descriptor for its events"));
        };
        Ok(Context(Arc::new(Open { hca, id, events })))
    }
}

/// An open device. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_context")]
pub struct Context(Arc<Open>);

#[derive(Debug)]
struct Open {
    hca: Arc<Hca>,
    id: CtxId,
    /// Readable while an asynchronous event waits; does not block.
    events: Known,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.hca.close_ctx(self.id);
    }
}

/// An asynchronous event of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_async_event")]
#[non_exhaustive]
pub struct AsyncEvent {
    /// What happened.
    pub event: EventType,
    /// The QP it happened to, if any.
    pub qpn: Option<Qpn>,
}

impl Context {
    pub(crate) fn hca(&self) -> &Arc<Hca> {
        &self.0.hca
    }

    pub(crate) fn lock(&self) -> EngineGuard<'_> {
        self.0.hca.lock()
    }

    pub(crate) fn alive(&self) -> Result<EngineGuard<'_>> {
        self.0.hca.alive()
    }

    pub(crate) fn id(&self) -> CtxId {
        self.0.id
    }

    /// The limits of the device.
    #[doc(alias = "ibv_query_device")]
    pub fn device_attr(&self) -> DeviceAttr {
        self.lock().device_attr().clone()
    }

    /// The state of the port.
    #[doc(alias = "ibv_query_port")]
    pub fn port_attr(&self) -> PortAttr {
        self.lock().port_attr()
    }

    /// The GIDs of the port: the addresses of its netdev.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gids(&self) -> Vec<GidEntry> {
        self.lock().gids()
    }

    /// The counters since this process opened the device.
    pub fn counters(&self) -> device::Counters {
        self.lock().counters()
    }

    /// How many objects this process has on the NIC, in all contexts.
    pub fn resources(&self) -> device::Resources {
        self.lock().resources()
    }

    /// Allocates a protection domain.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<Pd> {
        let id = self.alive()?.alloc_pd(self.id())?;
        Ok(Pd(Arc::new(Domain { context: self.clone(), id })))
    }

    /// Waits up to `timeout` for an asynchronous event. Any number of threads may wait; each event
    /// goes to one of them.
    #[doc(alias = "ibv_get_async_event")]
    pub fn async_event(&self, timeout: Duration) -> Result<Option<AsyncEvent>> {
        if !take_one(&self.0.events, timeout)? {
            return Ok(None);
        }
        let mut engine = self.lock();
        let event = engine.take_async_event(self.id());
        Ok(event.map(|event| AsyncEvent {
            event: event.event,
            qpn: match event.source {
                EventSource::Qp(id) => engine.qpn(id),
                _ => None,
            },
        }))
    }

    /// Whether both are the same device, so that objects of one are objects of the other.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.hca(), other.hca())
    }

    /// Refuses an object of another device: objects are numbers, which mean other objects on
    /// another device.
    pub(crate) fn check_same(&self, other: &Self, call: &str, object: &str) -> Result<()> {
        if self.is_same(other) {
            return Ok(());
        }
        let what = format!("{call}: the {object} is of another device");
        Err(Refusal::new(Kind::Invalid, what))
    }
}

/// A protection domain. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_pd")]
pub struct Pd(Arc<Domain>);

#[derive(Debug)]
struct Domain {
    context: Context,
    id: PdId,
}

impl Drop for Domain {
    fn drop(&mut self) {
        // Every object in the domain holds it, so the domain is empty.
        let _ = self.context.lock().dealloc_pd(self.id);
    }
}

impl Pd {
    /// The device it is of.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn id(&self) -> PdId {
        self.0.id
    }
}
