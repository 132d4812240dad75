//! Devices, open devices and protection domains.

use std::net::IpAddr;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use descriptors::Known;
use device::config::NicConfig;
use device::ids::{CtxId, PdId};
use device::{DeviceAttr, EventSource, GidEntry, Hca, NicInfo, PortAttr};
use iba::{Av, EventType, Gid, Qpn};

use crate::arm::{Arm, On, other_device, refused};
use crate::attr;
use crate::events::Hub;
use crate::provider;
use crate::wait::{clone_for_waiting, readable_either, take_one};
use crate::{Kind, Refusal, Result};

/// The NICs of this machine: those of the system's `libibverbs.so.1` first, then the software ones.
/// The variable `PEERDMA_PROVIDER` picks: `soft`, `system`, or the path of a library.
///
/// # Errors
///
/// A library that the variable names cannot be used, or the configuration of the software NICs is
/// wrong.
#[doc(alias = "ibv_get_device_list")]
pub fn devices() -> Result<Vec<Device>> {
    let hard = |devices: Vec<sysverbs::Device>| -> Vec<Device> {
        devices.into_iter().map(|hard| Device(Arm::Hard(hard))).collect()
    };
    let soft = || -> Result<Vec<Device>> {
        Ok(device::nics()?.into_iter().map(|info| Device(Arm::Soft(info))).collect())
    };
    let named = |path: Option<&Path>| Ok(hard(provider::of_library(path)?));
    provider::choice()?.devices(soft, named, || hard(provider::of_system()))
}

/// A NIC, not yet open.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_device")]
pub struct Device(Arm<NicInfo, sysverbs::Device>);

impl Device {
    pub(crate) fn soft(config: NicConfig) -> Result<Self> {
        Ok(Self(Arm::Soft(NicInfo::new(config)?)))
    }

    /// Its name.
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> &str {
        match &self.0 {
            Arm::Soft(info) => &info.config.name,
            Arm::Hard(device) => device.name(),
        }
    }

    /// Whether it is a software NIC of this process, and not one of a library.
    pub fn is_soft(&self) -> bool {
        self.0.same_soft().is_some()
    }

    /// Opens it.
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context> {
        match &self.0 {
            Arm::Soft(info) => Context::soft(Hca::open(info)?),
            Arm::Hard(device) => Context::hard(device.open().map_err(refused)?),
        }
    }

    pub(crate) fn open_another(&self) -> Result<Context> {
        Context::soft(Hca::open_another(self.0.soft("open_another")?)?)
    }
}

/// An open device. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_context")]
pub struct Context(Arm<Arc<Soft>, Arc<Hard>>);

#[derive(Debug)]
pub(crate) struct Soft {
    on: On<CtxId>,
    /// Readable while an asynchronous event waits; does not block.
    events: Known,
    hub: Hub,
}

impl Deref for Soft {
    type Target = On<CtxId>;

    fn deref(&self) -> &On<CtxId> {
        &self.on
    }
}

impl Drop for Soft {
    fn drop(&mut self) {
        self.on.hca.close_ctx(self.on.id);
    }
}

#[derive(Debug)]
pub(crate) struct Hard {
    context: sysverbs::Context,
    device_attr: DeviceAttr,
    /// What the port was when the device was opened.
    port_attr: PortAttr,
    hub: Hub,
}

impl Deref for Hard {
    type Target = sysverbs::Context;

