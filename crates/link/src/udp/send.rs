//! Sending: datagrams one by one or in trains, and why some are not sent.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use socket2::{Domain, Protocol, Socket, Type};

use super::UdpLink;
use super::open::scope;
use super::sys::{self, SendMeta};

/// The most datagrams one system call sends (`UDP_MAX_SEGMENTS`, 64 since Linux 4.18).
const MAX_SEGMENTS: usize = 64;
/// The longest UDP payload that IPv4 carries.
const MAX_PAYLOAD: usize = 65_507;

/// What to send, and how.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// The address to send to, at the link's port.
    pub dst: IpAddr,
    /// The address to send from, of the family of `dst`; an unspecified one lets the routing table
    /// choose.
    pub src: IpAddr,
    /// The IP type of service: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// The IP time to live; 0 for the kernel's default.
    pub hop_limit: u8,
    /// One datagram, or several one after the other.
    pub contents: &'a [u8],
    /// Bytes in each datagram but the last, which may be shorter; `None` for one datagram.
    ///
    /// Datagrams sent together arrive together, at the process of the first one: all must be for
    /// one QPN, or at least for one VF.
    pub segment_size: Option<usize>,
}

/// Why something was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The socket's buffer is full. The first `sent` bytes of the contents, whole segments, were
    /// sent.
    #[error("the socket has no room")]
    WouldBlock {
        /// Bytes that need not be sent again.
        sent: usize,
    },
    /// The kernel does not split datagrams on this route. The first `sent` bytes of the contents
    /// went out as one datagram; the others must be sent again, and are sent one by one from now on
    /// ([`UdpLink::max_gso_segments`] returns 1).
    ///
    /// They come back because each now has the IPv4 id 0, and their ICRC covered other ids.
    #[error("the kernel does not split datagrams; {sent} bytes were sent alone")]
    NotSplit {
        /// Bytes that need not be sent again.
        sent: usize,
    },
    /// A datagram is longer than the path to the destination allows, and must not be fragmented.
    #[error("a datagram of {length} bytes does not fit the path MTU to {dst}")]
    TooBig {
        /// The destination.
        dst: IpAddr,
        /// Bytes of UDP payload.
        length: usize,
    },
    /// There is no path to the destination: no route, no neighbour, the netdev is down, or the
    /// address family is missing.
    #[error("{dst} cannot be reached: {source}")]
    Unreachable {
        /// The destination.
        dst: IpAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// The source address is not one of this host, or not of the family of the destination.
    #[error("{src} is not an address of this host from which {dst} can be reached")]
    Source {
        /// The requested source.
        src: IpAddr,
        /// The destination.
        dst: IpAddr,
    },
    /// A firewall on this host refused the packet.
    #[error("a local firewall or sandbox refuses packets to {dst}")]
    Refused {
        /// The destination.
        dst: IpAddr,
    },
    /// Anything else.
    #[error("sending to {dst} failed: {source}")]
    Io {
        /// The destination.
        dst: IpAddr,
        /// The kernel's error.
        source: io::Error,
    },
}

impl UdpLink {
    /// How many segments of `segment_size` bytes one system call takes: 1 where the kernel does not
    /// split. More may be sent at once, but gain nothing.
    pub fn max_gso_segments(&self, segment_size: usize) -> usize {
        if self.gso.load(Ordering::Relaxed) {
            (MAX_PAYLOAD / segment_size.max(1)).clamp(1, MAX_SEGMENTS)
        } else {
            1
        }
    }

