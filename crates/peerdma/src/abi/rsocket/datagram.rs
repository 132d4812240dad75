//! Datagram sockets: a UDP socket, and a queue pair for each local address that was used.
//!
//! A datagram to an address whose queue pair is not known yet goes over UDP, after an [`Ask`] that
//! names the queue pair of this side. The service of the other side answers with its own
//! ([`super::ask`]), and from then on datagrams go between the queue pairs. A datagram larger than
//! the path MTU goes over UDP as well.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_short};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use descriptors::Known;
use device::Wc;
use iba::{Access, Av, LKey, QKey, QpCap, QpType, Qpn, SendFlags, WcStatus, WrOpcode};
use libc::ssize_t;
use rsocket::datagram::{Ask, Header};
use rsocket::{How, SEND_LOW_WATER, Sizes};
use rustix::event::epoll;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags as UdpFlags, SocketFlags, SocketType, bind,
    connect, getpeername, getsockname, sendmsg_addr, socket_with,
};
use smallvec::{SmallVec, smallvec};
use transport::wr::{Data, RecvWr, SendWr, Sge as Piece, UdDest};

use super::common::{Common, IN, OUT};
use super::conn::has_event;
use super::memory::{Pieces, unreachable};
use super::service;
use crate::abi::rdmacm::handle::Handle;
use crate::abi::rdmacm::objects::{Address, Domain, Memory, Pair, Queue};
use crate::abi::rdmacm::{Answer, Failure};
use crate::abi::types::rdma::UDP_QKEY;

/// See the module.
pub(super) struct DatagramSocket {
    pub(super) common: Common,
    udp: Known,
    /// Readable when a queue pair has an event.
    events: Known,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    ends: Vec<End>,
    pub(super) peers: BTreeMap<SocketAddr, Peer>,
    /// Where `rsend` sends to.
    connected: Option<SocketAddr>,
    messages: VecDeque<Message>,
    is_served: bool,
    no_reads: bool,
    no_writes: bool,
}

/// A queue pair with its memory. Buffers have [`SEND_LOW_WATER`] bytes.
pub(super) struct End {
    /// The local address it is for.
    pub(super) local: SocketAddr,
    /// Dropped before the memory that it uses.
    qp: Pair,
    domain: Arc<Domain>,
    /// The address it is bound to.
    _id: Handle,
    send: Memory,
    /// Buffers for receives, followed by one for all the headers that nobody reads.
    receive: Memory,
    /// Free buffers for sends.
    free: Vec<u32>,
    sizes: Sizes,
    inline: u32,
    /// The most bytes in a datagram.
    mtu: usize,
    is_armed: bool,
}

/// An address that datagrams went to or came from.
#[derive(Clone)]
pub(super) struct Peer {
    /// Our queue pair for it.
    pub(super) end: usize,
    /// Its own queue pair, once known.
    pub(super) there: Option<There>,
}

/// A queue pair of a peer.
#[derive(Clone)]
pub(super) struct There {
    address: Arc<Address>,
    pub(super) qpn: Qpn,
}

/// A received datagram.
struct Message {
    source: SocketAddr,
    place: Place,
}

enum Place {
    /// In a buffer of a queue pair, behind its header.
    Buffer { end: usize, buffer: u32, at: u32, length: u32 },
    /// By UDP.
    Bytes(Vec<u8>),
}

/// Marks receive requests.
const RECEIVE: u64 = 1 << 63;
/// The most completions taken at once.
const AT_ONCE: usize = 16;
/// Bytes before every datagram that is received.
const GRH: u32 = 40;
/// The most addresses that are kept: anybody can send from new ones.
const PEERS: usize = 1024;
/// How long a closed socket waits for what it sent.
const LINGER: Duration = Duration::from_secs(1);

fn failed(what: &str, error: rustix::io::Errno) -> Failure {
    Failure::new(error.raw_os_error(), format!("{what}: {error}"))
}

