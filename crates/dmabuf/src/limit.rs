//! The kernel's refusals at a limit, in words that name the limit.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// The kernel's text, and what EMFILE means for a program that has dma-bufs.
#[cold]
pub fn in_words(error: impl Into<io::Error>) -> String {
    let error = error.into();
    let is_limit = Errno::from_io_error(&error) == Some(Errno::MFILE);
    match getrlimit(Resource::Nofile).current.filter(|_| is_limit) {
        Some(limit) => format!(
            "{error}: this process has as many descriptors as it may (RLIMIT_NOFILE, {limit}); \
             each dma-buf that it was given is one until it closes it, which libfabric never does"
        ),
        None => error.to_string(),
    }
}
