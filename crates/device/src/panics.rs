//! Panics, in words.

use std::any::Any;

/// What a panic said.
pub(crate) fn words(panic: &(dyn Any + Send)) -> &str {
    if let Some(words) = panic.downcast_ref::<&str>() {
        words
    } else if let Some(words) = panic.downcast_ref::<String>() {
        words
    } else {
        "a panic without words"
    }
}
