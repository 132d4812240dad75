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
    /// Came back because they were asked to, or the process was about to fork.
    pub brought_back: u64,
    /// Were held for the device alone.
    pub made_exclusive: u64,
    /// Of these, those that the CPU touched.
    pub exclusive_ended: u64,
    /// Could not leave, as there was no memory for them, or since the kernel does not let go.
    pub skipped: u64,
}
