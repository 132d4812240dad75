//! `libpeerdma-hsa.so`: what HSA programs are linked with, by name.
//!
//! The library is a `libhsa-runtime64.so.1`, to which that name leads as a link. It has every name
//! that ROCm's library has, and nothing behind them: each function says which name it is and jumps
//! through a table, which the first call of any of them fills from `libpeerdma.so`, where the GPU
//! is (crate `hsa`).
//!
//! It is a library of its own for the same reason as `libpeerdma-cuda.so`: a verbs program must not
//! have a driver of a GPU in its `libibverbs.so.1`. Nothing runs when it is loaded, and loading it
//! does not load `libpeerdma.so`.
#![allow(unsafe_code, reason = "this is a table of C functions")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use stubs::versioned;

/// The side of `libpeerdma.so`, with the layout of its `Lookup`. Both come from the same build, so
/// it has no version.
#[repr(C)]
struct Lookup {
    /// What is behind a name; null if nothing is.
    find: unsafe extern "C" fn(name: *const c_char) -> *mut c_void,
    /// A name behind which is nothing was called: what it returns.
    refused: unsafe extern "C" fn(name: *const c_char) -> i64,
}

static LOOKUP: AtomicPtr<Lookup> = AtomicPtr::new(core::ptr::null_mut());

/// The name of the function that returns the [`Lookup`].
const LOOKUP_NAME: &CStr = c"peerdma_hsa_lookup";

/// `HSA_STATUS_ERROR_OUT_OF_RESOURCES`: a library without a driver behind it. What `hsa_init`
/// answers where there is no GPU, so that programs do without.
const NONE: i64 = 0x1008;

/// Fills the table. Threads that do it at the same time write the same.
extern "C" fn load() {
    let lookup = lookup();
    LOOKUP.store(lookup.cast_mut(), Ordering::Release);
    for (name, slot) in NAMES.iter().zip(&TABLE) {
        // SAFETY: null, or a table that is static in a library that is never unloaded.
        let found = unsafe { lookup.as_ref() }.map_or(core::ptr::null_mut(), |lookup| {
            // SAFETY: a terminated name.
            unsafe { (lookup.find)(name.as_ptr()) }
        });
        let to = if found.is_null() { refusing() } else { found.cast() };
        slot.store(to, Ordering::Release);
    }
}

/// What a function that nobody serves returns.
extern "C" fn refused(index: c_int) -> i64 {
    let name = NAMES[usize::try_from(index).unwrap_or_default()];
    let lookup = LOOKUP.load(Ordering::Acquire);
    // SAFETY: null, or a table that is static.
    match unsafe { lookup.as_ref() } {
        // SAFETY: a terminated name.
        Some(lookup) => unsafe { (lookup.refused)(name.as_ptr()) },
        None => NONE,
    }
}

fn lookup() -> *const Lookup {
    let found = stubs::find(TABLE.as_ptr().cast(), LOOKUP_NAME);
    if found.is_null() {
        return core::ptr::null();
    }
    // SAFETY: this is the function's signature, in the library of the same build.
    let find: extern "C" fn() -> *const Lookup = unsafe { core::mem::transmute(found) };
    find()
}

stubs::table!(load, refused);

include!(concat!(env!("OUT_DIR"), "/entries.rs"));
