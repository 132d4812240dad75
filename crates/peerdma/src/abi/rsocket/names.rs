//! Socket addresses, as programs pass and receive them.

use std::ffi::c_int;
use std::mem;
use std::net::SocketAddr;
use std::ptr;

use libc::{sockaddr, sockaddr_storage, socklen_t};

use crate::abi::rdmacm::{Answer, Failure, sockaddr as addresses};

/// An Internet address that a program passes.
///
/// # Errors
/// EINVAL for another family; the errors of [`address`].
///
/// # Safety
///
/// The address has the given length.
pub(super) unsafe fn internet(
    call: &str,
    addr: *const sockaddr,
    len: socklen_t,
) -> Answer<SocketAddr> {
    // SAFETY: the caller's promise.
    let room = unsafe { address(call, addr, len) }?;
    // SAFETY: the room is large enough for any address.
    unsafe { addresses::read(call, (&raw const room).cast()) }
}

/// Writes an address for a program, as far as there is room, and its length.
///
/// # Safety
///
/// There is room for an address of the given length.
pub(super) unsafe fn give_address(
    room: &sockaddr_storage,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) {
    let size = match c_int::from(room.ss_family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        _ => size_of::<libc::sockaddr_in6>(),
    };
    // SAFETY: the caller's promise.
    let given = unsafe { len.read() } as usize;
    // SAFETY: the caller's promise.
    unsafe { len.write(size as socklen_t) };
    if !addr.is_null() {
        // SAFETY: the caller's promise; the source is at least as long.
        unsafe {
            ptr::copy_nonoverlapping((&raw const *room).cast::<u8>(), addr.cast(), given.min(size))
        };
    }
}

/// Copies an address of a program to room for any address.
///
/// # Errors
/// EFAULT for NULL, EINVAL for one that is shorter than its family's.
///
/// # Safety
///
/// The address has the given length.
unsafe fn address(call: &str, addr: *const sockaddr, len: socklen_t) -> Answer<sockaddr_storage> {
    if addr.is_null() {
        return Err(Failure::new(libc::EFAULT, format!("{call}: no address")));
    }
    let invalid = |what: String| Failure::new(libc::EINVAL, format!("{call}: {what}"));
    let length = len as usize;
    if length < size_of::<libc::sa_family_t>() || length > size_of::<sockaddr_storage>() {
        return Err(invalid(format!("an address of {len} bytes")));
    }
    // SAFETY: the structure is made of integers, for which zero is a value.
    let mut room: sockaddr_storage = unsafe { mem::zeroed() };
    // SAFETY: the caller's promise; the room is larger.
    unsafe { ptr::copy_nonoverlapping(addr.cast::<u8>(), (&raw mut room).cast(), length) };
    let needed = match c_int::from(room.ss_family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        // The scope is optional, as in the kernel (`SIN6_LEN_RFC2133`).
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>() - 4,
        _ => 0,
    };
    if length < needed {
        return Err(invalid(format!("an address of {len} bytes, where {needed} are needed")));
    }
    Ok(room)
}
