//! Options and flags of sockets.

use std::ffi::{c_int, c_long, c_void};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Instant;

use libc::{linger, socklen_t};
use rsocket::{End, scale, unscale};

use super::common::Common;
use super::datagram::DatagramSocket;
use super::route::path_data;
use super::socket::{Socket, find};
use super::stream::{Phase, StreamSocket};
use super::{call, done, service};
use crate::abi::rdmacm::{Answer, Failure};
use crate::abi::types::rdma::{PathData, SaPathRec};

/// The level of rsockets' own options.
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
const RDMA_ROUTE: c_int = 4;

/// Queue sizes have 16 bits.
const SIZE_MAX: u32 = 0xfffe;

/// The value of an option, as a program passes it.
#[derive(Clone, Copy)]
struct Given {
    value: *const c_void,
    length: usize,
}

impl Given {
    /// The value as a `T`.
    ///
    /// # Errors
    /// EINVAL if it is shorter, EFAULT if there is none.
    ///
    /// # Safety
    ///
    /// It has the given length, and all bit patterns are values of `T`.
    unsafe fn get<T: Copy>(self) -> Answer<T> {
        if self.value.is_null() {
            return Err(Failure::new(libc::EFAULT, "rsetsockopt: no value"));
        }
        if self.length < size_of::<T>() {
            let (length, size) = (self.length, size_of::<T>());
            return Err(Failure::new(
                libc::EINVAL,
                format!("rsetsockopt: {length} bytes of {size}"),
            ));
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { self.value.cast::<T>().read_unaligned() })
    }
}

fn unknown(level: c_int, name: c_int) -> Failure {
    Failure::new(libc::ENOTSUP, format!("rsockets have no option {name} at level {level:#x}"))
}

pub(crate) unsafe extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    done("rsetsockopt", || {
        let given = Given { value, length: len as usize };
        match find(fd)? {
            // SAFETY: contract: the value is as long as said.
            Socket::Stream(stream) => unsafe { set(&stream, level, name, given) },
            // SAFETY: as above.
            Socket::Datagram(datagram) => unsafe { set_datagram(&datagram, level, name, given) },
        }
    })
}

/// Sets an option of a stream.
///
/// # Safety
///
/// The value has the given length.
unsafe fn set(stream: &StreamSocket, level: c_int, name: c_int, given: Given) -> Answer {
    let socket = &stream.common;
    // SAFETY: the caller's promise.
    let number = || unsafe { given.get::<c_int>() };
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => {
            let on = number()?;
            // A bound socket keeps what it was bound with, and that is no error.
            if stream.phase() == Phase::New {
                stream.id().set_reuse_addr(on != 0)?;
            }
            socket.options().reuse_addr = on != 0;
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
            let size = number()?.cast_unsigned().saturating_mul(2);
            if stream.phase() != Phase::Connected {
                socket.options().sizes.receive_buffer = size;
            }
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
            let size = number()?.cast_unsigned().saturating_mul(2);
            if stream.phase() != Phase::Connected {
                socket.options().sizes.send_buffer = size.max(2 * rsocket::SEND_LOW_WATER);
            }
        }
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            // SAFETY: the caller's promise; the structure is made of integers.
            socket.options().linger = unsafe { given.get::<linger>() }?.l_onoff != 0;
        }
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => set_keepalive(socket, number()? != 0),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => socket.options().oob_inline = number()? != 0,
        (libc::IPPROTO_IP, libc::IP_TOS) => {
            let tos = number()?;
            let tos = u8::try_from(tos).map_err(|_| {
                Failure::new(libc::EINVAL, format!("IP_TOS: {tos} does not fit in a byte"))
            })?;
            stream.id().set_tos(tos)?;
            socket.options().tos = tos.into();
        }
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
            let seconds = number()?;
            if seconds <= 0 {
                return Err(Failure::new(libc::EINVAL, format!("TCP_KEEPIDLE: {seconds} seconds")));
            }
            let mut options = socket.options();
            options.keep_idle = Some(seconds.cast_unsigned());
            options.probe = options.probe.map(|_| Instant::now() + options.keep_idle());
            drop(options);
            service::wake();
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => socket.options().no_delay = number()? != 0,
        // A reliable connection does this by itself.
        (
            libc::IPPROTO_TCP,
            libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_MAXSEG | libc::TCP_CONGESTION,
        ) => {}
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
            let on = number()?;
            stream.id().set_af_only(on != 0)?;
            socket.options().v6_only = on != 0;
        }
        (SOL_RDMA, _) if !matches!(stream.phase(), Phase::New | Phase::Listening) => {
            let what = format!("option {name}: the rsocket is connecting or connected");
            return Err(Failure::new(libc::EINVAL, what));
        }
        // SAFETY: the caller's promise.
        (SOL_RDMA, RDMA_ROUTE) => socket.options().route = unsafe { route(given) }?,
        (SOL_RDMA, _) => set_size(socket, name, number()?.cast_unsigned())?,
        _ => return Err(unknown(level, name)),
    }
    Ok(())
}

