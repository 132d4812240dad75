//! The side that uses the memory.

use crate::attachment::Attachment;
use crate::resv::ResvGuard;

/// A device that attaches to buffers of others.
///
/// The framework holds it weakly: the importer owns its [`Attachment`]s, not the other way round.
#[doc(alias = "dma_buf_attach_ops")]
pub trait Importer: Send + Sync {
    /// The device's name, as a list of attached devices shows it.
    fn name(&self) -> &str;

    /// How this importer deals with a buffer that wants to move.
    fn class(&self) -> ImporterClass;

    /// Whether the device can be given addresses of another device's memory. Ignored for
    /// [`ImporterClass::Static`], which never can.
    fn allow_peer2peer(&self) -> bool {
        true
    }

    /// Where the device sits on its bus, by which an exporter finds out how far away it is. `None`:
    /// it is not a device on a bus, and its accesses come from the CPU.
    fn device(&self) -> Option<DeviceAddr> {
        None
    }

    /// The process whose importer this represents, if that is not this one.
    #[doc(hidden)]
    fn process(&self) -> Option<u32> {
        None
    }

    /// The exporter moves or takes away the memory. When this returns, the device starts no new
    /// access through its old addresses.
    ///
    /// * [`Dynamic`](ImporterClass::Dynamic): drop the [`MapGuard`](crate::MapGuard); map again
    ///   before the next access.
    /// * [`PinnedRevocable`](ImporterClass::PinnedRevocable): drop map and pin; the attachment
    ///   never maps again. Called at most once.
    ///
    /// Not called for the other classes. Runs with the reservation lock held, which `resv` proves.
    fn invalidate_mappings(&self, resv: &ResvGuard<'_>, attachment: &Attachment) {
        let _ = (resv, attachment);
    }
}

/// A device's address on its bus, as a number. Only code that knows the bus interprets it: this
/// crate passes it from an importer to an exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a number")]
pub struct DeviceAddr(pub u64);

/// The four ways to import (`docs/semantics.md` 1.3). The kernel tells them apart by which
/// operations an importer has; here they are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the classes the kernel knows")]
pub enum ImporterClass {
    /// Knows nothing of moving: the framework pins at each map and unpins at unmap. Never
    /// peer-to-peer.
    Static,
    /// Pins before it maps, and keeps access until it gives it up.
    Pinned,
    /// Pins before it maps, and can lose the memory for good.
    PinnedRevocable,
    /// Does not pin: the memory may move at any time, and is mapped again.
    Dynamic,
}

impl ImporterClass {
    /// Whether an invalidation reaches it, so that its mappings end within bounded time.
    #[doc(alias = "dma_buf_attach_revocable")]
    pub fn is_revocable(self) -> bool {
        matches!(self, Self::PinnedRevocable | Self::Dynamic)
    }

    /// Whether it must pin before it maps.
    pub fn pins(self) -> bool {
        matches!(self, Self::Pinned | Self::PinnedRevocable)
    }
}
