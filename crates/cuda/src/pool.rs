//! Pools: memory that is allocated and freed in the order of streams.
//!
//! A pool caches nothing: freed memory goes back to the GPU at once. What programs set is stored
//! and reported back, without effect.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::status::{Refusal, Result, Status, invalid};
use umd::handles::Handles;

/// All pools of a process.
pub(crate) struct Pools {
    pub(crate) handles: Handles<Pool>,
    /// For each GPU, the pool from which its streams allocate.
    current: Mutex<Vec<Arc<Pool>>>,
    default: Vec<Arc<Pool>>,
}

/// A pool.
pub(crate) struct Pool {
    pub(crate) handle: u64,
    /// The number of its GPU.
    pub(crate) device: usize,
    pub(crate) handle_types: u32,
    /// Whether its memory may be exported as dma-bufs. By address, peers never get it.
    pub(crate) is_rdma_capable: bool,
    is_default: bool,
    /// Settings: reuse by event dependencies, opportunistic, by internal dependencies; the release
    /// threshold.
    settings: [AtomicU64; 4],
    used: AtomicU64,
    most_used: AtomicU64,
}

impl Pools {
    pub(crate) fn new(devices: usize) -> Self {
        let handles = Handles::new(4);
        let new = |device| handles.add(|handle| Pool::new(handle, device, 0, true));
        let default: Vec<_> = (0..devices).map(new).collect();
        Self { handles, current: Mutex::new(default.clone()), default }
    }

    /// The default pool of a GPU.
    pub(crate) fn default(&self, device: usize) -> &Arc<Pool> {
        &self.default[device]
    }

    /// The pool from which a GPU's streams allocate.
    pub(crate) fn current(&self, device: usize) -> Arc<Pool> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner)[device])
    }

    /// Replaces the pool from which a GPU's streams allocate.
    pub(crate) fn set_current(&self, device: usize, pool: Arc<Pool>) {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)[device] = pool;
    }

    /// The pool of a handle.
    ///
    /// # Errors
    ///
    /// There is no such pool.
    pub(crate) fn find(&self, handle: u64) -> Result<Arc<Pool>> {
        let none = || Refusal::new(Status::InvalidValue, format!("{handle:#x} is not a pool"));
        self.handles.get(handle).ok_or_else(none)
    }

    /// Destroys a pool. Its memory stays until it is freed.
    ///
    /// # Errors
    ///
    /// There is no such pool, or it is the default pool of a GPU.
    pub(crate) fn destroy(&self, handle: u64) -> Result<()> {
        let pool = self.find(handle)?;
        if pool.is_default {
            return Err(invalid("the default pool of a device cannot be destroyed"));
        }
        self.handles.remove(handle);
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&current[pool.device], &pool) {
            current[pool.device] = Arc::clone(&self.default[pool.device]);
        }
        Ok(())
    }
}

/// Attributes by number: the settable ones come first.
const REUSE_FOLLOW_EVENT: u32 = 1;
const RELEASE_THRESHOLD: u32 = 4;
const RESERVED_CURRENT: u32 = 5;
const RESERVED_HIGH: u32 = 6;
const USED_CURRENT: u32 = 7;
const USED_HIGH: u32 = 8;

impl Pool {
    pub(crate) fn new(handle: u64, device: usize, handle_types: u32, is_default: bool) -> Self {
        let is_rdma_capable = false;
        let settings = [1, 1, 1, 0].map(AtomicU64::new);
        let (used, most_used) = (AtomicU64::new(0), AtomicU64::new(0));
        Self {
            handle,
            device,
            handle_types,
            is_rdma_capable,
            is_default,
            settings,
            used,
            most_used,
        }
    }

    /// Sets whether peers may have its memory.
    pub(crate) fn for_peers(mut self, is_rdma_capable: bool) -> Self {
        self.is_rdma_capable = is_rdma_capable;
        self
    }

    /// Counts memory that was allocated.
    pub(crate) fn add(&self, len: u64) {
        let used = self.used.fetch_add(len, Ordering::Relaxed) + len;
        self.most_used.fetch_max(used, Ordering::Relaxed);
    }

    /// Counts memory that was freed.
    pub(crate) fn take(&self, len: u64) {
        self.used.fetch_sub(len, Ordering::Relaxed);
    }

    /// Whether an attribute has eight bytes, and not four.
    pub(crate) fn is_wide(attribute: u32) -> bool {
        attribute >= RELEASE_THRESHOLD
    }

    /// The value of an attribute.
    ///
    /// # Errors
    ///
    /// There is no attribute with that number.
    pub(crate) fn attribute(&self, attribute: u32) -> Result<u64> {
        Ok(match attribute {
            REUSE_FOLLOW_EVENT..=RELEASE_THRESHOLD => {
                self.settings[attribute as usize - 1].load(Ordering::Relaxed)
            }
            RESERVED_CURRENT | USED_CURRENT => self.used.load(Ordering::Relaxed),
            RESERVED_HIGH | USED_HIGH => self.most_used.load(Ordering::Relaxed),
            _ => return Err(invalid(format!("a pool has no attribute {attribute}"))),
        })
    }

    /// Sets an attribute.
    ///
    /// # Errors
    ///
    /// There is no attribute with that number, or it is read-only, or can only be set to 0.
    pub(crate) fn set_attribute(&self, attribute: u32, value: u64) -> Result<()> {
        match attribute {
            REUSE_FOLLOW_EVENT..=RELEASE_THRESHOLD => {
                self.settings[attribute as usize - 1].store(value, Ordering::Relaxed);
            }
            RESERVED_HIGH | USED_HIGH if value == 0 => {
                self.most_used.store(self.used.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            _ => {
                return Err(invalid(format!(
                    "attribute {attribute} of a pool cannot be set to {value}"
                )));
            }
        }
        Ok(())
    }
}