impl End {
    /// A queue pair for a local address.
    fn create(local: SocketAddr, sizes: Sizes) -> Answer<Self> {
        let id = Handle::datagram()?;
        // Peers learn the queue pair by UDP: the port of the identifier does not matter.
        id.bind(SocketAddr::new(local.ip(), 0))?;
        let domain = id.domain()?;
        let sizes = sizes.for_datagrams(domain.device_attr().max_qp_wr);
        let queue = Arc::new(Queue::create(&domain, sizes.sq_size + sizes.rq_size)?);
        let room = (sizes.receive_buffer + GRH) as usize;
        let send = Memory::register(&domain, sizes.send_buffer as usize, Access::LOCAL_WRITE)?;
        let receive = Memory::register(&domain, room, Access::LOCAL_WRITE)?;
        let cap = QpCap {
            max_send_wr: sizes.sq_size,
            max_recv_wr: sizes.rq_size,
            max_send_sge: 1,
            max_recv_sge: 2,
            max_inline_data: sizes.inline,
        };
        let qp = Pair::create(&domain, &queue, QpType::Ud, cap)?;
        id.prepare(&qp)?;
        let free = (0..sizes.sq_size).rev().collect();
        let mtu = domain.mtu();
        let (inline, is_armed) = (sizes.inline, false);
        let end =
            Self { local, qp, domain, _id: id, send, receive, free, sizes, inline, mtu, is_armed };
        for buffer in 0..sizes.rq_size {
            end.post_receive(buffer)?;
        }
        Ok(end)
    }

    fn queue(&self) -> &Queue {
        self.qp.queue()
    }

    fn post_receive(&self, buffer: u32) -> Answer {
        let lkey = LKey(self.receive.lkey());
        let headers = self.receive.addr() + u64::from(self.sizes.receive_buffer);
        let addr = self.receive.addr() + u64::from(buffer * SEND_LOW_WATER);
        let sges = smallvec![
            Piece { addr: headers, length: GRH, lkey },
            Piece { addr, length: SEND_LOW_WATER, lkey },
        ];
        self.qp.post_recv(RecvWr { wr_id: RECEIVE | u64::from(buffer), sges })
    }

    /// Sends a datagram, which fits in a buffer, unless no buffer is free.
    fn send(&mut self, there: &There, from: &mut Pieces<'_>) -> Answer<bool> {
        let Some(buffer) = self.free.pop() else { return Ok(false) };
        let posted = self.post_send(buffer, there, from);
        if posted.is_err() {
            self.free.push(buffer);
        }
        posted.map(|()| true)
    }

    fn post_send(&self, buffer: u32, there: &There, from: &mut Pieces<'_>) -> Answer {
        let header = Header { source: self.local };
        let head = header.size() as u32;
        let length = head + from.left() as u32;
        let header = &header.to_bytes()[..head as usize];
        let (flags, data) = if length <= self.inline {
            let mut bytes: SmallVec<[u8; 64]> = SmallVec::from_slice(header);
            bytes.resize(length as usize, 0);
            from.read(&mut bytes[head as usize..])?;
            (SendFlags::INLINE, Data::Inline(bytes))
        } else {
            let at = buffer * SEND_LOW_WATER;
            self.send.part(at, head).copy_from(header).map_err(unreachable)?;
            from.copy_to(self.send.part(at + head, length - head))?;
            let addr = self.send.addr() + u64::from(at);
            let piece = Piece { addr, length, lkey: LKey(self.send.lkey()) };
            (SendFlags::empty(), Data::Sges(smallvec![piece]))
        };
        let mut wr = SendWr::new(buffer.into(), WrOpcode::Send, flags, data);
        wr.ud = Some(UdDest {
            av: there.address.av,
            remote_qpn: there.qpn,
            remote_qkey: QKey(UDP_QKEY),
        });
        self.qp.post_send(wr)
    }
}

impl State {
    /// Handles the completions that are there. With `arm`, a later completion raises an event.
    fn look(&mut self, arm: bool) {
        for index in 0..self.ends.len() {
            self.look_at(index);
            if arm && !self.ends[index].is_armed && self.ends[index].queue().arm().is_ok() {
                self.ends[index].is_armed = true;
                self.look_at(index);
            }
        }
    }

