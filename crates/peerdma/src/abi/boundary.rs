//! Where a panic stops.
//!
//! Unwinding into C is not possible; without a boundary the process would abort. A control call (create, modify, destroy)
//! stops the panic, says so, and fails with EIO, as hardware that lost its mind would. The data path has no boundary: it
//! costs, and a queue that panicked in the middle of a work request must not be used again.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::errno;
use crate::logging;

/// Runs the body of a control call. On a panic errno is EIO and the result is `broken`.
pub(crate) fn control<T>(verb: &'static str, broken: T, body: impl FnOnce() -> T) -> T {
    logging::init();
    // Whatever the body held is either behind the engine's lock, which knows that a panic passed through it, or the
    // caller's own structure, which a failed call leaves undefined anyway.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(answer) => answer,
        Err(panic) => {
            tracing::error!(target: "peerdma::panic", "{verb}: {}", words(&*panic));
            errno::set(libc::EIO);
            broken
        }
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    if let Some(words) = panic.downcast_ref::<&str>() {
        words
    } else if let Some(words) = panic.downcast_ref::<String>() {
        words
    } else {
        "a panic without words"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_eio() {
        let answer = control("ibv_example", -1, || panic!("no {}", "memory"));
        assert_eq!(answer, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EIO));
    }
}