/// Sets an option of a datagram socket: an option of the UDP socket, or a size of queue pairs that
/// are created later.
///
/// # Safety
///
/// The value has the given length.
unsafe fn set_datagram(
    datagram: &DatagramSocket,
    level: c_int,
    name: c_int,
    given: Given,
) -> Answer {
    let socket = &datagram.common;
    if level == SOL_RDMA {
        // SAFETY: the caller's promise.
        return set_size(socket, name, unsafe { given.get::<c_int>() }?.cast_unsigned());
    }
    let (fd, length) = (datagram.udp()?.as_raw_fd(), given.length as socklen_t);
    // SAFETY: the caller's promise; the kernel looks at the pointer itself.
    if unsafe { libc::setsockopt(fd, level, name, given.value, length) } != 0 {
        return Err(Failure::last());
    }
    if level == libc::SOL_SOCKET && matches!(name, libc::SO_RCVBUF | libc::SO_SNDBUF) {
        // SAFETY: the caller's promise.
        let size = unsafe { given.get::<c_int>() }?.cast_unsigned().saturating_mul(2);
        let sizes = &mut socket.options().sizes;
        let buffer = if name == libc::SO_RCVBUF {
            &mut sizes.receive_buffer
        } else {
            &mut sizes.send_buffer
        };
        *buffer = size;
    }
    Ok(())
}

/// Returns an option of a datagram socket.
///
/// # Safety
///
/// The room has the given length.
unsafe fn get_datagram(datagram: &DatagramSocket, level: c_int, name: c_int, room: Room) -> Answer {
    if level == SOL_RDMA {
        // SAFETY: the caller's promise.
        return unsafe { get(&datagram.common, None, level, name, room) };
    }
    let fd = datagram.udp()?.as_raw_fd();
    // SAFETY: the caller's promise; the kernel looks at the pointers itself.
    let answer = unsafe { libc::getsockopt(fd, level, name, room.value, room.length) };
    if answer == 0 { Ok(()) } else { Err(Failure::last()) }
}

/// Sets one of the sizes, which are fixed once the socket connects.
fn set_size(socket: &Common, name: c_int, size: u32) -> Answer {
    let sizes = &mut socket.options().sizes;
    match name {
        RDMA_SQSIZE => sizes.sq_size = size.min(SIZE_MAX),
        RDMA_RQSIZE => sizes.rq_size = size.min(SIZE_MAX),
        RDMA_INLINE => sizes.inline = size.min(SIZE_MAX),
        RDMA_IOMAPSIZE => sizes.mappings = unscale(scale(size)),
        _ => return Err(unknown(SOL_RDMA, name)),
    }
    Ok(())
}

/// Paths to use.
///
/// # Safety
///
/// The value has the given length.
unsafe fn route(given: Given) -> Answer<Vec<u8>> {
    // SAFETY: the caller's promise; the structure is made of integers.
    unsafe { given.get::<PathData>() }?;
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(given.value.cast::<u8>(), given.length) };
    Ok(bytes.to_vec())
}

