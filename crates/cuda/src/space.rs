//! Addresses: which of them are whose memory.
//!
//! Device pointers are addresses of one arena, reserved by `cuInit` without any permission: a CPU that follows one faults, and
//! so does a system call that is given one. So whether an address may be a device's is two comparisons. What lies there is in a
//! map; host memory that CUDA knows of is in another.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rustix::mm::{MapFlags, ProtFlags};
use umem::HostBuf;

use crate::addresses::Addresses;
use crate::boundary::LOG;
use crate::context::Context;
use crate::machine::Device;
use crate::memory::Memory;
use crate::pool::Pool;
use crate::status::{Refusal, Result, Status, invalid};
use crate::vmm::Reserved;

/// Large pages of a GPU, and what reservations are aligned to.
pub(crate) const LARGE_PAGE: u64 = 2 << 20;

/// Pages of a GPU by which peers reach its memory: what an allocation has to itself.
pub(crate) const GPU_PAGE: u64 = 64 << 10;

/// The least that the arena has for each GPU.
const ROOM: u64 = 64 << 30;

/// What a reservation of addresses may shrink to where the system allows no more.
const LEAST: u64 = 1 << 30;

/// All addresses that CUDA knows of in this process.
pub(crate) struct Space {
    arena: std::ops::Range<u64>,
    free: Mutex<Addresses>,
    device: RwLock<BTreeMap<u64, Arc<Region>>>,
    host: RwLock<BTreeMap<u64, Arc<Region>>>,
    host_count: AtomicUsize,
    next_id: AtomicU64,
}

/// Memory, or room for it, at some addresses.
pub(crate) struct Region {
    pub(crate) start: u64,
    /// As many bytes as the program asked for.
    pub(crate) len: u64,
    /// As many addresses as it takes.
    span: u64,
    /// Never used twice in a process.
    pub(crate) id: u64,
    /// The context it belongs to, and goes with.
    pub(crate) context: Option<Arc<Context>>,
    pub(crate) sync_memops: AtomicBool,
    pub(crate) kind: Kind,
}

/// What is there.
pub(crate) enum Kind {
    /// Memory of a GPU.
    Device { memory: Arc<Memory>, source: Source },
    /// Addresses into which allocations are mapped.
    Reserved(Reserved),
    /// Host memory that the GPU shares.
    Managed {
        _pages: HostBuf,
        /// The GPU that prefers it, -1 for the CPU, -2 for nobody.
        preferred: AtomicI32,
    },
    /// Host memory that CUDA allocated.
    Host { _pages: HostBuf, flags: u32 },
    /// Host memory of the program.
    Registered { flags: u32 },
}

/// How memory of a GPU came to be.
pub(crate) enum Source {
    /// By an allocation of its own.
    Alloc,
    /// From a pool, in the order of a stream.
    Pool(Arc<Pool>),
    /// From another process; opened so many times.
    Ipc { handle: [u8; 64], opened: AtomicUsize },
}

