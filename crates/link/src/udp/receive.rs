//! Receiving: all trains that wait at the shared sockets, those of groups and the receive sockets.

use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use socket2::SockAddr;

use super::UdpLink;
use super::open::unspecified;
use super::sys::{self, BATCH, RecvMeta};
use crate::steer::question;

/// A received datagram.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Datagram<'a> {
    /// The sender.
    pub src: SocketAddr,
    /// Which of this host's addresses, or which group, it was sent to.
    pub dst: IpAddr,
    /// The netdev that it came in by, `lo` for packets of this host to itself; 0 for a receive
    /// socket.
    pub ifindex: u32,
    /// The IP type of service: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// The IP time to live.
    pub hop_limit: u8,
    /// The UDP payload. Of any length: only the UDP checksum has been checked.
    pub bytes: &'a [u8],
}

/// Datagrams that arrived together, and differ only in their bytes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Train<'a> {
    /// The sender.
    pub src: SocketAddr,
    /// Which of this host's addresses, or which group, they were sent to.
    pub dst: IpAddr,
    /// The netdev that they came in by, `lo` for packets of this host to itself; 0 for a receive
    /// socket.
    pub ifindex: u32,
    /// The IP type of service, as in [`Datagram::traffic_class`].
    pub traffic_class: u8,
    /// The IP time to live.
    pub hop_limit: u8,
    /// Whether they came by a receive socket.
    pub by_rx_socket: bool,
    bytes: &'a [u8],
    stride: usize,
}

impl<'a> Train<'a> {
    /// How many datagrams there are: at least one, which may be empty.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.bytes.len().div_ceil(self.stride).max(1)
    }

    /// Their UDP payloads, in their order: of any length, and only the UDP checksum has been
    /// checked.
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

/// The UDP payloads of datagrams, in their order. They are contiguous in memory.
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

    /// The payloads of contiguous datagrams of `stride` bytes, the last of which may be shorter.
    pub fn cut(bytes: &'a [u8], stride: usize) -> Self {
        let stride = stride.max(1);
        Self { bytes, stride, left: bytes.len().div_ceil(stride) }
    }

    /// All that are left, contiguous, and all as long as the first, except that the last may be
    /// shorter.
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

/// A socket that had nothing in this many calls while another one had is read only in one of
/// [`RARELY`] calls.
const UNLIKELY: u32 = 64;
const RARELY: u32 = 16;

impl UdpLink {
    /// Datagrams that were dropped because they were longer than any RoCE packet.
    pub fn truncated(&self) -> u64 {
        self.truncated
    }