    fn deref(&self) -> &sysverbs::Context {
        &self.context
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

/// Whether an address means something only together with a link. A port that has no other may
/// still have the GID that its MAC makes (`ib_cache_gid_set_default_gid` of the kernel).
pub(crate) fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The port that [`Context::port_attr`] and [`Context::gids`] are about.
const PORT: u8 = 1;

/// How far packets go unless the program says otherwise, as the kernel's `IPV6_DEFAULT_HOPLIMIT`.
pub(crate) const HOPS: u8 = 64;

impl Context {
    fn soft(hca: Arc<Hca>) -> Result<Self> {
        let mut engine = hca.alive()?;
        let id = engine.open_ctx()?;
        let events = engine.async_fd(id).map(clone_for_waiting);
        drop(engine);
        let Some(Ok(events)) = events else {
            hca.close_ctx(id);
            return Err(Refusal::new(Kind::NoMemory, "open_device: no descriptor for its events"));
        };
        let hub = Hub::new().inspect_err(|_| hca.close_ctx(id))?;
        Ok(Self(Arm::Soft(Arc::new(Soft { on: On { hca, id }, events, hub }))))
    }

    fn hard(context: sysverbs::Context) -> Result<Self> {
        let device_attr = attr::of_device(&context.limits().map_err(refused)?);
        let gids = context.gids(PORT).map_err(refused)?;
        let port_attr = attr::of_port(&context.port(PORT).map_err(refused)?, &gids);
        let hub = Hub::new()?;
        Ok(Self(Arm::Hard(Arc::new(Hard { context, device_attr, port_attr, hub }))))
    }

    pub(crate) fn arm(&self) -> &Arm<Arc<Soft>, Arc<Hard>> {
        &self.0
    }

    /// The limits of the device. What a library does not tell is 0.
    #[doc(alias = "ibv_query_device")]
    pub fn device_attr(&self) -> DeviceAttr {
        match &self.0 {
            Arm::Soft(soft) => soft.lock().device_attr().clone(),
            Arm::Hard(hard) => hard.device_attr.clone(),
        }
    }

    /// The state of the port. One that cannot be asked is not active.
    #[doc(alias = "ibv_query_port")]
    pub fn port_attr(&self) -> PortAttr {
        match &self.0 {
            Arm::Soft(soft) => soft.lock().port_attr(),
            Arm::Hard(hard) => {
                let now = hard.port(PORT).and_then(|port| Ok((port, hard.context.gids(PORT)?)));
                match now {
                    Ok((port, gids)) => attr::of_port(&port, &gids),
                    Err(_) => {
                        let mut port = hard.port_attr.clone();
                        port.active = false;
                        port
                    }
                }
            }
        }
    }

    /// The GIDs of the port: the addresses of its netdev. Of a library's NIC, those of RoCE
    /// version 2, if it has any. None if the port cannot be asked.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gids(&self) -> Vec<GidEntry> {
        match &self.0 {
            Arm::Soft(soft) => soft.lock().gids(),
            Arm::Hard(hard) => attr::of_gids(&hard.context.gids(PORT).unwrap_or_default()),
        }
    }

    /// The GID that a peer reaches the port by, unless the program chooses another: the first that
    /// leaves the link, or the first. None as for [`gids`](Self::gids).
    pub fn default_gid(&self) -> Option<GidEntry> {
        let gids = self.gids();
        let leaves = |gid: &&GidEntry| !is_link_local(gid.gid.to_ip());
        gids.iter().find(leaves).or(gids.first()).copied()
    }

    /// The address vector of a peer, from this port's [default GID](Self::default_gid): for
    /// [`Pd::create_ah`].
    pub fn av_to(&self, peer: Gid) -> Av {
        let from = self.default_gid().and_then(|gid| u8::try_from(gid.index).ok());
        Av {
            dgid: peer,
            sgid_index: from.unwrap_or(0),
            is_global: true,
            port_num: PORT,
            hop_limit: HOPS,
            ..Av::default()
        }
    }

    /// Allocates a protection domain.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<Pd> {
        let arm = match &self.0 {
            Arm::Soft(soft) => {
                let id = soft.alive()?.alloc_pd(soft.id)?;
                Arm::Soft(soft.with(id))
            }
            Arm::Hard(hard) => Arm::Hard(hard.context.alloc_pd().map_err(refused)?),
        };
        Ok(Pd(Arc::new(Domain { arm, context: self.clone() })))
    }

