//! What has moved.

/// What has moved since the mirror was made, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Went to the device.
    pub to_device: u64,
    /// Came back because the CPU touched them.
    #[doc(alias = "migrate_to_ram")]
    pub faulted_back: u64,
    /// Came back because of a call, or because the process was about to fork.
    pub brought_back: u64,
    /// Were held for the device alone.
    pub made_exclusive: u64,
    /// Of these, those that the CPU touched.
    pub exclusive_ended: u64,
    /// Could not leave, because there was no memory for them or the kernel did not release them.
    pub skipped: u64,
}
