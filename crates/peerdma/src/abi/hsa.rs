//! The functions behind the names of HSA's runtime, for `libpeerdma-hsa.so`, which has the names.

use super::boundary::control;
use super::context::watch_the_end;

/// Where to find the functions. Null only after a panic.
pub(crate) extern "C" fn peerdma_hsa_lookup() -> *const hsa::Lookup {
    control("peerdma_hsa_lookup", std::ptr::null(), || {
        watch_the_end();
        hsa::lookup()
    })
}