    /// Waits up to `timeout` for an asynchronous event. Any number of threads may wait; each event
    /// goes to one of them. That a QP of [`aio`](crate::aio) has used the last receive of its
    /// shared queue is told to the QP alone.
    #[doc(alias = "ibv_get_async_event")]
    pub fn async_event(&self, timeout: Duration) -> Result<Option<AsyncEvent>> {
        let began = Instant::now();
        let hub = self.hub();
        loop {
            if let Some(event) = hub.take() {
                return Ok(Some(event));
            }
            match self.take_event()? {
                Some(event) if hub.tell(&event) => continue,
                Some(event) => return Ok(Some(event)),
                None => {}
            }
            let left = timeout.saturating_sub(began.elapsed());
            if !readable_either(self.events(), hub.bell(), left)? {
                return Ok(None);
            }
        }
    }

    /// The oldest event of the device, if one waits there.
    pub(crate) fn take_event(&self) -> Result<Option<AsyncEvent>> {
        match &self.0 {
            Arm::Soft(soft) => soft.take_event(),
            Arm::Hard(hard) => hard.take_event(),
        }
    }

    /// Readable while an event waits in the device.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Arm::Soft(soft) => soft.events.as_fd(),
            Arm::Hard(hard) => hard.context.as_fd(),
        }
    }

    pub(crate) fn hub(&self) -> &Hub {
        match &self.0 {
            Arm::Soft(soft) => &soft.hub,
            Arm::Hard(hard) => &hard.hub,
        }
    }

    /// Itself, for those that do not keep it open.
    pub(crate) fn downgrade(&self) -> WeakContext {
        WeakContext(match &self.0 {
            Arm::Soft(soft) => Arm::Soft(Arc::downgrade(soft)),
            Arm::Hard(hard) => Arm::Hard(Arc::downgrade(hard)),
        })
    }

    /// Whether both are the same device, so that objects of one are objects of the other.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Arm::Soft(one), Arm::Soft(other)) => Arc::ptr_eq(&one.hca, &other.hca),
            (Arm::Hard(one), Arm::Hard(other)) => one.context.is_same(&other.context),
            _ => false,
        }
    }

    /// Refuses an object of another device.
    pub(crate) fn check_same(&self, other: &Self, call: &str, object: &str) -> Result<()> {
        if self.is_same(other) { Ok(()) } else { Err(other_device(call, object)) }
    }
}

/// An open device that may be closed.
#[derive(Debug)]
pub(crate) struct WeakContext(Arm<Weak<Soft>, Weak<Hard>>);

impl WeakContext {
    pub(crate) fn upgrade(&self) -> Option<Context> {
        Some(Context(match &self.0 {
            Arm::Soft(soft) => Arm::Soft(soft.upgrade()?),
            Arm::Hard(hard) => Arm::Hard(hard.upgrade()?),
        }))
    }
}

impl Soft {
    fn take_event(&self) -> Result<Option<AsyncEvent>> {
        if !take_one(&self.events, Duration::ZERO)? {
            return Ok(None);
        }
        let mut engine = self.lock();
        let event = engine.take_async_event(self.id);
        Ok(event.map(|event| AsyncEvent {
            event: event.event,
            qpn: match event.source {
                EventSource::Qp(id) => engine.qpn(id),
                _ => None,
            },
        }))
    }
}

impl Hard {
    fn take_event(&self) -> Result<Option<AsyncEvent>> {
        let event = self.context.async_event().map_err(refused)?;
        Ok(event.map(|event| AsyncEvent {
            event: event.event,
            qpn: match event.source {
                sysverbs::Source::Qp(qpn) => Some(qpn),
                _ => None,
            },
        }))
    }
}

/// A protection domain. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_pd")]
pub struct Pd(Arc<Domain>);

#[derive(Debug)]
struct Domain {
    arm: Arm<On<PdId>, sysverbs::Pd>,
    context: Context,
}

impl Drop for Domain {
    fn drop(&mut self) {
        if let Arm::Soft(on) = &self.arm {
            // Every object in the domain holds it, so the domain is empty.
            let _ = on.lock().dealloc_pd(on.id);
        }
    }
}

impl Pd {
    /// The device it is of.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn arm(&self) -> &Arm<On<PdId>, sysverbs::Pd> {
        &self.0.arm
    }

    /// Whether objects of one domain are of the other's device, too.
    #[inline]
    pub(crate) fn is_same_device(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.context().is_same(other.context())
    }
}
