//! The GPU of this process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use dmabuf::peer::PeerClient;
use dmabuf::{AttachmentInfo, BusWindow, DeviceAddr, DmaBuf, ImporterClass, Provider, Reach};
use pci::{Bdf, PciTree};

use crate::bo::BoInner;
use crate::config::GpuConfig;
use crate::engine::CopyEngine;
use crate::error::{Result, no_device};
use crate::limits::GpuGroups;
use crate::need::Ballast;
use crate::peers::Peers;
use crate::persona::Persona;
use crate::place::Domain;
use crate::pools::Pools;
use crate::stats::Counters;
use crate::throttle::Throttle;

pub(crate) struct Device {
    pub(crate) config: GpuConfig,
    pub(crate) persona: Persona,
    pub(crate) groups: GpuGroups,
    tree: Arc<PciTree>,
    pub(crate) bdf: Option<Bdf>,
    pub(crate) window: BusWindow,
    pub(crate) pools: Arc<Pools>,
    pub(crate) engine: CopyEngine,
    pub(crate) stats: Arc<Counters>,
    pub(crate) peers: Peers,
    pub(crate) ballast: Mutex<Ballast>,
    pub(crate) throttle: Arc<Throttle>,
    bos: Mutex<BTreeMap<u64, Weak<BoInner>>>,
    next_bo: AtomicU64,
    is_removed: AtomicBool,
    pub(crate) is_resetting: AtomicBool,
    /// The client by which plain registrations find its memory.
    pub(crate) client: OnceLock<Arc<dyn PeerClient>>,
}

impl Device {
    /// A GPU that is not shared yet.
    pub(crate) fn new(
        config: &GpuConfig,
        tree: Arc<PciTree>,
        window: BusWindow,
        (peers, pools): (Peers, Pools),
    ) -> Self {
        let throttle = Arc::new(Throttle::default());
        let bdf = tree.by_name(&config.name);
        Self {
            config: config.clone(),
            persona: config.persona(),
            groups: GpuGroups::new(&config.cgroup_root, config.preset, bdf),
            bdf,
            tree,
            window,
            pools: Arc::new(pools),
            engine: CopyEngine::new(config.preset.name(), config.copy_engine, &throttle),
            ballast: Mutex::default(),
            throttle,
            stats: Counters::new(),
            peers,
            bos: Mutex::default(),
            next_bo: AtomicU64::new(1),
            is_removed: AtomicBool::new(false),
            is_resetting: AtomicBool::new(false),
            client: OnceLock::new(),
        }
    }

    /// The path of accesses of an importer at `from` to VRAM; `None` if there is no path. An
    /// importer that is on no bus has none, as on Linux.
    pub(crate) fn reach(&self, from: Option<DeviceAddr>) -> std::result::Result<Reach, String> {
        Provider { tree: &self.tree, name: &self.config.name, bdf: self.bdf }.reach(from)
    }

    /// Its address on the bus.
    pub(crate) fn addr(&self) -> Option<DeviceAddr> {
        self.bdf.map(|bdf| DeviceAddr(bdf.to_bits()))
    }

    /// Whether an importer is this same GPU, opened by another process or through another handle.
    pub(crate) fn is_it(&self, info: &AttachmentInfo) -> bool {
        self.bdf.is_some()
            && info.device() == self.addr()
            && info.importer() == self.config.name
            && info.class() == ImporterClass::Dynamic
    }

    pub(crate) fn check_present(&self) -> Result<()> {
        if self.pools.ledger.is_husk() {
            return Err(no_device(format!(
                "{} was opened before this process was forked: open it again",
                self.config.name
            )));
        }
        if self.is_removed() {
            return Err(no_device(format!("{} was removed", self.config.name)));
        }
        if self.is_resetting.load(Ordering::Acquire) {
            return Err(no_device(format!("{} is being reset", self.config.name)));
        }
        Ok(())
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    pub(crate) fn set_removed(&self) -> bool {
        self.is_removed.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn next_bo(&self) -> u64 {
        self.next_bo.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn add(&self, bo: &Arc<BoInner>) {
        let mut bos = self.bos();
        bos.retain(|_, bo| bo.strong_count() > 0);
        bos.insert(bo.id, Arc::downgrade(bo));
    }

    pub(crate) fn bo(&self, id: u64) -> Option<Arc<BoInner>> {
        self.bos().get(&id)?.upgrade()
    }

    /// All buffers of this process that exist.
    pub(crate) fn all(&self) -> Vec<Arc<BoInner>> {
        self.bos().values().filter_map(Weak::upgrade).collect()
    }

    /// The buffer that holds `len` bytes at `offset` of a domain, if it is one of this process.
    pub(crate) fn bo_at(&self, domain: Domain, offset: u64, len: u64) -> Option<Arc<BoInner>> {
        let end = offset.checked_add(len)?;
        self.all().into_iter().find(|bo| {
            bo.resource().is_ok_and(|at| {
                at.domain == domain && at.offset <= offset && end <= at.offset + at.len
            })
        })
    }

    /// The buffer that a dma-buf shows, if that is a whole buffer of this process.
    pub(crate) fn bo_of(&self, buf: &DmaBuf) -> Option<Arc<BoInner>> {
        let shows = |known: &DmaBuf| known.is_same(buf);
        let is_whole = |bo: &Arc<BoInner>| bo.size == buf.size();
        self.all().into_iter().find(|bo| is_whole(bo) && bo.dma_bufs().iter().any(shows))
    }

    fn bos(&self) -> MutexGuard<'_, BTreeMap<u64, Weak<BoInner>>> {
        self.bos.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
