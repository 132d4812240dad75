//! Addresses: which memory each of them belongs to.
//!
//! Device pointers are addresses of one arena, reserved by a driver's first call without any
//! permission: a CPU that follows one faults, and so does a system call that is given one. Two
//! comparisons tell whether an address may be a device's. One map has the memory at these
//! addresses; another has the host memory that the driver knows.

use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rustix::mm::{MapFlags, ProtFlags};

use crate::addresses::Addresses;
use crate::boundary::LOG;
use crate::copy::{At, Piece};
use crate::machine::Device;
use crate::refusal::{Kind, Refusal, Result, invalid};

/// Large pages of a GPU, and what reservations are aligned to.
pub const LARGE_PAGE: u64 = 2 << 20;

/// Pages of a GPU by which peers reach its memory: no two allocations share one.
pub const GPU_PAGE: u64 = 64 << 10;

/// The minimum of the arena for each GPU.
const ROOM: u64 = 64 << 30;

/// The size that a reservation of addresses may shrink to where the system allows no more.
const LEAST: u64 = 1 << 30;

/// What a driver has at some addresses.
pub trait Content: Send + Sync + Sized {
    /// The number of the GPU whose memory it is; none for host memory, and for addresses alone.
    fn device(&self) -> Option<usize>;

    /// What it is, for messages.
    fn about(&self) -> String;

    /// The memory of a range that is all inside.
    ///
    /// # Errors
    ///
    /// Not all of it is there.
    fn pieces(region: &Region<Self>, addr: u64, len: u64) -> Result<Vec<Piece>>;

    /// Whether a range that begins in it must end in it. The program's own memory continues after
    /// the part that the driver knows.
    fn is_bounded(&self) -> bool {
        true
    }

    /// It ends: keys of peers that were given its address become invalid.
    fn end(&self) {}

    /// Addresses, besides those it was placed at, that are free now that it has ended.
    fn left(&self) -> Option<Range<u64>> {
        None
    }
}

/// All addresses that a driver knows in this process.
#[derive(Debug)]
pub struct Space<K> {
    arena: Range<u64>,
    free: Mutex<Addresses>,
    device: RwLock<BTreeMap<u64, Arc<Region<K>>>>,
    host: RwLock<BTreeMap<u64, Arc<Region<K>>>>,
    host_count: AtomicUsize,
    next_id: AtomicU64,
}

/// Memory, or room for it, at some addresses.
#[derive(Debug)]
#[non_exhaustive]
pub struct Region<K> {
    /// The first address.
    pub start: u64,
    /// As many bytes as the program asked for.
    pub len: u64,
    /// As many addresses as it takes.
    span: u64,
    /// Never used twice in a process.
    pub id: u64,
    content: K,
}

impl<K> Deref for Region<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.content
    }
}

