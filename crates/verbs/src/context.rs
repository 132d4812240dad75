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
use iba::{Av, Gid};
use sysverbs::{QueueId, Source};

use crate::arm::{Arm, On, other_device, refused};
use crate::attr;
use crate::events::{AsyncEvent, Hub};
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

    /// Opens it, for its first port.
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context> {
        self.open_port(FIRST)
    }

    /// Opens it, for a port from 1 on: the context has the state and the GIDs of this port, and its
    /// QPs are of this port. A program that uses several opens the device for each. Objects of one
    /// are not for use with those of another, and each context has the events of all ports.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] for a port that the device does not have; otherwise as
    /// [`open`](Self::open).
    #[doc(alias("ibv_open_device", "port_num"))]
    pub fn open_port(&self, port: u8) -> Result<Context> {
        match &self.0 {
            Arm::Soft(info) => Context::soft(Hca::open(info)?, port),
            Arm::Hard(device) => Context::hard(device.open().map_err(refused)?, port),
        }
    }

    pub(crate) fn open_another(&self) -> Result<Context> {
        Context::soft(Hca::open_another(self.0.soft("open_another")?)?, FIRST)
    }
}

/// An open device. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_context")]
pub struct Context(Arm<Arc<Soft>, Arc<Hard>>);

#[derive(Debug)]
pub(crate) struct Soft {
    on: On<CtxId>,
    port: u8,
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
    port: u8,
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

/// Whether an address means something only together with a link. A port that has no other may
/// still have the GID that its MAC makes (`ib_cache_gid_set_default_gid` of the kernel).
pub(crate) fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The port that a device is opened for, unless the program chooses another.
const FIRST: u8 = 1;

/// Refuses a port that a device does not have.
fn check_port(port: u8, attr: &DeviceAttr) -> Result<()> {
    let ports = attr.phys_port_cnt;
    if (1..=ports).contains(&u32::from(port)) {
        return Ok(());
    }
    let what = format!("open_port: there is no port {port}; the device has {ports}, from 1 on");
    Err(Refusal::new(Kind::Invalid, what))
}

/// How far packets go unless the program says otherwise, as the kernel's `IPV6_DEFAULT_HOPLIMIT`.
pub(crate) const HOPS: u8 = 64;

impl Context {
    fn soft(hca: Arc<Hca>, port: u8) -> Result<Self> {
        let mut engine = hca.alive()?;
        check_port(port, engine.device_attr())?;
        let id = engine.open_ctx()?;
        let events = engine.async_fd(id).map(clone_for_waiting);
        drop(engine);
        let Some(Ok(events)) = events else {
            hca.close_ctx(id);
            return Err(Refusal::new(Kind::NoMemory, "open_device: no descriptor for its events"));
        };
        let hub = Hub::new().inspect_err(|_| hca.close_ctx(id))?;
        Ok(Self(Arm::Soft(Arc::new(Soft { on: On { hca, id }, port, events, hub }))))
    }

    fn hard(context: sysverbs::Context, port: u8) -> Result<Self> {
        let mut device_attr = attr::of_device(&context.limits().map_err(refused)?);
        device_attr.max_comp_cntr = context.max_comp_cntr();
        check_port(port, &device_attr)?;
        let gids = context.gids(port).map_err(refused)?;
        let port_attr = attr::of_port(&context.port(port).map_err(refused)?, &gids);
        let hub = Hub::new()?;
        Ok(Self(Arm::Hard(Arc::new(Hard { context, device_attr, port, port_attr, hub }))))
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

    /// The port that it was opened for, from 1.
    #[doc(alias = "port_num")]
    pub fn port(&self) -> u8 {
        match &self.0 {
            Arm::Soft(soft) => soft.port,
            Arm::Hard(hard) => hard.port,
        }
    }

    /// The state of the port. One that cannot be asked is not active.
    #[doc(alias = "ibv_query_port")]
    pub fn port_attr(&self) -> PortAttr {
        match &self.0 {
            Arm::Soft(soft) => soft.lock().port_attr(),
            Arm::Hard(hard) => {
                let state = hard.context.port(hard.port);
                let now = state.and_then(|port| Ok((port, hard.context.gids(hard.port)?)));
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
            Arm::Hard(hard) => attr::of_gids(&hard.context.gids(hard.port).unwrap_or_default()),
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
            port_num: self.port(),
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
    /// goes to one of them, or to whoever takes it by [`Context::async_events`]. That a QP of
    /// [`aio`](crate::aio) has used the last receive of its shared queue is told to the QP alone.
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
        Ok(event.map(|device::AsyncEvent { event, source, cookie, .. }| match source {
            EventSource::Qp(id) => AsyncEvent::of_qp(event, engine.qpn(id)),
            EventSource::Cq(_) | EventSource::Srq(_) => {
                AsyncEvent::of_queue(event, QueueId::from_value(cookie))
            }
            EventSource::Port(port) => AsyncEvent::of_port(event, u8::try_from(port).ok()),
            _ => AsyncEvent::of_device(event),
        }))
    }
}

impl Hard {
    fn take_event(&self) -> Result<Option<AsyncEvent>> {
        let event = self.context.async_event().map_err(refused)?;
        Ok(event.map(|sysverbs::AsyncEvent { event, source, .. }| match source {
            Source::Qp(qpn) => AsyncEvent::of_qp(event, Some(qpn)),
            Source::Cq(queue) | Source::Srq(queue) => AsyncEvent::of_queue(event, Some(queue)),
            Source::Port(port) => AsyncEvent::of_port(event, Some(port)),
            _ => AsyncEvent::of_device(event),
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