fn set_keepalive(socket: &Common, is_on: bool) {
    let mut options = socket.options();
    if is_on && options.keep_idle.is_none() {
        let system = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_keepalive_time");
        options.keep_idle = system.ok().and_then(|text| text.trim().parse().ok()).or(Some(7200));
    }
    options.probe = is_on.then(|| Instant::now() + options.keep_idle());
    drop(options);
    service::wake();
}

/// Room for the value of an option.
#[derive(Clone, Copy)]
struct Room {
    value: *mut c_void,
    length: *mut socklen_t,
}

impl Room {
    /// Writes a value, as far as there is room, and its length.
    ///
    /// # Safety
    ///
    /// The room has the given length.
    unsafe fn give<T>(self, value: T) {
        // SAFETY: a value has the size of its type.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const value).cast::<u8>(), size_of::<T>()) };
        // SAFETY: the caller's promise.
        unsafe { self.give_bytes(bytes) };
    }

    /// As [`give`](Self::give).
    ///
    /// # Safety
    ///
    /// As for [`give`](Self::give).
    unsafe fn give_bytes(self, bytes: &[u8]) {
        // SAFETY: the caller's promise.
        let room = unsafe { self.length.read() } as usize;
        let length = room.min(bytes.len());
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.value.cast(), length) };
        // SAFETY: the caller's promise.
        unsafe { self.length.write(length as socklen_t) };
    }
}

pub(crate) unsafe extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    done("rgetsockopt", || {
        let socket = find(fd)?;
        if value.is_null() || length.is_null() {
            return Err(Failure::new(libc::EFAULT, "rgetsockopt: no room for the value"));
        }
        let room = Room { value, length };
        match &socket {
            // SAFETY: contract: there is as much room as said.
            Socket::Stream(stream) => unsafe { get(&socket, Some(stream), level, name, room) },
            // SAFETY: as above.
            Socket::Datagram(datagram) => unsafe { get_datagram(datagram, level, name, room) },
        }
    })
}

/// Returns an option.
///
/// # Safety
///
/// The room has the given length.
unsafe fn get(
    socket: &Common,
    stream: Option<&StreamSocket>,
    level: c_int,
    name: c_int,
    room: Room,
) -> Answer {
    let options = socket.options().clone();
    let sizes =
        stream.and_then(StreamSocket::connected).map_or(options.sizes, |conn| *conn.core().sizes());
    let number = |number: u32| number.cast_signed();
    let value = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => options.reuse_addr.into(),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => options.probe.is_some().into(),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => options.oob_inline.into(),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => number(sizes.receive_buffer),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => number(sizes.send_buffer),
        (libc::SOL_SOCKET, libc::SO_ERROR) => take_error(socket, stream),
        (libc::SOL_SOCKET, libc::SO_TYPE) => {
            if stream.is_some() {
                libc::SOCK_STREAM
            } else {
                libc::SOCK_DGRAM
            }
        }
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            stream.is_some_and(|stream| stream.phase() == Phase::Listening).into()
        }
        (libc::SOL_SOCKET, libc::SO_BROADCAST) => 0,
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            // SAFETY: the caller's promise.
            unsafe { room.give(linger { l_onoff: options.linger.into(), l_linger: 0 }) };
            return Ok(());
        }
        (libc::IPPROTO_IP, libc::IP_TOS) => options.tos,
        // A reliable connection does this by itself.
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION | libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL) => 1,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => number(options.keep_idle.unwrap_or(0)),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => options.no_delay.into(),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
            stream.and_then(path).map_or(2048, |path| 1 << (7 + path.mtu))
        }
        (libc::IPPROTO_TCP, libc::TCP_INFO) => {
            // SAFETY: the caller's promise.
            unsafe { room.give(tcp_info(stream, sizes.sq_size)) };
            return Ok(());
        }
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => options.v6_only.into(),
        (SOL_RDMA, RDMA_SQSIZE) => number(sizes.sq_size),
        (SOL_RDMA, RDMA_RQSIZE) => number(sizes.rq_size),
        (SOL_RDMA, RDMA_INLINE) => number(sizes.inline),
        (SOL_RDMA, RDMA_IOMAPSIZE) => number(sizes.mappings),
        // SAFETY: the caller's promise.
        (SOL_RDMA, RDMA_ROUTE) => return unsafe { give_route(stream, &options.route, room) },
        _ => return Err(unknown(level, name)),
    };
    // SAFETY: the caller's promise.
    unsafe { room.give::<c_int>(value) };
    Ok(())
}

