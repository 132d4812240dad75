//! What happened.

use std::sync::atomic::{AtomicU64, Ordering};

use dmabuf::MapType;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Numbers since the GPU was opened, of this process.
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
    };
}

counters! {
    /// Moves of buffers, for whatever reason.
    moves,
    /// Bytes that they moved.
    moved_bytes,
    /// Moves because somebody needed the room, or asked for an eviction.
    evictions,
    /// Of these, those that another process asked for.
    evictions_for_others,
    /// Evictions that another process did for us.
    evictions_by_others,
    /// Buffers taken away by a reset or a removal.
    revoked,
    /// Maps of a buffer after it moved: what is a page fault for a dynamic importer.
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
    /// Bytes that the CPU copied and that are not in the BAR.
    copied_bytes,
    /// Accesses through addresses that were retired, as reported.
    stale_accesses,
    /// Placements that were freed for processes that died.
    reclaimed,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }

    pub(crate) fn count_map(&self, map_type: MapType, len: u64) {
        Self::add(&self.maps, 1);
        let bytes = match map_type {
            MapType::System => &self.system_bytes,
            MapType::BusAddress => &self.bus_address_bytes,
            MapType::ThroughHostBridge => &self.through_host_bridge_bytes,
        };
        Self::add(bytes, len);
    }
}
