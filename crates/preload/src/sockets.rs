//! libc's functions of sockets that a socket of NETLINK_RDMA needs. Each passes everything else on.

#![allow(unsafe_code, reason = "every function here stands for one of libc's")]

use core::ffi::{c_int, c_void};

use libc::{sockaddr, socklen_t};

use crate::errno;
use crate::netlink::{self, ADDRESS};
use crate::next::next;

/// `NETLINK_RDMA` of the kernel's `linux/netlink.h`.
const RDMA: c_int = 20;

/// What a function of ours returned, in libc's form.
fn ended(why: c_int) -> c_int {
    if why == 0 {
        return 0;
    }
    errno::set(why);
    -1
}

/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK
        && protocol == RDMA
        && matches!(kind & 0xf, libc::SOCK_RAW | libc::SOCK_DGRAM)
        && let Some(fd) = netlink::listener().and_then(|listener| netlink::open(&listener, kind))
    {
        return fd;
    }
    let next = next!(c"socket": fn(c_int, c_int, c_int) -> c_int = -1);
    // SAFETY: the arguments are the caller's.
    unsafe { next(domain, kind, protocol) }
}

/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn bind(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int {
    if length as usize == ADDRESS && !name.is_null() && netlink::is_ours(fd) {
        // SAFETY: the caller promises an address of this length.
        let name = unsafe { name.cast::<netlink::Name>().read_unaligned() };
        return ended(netlink::bind(fd, &name));
    }
    let next = next!(c"bind": fn(c_int, *const sockaddr, socklen_t) -> c_int = -1);
    // SAFETY: the arguments are the caller's.
    unsafe { next(fd, name, length) }
}

/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn getsockname(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
    if netlink::is_ours(fd) {
        // SAFETY: the caller promises room of this length.
        return ended(unsafe { netlink::give(&netlink::own_address(fd), name.cast(), length) });
    }
    let next = next!(c"getsockname": fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int = -1);
    // SAFETY: the arguments are the caller's.
    unsafe { next(fd, name, length) }
}

/// Options of netlink are accepted: what they ask for is so anyway, or is never sent.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    if level == libc::SOL_NETLINK && netlink::is_ours(fd) {
        return 0;
    }
    let next =
        next!(c"setsockopt": fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int = -1);
    // SAFETY: the arguments are the caller's.
    unsafe { next(fd, level, option, value, length) }
}
