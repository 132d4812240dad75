//! The messages of panics.

use std::any::Any;

/// The message of a panic.
pub(crate) fn words(panic: &(dyn Any + Send)) -> &str {
    if let Some(words) = panic.downcast_ref::<&str>() {
        words
    } else if let Some(words) = panic.downcast_ref::<String>() {
        words
    } else {
        "a panic without a message"
    }
}
