//! The way to HSA's runtime, for `libpeerdma-hsa.so`, which has its names.

use super::boundary::control;
use super::context::watch_the_end;

/// What is behind the names. Null is never returned but after a panic.
pub(crate) extern "C" fn peerdma_hsa_lookup() -> *const hsa::Lookup {
    control("peerdma_hsa_lookup", std::ptr::null(), || {
        watch_the_end();
        hsa::lookup()
    })
}
