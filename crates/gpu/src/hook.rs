//! A function that is called when something happens to a buffer of this process's GPUs.

use std::sync::OnceLock;
use std::time::Duration;

use crate::place::Domain;

/// What happened to a buffer.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum BufferEvent<'a> {
    /// It moved, and is copied until its fence is signaled.
    Moved {
        /// Where it was.
        from: Domain,
        /// Where it is.
        to: Domain,
        /// How many bytes it has.
        bytes: u64,
        /// How long importers and earlier users kept the move waiting.
        waited: Duration,
        /// Why.
        why: &'a str,
    },
    /// Its memory was taken away.
    Revoked {
        /// Why.
        why: &'a str,
    },
}

/// Gets the name of the GPU, that of the buffer, and what happened. The buffer is locked, so the
/// function must use no GPU, and return soon.
pub type BufferHook = fn(gpu: &str, buffer: &str, event: &BufferEvent<'_>);

static HOOK: OnceLock<BufferHook> = OnceLock::new();

/// Sets the function. The first one stays.
pub fn set_buffer_hook(hook: BufferHook) {
    HOOK.get_or_init(|| hook);
}

/// The function, if there is one.
pub(crate) fn buffer_hook() -> Option<BufferHook> {
    HOOK.get().copied()
}
