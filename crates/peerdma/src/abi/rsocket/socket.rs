//! Sockets, the table of them, and the calls about their names.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use libc::{sockaddr, socklen_t};
use rsocket::How;

use super::datagram::DatagramSocket;
use super::settings::SETTINGS;
use super::stream::{StreamSocket, address};
use super::waker::Watchers;
use super::{call, done, epoll, service};
use crate::abi::rdmacm::{Answer, Failure, sockaddr as addresses};

/// What a descriptor stands for.
pub(super) struct Socket {
    pub(super) fd: c_int,
    pub(super) kind: Kind,
    /// As of `F_GETFL` and `F_GETFD`.
    pub(super) status_flags: AtomicI32,
    pub(super) descriptor_flags: AtomicI32,
    options: Mutex<Options>,
    pub(super) watchers: Arc<Watchers>,
    /// A child of a fork has it in name only.
    pid: u32,
}

pub(super) enum Kind {
    Stream(Box<StreamSocket>),
    Datagram(Box<DatagramSocket>),
}

/// What `setsockopt` chose and the connection manager does not keep.
#[derive(Clone)]
pub(super) struct Options {
    pub(super) sizes: rsocket::Sizes,
    pub(super) reuse_addr: bool,
    pub(super) linger: bool,
    pub(super) oob_inline: bool,
    pub(super) no_delay: bool,
    pub(super) v6_only: bool,
    pub(super) tos: c_int,
    /// `SO_ERROR`.
    pub(super) error: c_int,
    /// Seconds between probes, once it was asked for.
    pub(super) keep_idle: Option<u32>,
    /// When the next probe is due, if probes are wanted.
    pub(super) probe: Option<Instant>,
    /// The path to use (`RDMA_ROUTE`).
    pub(super) route: Vec<u8>,
}

impl Options {
    fn new() -> Self {
        Self {
            sizes: SETTINGS.sizes,
            reuse_addr: false,
            linger: true,
            oob_inline: false,
            no_delay: false,
            v6_only: false,
            tos: 0,
            error: 0,
            keep_idle: None,
            probe: None,
            route: Vec::new(),
        }
    }

    /// How long a connection may be silent before a probe.
    pub(super) fn keep_idle(&self) -> Duration {
        Duration::from_secs(self.keep_idle.unwrap_or(7200).into())
    }
}

static SOCKETS: RwLock<BTreeMap<c_int, Arc<Socket>>> = RwLock::new(BTreeMap::new());

/// The socket of a descriptor.
pub(super) fn lookup(fd: c_int) -> Option<Arc<Socket>> {
    SOCKETS.read().unwrap_or_else(PoisonError::into_inner).get(&fd).cloned()
}

/// The socket of a descriptor.
///
/// # Errors
/// EBADF if it is none.
pub(super) fn find(fd: c_int) -> Answer<Arc<Socket>> {
    lookup(fd).ok_or_else(|| Failure::new(libc::EBADF, format!("descriptor {fd} is no rsocket")))
}

impl Socket {
    pub(super) fn new(fd: c_int, kind: Kind) -> Self {
        Self {
            fd,
            kind,
            status_flags: AtomicI32::new(libc::O_RDWR),
            descriptor_flags: AtomicI32::new(0),
            options: Mutex::new(Options::new()),
            watchers: Arc::default(),
            pid: std::process::id(),
        }
    }

    /// A socket that a listener made, with the listener's options.
    pub(super) fn child(&self, fd: c_int, kind: Kind) -> Self {
        let flag = |flag: &AtomicI32| AtomicI32::new(flag.load(Ordering::Relaxed));
        let options =
            Options { error: 0, probe: None, route: Vec::new(), ..self.options().clone() };
        Self {
            status_flags: flag(&self.status_flags),
            descriptor_flags: flag(&self.descriptor_flags),
            options: Mutex::new(options),
            ..Self::new(fd, kind)
        }
    }

    /// Makes it known.
    pub(super) fn publish(self: &Arc<Self>) -> c_int {
        let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
        sockets.insert(self.fd, Arc::clone(self));
        self.fd
    }

    pub(super) fn options(&self) -> MutexGuard<'_, Options> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether calls return instead of waiting.
    pub(super) fn is_nonblocking(&self) -> bool {
        self.status_flags.load(Ordering::Relaxed) & libc::O_NONBLOCK != 0
    }

    /// Whether a call with these flags may wait.
    pub(super) fn may_wait(&self, flags: c_int) -> bool {
        !self.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0
    }

    /// Whether it is of the parent of this process.
    pub(super) fn is_inherited(&self) -> bool {
        self.pid != std::process::id()
    }

