//! The end of a context, and of everything that belongs to it.

use std::sync::Arc;

use crate::context::{Context, pop_if};
use crate::process::Process;
use crate::status::Result;

impl Process {
    /// Ends a context.
    ///
    /// # Errors
    ///
    /// The handle is not that of a context, or it is a primary context.
    pub(crate) fn destroy_context(&self, handle: u64) -> Result<()> {
        let context = self.contexts.find_own(handle)?;
        self.end(&context);
        pop_if(&context);
        Ok(())
    }

    /// Releases the primary context; the last release ends it.
    ///
    /// # Errors
    ///
    /// It is not retained.
    pub(crate) fn release_primary(&self, device: usize) -> Result<()> {
        if let Some(context) = self.contexts.release_primary(device)? {
            self.end(&context);
        }
        Ok(())
    }

    /// Ends the primary context, even while it is in use.
    pub(crate) fn reset_primary(&self, device: usize) {
        if let Some(context) = self.contexts.reset_primary(device) {
            self.end(&context);
        }
    }

    fn end(&self, context: &Arc<Context>) {
        if !context.end() {
            return;
        }
        let streams = self.streams.all();
        for stream in streams.iter().filter(|stream| stream.context == context.handle) {
            stream.abandon();
            self.streams.remove(stream.handle);
        }
        context.legacy.abandon();
        for event in self.events.all() {
            if event.context == context.handle {
                self.events.remove(event.handle);
            }
        }
        self.space.free_all(|region| {
            region.context.as_ref().is_some_and(|own| Arc::ptr_eq(own, context))
        });
        self.contexts.remove(context);
    }
}
