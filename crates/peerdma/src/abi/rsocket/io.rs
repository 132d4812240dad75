//! Sending and receiving.

use std::ffi::{c_int, c_short, c_void};
use std::net::SocketAddr;
use std::sync::Arc;

use libc::{iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use super::call;
use super::common::Common;
use super::datagram::DatagramSocket;
use super::memory::Pieces;
use super::names::{give_address, internet};
use super::poll::poll;
use super::socket::{Socket, find};
use super::transfer::{receive_stream, send_stream};
use crate::abi::rdmacm::{Answer, Failure, sockaddr as addresses};

fn send(socket: &Socket, mut from: Pieces<'_>, flags: c_int) -> Answer<ssize_t> {
    match socket {
        Socket::Stream(stream) => send_stream(stream.conn()?, from, socket.may_wait(flags)),
        Socket::Datagram(datagram) => send_datagram(datagram, &mut from, None, flags),
    }
}

/// Sends a datagram, and waits for a buffer unless it must not.
fn send_datagram(
    datagram: &Arc<DatagramSocket>,
    from: &mut Pieces<'_>,
    to: Option<SocketAddr>,
    flags: c_int,
) -> Answer<ssize_t> {
    loop {
        if let Some(sent) = datagram.try_send(from, to)? {
            return Ok(sent);
        }
        wait(&datagram.common, libc::POLLOUT, flags)?;
    }
}

/// Waits as a program does, by polling.
///
/// # Errors
/// EAGAIN if the call must not wait.
fn wait(socket: &Common, events: c_short, flags: c_int) -> Answer {
    if !socket.may_wait(flags) {
        return Err(Failure::quiet(libc::EAGAIN));
    }
    let mut fds = [libc::pollfd { fd: socket.fd, events, revents: 0 }];
    poll(&mut fds, -1).map(drop)
}

/// Receives. If there is room for an address, it gets the sender's.
///
/// # Safety
///
/// The room for an address, if there is one, has the given length.
unsafe fn receive(
    socket: &Socket,
    mut to: Pieces<'_>,
    flags: c_int,
    (addr, len): (*mut sockaddr, *mut socklen_t),
) -> Answer<ssize_t> {
    let has_room = !addr.is_null() && !len.is_null();
    let (count, source) = match socket {
        Socket::Stream(stream) => {
            let count = receive_stream(stream.conn()?, to, flags, socket.may_wait(flags))?;
            let source = if count > 0 && has_room { Some(stream.peer_name()?) } else { None };
            (count, source)
        }
        Socket::Datagram(datagram) => loop {
            if let Some(received) = datagram.try_receive(&mut to, flags)? {
                break received;
            }
            wait(&datagram.common, libc::POLLIN, flags)?;
        },
    };
    if let Some(source) = source.filter(|_| has_room) {
        // SAFETY: the caller's promise.
        unsafe { give_address(&addresses::write(source), addr, len) };
    }
    Ok(count)
}

const NOWHERE: (*mut sockaddr, *mut socklen_t) = (std::ptr::null_mut(), std::ptr::null_mut());

pub(crate) unsafe extern "C" fn rsend(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    call("rsend", || {
        // SAFETY: contract: the memory is the program's.
        let from = unsafe { Pieces::one(buf.cast_mut(), len) };
        send(&find(fd)?, from, flags)
    })
}

pub(crate) unsafe extern "C" fn rwrite(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: contract.
    unsafe { rsend(fd, buf, len, 0) }
}

pub(crate) unsafe extern "C" fn rsendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> ssize_t {
    call("rsendto", || {
        // SAFETY: contract: the memory is the program's.
        let from = unsafe { Pieces::one(buf.cast_mut(), len) };
        // SAFETY: contract: the address is NULL or as long as said.
        unsafe { send_to(&find(fd)?, from, flags, addr, addr_len) }
    })
}

/// Sends to an address, if there is one.
///
/// # Safety
///
/// The address is NULL or has the given length.
unsafe fn send_to(
    socket: &Socket,
    mut from: Pieces<'_>,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> Answer<ssize_t> {
    match socket {
        Socket::Stream(_) if !addr.is_null() || addr_len > 0 => {
            Err(Failure::new(libc::EISCONN, "rsendto: a stream has one peer"))
        }
        Socket::Datagram(datagram) if !addr.is_null() => {
            // SAFETY: the caller's promise.
            let to = unsafe { internet("rsendto", addr, addr_len) }?;
            send_datagram(datagram, &mut from, Some(to), flags)
        }
        _ => send(socket, from, flags),
    }
}

pub(crate) unsafe extern "C" fn rsendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    call("rsendmsg", || {
        // SAFETY: contract: the message is valid.
        let msg = unsafe { &*msg };
        if !msg.msg_control.is_null() && msg.msg_controllen > 0 {
            return Err(Failure::new(libc::ENOTSUP, "rsendmsg: rsockets carry data only"));
        }
        // SAFETY: contract: the list is as long as said.
        let from = unsafe { Pieces::many(msg.msg_iov, msg.msg_iovlen) }?;
        let socket = find(fd)?;
        if let Socket::Stream(_) = &socket {
            return send(&socket, from, flags);
        }
        // SAFETY: contract: the address is NULL or as long as said.
        unsafe { send_to(&socket, from, flags, msg.msg_name.cast(), msg.msg_namelen) }
    })
}

pub(crate) unsafe extern "C" fn rwritev(fd: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    call("rwritev", || {
        // SAFETY: contract: the list is as long as said. A negative length is too long.
        let from = unsafe { Pieces::many(iov, iovcnt as usize) }?;
        send(&find(fd)?, from, 0)
    })
}

pub(crate) unsafe extern "C" fn rrecv(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    call("rrecv", || {
        // SAFETY: contract: the memory is the program's.
        let to = unsafe { Pieces::one(buf, len) };
        // SAFETY: there is no room for an address.
        unsafe { receive(&find(fd)?, to, flags, NOWHERE) }
    })
}

pub(crate) unsafe extern "C" fn rread(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: contract.
    unsafe { rrecv(fd, buf, len, 0) }
}

pub(crate) unsafe extern "C" fn rrecvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    call("rrecvfrom", || {
        // SAFETY: contract: the memory is the program's.
        let to = unsafe { Pieces::one(buf, len) };
        // SAFETY: contract: there is room for an address of the length that is said.
        unsafe { receive(&find(fd)?, to, flags, (addr, addr_len)) }
    })
}

pub(crate) unsafe extern "C" fn rrecvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    call("rrecvmsg", || {
        // SAFETY: contract: the message is valid.
        let msg = unsafe { &mut *msg };
        if !msg.msg_control.is_null() && msg.msg_controllen > 0 {
            return Err(Failure::new(libc::ENOTSUP, "rrecvmsg: rsockets carry data only"));
        }
        // SAFETY: contract: the list is as long as said.
        let to = unsafe { Pieces::many(msg.msg_iov, msg.msg_iovlen) }?;
        msg.msg_flags = 0;
        let address = (msg.msg_name.cast(), &raw mut msg.msg_namelen);
        // SAFETY: contract: there is room for an address of the length that is said.
        unsafe { receive(&find(fd)?, to, flags, address) }
    })
}

pub(crate) unsafe extern "C" fn rreadv(fd: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    call("rreadv", || {
        // SAFETY: contract: the list is as long as said. A negative length is too long.
        let to = unsafe { Pieces::many(iov, iovcnt as usize) }?;
        // SAFETY: there is no room for an address.
        unsafe { receive(&find(fd)?, to, 0, NOWHERE) }
    })
}