/// `SO_ERROR`: the pending error, which this clears.
fn take_error(socket: &Common, stream: Option<&StreamSocket>) -> c_int {
    let failed = stream
        .and_then(StreamSocket::connected)
        .is_some_and(|conn| conn.core().end() == Some(End::Failed));
    let mut options = socket.options();
    let error = std::mem::take(&mut options.error);
    if error == 0 && failed { libc::EIO } else { error }
}

/// The path of a connection.
fn path(stream: &StreamSocket) -> Option<SaPathRec> {
    stream.connected()?;
    stream.id().path_record()
}

/// The first fields of `struct tcp_info`: the state, and, further on, the window.
fn tcp_info(stream: Option<&StreamSocket>, window: u32) -> libc::tcp_info {
    const ESTABLISHED: u8 = 1;
    const CLOSE: u8 = 7;
    // SAFETY: the structure is made of integers, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let is_open =
        stream.and_then(StreamSocket::connected).is_some_and(|conn| conn.core().end().is_none());
    info.tcpi_state = if is_open { ESTABLISHED } else { CLOSE };
    info.tcpi_snd_cwnd = window;
    info
}

/// Returns the path that the program set, or the one in use.
///
/// # Safety
///
/// The room has the given length.
unsafe fn give_route(stream: Option<&StreamSocket>, asked: &[u8], room: Room) -> Answer {
    let found;
    let bytes: &[u8] = if asked.is_empty() {
        found = stream.and_then(path).map(|path| path_data(&path));
        match &found {
            None => &[],
            // SAFETY: a value has the size of its type.
            Some(data) => unsafe {
                std::slice::from_raw_parts((&raw const *data).cast::<u8>(), size_of::<PathData>())
            },
        }
    } else {
        asked
    };
    // SAFETY: the caller's promise.
    let length = unsafe { room.length.read() } as usize;
    if length < bytes.len().max(size_of::<PathData>()) {
        let what = format!("RDMA_ROUTE: room for {length} bytes");
        return Err(Failure::new(libc::EINVAL, what));
    }
    // SAFETY: the caller's promise.
    unsafe { room.give_bytes(bytes) };
    Ok(())
}

/// `fcntl(2)`. The argument is variadic in C; on all our machines it is passed as a named one would
/// be. A caller that passes none leaves garbage, which commands without an argument ignore.
pub(crate) unsafe extern "C" fn rfcntl(fd: c_int, cmd: c_int, arg: c_long) -> c_int {
    call("rfcntl", || {
        let socket = find(fd)?;
        let arg = arg as c_int;
        match cmd {
            libc::F_GETFL => return Ok(socket.status_flags.load(Ordering::Relaxed)),
            libc::F_SETFL => {
                // The access mode cannot be changed (fcntl(2)).
                let flags = arg & !libc::O_ACCMODE | libc::O_RDWR;
                socket.status_flags.store(flags, Ordering::Relaxed);
            }
            libc::F_GETFD => return Ok(socket.descriptor_flags.load(Ordering::Relaxed)),
            libc::F_SETFD => socket.descriptor_flags.store(arg, Ordering::Relaxed),
            _ => {
                let what = format!(
                    "rfcntl: command {cmd}; only F_GETFL, F_SETFL, F_GETFD and F_SETFD are supported"
                );
                return Err(Failure::new(libc::ENOTSUP, what));
            }
        }
        Ok(0)
    })
}
