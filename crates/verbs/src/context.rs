//! Devices, open devices and protection domains.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use device::config::NicConfig;
use device::ids::{CtxId, PdId};
use device::{
    CompCntrType, DeviceAttr, EngineGuard, EventSource, GidEntry, Hca, NicInfo, PortAttr,
};
use iba::{Access, EventType, Qpn};

use crate::cq::{clone_for_waiting, take_one};
use crate::{
    Ah, CompCntr, Cq, Dm, DmaBuf, HostBuf, Kind, Mapping, Mr, Qp, QpSpec, Refusal, Result, Srq,
};

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
    /// A NIC of a configuration that the program itself has, and not in the file that
    /// `PEERDMA_CONFIG` names. Its name is that of no other NIC of the process.
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

    /// Opens it as another process would, as a virtual function of its own: what two such contexts
    /// send each other travels as between two processes of one host, and not within this one. For
    /// programs that play several parts, and for tests.
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
    events: OwnedFd,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.hca.close_ctx(self.id);
    }
}

/// Something that happened to an object, outside any completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_async_event")]
#[non_exhaustive]
pub struct AsyncEvent {
    /// What happened.
    pub event: EventType,
    /// The QP it happened to, if to one.
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

    /// How many objects this process has on the NIC, in whichever contexts.
    pub fn resources(&self) -> device::Resources {
        self.lock().resources()
    }

    /// Allocates a protection domain.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<Pd> {
        let id = self.alive()?.alloc_pd(self.id())?;
        Ok(Pd(Arc::new(Domain { context: self.clone(), id })))
    }

    /// Creates a completion queue of at least `entries` entries.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, entries: u32) -> Result<Cq> {
        Cq::new(self, entries)
    }

    /// Creates a completion counter at zero.
    #[doc(alias = "ibv_create_comp_cntr")]
    pub fn create_comp_cntr(&self, kind: CompCntrType) -> Result<CompCntr> {
        CompCntr::new(self, kind)
    }

    /// Allocates device memory: memory of the NIC, which peers reach as any other.
    #[doc(alias = "ibv_alloc_dm")]
    pub fn alloc_dm(&self, length: u64) -> Result<Dm> {
        Dm::new(self, length)
    }

    /// Waits up to `timeout` for an asynchronous event. Any number of threads may; each event is
    /// one thread's.
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

    /// Whether objects of one are objects of the other.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.hca(), other.hca())
    }

    /// Refuses an object of another device: objects are numbers there that mean something else
    /// here.
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
        // Everything made in the domain holds it, so nothing is left in it.
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

    /// Registers a buffer of host memory. Its addresses are those the buffer has in this process.
    #[doc(alias = "ibv_reg_mr")]
    pub fn reg_mr(&self, buffer: &HostBuf, access: Access) -> Result<Mr> {
        Mr::host(self, buffer, access)
    }

    /// Registers `length` bytes at `offset` of a dma-buf, to be called `iova` and on. The two must
    /// agree within a page.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn reg_dmabuf_mr(
        &self,
        buffer: impl AsFd,
        offset: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<Mr> {
        Mr::dmabuf(self, buffer.as_fd(), offset, length, iova, access)
    }

    /// Registers memory of a peer device by where the CPU has it mapped, as a plain `ibv_reg_mr` of
    /// its address does: PeerDirect, the older door. Its addresses are those of the mapping, which
    /// need not outlive the call.
    ///
    /// # Errors
    ///
    /// [`Kind::BadAddress`](crate::Kind::BadAddress) unless the NIC has
    /// [`peermem`](crate::NicConfig::peermem) and the driver of the memory claims all of it; else
    /// the driver's refusal.
    pub fn reg_mapping(&self, mapping: &Mapping, access: Access) -> Result<Mr> {
        Mr::mapped(self, mapping, access)
    }

    /// The same by an address alone: one that a peer memory client gave its memory
    /// ([`claim_arena`](dmabuf::peer::claim_arena)), mapped or not, or one of a mapping.
    ///
    /// # Errors
    ///
    /// As [`reg_mapping`](Self::reg_mapping).
    pub fn reg_peer_address(&self, addr: u64, length: u64, access: Access) -> Result<Mr> {
        Mr::peer(self, addr, length, access)
    }

    /// Registers a whole [`DmaBuf`] at address 0.
    pub fn reg_whole_dmabuf(&self, buffer: &DmaBuf, access: Access) -> Result<Mr> {
        self.reg_dmabuf_mr(buffer.fd(), 0, buffer.size(), 0, access)
    }

    /// Registers `length` bytes at `offset` of device memory. Its addresses count from 0.
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn reg_dm_mr(&self, dm: &Dm, offset: u64, length: u64, access: Access) -> Result<Mr> {
        Mr::dm(self, dm, offset, length, access)
    }

    /// Creates a QP, in RESET.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp(&self, spec: &QpSpec) -> Result<Qp> {
        Qp::new(self, spec)
    }

    /// Creates a shared receive queue of `max_wr` requests with `max_sge` elements each.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<Srq> {
        Srq::new(self, max_wr, max_sge)
    }

    /// Creates an address handle, for datagrams.
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, av: iba::Av) -> Result<Ah> {
        Ah::new(self, av)
    }
}
