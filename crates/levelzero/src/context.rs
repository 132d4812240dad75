//! Contexts: what memory, queues, lists and events belong to.

use std::sync::Arc;

use crate::process::Process;
use crate::status::{Refusal, Result, Status};

/// A context.
pub(crate) struct Context {
    pub(crate) handle: u64,
    /// The numbers of its devices.
    pub(crate) devices: Vec<usize>,
}

impl Context {
    /// Checks that a device is one of its own.
    ///
    /// # Errors
    ///
    /// It is not.
    pub(crate) fn check(&self, device: usize) -> Result<()> {
        if self.devices.contains(&device) {
            return Ok(());
        }
        let what = format!("the context was not made for device {device}");
        Err(Refusal::new(Status::InvalidArgument, what))
    }
}

impl Process {
    /// Ends a context, and frees its memory. Queues, lists and events of it stay until they are
    /// destroyed, as with Intel's driver.
    ///
    /// # Errors
    ///
    /// It is none.
    pub(crate) fn end_context(&self, handle: u64) -> Result<()> {
        let context = self.context(handle)?;
        self.space.free_all(|region| Arc::ptr_eq(&region.context, &context));
        self.contexts.remove(handle);
        Ok(())
    }
}
