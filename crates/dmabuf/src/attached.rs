//! What an exporter learns about a device that uses its memory.

/// What an exporter learns about an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentInfo {
    pub(crate) id: u64,
    pub(crate) importer: String,
    pub(crate) class: ImporterClass,
    pub(crate) peer2peer: bool,
    pub(crate) device: Option<DeviceAddr>,
    pub(crate) process: Option<u32>,
}

/// A device's address on its bus, as a number. Only code that knows the bus interprets it; this
/// crate just passes it from an importer to an exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a number")]
pub struct DeviceAddr(pub u64);

/// The four ways to import (`docs/semantics.md` 1.3). The kernel tells them apart by the operations
/// that an importer has; here they have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the classes the kernel knows")]
pub enum ImporterClass {
    /// Knows nothing about moves: the framework pins at each map and unpins at unmap. Never
    /// peer-to-peer.
    Static,
    /// Pins before it maps, and keeps access until it gives it up.
    Pinned,
    /// Pins before it maps, and can lose the memory for good.
    PinnedRevocable,
    /// Does not pin: the memory may move at any time, and the importer then maps it again.
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

impl AttachmentInfo {
    /// A unique number among the attachments of this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The importer's name.
    pub fn importer(&self) -> &str {
        &self.importer
    }

    /// How the importer deals with a buffer that moves.
    pub fn class(&self) -> ImporterClass {
        self.class
    }

    /// Whether the device may be given addresses of another device's memory.
    pub fn peer2peer(&self) -> bool {
        self.peer2peer
    }

    /// Where the device is on its bus.
    pub fn device(&self) -> Option<DeviceAddr> {
        self.device
    }

    /// The process that the device serves, if that is not this one; 0 if it has no pid here. Only
    /// the [backings](crate::SgEntry::backing) of a table made for it are used: the other process
    /// has addresses of its own.
    pub fn process(&self) -> Option<u32> {
        self.process
    }

    /// For [`Exporter::attach`](crate::Exporter::attach): this device does not reach the memory
    /// directly.
    pub fn clear_peer2peer(&mut self) {
        self.peer2peer = false;
    }
}
