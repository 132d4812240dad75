//! The functions that calls are passed to: libc's, and those of `librdmacm.so.1`.

#![allow(unsafe_code, reason = "dlsym gives addresses")]

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function that is looked up at its first call: before that, libc may not be ready.
pub(crate) struct Next {
    name: &'static CStr,
    library: Library,
    address: AtomicPtr<c_void>,
}

/// Which library has a function.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Library {
    Libc,
    Rdmacm,
}

impl Next {
    /// libc's function of this name.
    pub(crate) const fn libc(name: &'static CStr) -> Self {
        Self { name, library: Library::Libc, address: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// The function of this name in `librdmacm.so.1`.
    pub(crate) const fn rdmacm(name: &'static CStr) -> Self {
        Self { name, library: Library::Rdmacm, address: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Its address; null if no library has it. Two threads may look it up at once and find the
    /// same.
    pub(crate) fn address(&self) -> *mut c_void {
        // ORDERING: only the address matters; it publishes nothing else.
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let found = match self.library {
            // SAFETY: the name is terminated; dlsym with RTLD_NEXT starts after the object that
            // contains this call.
            Library::Libc => unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) },
            Library::Rdmacm => rdmacm(self.name),
        };
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// A function of `librdmacm.so.1`, which may have been loaded with this library, or is loaded now.
fn rdmacm(name: &CStr) -> *mut c_void {
    // SAFETY: the name is terminated.
    let there = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if !there.is_null() {
        return there;
    }
    // SAFETY: the name is terminated. It stays loaded.
    let library = unsafe { libc::dlopen(c"librdmacm.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: the library is open, the name terminated.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// No library has the function.
pub(crate) fn missing<T>(result: T) -> T {
    set_errno(libc::ENOSYS);
    result
}

pub(crate) fn set_errno(errno: core::ffi::c_int) {
    // SAFETY: __errno_location gives the thread's errno, always valid.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *place = errno };
}

pub(crate) fn errno() -> core::ffi::c_int {
    // SAFETY: __errno_location gives the thread's errno, always valid.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *place }
}

/// Declares functions with C's signatures, each looked up at its first call.
macro_rules! functions {
    ($($library:ident $symbol:literal: $name:ident($($arg:ident: $ty:ty),* $(; $($more:ident: $more_ty:ty),+)?) -> $result:ty = $missing:expr;)*) => {$(
        /// The function of this name.
        ///
        /// # Safety
        ///
        /// As for that function.
        pub(crate) unsafe fn $name($($arg: $ty,)* $($($more: $more_ty,)+)?) -> $result {
            type Function = unsafe extern "C" fn($($ty,)* $($($more_ty,)+)?) -> $result;
            static NEXT: $crate::next::Next = $crate::next::Next::$library($symbol);
            let address = NEXT.address();
            if address.is_null() {
                return $crate::next::missing($missing);
            }
            // SAFETY: the function of this name has this signature.
            let next = unsafe { core::mem::transmute::<*mut core::ffi::c_void, Function>(address) };
            // SAFETY: the caller's promise.
            unsafe { next($($arg,)* $($($more,)+)?) }
        }
    )*};
}
pub(crate) use functions;
