//! The functions that ours stand in front of.

#![allow(unsafe_code, reason = "libc's functions, by name")]

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::size_t;

// libc's allocator, by the names that nobody stands in front of: the loader has bound them before
// it calls us for the first time.
unsafe extern "C" {
    #[link_name = "__libc_malloc"]
    pub(crate) fn malloc(size: size_t) -> *mut c_void;
    #[link_name = "__libc_calloc"]
    pub(crate) fn calloc(count: size_t, size: size_t) -> *mut c_void;
    #[link_name = "__libc_realloc"]
    pub(crate) fn realloc(block: *mut c_void, size: size_t) -> *mut c_void;
    #[link_name = "__libc_memalign"]
    pub(crate) fn memalign(align: size_t, size: size_t) -> *mut c_void;
    #[link_name = "__libc_free"]
    pub(crate) fn free(block: *mut c_void);
}

/// The function of this name in the libraries behind this one.
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Its address, if it was looked up.
    pub(crate) fn known(&self) -> Option<*mut c_void> {
        // ORDERING: only the address matters; it publishes nothing else.
        Some(self.address.load(Ordering::Relaxed)).filter(|address| !address.is_null())
    }

    /// Its address, if a library has it. Two threads may look it up at once and find the same.
    pub(crate) fn address(&self) -> Option<*mut c_void> {
        if let Some(known) = self.known() {
            return Some(known);
        }
        // SAFETY: the name is terminated; dlsym with RTLD_NEXT starts after the object that
        // contains this call.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Relaxed);
        self.known()
    }
}
