//! The first call: finds `libpeerdma.so` and fills the table.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::entry::{FUNCTIONS, Library, NAMES, TABLE, refusing};

/// The side of `libpeerdma.so`, with the layout of its `Resolver`. Both come from the same build,
/// so it has no version.
#[repr(C)]
struct Resolver {
    /// Takes the functions of the driver's names: what `cuGetProcAddress` is to give out.
    driver:
        unsafe extern "C" fn(names: *const *const c_char, functions: *const c_void, count: usize),
    /// What is behind a name; null if nothing is.
    find: unsafe extern "C" fn(library: c_int, name: *const c_char) -> *mut c_void,
    /// A name behind which is nothing was called: what it returns.
    refused: unsafe extern "C" fn(library: c_int, name: *const c_char) -> c_int,
}

static RESOLVER: AtomicPtr<Resolver> = AtomicPtr::new(core::ptr::null_mut());

/// The name of the function that returns the [`Resolver`].
const RESOLVER_NAME: &CStr = c"peerdma_cuda_resolver";

/// Fills the table. Threads that do it at the same time write the same.
pub(crate) extern "C" fn load() {
    let resolver = resolver();
    // SAFETY: null, or a table that is static in a library that is never unloaded.
    if let Some(resolver) = unsafe { resolver.as_ref() } {
        RESOLVER.store(core::ptr::from_ref(resolver).cast_mut(), Ordering::Release);
        let mut names = [core::ptr::null(); FUNCTIONS.len()];
        for (name, (_, known)) in names.iter_mut().zip(&NAMES) {
            *name = known.as_ptr();
        }
        // SAFETY: as many names as functions, all of them static.
        unsafe { (resolver.driver)(names.as_ptr(), FUNCTIONS.as_ptr().cast(), FUNCTIONS.len()) };
    }
    for ((library, name), slot) in NAMES.iter().zip(&TABLE) {
        // SAFETY: as above.
        let found = unsafe { resolver.as_ref() }.map_or(core::ptr::null_mut(), |resolver| {
            // SAFETY: a terminated name.
            unsafe { (resolver.find)(library.number(), name.as_ptr()) }
        });
        let to = if found.is_null() { refusing() } else { found.cast() };
        slot.store(to, Ordering::Release);
    }
}

/// What a function that nobody serves returns.
pub(crate) extern "C" fn refused(index: c_int) -> c_int {
    let index = usize::try_from(index).unwrap_or_default();
    let (library, name) = NAMES[index];
    let resolver = RESOLVER.load(Ordering::Acquire);
    // SAFETY: null, or a table that is static.
    match unsafe { resolver.as_ref() } {
        // SAFETY: a terminated name.
        Some(resolver) => unsafe { (resolver.refused)(library.number(), name.as_ptr()) },
        // A library without a driver behind it: CUDA_ERROR_STUB_LIBRARY,
        // NVML_ERROR_LIBRARY_NOT_FOUND, cudaErrorInsufficientDriver.
        None => match library {
            Library::Driver => 34,
            Library::Nvml => 12,
            Library::Runtime12 | Library::Runtime13 => 35,
        },
    }
}

fn resolver() -> *const Resolver {
    let found = stubs::find(TABLE.as_ptr().cast(), RESOLVER_NAME);
    if found.is_null() {
        return core::ptr::null();
    }
    // SAFETY: this is the function's signature, in the library of the same build.
    let find: extern "C" fn() -> *const Resolver = unsafe { core::mem::transmute(found) };
    find()
}
