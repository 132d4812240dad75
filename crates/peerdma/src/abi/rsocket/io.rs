//! Sending and receiving.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, PoisonError};

use libc::{iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use rsocket::{End, Stream};

use super::call;
use super::conn::Conn;
use super::memory::Pieces;
use super::socket::{Kind, Socket, find, internet};
use super::stream::give_address;
use crate::abi::rdmacm::{Answer, Failure, sockaddr as addresses};

/// The sizes of the pieces in which data is sent: each twice as large as the one before, so that
/// the first are under way while the others are copied.
struct Growth(u32);

impl Growth {
    /// `RS_OLAP_START_SIZE` and `RS_MAX_TRANSFER`.
    const FIRST: u32 = 2048;
    const LAST: u32 = 65536;

    /// The next piece of `left` bytes.
    fn next(&mut self, left: usize) -> u32 {
        let size = self.0;
        if (size as usize) < left {
            self.0 = (size * 2).min(Self::LAST);
            size
        } else {
            left as u32
        }
    }
}

/// The count of a call that sent or received `done` bytes before `why` stopped it.
fn count(done: usize, why: Answer) -> Answer<ssize_t> {
    match why {
        Err(failure) if done == 0 => Err(failure),
        _ => Ok(done.cast_signed()),
    }
}

/// Sends a stream's next bytes with `post`, piece by piece, until all are sent, or it would have to
/// wait and may not, or `post` says that there is no more to do.
pub(super) fn send_all(
    conn: &Conn,
    from: &mut Pieces<'_>,
    may_wait: bool,
    mut post: impl FnMut(&Conn, &mut Stream, u32, &mut Pieces<'_>) -> Answer<bool>,
) -> Answer<ssize_t> {
    let _sender = conn.sender.lock().unwrap_or_else(PoisonError::into_inner);
    conn.send_mappings(may_wait)?;
    let whole = from.left();
    let mut growth = Growth(Growth::FIRST);
    let mut send = || -> Answer {
        while from.left() > 0 {
            let mut core = may_send(conn, may_wait)?;
            let wanted = growth.next(from.left());
            if !post(conn, &mut core, wanted, from)? {
                break;
            }
        }
        Ok(())
    };
    let why = send();
    count(whole - from.left(), why)
}

/// Waits until something can be sent.
///
/// # Errors
/// ECONNRESET if nothing can be sent any more.
pub(super) fn may_send(conn: &Conn, may_wait: bool) -> Answer<std::sync::MutexGuard<'_, Stream>> {
    let mut core = conn.core();
    if !core.is_writable() || !conn.may_send(&core) {
        drop(core);
        core = conn.wait_for(may_wait, |core| conn.may_send(core) || !core.is_writable())?;
    }
    if !core.is_writable() {
        return Err(Failure::new(libc::ECONNRESET, "the connection takes no more data"));
    }
    Ok(core)
}

fn send_stream(conn: &Conn, mut from: Pieces<'_>, may_wait: bool) -> Answer<ssize_t> {
    send_all(conn, &mut from, may_wait, |conn, core, wanted, from| {
        conn.send(core, wanted, from).map(|()| true)
    })
}

fn receive_stream(
    conn: &Conn,
    mut to: Pieces<'_>,
    flags: c_int,
    may_wait: bool,
) -> Answer<ssize_t> {
    let _receiver = conn.receiver.lock().unwrap_or_else(PoisonError::into_inner);
    let whole = to.left();
    let is_peek = flags & libc::MSG_PEEK != 0;
    let wants_all = flags & libc::MSG_WAITALL != 0 && !is_peek;
    let mut receive = || -> Answer {
        while to.left() > 0 {
            let mut core = conn.core();
            if core.available() == 0 {
                drop(core);
                core =
                    conn.wait_for(may_wait, |core| core.available() > 0 || !core.is_readable())?;
            }
            if core.available() == 0 {
                if core.end() == Some(End::Failed) {
                    return Err(Failure::new(libc::ECONNRESET, "the connection broke"));
                }
                return Ok(());
            }
            conn.read(&mut core, &mut to, is_peek)?;
            if !wants_all {
                return Ok(());
            }
        }
        Ok(())
    };
    let why = receive();
    count(whole - to.left(), why)
}

fn send(socket: &Arc<Socket>, from: Pieces<'_>, flags: c_int) -> Answer<ssize_t> {
    match &socket.kind {
        Kind::Stream(stream) => send_stream(stream.conn()?, from, socket.may_wait(flags)),
        Kind::Datagram(datagram) => datagram.send(socket, from, None, flags),
    }
}

/// Receives. Room for an address gets the sender's.
///
/// # Safety
///
/// The room for an address, if there is one, is as long as said.
unsafe fn receive(
    socket: &Arc<Socket>,
    to: Pieces<'_>,
    flags: c_int,
    (addr, len): (*mut sockaddr, *mut socklen_t),
) -> Answer<ssize_t> {
    match &socket.kind {
        Kind::Stream(stream) => {
            let count = receive_stream(stream.conn()?, to, flags, socket.may_wait(flags))?;
            if count > 0 && !addr.is_null() && !len.is_null() {
                // SAFETY: the caller's promise.
                unsafe { stream.peer_name(addr, len) }?;
            }
            Ok(count)
        }
        Kind::Datagram(datagram) => {
            let (count, source) = datagram.receive(socket, to, flags)?;
            if let Some(source) = source
                && !addr.is_null()
                && !len.is_null()
            {
                // SAFETY: the caller's promise.
                unsafe { give_address(&addresses::write(source), addr, len) };
            }
            Ok(count)
        }
    }
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
/// The address is NULL or as long as said.
unsafe fn send_to(
    socket: &Arc<Socket>,
    from: Pieces<'_>,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> Answer<ssize_t> {
    match &socket.kind {
        Kind::Stream(_) if !addr.is_null() || addr_len > 0 => {
            Err(Failure::new(libc::EISCONN, "rsendto: a stream has one peer"))
        }
        Kind::Datagram(datagram) if !addr.is_null() => {
            // SAFETY: the caller's promise.
            let to = unsafe { internet("rsendto", addr, addr_len) }?;
            datagram.send(socket, from, Some(to), flags)
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
        if let Kind::Stream(_) = &socket.kind {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_grow_until_they_are_large() {
        let mut growth = Growth(Growth::FIRST);
        let sizes: Vec<_> = [1000, 1 << 20, 1 << 20, 5000].map(|left| growth.next(left)).into();
        assert_eq!(sizes, [1000, 2048, 4096, 5000]);
        let mut growth = Growth(Growth::LAST);
        assert_eq!((growth.next(1 << 20), growth.next(1 << 20)), (65536, 65536));
    }
}
