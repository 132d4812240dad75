//! What an exporter in another process does besides the operations of every exporter.

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::exporter::{Exporter, ExporterError};

bitflags::bitflags! {
    /// What an access will do, or what work behind a fence does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RwFlags: u32 {
        /// It reads.
        #[doc(alias = "DMA_BUF_SYNC_READ")]
        const READ = 1;
        /// It writes.
        #[doc(alias = "DMA_BUF_SYNC_WRITE")]
        const WRITE = 2;
    }
}

/// An exporter in another process.
pub(crate) trait Remote: Exporter {
    /// Whether all users that an access (a write or a read) must wait for are done.
    ///
    /// # Errors
    ///
    /// The exporter is gone.
    fn is_idle(&self, writes: bool) -> Result<bool, ExporterError>;

    /// That process's sync file of the fences that an access must wait for.
    ///
    /// # Errors
    ///
    /// The exporter's refusal.
    fn export_sync(&self, flags: RwFlags) -> Result<OwnedFd, ExporterError>;

    /// Makes users of the buffer there wait for the fence of a file.
    ///
    /// # Errors
    ///
    /// The exporter's refusal.
    fn import_sync(&self, flags: RwFlags, file: BorrowedFd<'_>) -> Result<(), ExporterError>;
}
