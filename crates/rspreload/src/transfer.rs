//! `sendfile(2)`, by reading and writing.

#![allow(unsafe_code, reason = "every function here stands for one of libc's")]

use core::ffi::{c_int, c_void};

use libc::{off_t, size_t, ssize_t};

use crate::hooks::{calls, for_data};
use crate::next::functions;
use crate::table::{Entry, Kind};

functions! {
    libc c"sendfile": libc_sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t = -1;
}

/// Bytes that are read before they are sent.
const PIECE: usize = 1 << 16;

/// `sendfile(2)`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    match for_data(out) {
        // SAFETY: the caller's promise.
        Some(Entry { kind: Kind::Rsocket, fd }) => unsafe { copy(fd, from, offset, count) },
        // SAFETY: the arguments are the caller's except for the descriptor, which is the socket's.
        Some(Entry { kind: Kind::Kernel | Kind::Undecided(_), fd }) => unsafe {
            libc_sendfile(fd, from, offset, count)
        },
        // SAFETY: the arguments are the caller's.
        _ => unsafe { libc_sendfile(out, from, offset, count) },
    }
}

/// `sendfile64`: on our machines all files are large.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the arguments are the caller's.
    unsafe { sendfile(out, from, offset, count) }
}

/// Sends a file's bytes from `offset` on, or from the file's position. Bytes that were read and not
/// sent are read again next time.
///
/// # Safety
///
/// `offset` is NULL or valid.
unsafe fn copy(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let mut piece = [0_u8; PIECE];
    let mut done: usize = 0;
    while done < count {
        let at = if offset.is_null() {
            // SAFETY: there are no pointers.
            unsafe { libc::lseek(from, 0, libc::SEEK_CUR) }
        } else {
            // SAFETY: the caller's promise.
            unsafe { offset.read() }
        };
        let wanted = (count - done).min(PIECE);
        // SAFETY: there is room.
        let read = unsafe { libc::pread(from, piece.as_mut_ptr().cast::<c_void>(), wanted, at) };
        if read <= 0 {
            return if read < 0 && done == 0 { -1 } else { done.cast_signed() };
        }
        // SAFETY: this many bytes were read.
        let sent = unsafe { calls::rwrite(to, piece.as_ptr().cast(), read.cast_unsigned()) };
        if sent <= 0 {
            return if done == 0 { sent } else { done.cast_signed() };
        }
        if offset.is_null() {
            // SAFETY: there are no pointers.
            unsafe { libc::lseek(from, sent as off_t, libc::SEEK_CUR) };
        } else {
            // SAFETY: the caller's promise.
            unsafe { offset.write(at + sent as off_t) };
        }
        done += sent.cast_unsigned();
    }
    done.cast_signed()
}
