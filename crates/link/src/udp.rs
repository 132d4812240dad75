//! RoCEv2 packets in and out of UDP sockets, many at a time.
//!
//! ```text
//!   send(Transmit { contents = | seg | seg | seg | sg | })           recv(|datagram| ...)
//!            |  one sendmsg, UDP_SEGMENT                                 ^  split again
//!            v                                                           |  recvmmsg, UDP_GRO
//!   +------------------------+                                +------------------------+
//!   | 0.0.0.0:4791 | [::]:4791 |  --- DF, IPv4 id 0, 1, 2 -->  | 0.0.0.0:4791 | [::]:4791 |
//!   +------------------------+                                +------------------------+
//! ```
//!
//! Bytes in, bytes out: no header is read or made here but those of UDP and IP, which the kernel makes. The ICRC of
//! RoCEv2 covers some of their fields (RoCEv2 Annex A17.3), so the sockets are set up to make them known beforehand:
//!
//! * DF is set (`IP_PMTUDISC_DO`) and these sockets are never connected; then Linux sends the IPv4 id 0. The segments of
//!   one [`Transmit`] carry 0, 1, 2, ... when the stack or the NIC splits them. A [line](UdpLink::open_line) is connected,
//!   and says with which id it begins.
//! * Type of service, hop limit and flow label are masked out of the ICRC, and free.
//! * An IPv6 packet without UDP checksum, as some NICs and the kernel's rxe send, is accepted.
//!
//! Several processes of one user share the port; see [`crate::steer`] for how a packet finds its process.

mod holder;
mod inlet;
mod line;
mod sys;

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::steer;
pub use holder::{Holder, holders, may_receive};
use inlet::Inlets;
use line::Lines;
pub use line::{LineError, LineId, LineTo, NewLine};
use sys::{BATCH, RecvMeta, SendMeta};
pub(crate) use sys::{ControlMessages, attach_reuseport_cbpf, set_option};

/// The UDP port of RoCEv2 (RoCEv2 Annex A17.3.1).
#[doc(alias = "ROCE_V2_UDP_DPORT")]
pub const PORT: u16 = 4791;

/// The most datagrams one system call sends (`UDP_MAX_SEGMENTS`, 64 since Linux 4.18).
const MAX_SEGMENTS: usize = 64;
/// The longest UDP payload that IPv4 carries.
const MAX_PAYLOAD: usize = 65_507;
/// Room for one buffer of coalesced datagrams, which is never longer than an IP packet can be.
const BUFFER: usize = 64 << 10;

/// How a [`UdpLink`] is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The VF that packets are received for; it answers the questions of [`crate::steer`].
    pub vf: u16,
    /// The netdev of the NIC, by index: link-local and multicast addresses mean nothing without one. 0 for none.
    pub ifindex: u32,
    /// Bytes of socket buffer to ask for in each direction. The kernel grants at most `net.core.{r,w}mem_max`.
    pub buffer_bytes: usize,
    /// Whether to let the kernel split what is sent (`UDP_SEGMENT`).
    pub gso: bool,
    /// Whether to let the kernel join what is received (`UDP_GRO`).
    pub gro: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { vf: 0, ifindex: 0, buffer_bytes: 4 << 20, gso: true, gro: true }
    }
}

/// What to send, and how.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// Whom to send to, at the link's port.
    pub dst: IpAddr,
    /// The address to send from, of the family of `dst`; an unspecified one lets the routing table choose.
    pub src: IpAddr,
    /// The IP type of service: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// The IP time to live; 0 for the kernel's default.
    pub hop_limit: u8,
    /// One datagram, or several behind each other.
    pub contents: &'a [u8],
    /// Bytes in each datagram but the last, which may be shorter; `None` for one datagram.
    ///
    /// Datagrams sent together arrive together, at the process of the first one: all must be for one QPN, or at least
    /// for one VF.
    pub segment_size: Option<usize>,
}

/// A received datagram.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Datagram<'a> {
    /// Who sent it.
    pub src: SocketAddr,
    /// Which of this host's addresses, or which group, it was sent to.
    pub dst: IpAddr,
    /// The netdev it came in by, `lo` for what this host sent to itself; 0 of what came by an inlet.
    pub ifindex: u32,
    /// The IP type of service: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// The IP time to live.
    pub hop_limit: u8,
    /// The UDP payload. Of any length: nothing in it has been checked but the UDP checksum.
    pub bytes: &'a [u8],
}

