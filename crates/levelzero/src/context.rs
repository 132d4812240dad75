//! Contexts, to which memory, queues, lists and events belong.

use crate::status::{Refusal, Result, Status};

/// A context.
pub(crate) struct Context {
    pub(crate) handle: u64,
    /// The numbers of its devices.
    pub(crate) devices: Vec<usize>,
}

impl Context {
    /// Checks that a device belongs to the context.
    ///
    /// # Errors
    ///
    /// The device does not belong to it.
    pub(crate) fn check(&self, device: usize) -> Result<()> {
        if self.devices.contains(&device) {
            return Ok(());
        }
        let what = format!("the context was not made for device {device}");
        Err(Refusal::new(Status::InvalidArgument, what))
    }
}
