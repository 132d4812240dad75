//! How the steps of a command end.

use std::error::Error;

/// A result, or any error: a command prints it and ends.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;
