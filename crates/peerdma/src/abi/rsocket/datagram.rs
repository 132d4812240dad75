//! Datagram sockets: a UDP socket, and a queue pair for each local address that was used.
//!
//! A datagram to an address whose queue pair is not known yet goes over UDP, behind an [`Ask`] that
//! says which queue pair this side has; the service of the other side answers with its own
//! ([`super::ask`]), and from then on datagrams go between the queue pairs. One that is larger than
//! the path MTU goes over UDP as well.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use iba::QpType;
use libc::{sockaddr, socklen_t, ssize_t};
use rsocket::datagram::{Ask, Header};
use rsocket::{How, SEND_LOW_WATER, Sizes};
use rustix::event::epoll;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, bind, connect,
    getpeername, getsockname, sendmsg_addr, socket_with,
};

use super::conn::Queue;
use super::memory::{LOCAL_WRITE, Memory, Pieces, unreachable};
use super::poll;
use super::service;
use super::socket::{Kind, NOTHING, Socket};
use super::stream::give_address;
use crate::abi::ah::{ibv_create_ah, ibv_destroy_ah};
use crate::abi::context::opened;
use crate::abi::device::ibv_query_port;
use crate::abi::post::{post_recv, post_send};
use crate::abi::rdmacm::addr::rdma_bind_addr;
use crate::abi::rdmacm::id::{rdma_create_id, rdma_destroy_id};
use crate::abi::rdmacm::qp::{rdma_create_qp, rdma_destroy_qp};
use crate::abi::rdmacm::{Answer, Failure, sockaddr as addresses, verb};
use crate::abi::types::CEnum;
use crate::abi::types::ah::{Ah, AhAttr};
use crate::abi::types::device::PortAttr;
use crate::abi::types::qp::QpInitAttr;
use crate::abi::types::rdma::{CmId, UDP_QKEY, port_space};
use crate::abi::types::wc::Wc;
use crate::abi::types::wr::{RecvWr, SendWr, Sge as Piece};

/// See the module.
pub(super) struct DatagramSocket {
    pub(super) udp: OwnedFd,
    /// Readable when a queue pair has an event.
    events: OwnedFd,
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
    pub(super) id: *mut CmId,
    queue: Queue,
    send: Memory,
    /// Buffers for receives, and behind them one for all the headers that nobody reads.
    receive: Memory,
    /// Buffers for sends that are free.
    free: Vec<u32>,
    sizes: Sizes,
    inline: u32,
    /// Bytes of a datagram at most.
    mtu: usize,
    is_armed: bool,
}

/// An address that datagrams went to or came from.
#[derive(Clone, Copy)]
pub(super) struct Peer {
    /// The queue pair for it here.
    pub(super) end: usize,
    /// The queue pair it has, once it is known.
    pub(super) there: Option<(*mut Ah, u32)>,
}

/// A datagram that came.
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

// SAFETY: the pointers are to objects of ours, used under the lock of the state they are in.
unsafe impl Send for State {}

/// Marks receive requests.
const RECEIVE: u64 = 1 << 63;
/// Bytes before every datagram that is received.
const GRH: u32 = 40;
/// Addresses that are kept at most: strangers make some.
const PEERS: usize = 1024;
/// How long a socket that is closed waits for what it sent.
const LINGER: Duration = Duration::from_secs(1);

fn failed(what: &str, error: rustix::io::Errno) -> Failure {
    Failure::new(error.raw_os_error(), format!("{what}: {error}"))
}

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: the identifier is ours, and nobody uses it any more.
        unsafe { rdma_destroy_qp(self.id) };
        // SAFETY: as above.
        unsafe { rdma_destroy_id(self.id) };
    }
}