/// Datagrams that arrived together and have everything but their bytes in common.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Train<'a> {
    /// Who sent them.
    pub src: SocketAddr,
    /// Which of this host's addresses, or which group, they were sent to.
    pub dst: IpAddr,
    /// The netdev they came in by, `lo` for what this host sent to itself; 0 of what came by an inlet.
    pub ifindex: u32,
    /// The IP type of service, as in [`Datagram::traffic_class`].
    pub traffic_class: u8,
    /// The IP time to live.
    pub hop_limit: u8,
    /// Whether they came by an inlet.
    pub by_inlet: bool,
    bytes: &'a [u8],
    stride: usize,
}

impl<'a> Train<'a> {
    /// How many datagrams there are: at least one, which may be empty.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.bytes.len().div_ceil(self.stride).max(1)
    }

    /// Their UDP payloads, in their order: of any length, and nothing in them has been checked but the UDP checksum.
    pub fn payloads(&self) -> Payloads<'a> {
        Payloads { bytes: self.bytes, stride: self.stride, left: self.len() }
    }

    /// The datagrams one by one.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'a>> {
        let Self { src, dst, ifindex, traffic_class, hop_limit, .. } = *self;
        self.payloads().map(move |bytes| Datagram {
            src,
            dst,
            ifindex,
            traffic_class,
            hop_limit,
            bytes,
        })
    }
}

/// The UDP payloads of datagrams, in their order. They lie in memory one behind the other.
#[derive(Clone, Debug)]
pub struct Payloads<'a> {
    bytes: &'a [u8],
    stride: usize,
    left: usize,
}

impl<'a> Payloads<'a> {
    /// The payload of one datagram.
    pub fn one(bytes: &'a [u8]) -> Self {
        Self { bytes, stride: bytes.len(), left: 1 }
    }

    /// The payloads of datagrams of `stride` bytes that lie one behind the other, the last of which may be shorter.
    pub fn cut(bytes: &'a [u8], stride: usize) -> Self {
        let stride = stride.max(1);
        Self { bytes, stride, left: bytes.len().div_ceil(stride) }
    }

    /// All that are left, one behind the other, each with as many bytes as the first but the last, which may be shorter.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> Iterator for Payloads<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let (first, rest) = self.bytes.split_at(self.stride.min(self.bytes.len()));
        self.bytes = rest;
        Some(first)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Payloads<'_> {}

impl Datagram<'_> {
    /// The ECN field; 3 says that a switch saw congestion (RFC 3168).
    pub fn ecn(&self) -> u8 {
        self.traffic_class & 3
    }
}

/// Why the port could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Someone else has the port.
    ///
    /// `SO_REUSEPORT` shares a port among the processes of one effective user. `SO_REUSEADDR` would lift that, but the
    /// port would then belong to whoever bound it last, group by group: any user could take all of another's packets,
    /// so it is not used. A device in this position can still send, by [`UdpLink::send_only`], and it receives what
    /// the VFs of the user who has the port forward to it.
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

/// Why something was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The socket's buffer is full. The first `sent` bytes of the contents, whole segments, are on their way.
    #[error("the socket has no room")]
    WouldBlock {
        /// Bytes that need not be sent again.
        sent: usize,
    },
    /// The kernel does not split datagrams on this way. The first `sent` bytes of the contents went out as one datagram;
    /// the others are to be sent again, and go one by one from now on ([`UdpLink::max_gso_segments`] says 1).
    ///
    /// They come back because each now has the IPv4 id 0, and their ICRC covered other ids.
    #[error("the kernel does not split datagrams; {sent} bytes went alone")]
    NotSplit {
        /// Bytes that need not be sent again.
        sent: usize,
    },
    /// A datagram is longer than the path to the destination takes in one piece, and may not be fragmented.
    #[error("a datagram of {length} bytes does not fit the path MTU to {dst}")]
    TooBig {
        /// The destination.
        dst: IpAddr,
        /// Bytes of UDP payload.
        length: usize,
    },
    /// There is no way there: no route, no neighbour, the netdev is down, or the address family is missing.
    #[error("{dst} cannot be reached: {source}")]
    Unreachable {
        /// The destination.
        dst: IpAddr,
        /// The kernel's words.
        source: io::Error,
    },
    /// The source address is not one of this host, or not of the family of the destination.
    #[error("{src} is not an address of this host from which {dst} can be reached")]
    Source {
        /// The source asked for.
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
        /// The kernel's words.
        source: io::Error,
    },
}

