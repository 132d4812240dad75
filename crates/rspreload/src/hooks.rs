//! Calls about one socket that need no more than the right descriptor.

#![allow(unsafe_code, reason = "every function here stands for one of libc's")]

use core::ffi::{c_int, c_void};

use libc::{iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use crate::fork;
use crate::next::functions;
use crate::table::{self, Entry, Kind};

/// What a descriptor stands for when data moves: undecided sockets are decided now.
#[inline]
pub(crate) fn for_data(fd: c_int) -> Option<Entry> {
    let entry = table::get(fd)?;
    if let Kind::Undecided(role) = entry.kind {
        return Some(fork::decide(fd, entry, role));
    }
    Some(entry)
}

/// Defines functions whose first argument is a descriptor, each with its counterpart of rsockets.
macro_rules! hooks {
    ($($(#[$note:meta])* $find:path => fn $name:ident / $symbol:literal, $ours:ident / $our_symbol:literal
        (fd $(, $arg:ident: $ty:ty)*) -> $result:ty;)*) => {
        mod next {
            use super::*;
            functions! {
                $(libc $symbol: $name(fd: c_int $(, $arg: $ty)*) -> $result = -1;)*
                $(rdmacm $our_symbol: $ours(fd: c_int $(, $arg: $ty)*) -> $result = -1;)*
            }
        }

        $(
            $(#[$note])*
            ///
            /// # Safety
            ///
            /// As for libc's function of this name.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(fd: c_int $(, $arg: $ty)*) -> $result {
                match $find(fd) {
                    // SAFETY: the arguments are the caller's except for the descriptor, which is of
                    // an rsocket.
                    Some(Entry { kind: Kind::Rsocket, fd }) => unsafe { next::$ours(fd $(, $arg)*) },
                    // SAFETY: the arguments are the caller's except for the descriptor, which is
                    // the socket's.
                    Some(Entry { kind: Kind::Kernel | Kind::Undecided(_), fd }) => unsafe { next::$name(fd $(, $arg)*) },
                    // SAFETY: the arguments are the caller's.
                    Some(Entry { kind: Kind::Epoll, .. }) | None => unsafe { next::$name(fd $(, $arg)*) },
                }
            }
        )*
    };
}

hooks! {
    /// Names.
    table::get => fn bind / c"bind", rbind / c"rbind" (fd, addr: *const sockaddr, len: socklen_t) -> c_int;
    /// Names.
    table::get => fn getpeername / c"getpeername", rgetpeername / c"rgetpeername" (fd, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    /// Names.
    table::get => fn getsockname / c"getsockname", rgetsockname / c"rgetsockname" (fd, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    /// Options.
    table::get => fn getsockopt / c"getsockopt", rgetsockopt / c"rgetsockopt" (fd, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    /// Options.
    table::get => fn setsockopt / c"setsockopt", rsetsockopt / c"rsetsockopt" (fd, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    /// Ending.
    table::get => fn shutdown / c"shutdown", rshutdown / c"rshutdown" (fd, how: c_int) -> c_int;
    /// Receiving.
    for_data => fn recv / c"recv", rrecv / c"rrecv" (fd, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    /// Receiving.
    for_data => fn recvfrom / c"recvfrom", rrecvfrom / c"rrecvfrom" (fd, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t;
    /// Receiving.
    for_data => fn recvmsg / c"recvmsg", rrecvmsg / c"rrecvmsg" (fd, msg: *mut msghdr, flags: c_int) -> ssize_t;
    /// Receiving.
    for_data => fn read / c"read", rread / c"rread" (fd, buf: *mut c_void, len: size_t) -> ssize_t;
    /// Receiving.
    for_data => fn readv / c"readv", rreadv / c"rreadv" (fd, iov: *const iovec, count: c_int) -> ssize_t;
    /// Sending.
    for_data => fn send / c"send", rsend / c"rsend" (fd, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    /// Sending.
    for_data => fn sendto / c"sendto", rsendto / c"rsendto" (fd, buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addr_len: socklen_t) -> ssize_t;
    /// Sending.
    for_data => fn sendmsg / c"sendmsg", rsendmsg / c"rsendmsg" (fd, msg: *const msghdr, flags: c_int) -> ssize_t;
    /// Sending.
    for_data => fn write / c"write", rwrite / c"rwrite" (fd, buf: *const c_void, len: size_t) -> ssize_t;
    /// Sending.
    for_data => fn writev / c"writev", rwritev / c"rwritev" (fd, iov: *const iovec, count: c_int) -> ssize_t;
}

/// libc's functions and those of rsockets, for the other files.
pub(crate) mod calls {
    pub(crate) use super::next::*;
}

/// `recv` with `_FORTIFY_SOURCE`. libc's function ends the program if `len` is more than `room`;
/// that is left to libc.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    functions! {
        libc c"__recv_chk": recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t = -1;
    }
    if len <= room && table::get(fd).is_some() {
        // SAFETY: the caller's promise.
        return unsafe { recv(fd, buf, len, flags) };
    }
    // SAFETY: the arguments are the caller's.
    unsafe { recv_chk(fd, buf, len, room, flags) }
}

/// `read` with `_FORTIFY_SOURCE`, as [`__recv_chk`].
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    functions! {
        libc c"__read_chk": read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t = -1;
    }
    if len <= room && table::get(fd).is_some() {
        // SAFETY: the caller's promise.
        return unsafe { read(fd, buf, len) };
    }
    // SAFETY: the arguments are the caller's.
    unsafe { read_chk(fd, buf, len, room) }
}

/// `recvfrom` with `_FORTIFY_SOURCE`, as [`__recv_chk`].
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    functions! {
        libc c"__recvfrom_chk": recvfrom_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t = -1;
    }
    if len <= room && table::get(fd).is_some() {
        // SAFETY: the caller's promise.
        return unsafe { recvfrom(fd, buf, len, flags, addr, addr_len) };
    }
    // SAFETY: the arguments are the caller's.
    unsafe { recvfrom_chk(fd, buf, len, room, flags, addr, addr_len) }
}