impl End {
    /// A queue pair for a local address.
    fn create(local: SocketAddr, sizes: Sizes) -> Answer<Self> {
        let mut id = ptr::null_mut();
        // SAFETY: contract: NULL is a channel of its own.
        let made =
            unsafe { rdma_create_id(ptr::null_mut(), &raw mut id, NOTHING, port_space::UDP) };
        called(made)?;
        // SAFETY: it was made just now.
        unsafe { Self::around(id, local, sizes) }.inspect_err(|_| {
            // SAFETY: as above, and it has no queue pair.
            unsafe { rdma_destroy_id(id) };
        })
    }

    /// Gives an identifier its queue pair.
    ///
    /// # Safety
    ///
    /// It is ours, and new.
    unsafe fn around(id: *mut CmId, local: SocketAddr, sizes: Sizes) -> Answer<Self> {
        // Peers learn the queue pair by UDP: which port the identifier has is nobody's concern.
        let mut room = addresses::write(SocketAddr::new(local.ip(), 0));
        // SAFETY: the caller's promise; the address is valid.
        called(unsafe { rdma_bind_addr(id, (&raw mut room).cast()) })?;
        // SAFETY: the caller's promise.
        let CmId { verbs: context, pd, port_num: port, .. } = *unsafe { &*id };
        // SAFETY: contract: the context is open.
        let most = unsafe { opened(context) }.hca.alive()?.device_attr().max_qp_wr;
        let sizes = sizes.for_datagrams(most);
        // SAFETY: the caller's promise.
        let queue = unsafe { Queue::create(id, sizes.sq_size + sizes.rq_size) }?;
        // SAFETY: the domain is the device's, which outlives the result.
        let send = unsafe { Memory::register(pd, sizes.send_buffer as usize, LOCAL_WRITE) }?;
        let room = (sizes.receive_buffer + GRH) as usize;
        // SAFETY: as above.
        let receive = unsafe { Memory::register(pd, room, LOCAL_WRITE) }?;
        // SAFETY: the structure is made of integers, for which zero is a value.
        let mut port_attr: PortAttr = unsafe { mem::zeroed() };
        // SAFETY: contract: the context is open, and there is room.
        verb(unsafe { ibv_query_port(context, port, (&raw mut port_attr).cast()) })?;
        // SAFETY: the structure is made of integers and pointers, for which zero is a value.
        let mut attr: QpInitAttr = unsafe { mem::zeroed() };
        (attr.send_cq, attr.recv_cq) = (queue.cq, queue.cq);
        attr.qp_type = QpType::Ud as CEnum;
        attr.sq_sig_all = 1;
        (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (sizes.sq_size, sizes.rq_size);
        (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (1, 2);
        attr.cap.max_inline_data = sizes.inline;
        // SAFETY: the caller's promise; the attributes are valid.
        called(unsafe { rdma_create_qp(id, ptr::null_mut(), &raw mut attr) })?;
        let inline = attr.cap.max_inline_data;
        let free = (0..sizes.sq_size).rev().collect();
        // From here on the result undoes it all.
        let mtu = 128 << port_attr.active_mtu;
        let end =
            Self { local, id, queue, send, receive, free, sizes, inline, mtu, is_armed: false };
        for buffer in 0..sizes.rq_size {
            end.post_receive(buffer)?;
        }
        Ok(end)
    }

    fn post_receive(&self, buffer: u32) -> Answer {
        let lkey = self.receive.lkey();
        let headers = self.receive.addr() + u64::from(self.sizes.receive_buffer);
        let addr = self.receive.addr() + u64::from(buffer * SEND_LOW_WATER);
        let mut pieces = [
            Piece { addr: headers, length: GRH, lkey },
            Piece { addr, length: SEND_LOW_WATER, lkey },
        ];
        let mut wr = RecvWr {
            wr_id: RECEIVE | u64::from(buffer),
            next: ptr::null_mut(),
            sg_list: pieces.as_mut_ptr(),
            num_sge: pieces.len() as c_int,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the identifier has a queue pair as long as this value lives.
        let qp = unsafe { (*self.id).qp };
        // SAFETY: the queue pair is ours; the request and its list live through the call.
        verb(unsafe { post_recv(qp, &raw mut wr, &raw mut bad) })
    }

    /// Sends a datagram. There is a free buffer, and it fits.
    fn send(&mut self, (ah, qpn): (*mut Ah, u32), from: &mut Pieces<'_>) -> Answer {
        let header = Header { source: self.local };
        let head = header.size() as u32;
        let length = head + from.left() as u32;
        let Some(buffer) = self.free.pop() else { return Err(Failure::quiet(libc::EAGAIN)) };
        let at = buffer * SEND_LOW_WATER;
        let copied = self.send.part(at, head).copy_from(&header.to_bytes()[..head as usize]);
        let copied = copied.map_err(unreachable);
        if let Err(failure) =
            copied.and_then(|()| from.copy_to(self.send.part(at + head, length - head)))
        {
            self.free.push(buffer);
            return Err(failure);
        }
        let addr = self.send.addr() + u64::from(at);
        let mut piece = Piece { addr, length, lkey: self.send.lkey() };
        // SAFETY: the structure is made of integers and pointers, for which zero is a value.
        let mut wr: SendWr = unsafe { mem::zeroed() };
        wr.wr_id = buffer.into();
        (wr.sg_list, wr.num_sge) = (&raw mut piece, 1);
        // `IBV_WR_SEND`, and `IBV_SEND_INLINE`.
        wr.opcode = 2;
        wr.send_flags = if length <= self.inline { 1 << 3 } else { 0 };
        (wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey) = (ah, qpn, UDP_QKEY);
        let mut bad = ptr::null_mut();
        // SAFETY: the identifier has a queue pair as long as this value lives.
        let qp = unsafe { (*self.id).qp };
        // SAFETY: the queue pair is ours; the request and what it names live through the call.
        let posted = verb(unsafe { post_send(qp, &raw mut wr, &raw mut bad) });
        if posted.is_err() {
            self.free.push(buffer);
        }
        posted
    }

    /// The number of its queue pair.
    fn qpn(&self) -> u32 {
        // SAFETY: the identifier has a queue pair as long as this value lives.
        let qp = unsafe { (*self.id).qp };
        // SAFETY: as above.
        unsafe { (*qp).qp_num }
    }
}

/// A call of C as an answer.
fn called(answer: c_int) -> Answer {
    if answer == 0 { Ok(()) } else { Err(Failure::last()) }
}

impl State {
    /// Takes the completions there are. With `arm` what comes afterwards is an event.
    fn look(&mut self, arm: bool) {
        for index in 0..self.ends.len() {
            self.look_at(index);
            if arm && !self.ends[index].is_armed && self.ends[index].queue.arm().is_ok() {
                self.ends[index].is_armed = true;
                self.look_at(index);
            }
        }
    }

    fn look_at(&mut self, index: usize) {
        // SAFETY: the structure is made of integers, for which zero is a value.
        let mut room: [Wc; 16] = unsafe { mem::zeroed() };
        while let Ok(count @ 1..) = self.ends[index].queue.poll(&mut room) {
            for wc in &room[..count] {
                let end = &mut self.ends[index];
                let buffer = wc.wr_id as u32;
                if wc.wr_id & RECEIVE == 0 {
                    end.free.push(buffer);
                    continue;
                }
                if wc.status != 0 {
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

    /// The queue pair for `local`, made if there is none.
    fn end(&mut self, socket: &DatagramSocket, local: SocketAddr, sizes: Sizes) -> Answer<usize> {
        if let Some(known) = self.ends.iter().position(|end| end.local == local) {
            return Ok(known);
        }
        let end = End::create(local, sizes)?;
        // SAFETY: the channel lives as long as the end, which goes with the socket.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(end.queue.fd()) };
        let data = epoll::EventData::new_u64(self.ends.len() as u64);
        epoll::add(&socket.events, fd, data, epoll::EventFlags::IN)
            .map_err(|error| failed("epoll", error))?;
        self.ends.push(end);
        Ok(self.ends.len() - 1)
    }

    /// The peer at `addr`, made known if it is not.
    pub(super) fn peer(
        &mut self,
        socket: &DatagramSocket,
        addr: SocketAddr,
        sizes: Sizes,
    ) -> Answer<Peer> {
        if let Some(peer) = self.peers.get(&addr) {
            return Ok(*peer);
        }
        let local = socket.source(addr)?;
        let peer = Peer { end: self.end(socket, local, sizes)?, there: None };
        if self.peers.len() >= PEERS {
            let oldest = self.peers.keys().copied().find(|known| Some(*known) != self.connected);
            if let Some(known) = oldest.and_then(|known| self.peers.remove(&known)) {
                forget(known.there);
            }
        }
        self.peers.insert(addr, peer);
        Ok(peer)
    }

    /// The queue pair of the peer at `addr` is now known.
    pub(super) fn found(&mut self, addr: SocketAddr, attr: &AhAttr, qpn: u32) {
        let Some(peer) = self.peers.get_mut(&addr) else { return };
        // SAFETY: the identifier is ours.
        let pd = unsafe { (*self.ends[peer.end].id).pd };
        // SAFETY: contract: the domain is ours, the attributes valid.
        let ah = unsafe { ibv_create_ah(pd, (&raw const *attr).cast_mut()) };
        let there = (!ah.is_null()).then_some((ah, qpn));
        forget(mem::replace(&mut peer.there, there));
    }

    /// A datagram came by UDP. It is dropped if there are as many as receives, like one that finds
    /// none.
    pub(super) fn deliver(&mut self, source: SocketAddr, bytes: &[u8], sizes: Sizes) {
        if self.messages.len() < sizes.rq_size as usize {
            self.messages.push_back(Message { source, place: Place::Bytes(bytes.to_vec()) });
        }
    }

    /// What this side says of itself to peers that its `end` is for.
    pub(super) fn ask(&self, end: usize, has_data: bool) -> Ask {
        let end = &self.ends[end];
        Ask { has_data, qpn: end.qpn(), addr: end.local.ip() }
    }

    /// The address of an end.
    pub(super) fn local(&self, end: usize) -> SocketAddr {
        self.ends[end].local
    }
}

/// Gives up a peer's queue pair.
fn forget(there: Option<(*mut Ah, u32)>) {
    if let Some((ah, _)) = there {
        // SAFETY: the handle is ours, and what was posted with it has its own copy.
        unsafe { ibv_destroy_ah(ah) };
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.peers.values().for_each(|peer| forget(peer.there));
    }
}

impl DatagramSocket {
    /// A new socket.
    pub(super) fn create(domain: c_int) -> Answer<Socket> {
        let family =
            if domain == libc::AF_INET6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let udp = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(|error| failed("rsocket", error))?;
        let events =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| failed("rsocket", error))?;
        let fd = udp.as_raw_fd();
        Ok(Socket::new(fd, Kind::Datagram(Self { udp, events, state: Mutex::default() })))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the service look after it, from the first use of its address on.
    fn serve(&self, socket: &Arc<Socket>, state: &mut State) -> Answer {
        if !state.is_served {
            service::add(socket)?;
            state.is_served = true;
        }
        Ok(())
    }

    /// `bind(2)`.
    pub(super) fn bind(&self, socket: &Arc<Socket>, addr: SocketAddr) -> Answer {
        bind(&self.udp, &addr).map_err(|error| failed("rbind", error))?;
        tracing::info!(target: "peerdma::rsocket", "bound to {addr}");
        self.serve(socket, &mut self.state())
    }

    /// `connect(2)`.
    pub(super) fn connect(&self, socket: &Arc<Socket>, addr: SocketAddr) -> Answer {
        connect(&self.udp, &addr).map_err(|error| failed("rconnect", error))?;
        let sizes = socket.options().sizes;
        let mut state = self.state();
        self.serve(socket, &mut state)?;
        state.peer(self, addr, sizes)?;
        state.connected = Some(addr);
        Ok(())
    }

    /// The local address from which datagrams to `to` go, with a port.
    fn source(&self, to: SocketAddr) -> Answer<SocketAddr> {
        let name = || -> rustix::io::Result<SocketAddr> { getsockname(&self.udp)?.try_into() };
        let failed = |error| failed("getsockname", error);
        let mut own = name().map_err(failed)?;
        if own.port() == 0 {
            bind(&self.udp, &SocketAddr::new(own.ip(), 0)).map_err(failed)?;
            own = name().map_err(failed)?;
        }
        if !own.ip().is_unspecified() {
            return Ok(own);
        }
        // The kernel knows by which address it would send.
        let family = if to.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        let found = || -> rustix::io::Result<SocketAddr> {
            let probe = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
            connect(&probe, &to)?;
            getsockname(&probe)?.try_into()
        };
        let ip: IpAddr = found().map_err(failed)?.ip();
        Ok(SocketAddr::new(ip, own.port()))
    }

    /// Sends a datagram to `to`, or to the address it is connected to.
    pub(super) fn send(
        &self,
        socket: &Arc<Socket>,
        mut from: Pieces<'_>,
        to: Option<SocketAddr>,
        flags: c_int,
    ) -> Answer<ssize_t> {
        let length = from.left();
        if length > SEND_LOW_WATER as usize - Ask::MAX {
            let what = format!("rsend: a datagram of {length} bytes");
            return Err(Failure::new(libc::EMSGSIZE, what));
        }
        loop {
            let sizes = socket.options().sizes;
            let mut state = self.state();
            if state.no_writes {
                return Err(Failure::new(libc::EPIPE, "rsend: the rsocket was shut down"));
            }
            let Some(to) = to.or(state.connected) else {
                let what = "rsend: the rsocket is not connected, and there is no address";
                return Err(Failure::new(libc::EDESTADDRREQ, what));
            };
            self.serve(socket, &mut state)?;
            let peer = state.peer(self, to, sizes)?;
            let fits = Header::MAX + length <= state.ends[peer.end].mtu;
            let Some(there) = peer.there.filter(|_| fits) else {
                let ask = state.ask(peer.end, true);
                let mut bytes = vec![0; length];
                // SAFETY: the bytes live, and nobody else knows them.
                from.copy_to(unsafe { umem::Foreign::new(bytes.as_mut_ptr(), length) })?;
                drop(state);
                return self.send_udp(&ask, &bytes, to).map(|()| length.cast_signed());
            };
            if state.ends[peer.end].free.is_empty() {
                state.look(false);
            }
            match state.ends[peer.end].send(there, &mut from) {
                Ok(()) => return Ok(length.cast_signed()),
                Err(full) if full.errno() == libc::EAGAIN && socket.may_wait(flags) => {}
                Err(failure) => return Err(failure),
            }
            drop(state);
            self.wait(socket, libc::POLLOUT)?;
        }
    }

    /// Sends over UDP.
    pub(super) fn send_udp(&self, ask: &Ask, data: &[u8], to: SocketAddr) -> Answer {
        let head = ask.to_bytes();
        let pieces = [std::io::IoSlice::new(&head[..ask.size()]), std::io::IoSlice::new(data)];
        let mut none = SendAncillaryBuffer::default();
        // A socket that is connected to somebody else sends to others, too (udp(7)).
        sendmsg_addr(&self.udp, &to, &pieces, &mut none, SendFlags::NOSIGNAL)
            .map(drop)
            .map_err(|error| failed("rsend", error))
    }

    /// Receives a datagram, and says who sent it. What does not fit is lost (`udp(7)`).
    pub(super) fn receive(
        &self,
        socket: &Arc<Socket>,
        mut to: Pieces<'_>,
        flags: c_int,
    ) -> Answer<(ssize_t, Option<SocketAddr>)> {
        loop {
            let mut state = self.state();
            if state.messages.is_empty() {
                state.look(false);
            }
            if let Some(message) = state.messages.pop_front() {
                let source = message.source;
                let count = state.read(&message, &mut to);
                if flags & libc::MSG_PEEK != 0 || count.is_err() {
                    state.messages.push_front(message);
                } else {
                    state.done(&message);
                }
                return Ok((count?.cast_signed(), Some(source)));
            }
            if state.no_reads {
                return Ok((0, None));
            }
            drop(state);
            if !socket.may_wait(flags) {
                return Err(Failure::quiet(libc::EAGAIN));
            }
            self.wait(socket, libc::POLLIN)?;
        }
    }

    /// Waits as a program would.
    fn wait(&self, socket: &Socket, events: std::ffi::c_short) -> Answer {
        let mut fds = [libc::pollfd { fd: socket.fd, events, revents: 0 }];
        poll::poll(&mut fds, -1).map(drop)
    }

    /// What `poll(2)` would say of it.
    pub(super) fn ready(&self, arm: bool) -> std::ffi::c_short {
        let mut state = self.state();
        state.look(arm);
        let mut ready = 0;
        if !state.messages.is_empty() || state.no_reads {
            ready |= libc::POLLIN | libc::POLLRDNORM;
        }
        if state.ends.iter().all(|end| !end.free.is_empty()) || state.no_writes {
            ready |= libc::POLLOUT | libc::POLLWRNORM;
        }
        ready
    }

    /// Readable when something happened.
    pub(super) fn descriptor(&self) -> c_int {
        self.events.as_raw_fd()
    }

    /// Takes the events there are.
    pub(super) fn happened(&self, socket: &Socket) {
        let mut state = self.state();
        for end in &mut state.ends {
            if end.queue.has_event() && end.queue.take_event().is_ok() {
                end.is_armed = false;
            }
        }
        drop(state);
        socket.watchers.notify();
    }

    /// `shutdown(2)`.
    pub(super) fn shutdown(&self, socket: &Socket, how: How) -> Answer {
        let mut state = self.state();
        if state.connected.is_none() {
            return Err(Failure::new(libc::ENOTCONN, "rshutdown: the rsocket is not connected"));
        }
        state.no_reads |= how != How::Write;
        state.no_writes |= how != How::Read;
        drop(state);
        socket.watchers.notify();
        Ok(())
    }

    /// The program is done with it: what it sent goes out.
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
    ///
    /// # Safety
    ///
    /// There is room for an address of the length that is said.
    pub(super) unsafe fn name(
        &self,
        is_peer: bool,
        addr: *mut sockaddr,
        len: *mut socklen_t,
    ) -> Answer {
        let name = || -> rustix::io::Result<SocketAddr> {
            if is_peer {
                getpeername(&self.udp)?.ok_or(rustix::io::Errno::NOTCONN)?.try_into()
            } else {
                getsockname(&self.udp)?.try_into()
            }
        };
        let name = name().map_err(|error| failed("the name of an rsocket", error))?;
        // SAFETY: the caller's promise.
        unsafe { give_address(&addresses::write(name), addr, len) };
        Ok(())
    }
}

impl State {
    /// Copies a datagram, as much as there is room for.
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
                // SAFETY: the bytes live, and are only read.
                to.copy_from(unsafe { umem::Foreign::new(bytes.as_ptr().cast_mut(), count) })?;
                Ok(count)
            }
        }
    }

    /// A datagram was read: its buffer is free.
    fn done(&self, message: &Message) {
        if let Place::Buffer { end, buffer, .. } = message.place {
            // One that cannot be posted is of a device that failed.
            let _ = self.ends[end].post_receive(buffer);
        }
    }
}