/// An IPv4 and an IPv6 socket on the port of RoCEv2, whichever the host has.
///
/// Nothing blocks. Sending needs only a shared reference; receiving uses the link's buffers.
#[derive(Debug)]
pub struct UdpLink {
    v4: Option<Socket>,
    v6: Option<Socket>,
    /// A socket for each multicast group.
    groups: Vec<(IpAddr, Socket)>,
    lines: Lines,
    inlets: Inlets,
    /// The destination port of everything sent.
    port: u16,
    options: Options,
    gso: AtomicBool,
    buffer: Vec<u8>,
    /// Calls of [`UdpLink::recv_likely`], and in which of them a socket, by its place, last had something.
    looks: u32,
    last_full: [u32; 2],
    /// Whether a socket gave as much as was asked of it.
    may_hold_more: bool,
    truncated: u64,
    /// Stands for a netdev without checksums, over which the kernel splits nothing.
    #[cfg(test)]
    refuses_trains: bool,
}

/// A socket that had nothing in so many calls after the other one had is looked at in one of [`RARELY`].
const UNLIKELY: u32 = 64;
const RARELY: u32 = 16;

impl UdpLink {
    /// Opens `port`, normally [`PORT`], on every address of the host. Port 0 takes any free port and is for tests.
    pub fn bind(port: u16, options: Options) -> Result<Self, BindError> {
        if port != 0 {
            return Self::bind_shared(port, options);
        }
        // Another process may take the free port in between.
        let mut result = Self::bind_shared(free_port(options)?, options);
        while let Err(BindError::InUse { .. }) = result {
            result = Self::bind_shared(free_port(options)?, options);
        }
        result
    }

    /// A link that sends to `port` from a port of its own and receives nothing but, on that port, stray answers: what is
    /// left to a user whose [`UdpLink::bind`] found the port taken. The source port of RoCEv2 is free (RoCEv2 Annex
    /// A17.9.2), so receivers do not mind.
    pub fn send_only(port: u16, options: Options) -> Result<Self, BindError> {
        let v4 = open(unspecified(true), 0, Sharing::None, options)?;
        let v6 = open(unspecified(false), 0, Sharing::None, options)?;
        Self::new(v4, v6, port, options)
    }

    fn bind_shared(port: u16, options: Options) -> Result<Self, BindError> {
        let v4 = open(unspecified(true), port, Sharing::OneUser, options)?;
        let v6 = open(unspecified(false), port, Sharing::OneUser, options)?;
        Self::new(v4, v6, port, options)
    }

    fn new(
        v4: Option<Socket>,
        v6: Option<Socket>,
        port: u16,
        options: Options,
    ) -> Result<Self, BindError> {
        if v4.is_none() && v6.is_none() {
            return Err(BindError::NoIp);
        }
        let gso = options.gso && v4.iter().chain(&v6).all(has_gso);
        Ok(Self {
            v4,
            v6,
            groups: Vec::new(),
            lines: Lines::default(),
            inlets: Inlets::default(),
            port,
            options,
            gso: AtomicBool::new(gso),
            // Zeroed pages come from the kernel when they are first written to.
            buffer: vec![0; BATCH * BUFFER],
            looks: 0,
            last_full: [0; 2],
            may_hold_more: false,
            truncated: 0,
            #[cfg(test)]
            refuses_trains: false,
        })
    }

    /// The destination port of everything sent, and that of everything received.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port that packets to `dst` leave from; their ICRC covers it.
    pub fn source_port(&self, dst: IpAddr) -> u16 {
        let socket = if dst.is_ipv4() { &self.v4 } else { &self.v6 };
        socket.as_ref().map_or(self.port, local_port)
    }

    /// The VF that packets are received for.
    pub fn vf(&self) -> u16 {
        self.options.vf
    }