    /// Passes every datagram that waits, up to a batch from each socket, to `each`, and returns
    /// their number. Joined datagrams are split again: check the QPN of each, since one flow may
    /// mix VFs.
    ///
    /// Questions of [`crate::steer`] are answered here and not counted, so 0 only means that no
    /// other datagram came.
    pub fn recv(&mut self, each: &mut dyn FnMut(Datagram<'_>)) -> io::Result<usize> {
        self.recv_some(true, &mut |train| train.datagrams().for_each(&mut *each))
    }

    /// As [`UdpLink::recv`], but does not split datagrams that arrived together.
    pub fn recv_trains(&mut self, each: &mut dyn FnMut(Train<'_>)) -> io::Result<usize> {
        self.recv_some(true, each)
    }

    /// As [`UdpLink::recv_trains`], but a socket that has had nothing for long is read only in one
    /// of 16 calls: for callers that poll.
    pub fn recv_likely_trains(&mut self, each: &mut dyn FnMut(Train<'_>)) -> io::Result<usize> {
        self.recv_some(false, each)
    }

    fn recv_some(
        &mut self,
        everywhere: bool,
        each: &mut dyn FnMut(Train<'_>),
    ) -> io::Result<usize> {
        let may_hold_more = mem::take(&mut self.may_hold_more);
        // Preparing room for many trains takes as long as receiving one.
        let is_wide = everywhere || may_hold_more;
        self.looks = self.looks.wrapping_add(1);
        let everywhere = everywhere || self.looks.is_multiple_of(RARELY);
        let mut count = 0;
        let others = self.last_full.len() + self.groups.len();
        for place in 0..others + self.rx_sockets.len() {
            let waits = place >= others && self.rx_sockets.waits(place - others);
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

    /// Passes up to `N` trains that wait at one socket to `each`.
    fn recv_at<const N: usize>(
        &mut self,
        place: usize,
        each: &mut dyn FnMut(Train<'_>),
    ) -> io::Result<usize> {
        let shared = if place == 0 { &self.v4 } else { &self.v6 };
        let is_shared = place < self.last_full.len();
        let rx_socket = self.rx_socket_at(place);
        let (socket, known) = if is_shared {
            (shared.as_ref(), None)
        } else if let Some(rx_socket) = rx_socket {
            self.rx_sockets
                .get(rx_socket)
                .map_or((None, None), |(socket, known)| (Some(socket), known))
        } else {
            let group = self.groups.get(place - self.last_full.len());
            (group.map(|(_, socket)| socket), None)
        };
        let Some(socket) = socket else { return Ok(0) };
        let mut metas = [None; N];
        let filled = match sys::recv(socket.as_fd(), known, &mut self.buffer, &mut metas) {
            // Anybody can make the kernel believe that the peer is gone. The report itself is the
            // only effect.
            Err(error) if rx_socket.is_some() => {
                tracing::debug!(%error, "a receive socket");
                return Ok(0);
            }
            filled => filled?,
        };
        if filled == 0 {
            self.found_empty(place);
            return Ok(0);
        }
        self.may_hold_more |= filled == N;
        self.had_some = true;
        if let Some(last_full) = self.last_full.get_mut(place) {
            *last_full = self.looks;
        } else if let Some(rx_socket) = rx_socket {
            self.rx_sockets.found(rx_socket, self.looks);
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
            let train = Train { by_rx_socket: rx_socket.is_some(), ..meta.train(bytes) };
            if known.is_some() {
                let is_packet = !train.bytes.is_empty();
                is_ours &= !is_packet || question::leads_to(self.options.vf, train.bytes);
            }
            if !is_shared || !question::may_come_from(train.src) {
                count += train.len();
                each(train);
                continue;
            }
            for bytes in train.payloads() {
                let alone = Train { bytes, stride: bytes.len().max(1), ..train };
                if question::is_request_to_steer(train.src, bytes) {
                    self.asked_to_steer = true;
                    continue;
                }
                match question::answer(self.options.vf, train.src, bytes) {
                    // If the answer is lost, the question is repeated.
                    Some(answer) => {
                        if let Some(socket) = shared.as_ref().filter(|_| !self.has_left) {
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
        if let Some(rx_socket) = rx_socket.filter(|_| !is_ours) {
            self.rx_sockets.refuse(rx_socket);
        }
        if filled < N {
            self.found_empty(place);
        }
        Ok(count)
    }

    /// Which receive socket is at `place`, if one is: they follow the shared sockets and the
    /// groups.
    fn rx_socket_at(&self, place: usize) -> Option<usize> {
        place.checked_sub(self.last_full.len() + self.groups.len())
    }

    /// Notes that the socket at `place` was empty.
    fn found_empty(&mut self, place: usize) {
        if place < self.last_full.len() {
            self.rx_sockets.found_shared_empty(place == 1);
        } else if let Some(rx_socket) = self.rx_socket_at(place) {
            self.rx_sockets.found_empty(rx_socket);
        }
    }

    /// Whether the socket at `place` has had nothing for long while another one had.
    fn is_unlikely(&self, place: usize) -> bool {
        let since = |at: &u32| self.looks.wrapping_sub(*at);
        let own = match self.last_full.get(place) {
            Some(shared) => Some(shared),
            None => self
                .rx_socket_at(place)
                .and_then(|rx_socket| self.rx_sockets.last_full().nth(rx_socket)),
        };
        let all = self.last_full.iter().chain(self.rx_sockets.last_full());
        let newest = all.map(since).min().unwrap_or_default();
        own.is_some_and(|at| since(at) - newest >= UNLIKELY)
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
            by_rx_socket: false,
            bytes: &buffer[..self.len.min(buffer.len())],
            stride: self.stride.max(1),
        }
    }
}
