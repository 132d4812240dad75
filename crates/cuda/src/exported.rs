//! The functions of the driver's library as programs resolve them, which hooks may have patched.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::OnceLock;

/// The functions by name.
static FUNCTIONS: OnceLock<HashMap<&'static str, usize>> = OnceLock::new();

/// The library of names registers its functions, once.
pub(crate) fn learn(functions: impl Iterator<Item = (&'static str, usize)>) {
    FUNCTIONS.get_or_init(|| functions.collect());
}

/// A function of the driver's library, as a program resolves it.
pub(crate) fn driver_function(symbol: &str) -> Option<*const c_void> {
    let found = FUNCTIONS.get().and_then(|functions| functions.get(symbol)).copied();
    found.map(std::ptr::with_exposed_provenance)
}