    /// Sends one datagram or many. A train that the kernel refuses to split comes back
    /// ([`SendError::NotSplit`]); the next ones go datagram by datagram.
    pub fn send(&self, transmit: Transmit<'_>) -> Result<(), SendError> {
        let Transmit { dst, src, contents, .. } = transmit;
        let socket = match dst {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => &self.v6,
        };
        let Some(socket) = socket else {
            let source = io::Error::from_raw_os_error(libc::EAFNOSUPPORT);
            return Err(SendError::Unreachable { dst, source });
        };
        if src.is_ipv4() != dst.is_ipv4() {
            return Err(SendError::Source { src, dst });
        }
        let segment = transmit.segment_size.unwrap_or(contents.len()).clamp(1, MAX_PAYLOAD);
        if transmit.segment_size.is_none() && contents.len() > MAX_PAYLOAD {
            return Err(SendError::TooBig { dst, length: contents.len() });
        }
        let mut sent = 0;
        loop {
            let rest = &contents[sent..];
            let train = &rest[..rest.len().min(segment * self.max_gso_segments(segment))];
            match self.send_train(socket, &transmit, train, segment) {
                Ok(()) => sent += train.len(),
                // The kernel refused a train. Sending one segment alone shows whether segmentation
                // is the reason.
                Err(error) if train.len() > segment && is_gso_refusal(&error) => {
                    self.send_train(socket, &transmit, &train[..segment], segment)
                        .map_err(|error| send_error(&transmit, segment, sent, error))?;
                    self.gso.store(false, Ordering::Relaxed);
                    tracing::info!(%dst, %error, "the kernel refuses to split datagrams; sending one by one");
                    return Err(SendError::NotSplit { sent: sent + segment });
                }
                Err(error) => {
                    return Err(send_error(&transmit, segment.min(train.len()), sent, error));
                }
            }
            if sent == contents.len() {
                return Ok(());
            }
        }
    }

    fn send_train(
        &self,
        socket: &Socket,
        transmit: &Transmit<'_>,
        bytes: &[u8],
        segment: usize,
    ) -> io::Result<()> {
        #[cfg(test)]
        if self.refuses_trains && bytes.len() > segment {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let ifindex = scope(transmit.dst, self.options);
        let dst = match transmit.dst {
            IpAddr::V4(ip) => SocketAddr::from((ip, self.port)),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, self.port, 0, ifindex).into(),
        };
        let meta = SendMeta {
            dst,
            src: (!transmit.src.is_unspecified()).then_some(transmit.src),
            ifindex,
            traffic_class: transmit.traffic_class,
            hop_limit: transmit.hop_limit,
            // CAST: at most MAX_PAYLOAD, which fits.
            segment_size: (bytes.len() > segment).then_some(segment as u16),
        };
        sys::send(socket.as_fd(), &meta, bytes)
    }
}

/// Errors that a train may get where a single datagram does not: EIO when the netdev cannot
/// checksum (`udp_send_skb`), EINVAL and EMSGSIZE when a segment is too long for it, or when it is
/// tunnelled or transformed.
fn is_gso_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE))
}

/// Whether `ip` is an address of this host: only those can be bound.
fn is_local(ip: IpAddr) -> bool {
    let bound = Socket::new(Domain::for_address((ip, 0).into()), Type::DGRAM, Some(Protocol::UDP))
        .and_then(|socket| socket.bind(&SocketAddr::from((ip, 0)).into()));
    // A link-local address is refused with EINVAL if there is no netdev.
    !bound.is_err_and(|error| error.raw_os_error() == Some(libc::EADDRNOTAVAIL))
}

fn send_error(transmit: &Transmit<'_>, length: usize, sent: usize, source: io::Error) -> SendError {
    let Transmit { dst, src, .. } = *transmit;
    match source.raw_os_error() {
        // ENOBUFS: the queue of the netdev is full.
        Some(libc::EAGAIN | libc::ENOBUFS) => SendError::WouldBlock { sent },
        Some(libc::EMSGSIZE) => SendError::TooBig { dst, length },
        // The kernel has one answer, EINVAL or ENETUNREACH by its version, for a source that is not
        // of this host and for other troubles.
        _ if !src.is_unspecified() && !is_local(src) => SendError::Source { src, dst },
        Some(
            libc::ENETUNREACH
            | libc::EHOSTUNREACH
            | libc::ENETDOWN
            | libc::EHOSTDOWN
            | libc::ENODEV
            | libc::ECONNREFUSED,
        ) => SendError::Unreachable { dst, source },
        Some(libc::EPERM | libc::EACCES) => SendError::Refused { dst },
        _ => SendError::Io { dst, source },
    }
}
