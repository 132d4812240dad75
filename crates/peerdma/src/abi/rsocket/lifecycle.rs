//! Creation, connection and end of a socket, and the calls for its addresses.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::{sockaddr, socklen_t};
use rsocket::How;

use super::datagram::DatagramSocket;
use super::names::{give_address, internet};
use super::socket::{Socket, find, find_stream, take};
use super::stream::StreamSocket;
use super::{call, done, epoll, service};
use crate::abi::rdmacm::{Failure, sockaddr as addresses};

pub(crate) unsafe extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    call("rsocket", || {
        let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let new = match (domain, kind & !flags, protocol) {
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
                Socket::Stream(Arc::new(StreamSocket::create(domain)?))
            }
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
                Socket::Datagram(Arc::new(DatagramSocket::create(domain)?))
            }
            _ => {
                let what = format!(
                    "rsocket: domain {domain}, type {kind}, protocol {protocol}: only TCP and UDP over IPv4 and IPv6 are supported"
                );
                return Err(Failure::new(libc::ENOTSUP, what));
            }
        };
        if flags & libc::SOCK_NONBLOCK != 0 {
            new.status_flags.fetch_or(libc::O_NONBLOCK, Ordering::Relaxed);
        }
        if flags & libc::SOCK_CLOEXEC != 0 {
            new.descriptor_flags.store(libc::FD_CLOEXEC, Ordering::Relaxed);
        }
        Ok(new.publish())
    })
}

pub(crate) unsafe extern "C" fn rbind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    done("rbind", || {
        match find(fd)? {
            // SAFETY: contract: the address is as long as said.
            Socket::Stream(stream) => unsafe { stream.bind(addr, len) },
            Socket::Datagram(datagram) => {
                // SAFETY: as above.
                let addr = unsafe { internet("rbind", addr, len) }?;
                datagram.bind(addr)
            }
        }
    })
}

pub(crate) unsafe extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    done("rlisten", || find_stream("rlisten", fd)?.listen(backlog))
}

pub(crate) unsafe extern "C" fn raccept(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    call("raccept", || {
        let listener = find_stream("raccept", fd)?;
        let new = listener.accept(listener.common.may_wait(0))?;
        if !addr.is_null() && !len.is_null() {
            let peer = addresses::write(new.peer_name()?);
            // SAFETY: contract: there is room for an address of this length.
            unsafe { give_address(&peer, addr, len) };
        }
        Ok(Socket::Stream(new).publish())
    })
}

pub(crate) unsafe extern "C" fn rconnect(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    done("rconnect", || {
        match find(fd)? {
            // SAFETY: contract: the address is as long as said.
            Socket::Stream(stream) => unsafe { stream.connect(addr, len) },
            Socket::Datagram(datagram) => {
                // SAFETY: as above.
                let addr = unsafe { internet("rconnect", addr, len) }?;
                datagram.connect(addr)
            }
        }
    })
}

pub(crate) unsafe extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    done("rshutdown", || {
        let socket = find(fd)?;
        let how = match how {
            libc::SHUT_RD => How::Read,
            libc::SHUT_WR => How::Write,
            libc::SHUT_RDWR => How::Both,
            _ => return Err(Failure::new(libc::EINVAL, format!("rshutdown: how {how}"))),
        };
        match socket {
            Socket::Stream(stream) => stream.shutdown(how),
            Socket::Datagram(datagram) => datagram.shutdown(how),
        }
    })
}

pub(crate) unsafe extern "C" fn rclose(fd: c_int) -> c_int {
    done("rclose", || {
        let removed = take(fd);
        epoll::forget(fd);
        let Some(socket) = removed else {
            if epoll::close(fd) {
                return Ok(());
            }
            return Err(Failure::new(
                libc::EBADF,
                format!("rclose: descriptor {fd} is no rsocket"),
            ));
        };
        if !socket.is_inherited() {
            match &socket {
                Socket::Stream(stream) => {
                    stream.close();
                    service::remove(stream);
                }
                Socket::Datagram(datagram) => {
                    datagram.close();
                    service::remove(datagram);
                }
            }
        }
        // The last user of the socket drops the descriptor, the port and the queue pair.
        drop(socket);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn rgetpeername(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    done("rgetpeername", || {
        let peer = match find(fd)? {
            Socket::Stream(stream) => stream.peer_name()?,
            Socket::Datagram(datagram) => datagram.name(true)?,
        };
        // SAFETY: contract: there is room for an address of this length.
        unsafe { give_address(&addresses::write(peer), addr, len) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn rgetsockname(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    done("rgetsockname", || {
        let own = match find(fd)? {
            Socket::Stream(stream) => stream.own_name(),
            Socket::Datagram(datagram) => datagram.name(false)?,
        };
        // SAFETY: contract: there is room for an address of this length.
        unsafe { give_address(&addresses::write(own), addr, len) };
        Ok(())
    })
}
