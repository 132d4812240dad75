//! Statistics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use dmabuf::Reach;
use threads::whole::Mutex;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of this process since the GPU was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct GpuStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn read(&self) -> GpuStats {
                GpuStats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl GpuStats {
            const ZERO: Self = Self { $($name: 0,)* };

            fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Moves of buffers, for whatever reason.
    moves,
    /// Bytes that they moved.
    moved_bytes,
    /// Moves because room was needed or an eviction was requested.
    evictions,
    /// Of these, those that another process requested.
    evictions_for_others,
    /// Evictions that another process did on our request.
    evictions_by_others,
    /// Buffers revoked by a reset or a removal.
    revoked,
    /// Maps of a buffer after it moved: the page faults of dynamic importers.
    faults,
    /// Maps.
    maps,
    /// Bytes mapped in system memory.
    system_bytes,
    /// Bytes mapped at their bus address.
    bus_address_bytes,
    /// Bytes mapped through the host bridge.
    through_host_bridge_bytes,
    /// Bytes that the CPU copied through the BAR.
    bar_bytes,
    /// Bytes that the CPU copied outside the BAR.
    copied_bytes,
    /// Bytes that came directly from another GPU.
    peer_bytes,
    /// Bytes that came through system memory from another GPU that this one does not reach.
    staged_bytes,
    /// Accesses through addresses that were retired, as reported by the code that caught their
    /// fault: a NIC of this process, or [`Gpu::report_fault`](crate::Gpu::report_fault).
    stale_accesses,
    /// Placements that were freed for processes that died.
    reclaimed,
}

/// The GPUs of this process: the sums of those that are gone, and the existing ones.
struct All {
    gone: GpuStats,
    open: Vec<Weak<Counters>>,
}

static ALL: Mutex<All> = Mutex::new(All { gone: GpuStats::ZERO, open: Vec::new() });

impl GpuStats {
    /// The sums over all GPUs that this process has or had open.
    pub fn of_process() -> Self {
        let all = ALL.lock();
        let mut sum = all.gone;
        let open: Vec<_> = all.open.iter().filter_map(Weak::upgrade).collect();
        open.iter().for_each(|counters| sum.add(&counters.read()));
        // The last owner of counters takes the lock.
        drop(all);
        drop(open);
        sum.stale_accesses = dmabuf::window::stale_accesses();
        sum
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        ALL.lock().gone.add(&self.read());
    }
}

impl Counters {
    /// The counters of a GPU that is being opened.
    pub(crate) fn new() -> Arc<Self> {
        let counters = Arc::new(Self::default());
        let mut all = ALL.lock();
        all.open.retain(|counters| counters.strong_count() > 0);
        all.open.push(Arc::downgrade(&counters));
        counters
    }

    pub(crate) fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }

    pub(crate) fn count_map(&self, map_type: Reach, len: u64) {
        Self::add(&self.maps, 1);
        let bytes = match map_type {
            Reach::System => &self.system_bytes,
            Reach::BusAddress => &self.bus_address_bytes,
            Reach::ThroughHostBridge => &self.through_host_bridge_bytes,
        };
        Self::add(bytes, len);
    }
}
