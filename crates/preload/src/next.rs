//! The function that a hook of this library replaces.

#![allow(unsafe_code, reason = "dlsym gives addresses")]

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// A function of the libraries behind this one, looked up at its first call: before that, libc may
/// not be ready.
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    /// Whether a thread looks it up now with [`try_address`](Self::try_address).
    is_looked_up: AtomicBool,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        let address = AtomicPtr::new(core::ptr::null_mut());
        Self { name, address, is_looked_up: AtomicBool::new(false) }
    }

    /// Its address; null if no later library has it. Two threads may look it up at once and find
    /// the same.
    pub(crate) fn address(&self) -> *mut c_void {
        // ORDERING: only the address matters; it publishes nothing else.
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is terminated; dlsym with RTLD_NEXT starts after the object that
        // contains this call.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Relaxed);
        found
    }

    /// Its address, for a function that the lookup itself may need: null during the lookup.
    pub(crate) fn try_address(&self) -> *mut c_void {
        // ORDERING: as in `address`.
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() || self.is_looked_up.swap(true, Ordering::Relaxed) {
            return known;
        }
        let found = self.address();
        self.is_looked_up.store(false, Ordering::Relaxed);
        found
    }
}

/// The function that has this name and this signature in C, or, if no later library has it, an end
/// of the hook with this result: an old name that nothing here can have been linked against.
macro_rules! next {
    ($name:literal: fn($($arg:ty),*) -> $result:ty = $missing:expr) => {{
        static NEXT: $crate::next::Next = $crate::next::Next::new($name);
        let address = NEXT.address();
        if address.is_null() {
            $crate::errno::set(libc::ENOSYS);
            return $missing;
        }
        // SAFETY: libc's function of this name has this signature.
        unsafe {
            core::mem::transmute::<
                *mut core::ffi::c_void,
                unsafe extern "C" fn($($arg),*) -> $result,
            >(address)
        }
    }};
}

pub(crate) use next;
