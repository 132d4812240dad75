//! What is asked of an exporter in another process besides the operations of every exporter.

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
    /// Whether all users are done that an access must wait for: one that writes, or that reads.
    ///
    /// # Errors
    ///
    /// The exporter is gone.
    fn is_idle(&self, writes: bool) -> Result<bool, ExporterError>;

    /// That process's file of what an access must wait for.
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