    fn look_at(&mut self, index: usize) {
        loop {
            let mut came: SmallVec<[Wc; AT_ONCE]> = SmallVec::new();
            let taken = self.ends[index].queue().poll(AT_ONCE, |wc| came.push(*wc));
            if !matches!(taken, Ok(1..)) {
                return;
            }
            for wc in &came {
                let end = &mut self.ends[index];
                let buffer = wc.wr_id as u32;
                if wc.wr_id & RECEIVE == 0 {
                    end.free.push(buffer);
                    continue;
                }
                if wc.status != WcStatus::Success {
                    continue;
                }
                let length = wc.byte_len.saturating_sub(GRH).min(SEND_LOW_WATER);
                let mut bytes = [0; Header::MAX];
                let seen = (length as usize).min(Header::MAX);
                let start = end.receive.part(buffer * SEND_LOW_WATER, seen as u32);
                let header = start.copy_to(&mut bytes[..seen]).ok();
                let header = header.and_then(|()| Header::from_bytes(&bytes[..seen]));
                if let Some(header) = header {
                    let at = header.size() as u32;
                    let place = Place::Buffer { end: index, buffer, at, length: length - at };
                    self.messages.push_back(Message { source: header.source, place });
                } else if end.post_receive(buffer).is_err() {
                    break;
                }
            }
        }
    }

    /// The queue pair for `local`, created if there is none.
    fn end(&mut self, socket: &DatagramSocket, local: SocketAddr, sizes: Sizes) -> Answer<usize> {
        if let Some(known) = self.ends.iter().position(|end| end.local == local) {
            return Ok(known);
        }
        let end = End::create(local, sizes)?;
        let data = epoll::EventData::new_u64(self.ends.len() as u64);
        let add = || epoll::add(&socket.events, end.queue(), data, epoll::EventFlags::IN);
        socket.events.look().and_then(|()| add()).map_err(|error| failed("epoll", error))?;
        self.ends.push(end);
        Ok(self.ends.len() - 1)
    }

    /// The peer at `addr`, added if it is unknown.
    pub(super) fn peer(
        &mut self,
        socket: &DatagramSocket,
        addr: SocketAddr,
        sizes: Sizes,
    ) -> Answer<Peer> {
        if let Some(peer) = self.peers.get(&addr) {
            return Ok(peer.clone());
        }
        let local = socket.source(addr)?;
        let peer = Peer { end: self.end(socket, local, sizes)?, there: None };
        if self.peers.len() >= PEERS {
            let oldest = self.peers.keys().copied().find(|known| Some(*known) != self.connected);
            oldest.and_then(|known| self.peers.remove(&known));
        }
        self.peers.insert(addr, peer.clone());
        Ok(peer)
    }

    /// The queue pair of the peer at `addr` is now known.
    pub(super) fn found(&mut self, addr: SocketAddr, av: Av, qpn: Qpn) -> Answer {
        let Some(peer) = self.peers.get_mut(&addr) else { return Ok(()) };
        peer.there = None;
        let address = Arc::new(Address::create(&self.ends[peer.end].domain, av)?);
        peer.there = Some(There { address, qpn });
        Ok(())
    }

    /// A datagram came by UDP. It is dropped if as many wait as there are receives, like a datagram
    /// that finds no receive.
    pub(super) fn deliver(&mut self, source: SocketAddr, bytes: &[u8], sizes: Sizes) {
        if self.messages.len() < sizes.rq_size as usize {
            self.messages.push_back(Message { source, place: Place::Bytes(bytes.to_vec()) });
        }
    }

    /// What this side says about itself to peers of its `end`.
    pub(super) fn ask(&self, end: usize, has_data: bool) -> Ask {
        let end = &self.ends[end];
        Ask { has_data, qpn: end.qp.qpn().value(), addr: end.local.ip() }
    }

    /// The address of an end.
    pub(super) fn local(&self, end: usize) -> SocketAddr {
        self.ends[end].local
    }
}