    /// The IPv4 socket, if the host has IPv4: writable when a send that would have blocked can be tried again.
    pub fn v4_fd(&self) -> Option<BorrowedFd<'_>> {
        self.v4.as_ref().map(AsFd::as_fd)
    }

    /// The IPv6 socket, likewise.
    pub fn v6_fd(&self) -> Option<BorrowedFd<'_>> {
        self.v6.as_ref().map(AsFd::as_fd)
    }

    /// All sockets: when one is readable, [`UdpLink::recv`] has work. [`UdpLink::join`], [`UdpLink::leave`],
    /// [`UdpLink::open_inlet`] and, where inlets are to be closed, receiving change them.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let groups = self.groups.iter().map(|(_, socket)| socket);
        let all = self.v4.iter().chain(&self.v6).chain(groups).map(AsFd::as_fd);
        all.chain(self.inlets.fds())
    }

    /// All descriptors, for a child that must close them after a fork and cannot call
    /// [`abandon_in_child`](Self::abandon_in_child). While a child keeps them, packets can go to sockets that nobody
    /// reads.
    pub fn raw_fds(&self, out: &mut Vec<RawFd>) {
        out.extend(self.fds().map(|fd| fd.as_raw_fd()).chain(self.lines.raw_fds()));
    }

    /// For the child after a fork: closes the sockets and touches nothing else.
    pub fn abandon_in_child(self) {
        let mut fds = Vec::new();
        self.raw_fds(&mut fds);
        crate::fork::abandon(self, &fds);
    }

    /// How many segments of `segment_size` bytes one system call takes: 1 where the kernel does not split. More may be
    /// sent at once, but gain nothing.
    pub fn max_gso_segments(&self, segment_size: usize) -> usize {
        if self.gso.load(Ordering::Relaxed) {
            (MAX_PAYLOAD / segment_size.max(1)).clamp(1, MAX_SEGMENTS)
        } else {
            1
        }
    }

    /// Datagrams that were longer than any RoCE packet is and were dropped.
    pub fn truncated(&self) -> u64 {
        self.truncated
    }

    /// Sends one datagram or many. A train that the kernel refuses to split comes back ([`SendError::NotSplit`]); the next
    /// ones go datagram by datagram.
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
                // Refused as a train. Whether the segments are at fault shows when one goes alone.
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

    /// Hands every datagram that waits, up to a batch from each socket, to `each`, and says how many there were. Joined
    /// datagrams are split again: check the QPN of every one, since one flow may mix VFs.
    ///
    /// Questions of [`crate::steer`] are answered here and not counted, so 0 says no more than that none came.
    pub fn recv(&mut self, each: &mut dyn FnMut(Datagram<'_>)) -> io::Result<usize> {
        self.recv_some(true, &mut |train| train.datagrams().for_each(&mut *each))
    }

    /// As [`UdpLink::recv`], and does not split what arrived together.
    pub fn recv_trains(&mut self, each: &mut dyn FnMut(Train<'_>)) -> io::Result<usize> {
        self.recv_some(true, each)
    }

    /// As [`UdpLink::recv_trains`], but a socket where nothing came for long is looked at only in one of 16 calls: for
    /// callers that call again and again.
    pub fn recv_likely_trains(&mut self, each: &mut dyn FnMut(Train<'_>)) -> io::Result<usize> {
        self.recv_some(false, each)
    }

    fn recv_some(
        &mut self,
        everywhere: bool,
        each: &mut dyn FnMut(Train<'_>),
    ) -> io::Result<usize> {
        let may_hold_more = mem::take(&mut self.may_hold_more);
        // To prepare room for many trains takes as long as to receive one.
        let is_wide = everywhere || may_hold_more;
        self.looks = self.looks.wrapping_add(1);
        let everywhere = everywhere || self.looks.is_multiple_of(RARELY);
        let mut count = 0;
        let others = self.last_full.len() + self.groups.len();
        for place in 0..others + self.inlets.len() {
            let waits = place >= others && self.inlets.waits(place - others);
            if waits || !everywhere && self.is_unlikely(place) {
                continue;
            }
            count += if is_wide {
                self.recv_at::<BATCH>(place, each)?
            } else {
                self.recv_at::<1>(place, each)?
            };
        }
        Ok(count)
    }

    /// Hands up to `N` trains that wait at one socket to `each`.
    fn recv_at<const N: usize>(
        &mut self,
        place: usize,
        each: &mut dyn FnMut(Train<'_>),
    ) -> io::Result<usize> {
        let shared = if place == 0 { &self.v4 } else { &self.v6 };
        let is_shared = place < self.last_full.len();
        let inlet = self.inlet_at(place);
        let (socket, known) = if is_shared {
            (shared.as_ref(), None)
        } else if let Some(inlet) = inlet {
            self.inlets.get(inlet).map_or((None, None), |(socket, known)| (Some(socket), known))
        } else {
            let group = self.groups.get(place - self.last_full.len());
            (group.map(|(_, socket)| socket), None)
        };
        let Some(socket) = socket else { return Ok(0) };
        let mut metas = [None; N];
        let filled = match sys::recv(socket.as_fd(), known, &mut self.buffer, &mut metas) {
            // Anybody can have the kernel told that its peer is gone. Telling was all.
            Err(error) if inlet.is_some() => {
                tracing::debug!(%error, "an inlet");
                return Ok(0);
            }
            filled => filled?,
        };
        if filled == 0 {
            self.is_empty(place);
            return Ok(0);
        }
        self.may_hold_more |= filled == N;
        if let Some(last_full) = self.last_full.get_mut(place) {
            *last_full = self.looks;
        } else if let Some(inlet) = inlet {
            self.inlets.found(inlet, self.looks);
        }
        let mut is_ours = true;
        let mut count = 0;
        let part = self.buffer.len() / BATCH;
        for (meta, bytes) in metas.iter().zip(self.buffer.chunks_exact(part)).take(filled) {
            let Some(meta) = meta else { continue };
            if meta.truncated {
                self.truncated += 1;
                continue;
            }
            let train = Train { by_inlet: inlet.is_some(), ..meta.train(bytes) };
            if known.is_some() {
                let is_packet = !train.bytes.is_empty();
                is_ours &= !is_packet || steer::leads_to(self.options.vf, train.bytes);
            }
            if !is_shared || !steer::may_hold_question(&train) {
                count += train.len();
                each(train);
                continue;
            }
            for bytes in train.payloads() {
                let alone = Train { bytes, stride: bytes.len().max(1), ..train };
                match steer::answer(self.options.vf, train.src, bytes) {
                    // A lost answer is asked for again.
                    Some(answer) => {
                        if let Some(socket) = shared {
                            let _ = socket.send_to(&answer, &SockAddr::from(train.src));
                        }
                    }
                    None => {
                        each(alone);
                        count += 1;
                    }
                }
            }
        }
        if let Some(inlet) = inlet.filter(|_| !is_ours) {
            self.inlets.refuse(inlet);
        }
        if filled < N {
            self.is_empty(place);
        }
        Ok(count)
    }

    /// Which inlet the socket at `place` is, if it is one: behind the shared sockets and the groups.
    fn inlet_at(&self, place: usize) -> Option<usize> {
        place.checked_sub(self.last_full.len() + self.groups.len())
    }

    /// Takes note that the socket at `place` has nothing more.
    fn is_empty(&mut self, place: usize) {
        if place < self.last_full.len() {
            self.inlets.shared_is_empty(place == 1);
        } else if let Some(inlet) = self.inlet_at(place) {
            self.inlets.is_empty(inlet);
        }
    }

    /// Whether the socket at `place` had nothing for long while another one had.
    fn is_unlikely(&self, place: usize) -> bool {
        let since = |at: &u32| self.looks.wrapping_sub(*at);
        let own = match self.last_full.get(place) {
            Some(shared) => Some(shared),
            None => self.inlet_at(place).and_then(|inlet| self.inlets.last_full().nth(inlet)),
        };
        let all = self.last_full.iter().chain(self.inlets.last_full());
        let newest = all.map(since).min().unwrap_or_default();
        own.is_some_and(|at| since(at) - newest >= UNLIKELY)
    }

    /// Joins a multicast group on the link's netdev; joining again changes nothing. Every process of the host that
    /// joined receives a copy: multicast is not steered.
    ///
    /// Each group has a socket bound to its address. The shared socket cannot serve: the kernel looks a single member up
    /// early (`udp_v4_early_demux`), and then gives the packet to any socket of the member's reuseport group.
    pub fn join(&mut self, group: IpAddr) -> Result<(), BindError> {
        if self.groups.iter().any(|(joined, _)| *joined == group) {
            return Ok(());
        }
        let socket = open(group, self.port, Sharing::OneUser, self.options)?;
        let socket = socket.ok_or(BindError::NoIp)?;
        let index = self.options.ifindex;
        let joined = match group {
            IpAddr::V4(group) => {
                socket.join_multicast_v4_n(&group, &socket2::InterfaceIndexOrAddress::Index(index))
            }
            IpAddr::V6(group) => socket.join_multicast_v6(&group, index),
        };
        joined.map_err(|source| BindError::Io { port: self.port, source })?;
        self.groups.push((group, socket));
        Ok(())
    }

    /// Leaves a multicast group; packets of it that wait are lost.
    pub fn leave(&mut self, group: IpAddr) {
        self.groups.retain(|(joined, _)| *joined != group);
    }
}

impl RecvMeta {
    /// The datagrams in `buffer`.
    fn train<'a>(&self, buffer: &'a [u8]) -> Train<'a> {
        Train {
            src: self.src,
            dst: self.dst.unwrap_or(unspecified(self.src.is_ipv4())),
            ifindex: self.ifindex,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            by_inlet: false,
            bytes: &buffer[..self.len.min(buffer.len())],
            stride: self.stride.max(1),
        }
    }
}

/// With whom a port is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// With no one. A kernel that chooses the port for a socket with `SO_REUSEPORT` may choose one that others share
    /// already (`udp_lib_lport_inuse`), and give it a part of their packets.
    None,
    /// With the processes of one user.
    OneUser,
}

/// A port that nobody uses.
fn free_port(options: Options) -> Result<u16, BindError> {
    let mut any = open(unspecified(true), 0, Sharing::None, options)?;
    if any.is_none() {
        any = open(unspecified(false), 0, Sharing::None, options)?;
    }
    any.as_ref().map(local_port).ok_or(BindError::NoIp)
}

/// Opens a socket on `port` of `ip`; `None` if the host lacks the address family.
fn open(
    ip: IpAddr,
    port: u16,
    sharing: Sharing,
    options: Options,
) -> Result<Option<Socket>, BindError> {
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

/// Makes an unbound socket with every option set that the module documentation promises.
fn configure(domain: Domain, options: Options) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    let set = |level, name, value| set_option(socket.as_fd(), level, name, value);
    // Each option whose result is dropped is a gain that some kernels and sandboxes do not offer.
    if domain == Domain::IPV4 {
        set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        set(libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
        let _ = set(libc::IPPROTO_IP, libc::IP_RECVTOS, 1);
        let _ = set(libc::IPPROTO_IP, libc::IP_RECVTTL, 1);
        // Groups joined by other sockets of the host are none of ours.
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
    // Privilege lifts the limits of net.core.{r,w}mem_max; without it what they allow has to do.
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

/// Whether the kernel knows `UDP_SEGMENT`; the option is left off, since each send says whether it wants it.
fn has_gso(socket: &Socket) -> bool {
    set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

fn local_port(socket: &Socket) -> u16 {
    let address = socket.local_addr().ok().and_then(|address| address.as_socket());
    address.map_or(0, |address| address.port())
}

fn unspecified(is_ipv4: bool) -> IpAddr {
    if is_ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// The netdev of an address that means nothing without one; 0 for other addresses.
fn scope(ip: IpAddr, options: Options) -> u32 {
    let needed = match ip {
        IpAddr::V4(ip) => ip.is_multicast(),
        IpAddr::V6(ip) => ip.is_multicast() || ip.is_unicast_link_local(),
    };
    if needed { options.ifindex } else { 0 }
}

/// Errors of a train that a single datagram may not have: EIO when the netdev cannot checksum (`udp_send_skb`), EINVAL
/// and EMSGSIZE when a segment is too long for it, or when it is tunnelled or transformed.
fn is_gso_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE))
}

/// Whether `ip` is an address of this host: only such a one can be bound to.
fn is_local(ip: IpAddr) -> bool {
    let bound = Socket::new(Domain::for_address((ip, 0).into()), Type::DGRAM, Some(Protocol::UDP))
        .and_then(|socket| socket.bind(&SocketAddr::from((ip, 0)).into()));
    // A link-local address is refused with EINVAL for want of a netdev.
    !bound.is_err_and(|error| error.raw_os_error() == Some(libc::EADDRNOTAVAIL))
}

fn send_error(transmit: &Transmit<'_>, length: usize, sent: usize, source: io::Error) -> SendError {
    let Transmit { dst, src, .. } = *transmit;
    match source.raw_os_error() {
        // ENOBUFS: the queue of the netdev is full.
        Some(libc::EAGAIN | libc::ENOBUFS) => SendError::WouldBlock { sent },
        Some(libc::EMSGSIZE) => SendError::TooBig { dst, length },
        // The kernel has one answer, EINVAL or ENETUNREACH by its version, for a source that is not of this host and
        // for other troubles.
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

#[cfg(test)]
mod tests;
