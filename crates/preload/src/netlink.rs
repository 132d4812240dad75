//! Sockets of NETLINK_RDMA: a Unix socket, at whose other end `peerdma run` answers as the kernel
//! would (`launcher::door::preload`).
//!
//! The file `netlink` beside the tree has the letters by which the listener's abstract name is
//! found. That name is as long as a netlink address, with zeros where the port is, so what comes
//! from there comes from the kernel's port 0, and a message to a netlink address goes there. When
//! the program binds the socket, it gets a name of the same form with the program's port in it, and
//! the other end reads the port there. So there is no state here: what a socket is, its names show.

#![allow(unsafe_code, reason = "every function here stands for one of libc's")]

use core::ffi::{c_int, c_void};
use core::mem::size_of;

use libc::{sa_family_t, sockaddr_nl, socklen_t};

use crate::errno;
use crate::redirect::{Room, beside_tree, has_tree};

/// Bytes of a netlink address.
pub(crate) const ADDRESS: usize = size_of::<sockaddr_nl>();
/// The letters of a name: one in the padding of a netlink address, four in its groups.
const LETTERS: usize = 5;
/// The first byte behind the family of an abstract name is 0.
const PAD: usize = 3;
const PORT: usize = 4;
const GROUPS: usize = 8;

/// An address of a socket, as bytes.
pub(crate) type Name = [u8; ADDRESS];

/// A name with these letters and this port.
fn name(letters: [u8; LETTERS], port: u32) -> Name {
    let mut name = [0; ADDRESS];
    // CAST: families are 16 bits.
    name[..2].copy_from_slice(&(libc::AF_UNIX as sa_family_t).to_ne_bytes());
    name[PAD] = letters[0];
    name[PORT..GROUPS].copy_from_slice(&port.to_ne_bytes());
    name[GROUPS..].copy_from_slice(&letters[1..]);
    name
}

/// The name of the listener, if there is one.
pub(crate) fn listener() -> Option<Name> {
    listener_of(b"netlink")
}

/// Waits until the files of counters are those of now, if somebody makes them.
pub(crate) fn refresh_counters() {
    let before = errno::get();
    if let Some(socket) = listener_of(b"counters").and_then(|name| open(&name, libc::SOCK_CLOEXEC))
    {
        let wait = libc::timeval { tv_sec: 1, tv_usec: 0 };
        let (level, option) = (libc::SOL_SOCKET, libc::SO_RCVTIMEO);
        let (value, size) = (&raw const wait, size_of::<libc::timeval>());
        // TIMEOUT: processes that are asked have 0.2 s; a supervisor that was stopped is silent.
        // SAFETY: the structure is as long as the call is told.
        unsafe { libc::syscall(libc::SYS_setsockopt, socket, level, option, value, size) };
        let mut byte = 0_u8;
        // It says nothing, and hangs up when it is done.
        // SAFETY: the buffer has one byte.
        unsafe { libc::syscall(libc::SYS_read, socket, &raw mut byte, 1) };
        // SAFETY: the descriptor is ours.
        unsafe { libc::syscall(libc::SYS_close, socket) };
    }
    errno::set(before);
}

/// The name of the listener whose letters this file beside the tree has.
fn listener_of(file: &[u8]) -> Option<Name> {
    let mut room = Room::new();
    let path = beside_tree(&mut room, file)?;
    // libc's functions may be hooks of ours.
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a terminated path that outlives the call.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags) };
    if fd < 0 {
        return None;
    }
    let mut letters = [0; LETTERS];
    // SAFETY: the buffer has this many bytes.
    let read = unsafe { libc::syscall(libc::SYS_read, fd, letters.as_mut_ptr(), LETTERS) };
    // SAFETY: the descriptor is ours.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    (usize::try_from(read) == Ok(LETTERS)).then(|| name(letters, 0))
}

/// A socket to the listener, of the kind that was asked for; `None` if it cannot be reached.
pub(crate) fn open(listener: &Name, kind: c_int) -> Option<c_int> {
    let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    let kind = libc::SOCK_SEQPACKET | flags;
    // SAFETY: it only makes a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_socket, libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return None;
    }
    // SAFETY: the address has this many bytes.
    let done = unsafe { libc::syscall(libc::SYS_connect, fd, listener.as_ptr(), ADDRESS) };
    if done != 0 {
        // SAFETY: the descriptor is ours.
        unsafe { libc::syscall(libc::SYS_close, fd) };
        return None;
    }
    // CAST: descriptors are ints.
    Some(fd as c_int)
}