impl Space {
    /// Reserves the arena.
    ///
    /// # Errors
    ///
    /// No addresses.
    pub(crate) fn new(devices: &[&'static Device]) -> Result<Self> {
        let wanted: u64 = devices.iter().map(|device| ROOM.max(device.config.vram * 4)).sum();
        let arena = reserve(wanted.next_power_of_two())?;
        let free = Addresses::new(arena.clone());
        Ok(Self {
            arena,
            free: Mutex::new(free),
            device: RwLock::default(),
            host: RwLock::default(),
            host_count: AtomicUsize::new(0),
            next_id: AtomicU64::new(1),
        })
    }

    /// Whether an address can only be a device's.
    pub(crate) fn is_device(&self, addr: u64) -> bool {
        self.arena.contains(&addr)
    }

    /// All addresses that can be a device's.
    pub(crate) fn arena(&self) -> std::ops::Range<u64> {
        self.arena.clone()
    }

    /// What is at a device pointer; nothing if the address is none.
    pub(crate) fn find_pointer(&self, addr: u64) -> Option<Arc<Region>> {
        self.is_device(addr).then(|| find(&self.device, addr)).flatten()
    }

    /// What is at an address.
    pub(crate) fn find(&self, addr: u64) -> Option<Arc<Region>> {
        if self.is_device(addr) {
            return find(&self.device, addr);
        }
        if self.host_count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        find(&self.host, addr)
    }

    /// What is at an address of the arena, if nobody changes the map just now.
    pub(crate) fn try_find(&self, addr: u64) -> Option<Arc<Region>> {
        let map = self.device.try_read().ok()?;
        let (_, region) = map.range(..=addr).next_back()?;
        (addr < region.stop()).then(|| Arc::clone(region))
    }

    /// The first region of the arena that is what `is` says.
    pub(crate) fn find_device(&self, is: impl Fn(&Region) -> bool) -> Option<Arc<Region>> {
        let map = self.device.read().unwrap_or_else(PoisonError::into_inner);
        map.values().find(|region| is(region)).cloned()
    }

    /// Takes addresses for `span` bytes, aligned.
    ///
    /// # Errors
    ///
    /// The arena has none left.
    pub(crate) fn take(&self, span: u64, align: u64, hint: u64) -> Result<u64> {
        self.free().take(span, align, hint).ok_or_else(|| {
            Refusal::new(
                Status::OutOfMemory,
                format!("no {span:#x} addresses in a row are left for device pointers"),
            )
        })
    }

    /// Puts a region at addresses that were taken, or at the program's own.
    pub(crate) fn add(
        &self,
        start: u64,
        len: u64,
        span: u64,
        context: Option<Arc<Context>>,
        kind: Kind,
    ) -> Arc<Region> {
        let id = self.next_id();
        let sync_memops = AtomicBool::new(false);
        let region = Arc::new(Region { start, len, span, id, context, sync_memops, kind });
        if self.is_device(start) {
            let mut map = self.device.write().unwrap_or_else(PoisonError::into_inner);
            map.insert(start, Arc::clone(&region));
        } else {
            let mut map = self.host.write().unwrap_or_else(PoisonError::into_inner);
            map.insert(start, Arc::clone(&region));
            self.host_count.store(map.len(), Ordering::Relaxed);
        }
        region
    }

    /// A number that no memory had.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes away the region that begins at `start`, if it is one that `is` says.
    pub(crate) fn remove(&self, start: u64, is: impl Fn(&Region) -> bool) -> Option<Arc<Region>> {
        let is_device = self.is_device(start);
        let map = if is_device { &self.device } else { &self.host };
        let mut map = map.write().unwrap_or_else(PoisonError::into_inner);
        if !map.get(&start).is_some_and(|region| is(region)) {
            return None;
        }
        let region = map.remove(&start);
        if !is_device {
            self.host_count.store(map.len(), Ordering::Relaxed);
        }
        region
    }

    /// What a region stood for is over: its memory, and then its addresses.
    pub(crate) fn end(&self, region: &Region) {
        region.end();
        if self.is_device(region.start) {
            self.free().give(region.start, region.span);
        }
    }

    /// A region of host memory that has some of these addresses.
    pub(crate) fn host_overlap(&self, start: u64, len: u64) -> Option<Arc<Region>> {
        let map = self.host.read().unwrap_or_else(PoisonError::into_inner);
        let end = start.saturating_add(len);
        let before = map.range(..end).next_back().map(|(_, region)| region);
        before.filter(|region| region.start + region.len > start).cloned()
    }

    /// Frees all that belongs to a context.
    pub(crate) fn free_all_of(&self, context: &Arc<Context>) {
        let is_its =
            |region: &Region| region.context.as_ref().is_some_and(|own| Arc::ptr_eq(own, context));
        for map in [&self.device, &self.host] {
            let map = map.read().unwrap_or_else(PoisonError::into_inner);
            let its: Vec<u64> = map.values().filter(|r| is_its(r)).map(|r| r.start).collect();
            drop(map);
            for start in its {
                if let Some(region) = self.remove(start, is_its) {
                    self.end(&region);
                }
            }
        }
    }

    fn free(&self) -> MutexGuard<'_, Addresses> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Region {
    /// Where it ends.
    pub(crate) fn stop(&self) -> u64 {
        self.start + self.len
    }

    /// A name for messages.
    pub(crate) fn name(&self) -> String {
        let at = format!("{:#x} bytes at {:#x}", self.len, self.start);
        match &self.kind {
            Kind::Device { memory, .. } => format!("{at} ({})", memory.name()),
            Kind::Reserved(_) => format!("{at} (reserved)"),
            Kind::Managed { .. } => format!("{at} (managed)"),
            Kind::Host { .. } => format!("{at} (host)"),
            Kind::Registered { .. } => format!("{at} (registered)"),
        }
    }

    /// Keys of peers that were given its address die with it.
    fn end(&self) {
        if let Kind::Device { memory, .. } = &self.kind {
            memory.release(0, memory.size());
        }
    }
}

fn find(map: &RwLock<BTreeMap<u64, Arc<Region>>>, addr: u64) -> Option<Arc<Region>> {
    let map = map.read().unwrap_or_else(PoisonError::into_inner);
    let (_, region) = map.range(..=addr).next_back()?;
    (addr < region.start + region.len).then(|| Arc::clone(region))
}

/// Reserves addresses: as many as wanted, or as many as the system gives.
fn reserve(wanted: u64) -> Result<std::ops::Range<u64>> {
    let mut len = wanted;
    loop {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let none = std::ptr::null_mut();
        // CAST: addresses are 64 bits wide here.
        let whole = (len + LARGE_PAGE) as usize;
        // SAFETY: new addresses, chosen by the kernel, without any access.
        match unsafe { rustix::mm::mmap_anonymous(none, whole, ProtFlags::empty(), flags) } {
            Ok(start) => {
                let start = (start as u64).next_multiple_of(LARGE_PAGE);
                return Ok(start..start + len);
            }
            Err(error) if len <= LEAST => {
                let what = format!("no {len:#x} addresses for device pointers: {error}");
                tracing::warn!(target: LOG, "{what}");
                return Err(invalid(what));
            }
            Err(_) => len /= 2,
        }
    }
}
