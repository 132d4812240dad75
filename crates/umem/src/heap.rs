//! The shared heap of the program (`libpeerdma-heap.so`), if it has one: memory of its own that is
//! also a file.

#![allow(unsafe_code, reason = "a function that is found by its name")]

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use descriptors::Known;
use rustix::io::Errno;

/// `peerdma_heap_at` of crate heap.
type At = unsafe extern "C" fn(usize, usize, *mut u64) -> c_int;

/// Where memory of the heap lies in its file.
#[derive(Debug)]
pub(crate) struct Place {
    /// The heap keeps it, unless the program closes it.
    pub(crate) file: Known<BorrowedFd<'static>>,
    pub(crate) offset: u64,
}

/// Where `len` bytes at `addr` lie in the file of the heap, if they do. A child of a fork has a
/// file of its own.
pub(crate) fn place(addr: usize, len: u64) -> Option<Place> {
    let mut offset = 0;
    // SAFETY: the offset can be written.
    let fd = unsafe { at()?(addr, usize::try_from(len).ok()?, &raw mut offset) };
    if fd < -1 {
        // CAST: the function says so.
        let errno = Errno::from_raw_os_error(-1 - fd);
        tracing::info!(
            target: "peerdma::path",
            "the shared heap has no file for {len:#x} bytes at {addr:#x}: {errno}"
        );
    }
    // SAFETY: the descriptor stays open, or its number is the program's: `Known` tells.
    let fd = (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })?;
    Some(Place { file: Known::at_its_number(fd), offset })
}

/// The function, if the library is loaded: it is so before the program, or never.
fn at() -> Option<At> {
    static AT: OnceLock<Option<At>> = OnceLock::new();
    *AT.get_or_init(|| {
        // SAFETY: the name is terminated.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"peerdma_heap_at".as_ptr()) };
        // SAFETY: the function of this name has this signature.
        (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, At>(found) })
    })
}
