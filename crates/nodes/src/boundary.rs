//! Where panics stop, and what the process that has the nodes is told.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use crate::errno;

/// The hooks of a process that has nodes.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "the process sets all hooks")]
pub struct Process {
    /// A node is about to be opened.
    pub opening: fn(),
    /// A call panicked: what it held may be in the middle of a change.
    pub broken: fn(call: &'static str, panic: &(dyn Any + Send)),
}

static PROCESS: OnceLock<&'static Process> = OnceLock::new();

pub(crate) fn set(process: &'static Process) {
    // The hooks are the same each time.
    let _ = PROCESS.set(process);
}

pub(crate) fn process() -> Option<&'static Process> {
    PROCESS.get().copied()
}

/// Runs the body of a call. On a panic errno is EIO and the result is `broken`.
pub(crate) fn control<T>(call: &'static str, broken: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        if let Some(process) = process() {
            (process.broken)(call, &*panic);
        }
        errno::set(libc::EIO);
        broken
    })
}
