//! Opening the sockets: which processes share the port, which options they get, and why it may
//! fail.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;

use descriptors::Known;
use socket2::{Domain, Protocol, Socket, Type};

use super::{Options, set_option};

/// Why the port could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Another process has the port.
    ///
    /// `SO_REUSEPORT` shares a port among the processes of one effective user. `SO_REUSEADDR` would
    /// remove that limit, but then the last process to bind the port would own it, group by group:
    /// any user could take all packets of another, so it is not used. A device in this position can
    /// still send, by [`super::UdpLink::send_only`], and it receives the packets that the VFs of
    /// the user that has the port forward to it.
    #[error(
        "UDP port {port} is taken in this network namespace (by processes of another user than uid {uid}, by another \
         program, or by the kernel's rxe); one user's processes share it, and other users depend on theirs to forward"
    )]
    InUse {
        /// The port.
        port: u16,
        /// The effective user of this process.
        uid: u32,
    },
    /// The kernel or a sandbox forbids the socket.
    #[error("not permitted to open UDP port {port}: {source}")]
    NotPermitted {
        /// The port.
        port: u16,
        /// The answer of the kernel.
        source: io::Error,
    },
    /// There is no IP.
    #[error("this host has neither IPv4 nor IPv6")]
    NoIp,
    /// Anything else.
    #[error("UDP port {port} cannot be opened: {source}")]
    Io {
        /// The port.
        port: u16,
        /// The answer of the kernel.
        source: io::Error,
    },
}

/// Which processes share a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// With no one. A kernel that chooses the port for a socket with `SO_REUSEPORT` may choose one
    /// that others already share (`udp_lib_lport_inuse`), and give it a part of their packets.
    None,
    /// With the processes of one user.
    OneUser,
}

/// A port that no process uses.
pub(super) fn free_port(options: Options) -> Result<u16, BindError> {
    let mut any = open(unspecified(true), 0, Sharing::None, options)?;
    if any.is_none() {
        any = open(unspecified(false), 0, Sharing::None, options)?;
    }
    any.as_deref().map(local_port).ok_or(BindError::NoIp)
}

/// The sockets of IPv4 and IPv6.
pub(super) type Both = (Option<Known<Socket>>, Option<Known<Socket>>);

/// Opens a port that the processes of one user share, for both families.
pub(super) fn open_shared(port: u16, options: Options) -> Result<Both, BindError> {
    let v4 = open(unspecified(true), port, Sharing::OneUser, options)?;
    let v6 = open(unspecified(false), port, Sharing::OneUser, options)?;
    Ok((v4, v6))
}

/// Opens a socket on `port` of `ip`; `None` if the host lacks the address family.
pub(super) fn open(
    ip: IpAddr,
    port: u16,
    sharing: Sharing,
    options: Options,
) -> Result<Option<Known<Socket>>, BindError> {
    let address = match ip {
        IpAddr::V4(ip) => SocketAddr::from((ip, port)),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope(ip.into(), options)).into(),
    };
    let result = configure(Domain::for_address(address), options).and_then(|socket| {
        if sharing == Sharing::OneUser {
            set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        }
        socket.bind(&address.into())?;
        Ok(socket)
    });
    match result {
        Ok(socket) => Ok(Some(socket)),
        Err(source) => match source.raw_os_error() {
            // No module for the family, or the family disabled by the administrator.
            Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL) => Ok(None),
            Some(libc::EADDRINUSE) => {
                Err(BindError::InUse { port, uid: rustix::process::geteuid().as_raw() })
            }
            Some(libc::EACCES | libc::EPERM) => Err(BindError::NotPermitted { port, source }),
            _ => Err(BindError::Io { port, source }),
        },
    }
}

/// Creates an unbound socket with every option set that the module documentation promises.
pub(super) fn configure(domain: Domain, options: Options) -> io::Result<Known<Socket>> {
    let socket = Known::new(Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?);
    socket.set_nonblocking(true)?;
    let set = |level, name, value| set_option(socket.as_fd(), level, name, value);
    // An option whose result is ignored is an optimisation that some kernels and sandboxes do not
    // offer.
    if domain == Domain::IPV4 {
        set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        set(libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
        let _ = set(libc::IPPROTO_IP, libc::IP_RECVTOS, 1);
        let _ = set(libc::IPPROTO_IP, libc::IP_RECVTTL, 1);
        // Groups that other sockets of the host joined are not ours.
        let _ = set(libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0);
    } else {
        socket.set_only_v6(true)?;
        set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        set(libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
        let _ = set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1);
        let _ = set(libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1);
        let _ = set(libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
        let _ = set(libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1);
    }
    if options.gro {
        let _ = set(libc::SOL_UDP, libc::UDP_GRO, 1);
    }
    // Privilege lifts the limits of net.core.{r,w}mem_max; without it, what they allow must do.
    let bytes = i32::try_from(options.buffer_bytes).unwrap_or(i32::MAX);
    for (force, plain) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        if set(libc::SOL_SOCKET, force, bytes).is_err() {
            let _ = set(libc::SOL_SOCKET, plain, bytes);
        }
    }
    Ok(socket)
}

/// `IPV6_MULTICAST_ALL` of `<linux/in6.h>`, which not every libc names.
const IPV6_MULTICAST_ALL: i32 = 29;

/// Whether the kernel knows `UDP_SEGMENT`; the option is left off, since each send specifies
/// whether it wants it.
pub(super) fn has_gso(socket: &Socket) -> bool {
    set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

pub(super) fn local_port(socket: &Socket) -> u16 {
    let address = socket.local_addr().ok().and_then(|address| address.as_socket());
    address.map_or(0, |address| address.port())
}

pub(super) fn unspecified(is_ipv4: bool) -> IpAddr {
    if is_ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// The netdev of an address that means nothing without one; 0 for other addresses.
pub(super) fn scope(ip: IpAddr, options: Options) -> u32 {
    let needed = match ip {
        IpAddr::V4(ip) => ip.is_multicast(),
        IpAddr::V6(ip) => ip.is_multicast() || ip.is_unicast_link_local(),
    };
    if needed { options.ifindex } else { 0 }
}

/// A port from which nothing is ever sent: discard (RFC 863).
const NOWHERE: u16 = 9;

/// Stops new packets from reaching a socket; those that wait there can still be read.
pub(super) fn turn_away(socket: &Socket) -> io::Result<()> {
    let mut to = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
    if to.ip().is_unspecified() {
        to.set_ip(match to.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    to.set_port(NOWHERE);
    socket.connect(&to.into())
}
