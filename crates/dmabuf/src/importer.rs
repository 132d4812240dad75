//! The side that uses the memory.

use crate::attached::{DeviceAddr, ImporterClass};
use crate::attachment::Attachment;
use crate::resv::ResvGuard;

/// A device that attaches to buffers of other drivers.
///
/// The framework holds a weak reference: the importer owns its [`Attachment`]s, not the other way
/// round.
#[doc(alias = "dma_buf_attach_ops")]
pub trait Importer: Send + Sync {
    /// The device's name, as a list of attached devices shows it.
    fn name(&self) -> &str;

    /// How this importer deals with a buffer that moves.
    fn class(&self) -> ImporterClass;

    /// Whether the device accepts addresses of another device's memory. Ignored for
    /// [`ImporterClass::Static`], which never does.
    fn allow_peer2peer(&self) -> bool {
        true
    }

    /// Where the device is on its bus; an exporter uses this to find the distance. `None`: it is
    /// not a device on a bus, and its accesses come from the CPU.
    fn device(&self) -> Option<DeviceAddr> {
        None
    }

    /// The process whose importer this represents, if that is not this one.
    #[doc(hidden)]
    fn process(&self) -> Option<u32> {
        None
    }

    /// The exporter moves or takes away the memory. After this returns, the device must start no
    /// new access through its old addresses.
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