impl DatagramSocket {
    /// A new socket.
    pub(super) fn create(domain: c_int) -> Answer<Self> {
        let family =
            if domain == libc::AF_INET6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let udp = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(|error| failed("rsocket", error))?;
        let events =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| failed("rsocket", error))?;
        // The program knows the number of the first, and uses it in select(2).
        let (udp, events) = (Known::at_its_number(udp), Known::new(events));
        let common = Common::new(udp.as_raw_fd());
        Ok(Self { common, udp, events, state: Mutex::default() })
    }

    /// The UDP socket.
    ///
    /// # Errors
    /// EBADF if the program has taken its number.
    pub(super) fn udp(&self) -> Answer<&Known> {
        self.udp.look().map_err(|error| failed("its UDP socket", error))?;
        Ok(&self.udp)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands it to the service, at the first use of its address.
    fn have_served(self: &Arc<Self>, state: &mut State) -> Answer {
        if !state.is_served {
            service::add(self)?;
            state.is_served = true;
        }
        Ok(())
    }

    /// `bind(2)`.
    pub(super) fn bind(self: &Arc<Self>, addr: SocketAddr) -> Answer {
        bind(self.udp()?, &addr).map_err(|error| failed("rbind", error))?;
        tracing::info!(target: "peerdma::rsocket", "bound to {addr}");
        self.have_served(&mut self.state())
    }

    /// `connect(2)`.
    pub(super) fn connect(self: &Arc<Self>, addr: SocketAddr) -> Answer {
        connect(self.udp()?, &addr).map_err(|error| failed("rconnect", error))?;
        let sizes = self.common.options().sizes;
        let mut state = self.state();
        self.have_served(&mut state)?;
        state.peer(self, addr, sizes)?;
        state.connected = Some(addr);
        Ok(())
    }

    /// The local address from which datagrams to `to` go, with a port.
    fn source(&self, to: SocketAddr) -> Answer<SocketAddr> {
        let udp = self.udp()?;
        let name = || -> rustix::io::Result<SocketAddr> { getsockname(udp)?.try_into() };
        let failed = |error| failed("getsockname", error);
        let mut own = name().map_err(failed)?;
        if own.port() == 0 {
            bind(udp, &SocketAddr::new(own.ip(), 0)).map_err(failed)?;
            own = name().map_err(failed)?;
        }
        if !own.ip().is_unspecified() {
            return Ok(own);
        }
        // The kernel knows which address it would send from.
        let family = if to.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        let found = || -> rustix::io::Result<SocketAddr> {
            let probe = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
            connect(&probe, &to)?;
            getsockname(&probe)?.try_into()
        };
        let ip: IpAddr = found().map_err(failed)?.ip();
        Ok(SocketAddr::new(ip, own.port()))
    }

    /// Sends a datagram to `to`, or to the address it is connected to. `None` if no buffer is free:
    /// then the caller waits.
    pub(super) fn try_send(
        self: &Arc<Self>,
        from: &mut Pieces<'_>,
        to: Option<SocketAddr>,
    ) -> Answer<Option<ssize_t>> {
        let length = from.left();
        if length > SEND_LOW_WATER as usize - Ask::MAX {
            let what = format!("rsend: a datagram of {length} bytes");
            return Err(Failure::new(libc::EMSGSIZE, what));
        }
        let sizes = self.common.options().sizes;
        let mut state = self.state();
        if state.no_writes {
            return Err(Failure::new(libc::EPIPE, "rsend: the rsocket was shut down"));
        }
        let Some(to) = to.or(state.connected) else {
            let what = "rsend: the rsocket is not connected, and there is no address";
            return Err(Failure::new(libc::EDESTADDRREQ, what));
        };
        self.have_served(&mut state)?;
        let peer = state.peer(self, to, sizes)?;
        let fits = Header::MAX + length <= state.ends[peer.end].mtu;
        let Some(there) = peer.there.filter(|_| fits) else {
            let ask = state.ask(peer.end, true);
            let mut bytes = vec![0; length];
            from.read(&mut bytes)?;
            drop(state);
            return self.send_udp(&ask, &bytes, to).map(|()| Some(length.cast_signed()));
        };
        if state.ends[peer.end].free.is_empty() {
            state.look(false);
        }
        let sent = state.ends[peer.end].send(&there, from)?;
        Ok(sent.then_some(length.cast_signed()))
    }

    /// Sends over UDP.
    pub(super) fn send_udp(&self, ask: &Ask, data: &[u8], to: SocketAddr) -> Answer {
        let head = ask.to_bytes();
        let pieces = [std::io::IoSlice::new(&head[..ask.size()]), std::io::IoSlice::new(data)];
        let mut none = SendAncillaryBuffer::default();
        // A connected socket can send to other addresses, too (udp(7)).
        sendmsg_addr(self.udp()?, &to, &pieces, &mut none, UdpFlags::NOSIGNAL)
            .map(drop)
            .map_err(|error| failed("rsend", error))
    }

    /// Receives a datagram, if there is one, and says which address sent it. What does not fit in
    /// the buffer is lost (`udp(7)`).
    pub(super) fn try_receive(
        &self,
        to: &mut Pieces<'_>,
        flags: c_int,
    ) -> Answer<Option<(ssize_t, Option<SocketAddr>)>> {
        let mut state = self.state();
        if state.messages.is_empty() {
            state.look(false);
        }
        if let Some(message) = state.messages.pop_front() {
            let source = message.source;
            let count = state.read(&message, to);
            if flags & libc::MSG_PEEK != 0 || count.is_err() {
                state.messages.push_front(message);
            } else {
                state.done(&message);
            }
            return Ok(Some((count?.cast_signed(), Some(source))));
        }
        Ok(state.no_reads.then_some((0, None)))
    }

    /// What `poll(2)` would report.
    pub(super) fn ready(&self, arm: bool) -> c_short {
        let mut state = self.state();
        state.look(arm);
        let mut ready = 0;
        if !state.messages.is_empty() || state.no_reads {
            ready |= IN;
        }
        if state.ends.iter().all(|end| !end.free.is_empty()) || state.no_writes {
            ready |= OUT;
        }
        ready
    }

    /// Readable when something happened.
    ///
    /// # Errors
    /// EBADF if the program has taken its number.
    pub(super) fn descriptor(&self) -> Answer<RawFd> {
        self.events.look().map_err(|error| failed("its events", error))?;
        Ok(self.events.as_raw_fd())
    }

    /// Handles the events that are there.
    pub(super) fn happened(&self) {
        let mut state = self.state();
        for end in &mut state.ends {
            if has_event(end.queue()) && end.queue().take_event().is_ok() {
                end.is_armed = false;
            }
        }
        drop(state);
        self.common.watchers.notify();
    }

    /// `shutdown(2)`.
    pub(super) fn shutdown(&self, how: How) -> Answer {
        let mut state = self.state();
        if state.connected.is_none() {
            return Err(Failure::new(libc::ENOTCONN, "rshutdown: the rsocket is not connected"));
        }
        state.no_reads |= how != How::Write;
        state.no_writes |= how != How::Read;
        drop(state);
        self.common.watchers.notify();
        Ok(())
    }

    /// The program has closed it: what it sent still goes out.
    pub(super) fn close(&self) {
        let until = Instant::now() + LINGER;
        loop {
            let mut state = self.state();
            state.look(false);
            let is_idle = state.ends.iter().all(|end| end.free.len() == end.sizes.sq_size as usize);
            drop(state);
            if is_idle || Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// `getpeername(2)` or `getsockname(2)`.
    pub(super) fn name(&self, is_peer: bool) -> Answer<SocketAddr> {
        let udp = self.udp()?;
        let name = || -> rustix::io::Result<SocketAddr> {
            if is_peer {
                getpeername(udp)?.ok_or(rustix::io::Errno::NOTCONN)?.try_into()
            } else {
                getsockname(udp)?.try_into()
            }
        };
        name().map_err(|error| failed("the name of an rsocket", error))
    }
}

impl State {
    /// Copies a datagram, as far as there is room.
    fn read(&self, message: &Message, to: &mut Pieces<'_>) -> Answer<usize> {
        match &message.place {
            Place::Buffer { end, buffer, at, length } => {
                let count = (*length as usize).min(to.left());
                let part = self.ends[*end].receive.part(buffer * SEND_LOW_WATER + at, count as u32);
                to.copy_from(part)?;
                Ok(count)
            }
            Place::Bytes(bytes) => {
                let count = bytes.len().min(to.left());
                to.write(&bytes[..count])?;
                Ok(count)
            }
        }
    }

    /// A datagram was read: frees its buffer.
    fn done(&self, message: &Message) {
        if let Place::Buffer { end, buffer, .. } = message.place {
            // Posting fails only if the device has failed.
            let _ = self.ends[end].post_receive(buffer);
        }
    }
}