/// The address of a socket or of its peer, if it is as long as ours are.
fn address(call: libc::c_long, fd: c_int) -> Option<Name> {
    let mut bytes = [0; ADDRESS];
    let mut length = ADDRESS as socklen_t;
    let (room, size) = (bytes.as_mut_ptr(), &raw mut length);
    // SAFETY: the buffer is as long as the call is told.
    let done = unsafe { libc::syscall(call, fd, room, size) };
    (done == 0 && length as usize == ADDRESS).then_some(bytes)
}

/// Whether a descriptor is a socket of ours.
pub(crate) fn is_ours(fd: c_int) -> bool {
    if !has_tree() {
        return false;
    }
    let peer = address(libc::SYS_getpeername, fd);
    peer.is_some_and(|peer| listener() == Some(peer))
}

/// Gives a socket of ours the port that a netlink address names; the process's number if that is 0.
/// Returns an errno if it cannot have it.
pub(crate) fn bind(fd: c_int, address: &Name) -> c_int {
    let family = sa_family_t::from_ne_bytes([address[0], address[1]]);
    if c_int::from(family) != libc::AF_NETLINK {
        return libc::EINVAL;
    }
    let wanted = u32::from_ne_bytes([address[4], address[5], address[6], address[7]]);
    // SAFETY: it only returns a number.
    let own = unsafe { libc::getpid() };
    let port = if wanted == 0 { own.unsigned_abs() } else { wanted };
    // Sockets of other processes may have the same port: names with other letters are tried.
    for number in 0..26_u32.pow(3) {
        // CAST: below 26.
        let letter = |of: u32| b'a' + (number / of % 26) as u8;
        let ours = name([b'p', b'p', letter(1), letter(26), letter(26 * 26)], port);
        // SAFETY: the address has this many bytes.
        let done = unsafe { libc::syscall(libc::SYS_bind, fd, ours.as_ptr(), ADDRESS) };
        match errno::get() {
            _ if done == 0 => return 0,
            libc::EADDRINUSE => {}
            other => return other,
        }
    }
    libc::EADDRINUSE
}

/// The netlink address of a socket of ours.
pub(crate) fn own_address(fd: c_int) -> Name {
    let bound = address(libc::SYS_getsockname, fd);
    let mut out = [0; ADDRESS];
    // CAST: families are 16 bits.
    out[..2].copy_from_slice(&(libc::AF_NETLINK as sa_family_t).to_ne_bytes());
    if let Some(bound) = bound {
        out[PORT..GROUPS].copy_from_slice(&bound[PORT..GROUPS]);
    }
    out
}

/// Copies an address to where a program wants it, as the kernel does: what fits, and the whole
/// length. Returns an errno.
///
/// # Safety
///
/// `length` is null or that of the room at `out`.
pub(crate) unsafe fn give(name: &Name, out: *mut c_void, length: *mut socklen_t) -> c_int {
    if length.is_null() || out.is_null() {
        return libc::EFAULT;
    }
    // SAFETY: not null, and the caller's promise.
    let room = unsafe { length.read_unaligned() } as usize;
    // SAFETY: the caller's promise; `name` is elsewhere.
    unsafe { core::ptr::copy_nonoverlapping(name.as_ptr(), out.cast(), room.min(ADDRESS)) };
    // SAFETY: as above.
    unsafe { length.write_unaligned(ADDRESS as socklen_t) };
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_netlink_address_with_the_port_in_its_place() {
        let name = name(*b"xabcd", 0x0102_0304);
        // SAFETY: both are plain bytes of the same size.
        let address: sockaddr_nl = unsafe { core::mem::transmute(name) };
        assert_eq!(
            (address.nl_pid, address.nl_groups),
            (0x0102_0304, u32::from_ne_bytes(*b"abcd"))
        );
        assert_eq!(c_int::from(address.nl_family), libc::AF_UNIX);
        assert_eq!((name[2], name[3]), (0, b'x'), "an abstract name");
    }

    #[test]
    fn without_a_tree_there_is_no_listener() {
        assert_eq!(listener(), None);
    }
}
