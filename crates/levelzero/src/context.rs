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
    /// Ends a context, and frees its memory. What was made of it must be gone.
    ///
    /// # Errors
    ///
    /// It is none; or queues, lists or pools of it are there.
    pub(crate) fn end_context(&self, handle: u64) -> Result<()> {
        let context = self.context(handle)?;
        let left = [
            ("command queues", self.queues.all().iter().any(|one| one.context == handle)),
            ("command lists", self.lists.all().iter().any(|one| one.context == handle)),
            ("event pools", self.pools.all().iter().any(|one| one.context == handle)),
        ];
        if let Some((what, _)) = left.iter().find(|(_, is_left)| *is_left) {
            let what = format!("context {handle:#x} still has {what}");
            return Err(Refusal::new(Status::HandleObjectInUse, what));
        }
        self.space.free_all(|region| Arc::ptr_eq(&region.context, &context));
        self.contexts.remove(handle);
        Ok(())
    }
}
