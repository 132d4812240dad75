//! The address space of HSA.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use umd::copy::{At, Piece};
use umd::space::Content;
use umd::{Memory, View};
use umem::HostBuf;

/// All addresses that HSA knows in this process.
pub(crate) type Space = umd::space::Space<Held>;

/// A range of addresses with memory.
pub(crate) type Allocation = umd::space::Region<Held>;

/// The function to call when an allocation is freed, with the address for which it was registered
/// and the program's own data.
#[doc(alias = "hsa_amd_deallocation_callback_t")]
pub(crate) type OnFree = extern "C" fn(addr: u64, data: u64);

/// What HSA keeps for a region.
pub(crate) struct Held {
    pub(crate) kind: Kind,
    /// The agents that reach it: a bit for each, by its number.
    agents: AtomicU64,
    /// The data that the program has attached to it.
    pub(crate) user_data: AtomicU64,
    on_free: Mutex<Vec<(u64, OnFree, u64)>>,
}

/// The kind of memory in a region.
pub(crate) enum Kind {
    /// Memory of a GPU.
    Device {
        memory: Arc<Memory>,
        is_ipc: bool,
        /// The CPU's view of it, if there is one.
        view: Mutex<Option<View>>,
    },
    /// Host memory, with the flags of its region.
    Host { _pages: HostBuf, flags: u32 },
}

impl Held {
    /// A new region that the agents with these bits reach.
    pub(crate) fn new(kind: Kind, agents: u64) -> Self {
        Self {
            kind,
            agents: AtomicU64::new(agents),
            user_data: AtomicU64::new(0),
            on_free: Mutex::default(),
        }
    }

    pub(crate) fn allow(&self, agents: u64) {
        self.agents.fetch_or(agents, Ordering::Relaxed);
    }

    /// The agents that reach it.
    pub(crate) fn agents(&self) -> u64 {
        self.agents.load(Ordering::Relaxed)
    }

    /// Registers a function to call when it is freed.
    pub(crate) fn when_freed(&self, addr: u64, act: OnFree, data: u64) {
        let mut all = self.on_free.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((addr, act, data));
    }

    /// Removes the registered functions. Returns whether there were any.
    pub(crate) fn forget(&self, addr: u64, act: OnFree) -> bool {
        let mut all = self.on_free.lock().unwrap_or_else(PoisonError::into_inner);
        let before = all.len();
        all.retain(|(at, known, _)| *at != addr || !std::ptr::fn_addr_eq(*known, act));
        all.len() < before
    }

    /// Calls the registered functions, without a lock: they may allocate and free.
    pub(crate) fn freed(&self) {
        let all = std::mem::take(&mut *self.on_free.lock().unwrap_or_else(PoisonError::into_inner));
        for (addr, act, data) in all {
            act(addr, data);
        }
    }
}

impl Kind {
    /// Memory of a GPU.
    pub(crate) fn device(memory: Memory, is_ipc: bool) -> Self {
        Self::Device { memory: Arc::new(memory), is_ipc, view: Mutex::default() }
    }
}

/// Maps an allocation for the CPU, if its GPU lets programs map memory (`host_access`).
///
/// # Errors
///
/// It cannot be mapped, or cannot be pinned.
pub(crate) fn map(region: &Allocation) -> umd::Result<()> {
    let Kind::Device { memory, view, .. } = &region.kind else { return Ok(()) };
    // SAFETY: these are the region's own addresses, as many as its memory has. When the region
    // ends, `end` removes the mapping before the addresses are used again.
    let new = unsafe { memory.view(region.start, 0, memory.size()) }?;
    *view.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
    Ok(())
}

impl Content for Held {
    fn device(&self) -> Option<usize> {
        match &self.kind {
            Kind::Device { memory, .. } => Some(memory.device),
            Kind::Host { .. } => None,
        }
    }

    fn about(&self) -> String {
        match &self.kind {
            Kind::Device { memory, .. } => memory.name(),
            Kind::Host { .. } => "host".to_owned(),
        }
    }

    fn pieces(region: &Allocation, addr: u64, len: u64) -> umd::Result<Vec<Piece>> {
        let at = match &region.kind {
            Kind::Device { memory, .. } => At::Device(Arc::clone(memory), addr - region.start),
            Kind::Host { .. } => At::Host(addr),
        };
        Ok(vec![Piece { at, len }])
    }

    fn end(&self) {
        if let Kind::Device { memory, is_ipc, view } = &self.kind {
            drop(view.lock().unwrap_or_else(PoisonError::into_inner).take());
            memory.release(0, memory.size());
            if !is_ipc {
                memory.close_descriptor();
            }
        }
    }
}