impl<K: Content> Space<K> {
    /// Reserves the arena.
    ///
    /// # Errors
    ///
    /// No addresses.
    pub fn new(devices: &[&'static Device]) -> Result<Self> {
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
    pub fn is_device(&self, addr: u64) -> bool {
        self.arena.contains(&addr)
    }

    /// All addresses that can be a device's.
    pub fn arena(&self) -> Range<u64> {
        self.arena.clone()
    }

    /// What is at a device pointer; nothing if the address is none.
    pub fn find_pointer(&self, addr: u64) -> Option<Arc<Region<K>>> {
        self.is_device(addr).then(|| find(&self.device, addr)).flatten()
    }

    /// What is at an address.
    pub fn find(&self, addr: u64) -> Option<Arc<Region<K>>> {
        if self.is_device(addr) {
            return find(&self.device, addr);
        }
        if self.host_count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        find(&self.host, addr)
    }

    /// What is at an address of the arena, if no thread is changing the map.
    pub(crate) fn try_find(&self, addr: u64) -> Option<Arc<Region<K>>> {
        let map = self.device.try_read().ok()?;
        let (_, region) = map.range(..=addr).next_back()?;
        (addr < region.stop()).then(|| Arc::clone(region))
    }

    /// The first region of the arena that `is` accepts.
    pub fn find_device(&self, is: impl Fn(&Region<K>) -> bool) -> Option<Arc<Region<K>>> {
        let map = self.device.read().unwrap_or_else(PoisonError::into_inner);
        map.values().find(|region| is(region)).cloned()
    }

    /// Takes addresses for `span` bytes, aligned.
    ///
    /// # Errors
    ///
    /// The arena has none left.
    pub fn take(&self, span: u64, align: u64, hint: u64) -> Result<u64> {
        self.free().take(span, align, hint).ok_or_else(|| {
            Refusal::new(
                Kind::NoMemory,
                format!("no {span:#x} addresses in a row are left for device pointers"),
            )
        })
    }

    /// Gives memory of a GPU an address, a multiple of `align` at least.
    ///
    /// # Errors
    ///
    /// The arena has none left.
    pub fn place(&self, len: u64, align: u64, content: K) -> Result<Arc<Region<K>>> {
        let span = len.next_multiple_of(GPU_PAGE);
        let own = if len < LARGE_PAGE { GPU_PAGE } else { LARGE_PAGE };
        let start = self.take(span, own.max(align), 0)?;
        Ok(self.add(start, len, span, content))
    }

    /// Puts a region at addresses that were taken, or at the program's own.
    pub fn add(&self, start: u64, len: u64, span: u64, content: K) -> Arc<Region<K>> {
        let id = self.next_id();
        let region = Arc::new(Region { start, len, span, id, content });
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

    /// A number that no memory has had.
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes away the region that begins at `start`, if `is` accepts it.
    pub fn remove(&self, start: u64, is: impl Fn(&Region<K>) -> bool) -> Option<Arc<Region<K>>> {
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

    /// Ends what a region stood for: its memory, and then its addresses.
    pub fn end(&self, region: &Region<K>) {
        region.content.end();
        if self.is_device(region.start) && region.span > 0 {
            self.free().give(region.start, region.span);
        }
        if let Some(left) = region.content.left() {
            self.free().give(left.start, left.end - left.start);
        }
    }

    /// A region of host memory that has some of these addresses.
    pub fn host_overlap(&self, start: u64, len: u64) -> Option<Arc<Region<K>>> {
        let map = self.host.read().unwrap_or_else(PoisonError::into_inner);
        let end = start.saturating_add(len);
        let before = map.range(..end).next_back().map(|(_, region)| region);
        before.filter(|region| region.start + region.len > start).cloned()
    }

    /// Frees all regions that `is` accepts.
    pub fn free_all(&self, is: impl Fn(&Region<K>) -> bool) {
        for map in [&self.device, &self.host] {
            let map = map.read().unwrap_or_else(PoisonError::into_inner);
            let its: Vec<u64> = map.values().filter(|r| is(r)).map(|r| r.start).collect();
            drop(map);
            for start in its {
                if let Some(region) = self.remove(start, &is) {
                    self.end(&region);
                }
            }
        }
    }

    /// What `len` bytes at `addr` are. Addresses that the driver does not know are the program's.
    ///
    /// # Errors
    ///
    /// Addresses of the arena where no memory is, or a range that leaves its allocation.
    pub fn pieces(&self, addr: u64, len: u64) -> Result<Vec<Piece>> {
        let end = addr.checked_add(len).ok_or_else(|| {
            invalid(format!("{len:#x} bytes at {addr:#x} wrap around the end of the address space"))
        })?;
        let region = self.find(addr);
        if !self.is_device(addr) {
            if addr < self.arena.end && end > self.arena.start {
                return Err(outside(addr, len, "plain memory"));
            }
            return match region {
                Some(region) if region.is_bounded() && end > region.stop() => {
                    Err(outside(addr, len, &region.name()))
                }
                _ => Ok(vec![Piece { at: At::Host(addr), len }]),
            };
        }
        let region = region.ok_or_else(|| invalid(format!("{addr:#x} is in no allocation")))?;
        if end > region.stop() {
            return Err(outside(addr, len, &region.name()));
        }
        K::pieces(&region, addr, len)
    }

    fn free(&self) -> MutexGuard<'_, Addresses> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Content> Region<K> {
    /// Where it ends.
    pub fn stop(&self) -> u64 {
        self.start + self.len
    }

    /// A name for messages.
    pub fn name(&self) -> String {
        format!("{:#x} bytes at {:#x} ({})", self.len, self.start, self.content.about())
    }
}

fn find<K>(map: &RwLock<BTreeMap<u64, Arc<Region<K>>>>, addr: u64) -> Option<Arc<Region<K>>> {
    let map = map.read().unwrap_or_else(PoisonError::into_inner);
    let (_, region) = map.range(..=addr).next_back()?;
    (addr < region.start + region.len).then(|| Arc::clone(region))
}

fn outside(addr: u64, len: u64, of: &str) -> Refusal {
    invalid(format!("{len:#x} bytes at {addr:#x} are not all inside {of}"))
}

/// Reserves addresses: as many as requested, or as many as the system allows.
fn reserve(wanted: u64) -> Result<Range<u64>> {
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