    /// The stream it is.
    ///
    /// # Errors
    /// EOPNOTSUPP for datagrams.
    pub(super) fn stream(&self, call: &str) -> Answer<&StreamSocket> {
        match &self.kind {
            Kind::Stream(stream) => Ok(stream),
            Kind::Datagram(_) => {
                Err(Failure::new(libc::EOPNOTSUPP, format!("{call}: the rsocket is of datagrams")))
            }
        }
    }
}

/// An address of the Internet that a program gives.
///
/// # Errors
/// EINVAL for another family, as of [`address`].
///
/// # Safety
///
/// The address is as long as said.
pub(super) unsafe fn internet(
    call: &str,
    addr: *const sockaddr,
    len: socklen_t,
) -> Answer<SocketAddr> {
    // SAFETY: the caller's promise.
    let room = unsafe { address(call, addr, len) }?;
    // SAFETY: the room is as long as any address.
    unsafe { addresses::read(call, (&raw const room).cast()) }
}

pub(crate) unsafe extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    call("rsocket", || {
        let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let socket = match (domain, kind & !flags, protocol) {
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
                StreamSocket::create(domain)?
            }
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
                DatagramSocket::create(domain)?
            }
            _ => {
                let what = format!(
                    "rsocket: domain {domain}, type {kind}, protocol {protocol}: there are TCP and UDP over IPv4 and IPv6"
                );
                return Err(Failure::new(libc::ENOTSUP, what));
            }
        };
        if flags & libc::SOCK_NONBLOCK != 0 {
            socket.status_flags.fetch_or(libc::O_NONBLOCK, Ordering::Relaxed);
        }
        if flags & libc::SOCK_CLOEXEC != 0 {
            socket.descriptor_flags.store(libc::FD_CLOEXEC, Ordering::Relaxed);
        }
        Ok(Arc::new(socket).publish())
    })
}

pub(crate) unsafe extern "C" fn rbind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    done("rbind", || {
        let socket = find(fd)?;
        match &socket.kind {
            // SAFETY: contract: the address is as long as said.
            Kind::Stream(stream) => unsafe { stream.bind(addr, len) },
            Kind::Datagram(datagram) => {
                // SAFETY: as above.
                let addr = unsafe { internet("rbind", addr, len) }?;
                datagram.bind(&socket, addr)
            }
        }
    })
}

pub(crate) unsafe extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    done("rlisten", || {
        let socket = find(fd)?;
        socket.stream("rlisten")?.listen(&socket, backlog)
    })
}

pub(crate) unsafe extern "C" fn raccept(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    call("raccept", || {
        let socket = find(fd)?;
        let new = socket.stream("raccept")?.accept(socket.may_wait(0))?;
        if !addr.is_null() && !len.is_null() {
            // SAFETY: contract: there is room for an address of this length.
            unsafe { new.stream("raccept")?.peer_name(addr, len) }?;
        }
        Ok(new.publish())
    })
}

pub(crate) unsafe extern "C" fn rconnect(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    done("rconnect", || {
        let socket = find(fd)?;
        match &socket.kind {
            // SAFETY: contract: the address is as long as said.
            Kind::Stream(stream) => unsafe { stream.connect(&socket, addr, len) },
            Kind::Datagram(datagram) => {
                // SAFETY: as above.
                let addr = unsafe { internet("rconnect", addr, len) }?;
                datagram.connect(&socket, addr)
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
        match &socket.kind {
            Kind::Stream(stream) => stream.shutdown(&socket, how),
            Kind::Datagram(datagram) => datagram.shutdown(&socket, how),
        }
    })
}

pub(crate) unsafe extern "C" fn rclose(fd: c_int) -> c_int {
    done("rclose", || {
        let removed = SOCKETS.write().unwrap_or_else(PoisonError::into_inner).remove(&fd);
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
            match &socket.kind {
                Kind::Stream(stream) => stream.close(&socket),
                Kind::Datagram(datagram) => datagram.close(),
            }
            service::remove(&socket);
        }
        // The descriptor, the port and the queue pair go with the last who uses the socket.
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
        let socket = find(fd)?;
        match &socket.kind {
            // SAFETY: contract: there is room for an address of this length.
            Kind::Stream(stream) => unsafe { stream.peer_name(addr, len) },
            // SAFETY: as above.
            Kind::Datagram(datagram) => unsafe { datagram.name(true, addr, len) },
        }
    })
}

pub(crate) unsafe extern "C" fn rgetsockname(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    done("rgetsockname", || {
        let socket = find(fd)?;
        match &socket.kind {
            // SAFETY: contract: there is room for an address of this length.
            Kind::Stream(stream) => unsafe { stream.own_name(addr, len) },
            // SAFETY: as above.
            Kind::Datagram(datagram) => unsafe { datagram.name(false, addr, len) },
        }
    })
}
