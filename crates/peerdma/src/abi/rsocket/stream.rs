//! Stream sockets: from their beginning to the connection, and its end.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use libc::{sockaddr, sockaddr_storage, socklen_t};
use rsocket::{Control, End, Hello, How};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

use super::conn::Conn;
use super::service;
use super::socket::{Kind, NOTHING, Socket};
use crate::abi::rdmacm::addr::{
    rdma_bind_addr, rdma_listen, rdma_resolve_addr, rdma_resolve_route,
};
use crate::abi::rdmacm::connect::{complete, rdma_accept, rdma_connect, rdma_reject};
use crate::abi::rdmacm::ep::rdma_get_request;
use crate::abi::rdmacm::id::{rdma_create_id, rdma_destroy_id};
use crate::abi::rdmacm::option::rdma_set_option;
use crate::abi::rdmacm::{Answer, Failure};
use crate::abi::types::rdma::{CmId, ConnParam, event_type, port_space};

/// How often an address or a route is asked for again, each time for twice as long, beginning with
/// a second.
const RETRIES: u32 = 6;
/// Connections that wait for `raccept` at most, whatever the backlog.
const QUEUE: usize = 128;
/// Requests for connections that may wait at least, whatever the backlog.
const REQUESTS: c_int = 16;

/// See the module.
pub(super) struct StreamSocket {
    id: Id,
    phase: Mutex<Phase>,
    conn: OnceLock<Conn>,
    listener: OnceLock<Listener>,
    /// The listener that made it, until it is connected.
    parent: Mutex<Weak<Socket>>,
}

/// An identifier of the connection manager with a channel of its own.
struct Id(*mut CmId);

// SAFETY: the identifier synchronizes itself; what C gives to programs in it is only touched under
// `phase`.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

/// Where a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    New,
    Listening,
    Opening(Step),
    Connected,
    Failed,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The address, asked for so many times.
    Address(u32),
    /// The route, asked for so many times.
    Route(u32),
    Response,
    /// That the peer knows that it was accepted.
    Ready,
}

/// Connections for `raccept`.
struct Listener {
    backlog: usize,
    /// One byte for each.
    bell: (OwnedFd, OwnedFd),
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<Arc<Socket>>,
    /// Connections that were accepted and are not there yet.
    half_open: usize,
}

impl Listener {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call of C as an answer.
fn called(answer: c_int) -> Answer {
    if answer == 0 { Ok(()) } else { Err(Failure::last()) }
}

impl StreamSocket {
    /// A new socket.
    pub(super) fn create(domain: c_int) -> Answer<Socket> {
        let mut id = ptr::null_mut();
        // SAFETY: contract: NULL is a channel of its own.
        let made =
            unsafe { rdma_create_id(ptr::null_mut(), &raw mut id, NOTHING, port_space::TCP) };
        called(made)?;
        // SAFETY: it was made just now; the family is what `rgetsockname` says before there is an
        // address.
        unsafe { (*id).route.addr.src_storage.ss_family = domain as libc::sa_family_t };
        let stream = Self::around(id, Phase::New);
        Ok(Socket::new(stream.channel(), Kind::Stream(Box::new(stream))))
    }

    fn around(id: *mut CmId, phase: Phase) -> Self {
        Self {
            id: Id(id),
            phase: Mutex::new(phase),
            conn: OnceLock::new(),
            listener: OnceLock::new(),
            parent: Mutex::default(),
        }
    }

    pub(super) fn id(&self) -> *mut CmId {
        self.id.0
    }

    /// The descriptor of its event channel.
    pub(super) fn channel(&self) -> c_int {
        // SAFETY: the identifier lives as long as the socket.
        let channel = unsafe { (*self.id.0).channel };
        // SAFETY: as above.
        unsafe { (*channel).fd }
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it is.
    pub(super) fn phase(&self) -> Phase {
        *self.lock()
    }

    /// Its connection, if it has one.
    pub(super) fn connected(&self) -> Option<&Conn> {
        self.conn.get().filter(|_| self.phase() == Phase::Connected)
    }

    /// Its connection.
    ///
    /// # Errors
    /// EAGAIN while it connects, ENOTCONN if it does not.
    pub(super) fn conn(&self) -> Answer<&Conn> {
        match (self.phase(), self.conn.get()) {
            (Phase::Connected, Some(conn)) => Ok(conn),
            (Phase::Opening(_), _) => Err(Failure::quiet(libc::EAGAIN)),
            _ => Err(Failure::new(libc::ENOTCONN, "the rsocket is not connected")),
        }
    }

    /// `bind(2)`.
    ///
    /// # Safety
    ///
    /// The address is as long as said.
    pub(super) unsafe fn bind(&self, addr: *const sockaddr, len: socklen_t) -> Answer {
        let _phase = self.lock();
        // SAFETY: the caller's promise.
        let mut room = unsafe { address("rbind", addr, len) }?;
        // SAFETY: contract: the identifier is ours, the address valid.
        called(unsafe { rdma_bind_addr(self.id(), (&raw mut room).cast()) })
    }

    /// `listen(2)`.
    pub(super) fn listen(&self, socket: &Arc<Socket>, backlog: c_int) -> Answer {
        let mut phase = self.lock();
        match *phase {
            Phase::Listening => return Ok(()),
            Phase::New => {}
            _ => return Err(Failure::new(libc::EINVAL, "rlisten: the rsocket is connected")),
        }
        let bell = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|error| Failure::new(error.raw_os_error(), format!("rlisten: {error}")))?;
        // Requests beyond the backlog wait in the connection manager; beyond that they are lost,
        // and asked again after seconds.
        let waiting = backlog.max(REQUESTS);
        // SAFETY: contract: the identifier is ours.
        called(unsafe { rdma_listen(self.id(), waiting) })?;
        set_nonblocking(self.channel(), true)?;
        let backlog = usize::try_from(backlog).unwrap_or(QUEUE).clamp(1, QUEUE);
        let listener = Listener { backlog, bell, queue: Mutex::default() };
        // It is the first: the phase says so.
        let _ = self.listener.set(listener);
        service::add(socket)?;
        *phase = Phase::Listening;
        Ok(())
    }

    /// `accept(2)`.
    pub(super) fn accept(&self, may_wait: bool) -> Answer<Arc<Socket>> {
        let listener = self.listener.get().filter(|_| self.phase() == Phase::Listening);
        let Some(listener) = listener else {
            return Err(Failure::new(libc::EINVAL, "raccept: the rsocket does not listen"));
        };
        let flags = if may_wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        recv(&listener.bell.0, &mut [0; 1], flags)
            .map_err(|error| Failure::quiet(error.raw_os_error()))?;
        let mut queue = listener.queue();
        let new = queue.ready.pop_front();
        drop(queue);
        // There may be room for one more.
        service::wake();
        new.ok_or_else(|| Failure::new(libc::ECONNABORTED, "raccept: the connection is gone"))
    }

    /// What `rpoll` says of a listener.
    pub(super) fn has_connections(&self) -> bool {
        self.listener.get().is_some_and(|listener| !listener.queue().ready.is_empty())
    }

    /// The descriptor that is readable when a listener has connections.
    pub(super) fn bell(&self) -> Option<c_int> {
        self.listener.get().map(|listener| listener.bell.0.as_raw_fd())
    }

    /// `connect(2)`.
    ///
    /// # Safety
    ///
    /// The address is as long as said.
    pub(super) unsafe fn connect(
        &self,
        socket: &Arc<Socket>,
        addr: *const sockaddr,
        len: socklen_t,
    ) -> Answer {
        let mut phase = self.lock();
        match *phase {
            Phase::New => {}
            Phase::Opening(_) => {
                return Err(Failure::new(libc::EALREADY, "rconnect: the rsocket is connecting"));
            }
            Phase::Connected => {
                return Err(Failure::new(libc::EISCONN, "rconnect: the rsocket is connected"));
            }
            Phase::Listening | Phase::Failed => {
                let what = "rconnect: the rsocket listens, or failed to connect";
                return Err(Failure::new(libc::EINVAL, what));
            }
        }
        // SAFETY: the caller's promise.
        let room = unsafe { address("rconnect", addr, len) }?;
        // SAFETY: the identifier is ours, and locked.
        unsafe { (*self.id()).route.addr.dst_storage = room };
        let is_nonblocking = socket.is_nonblocking();
        set_nonblocking(self.channel(), is_nonblocking)?;
        let mut now = Phase::Opening(Step::Address(0));
        let begun = self.ask_address(0);
        let answer = self.go_on(socket, &mut now, begun);
        *phase = now;
        drop(phase);
        if now == Phase::Failed {
            return answer;
        }
        set_nonblocking(self.channel(), true)?;
        service::add(socket)?;
        if now == Phase::Connected {
            return Ok(());
        }
        Err(Failure::quiet(libc::EINPROGRESS))
    }

    fn ask_address(&self, times: u32) -> Answer {
        // SAFETY: the identifier is ours, and locked.
        let to = unsafe { &raw mut (*self.id()).route.addr.dst_storage };
        // SAFETY: contract: the address is valid; without a source the route finds one.
        called(unsafe { rdma_resolve_addr(self.id(), ptr::null_mut(), to.cast(), 1000 << times) })
    }

    fn ask_route(&self, socket: &Socket, times: u32) -> Answer {
        let mut route = mem::take(&mut socket.options().route);
        if route.is_empty() {
            // SAFETY: contract: the identifier is ours.
            return called(unsafe { rdma_resolve_route(self.id(), 1000 << times) });
        }
        let (level, name) = (1, 1);
        let (value, length) = (route.as_mut_ptr().cast(), route.len());
        // SAFETY: contract: the identifier is ours, the value as long as said.
        called(unsafe { rdma_set_option(self.id(), level, name, value, length) })?;
        // SAFETY: as above.
        unsafe { complete(self.id()) }
    }

    /// Goes through the steps of a connection until one has to wait, which is EAGAIN. `done` is
    /// what came of the step it is at.
    fn go_on(&self, socket: &Socket, phase: &mut Phase, done: Answer) -> Answer {
        let mut done = done;
        loop {
            let Phase::Opening(step) = *phase else { return done };
            let (next, answer) = match (step, done) {
                (_, Err(failure)) if failure.errno() == libc::EAGAIN => return Err(failure),
                (Step::Address(times), Err(late))
                    if late.errno() == libc::ETIMEDOUT && times < RETRIES =>
                {
                    (Step::Address(times + 1), self.ask_address(times + 1))
                }
                (Step::Route(times), Err(late))
                    if late.errno() == libc::ETIMEDOUT && times < RETRIES =>
                {
                    (Step::Route(times + 1), self.ask_route(socket, times + 1))
                }
                (_, Err(failure)) => {
                    *phase = Phase::Failed;
                    socket.options().error = failure.errno();
                    return Err(failure);
                }
                (Step::Address(_), Ok(())) => (Step::Route(0), self.ask_route(socket, 0)),
                (Step::Route(_), Ok(())) => (Step::Response, self.ask_peer(socket)),
                (Step::Response, Ok(())) => match self.meet() {
                    Ok(()) => {
                        *phase = Phase::Connected;
                        return Ok(());
                    }
                    refused => (Step::Response, refused),
                },
                (Step::Ready, Ok(())) => {
                    *phase = Phase::Connected;
                    return Ok(());
                }
            };
            *phase = Phase::Opening(next);
            done = answer;
        }
    }

    /// Makes the queue pair and asks the peer.
    fn ask_peer(&self, socket: &Socket) -> Answer {
        let sizes = socket.options().sizes;
        // SAFETY: the identifier is ours, has a device by now, and outlives the connection.
        let conn = unsafe { Conn::create(self.id(), sizes, Arc::clone(&socket.watchers)) }?;
        let hello = conn.hello().to_bytes();
        // It is the first: this step is taken once.
        let _ = self.conn.set(conn);
        // SAFETY: the structure is made of integers and a pointer, for which zero is a value.
        let mut param: ConnParam = unsafe { mem::zeroed() };
        param.private_data = hello.as_ptr().cast();
        param.private_data_len = Hello::SIZE as u8;
        param.flow_control = 1;
        (param.retry_count, param.rnr_retry_count) = (7, 7);
        // SAFETY: contract: the identifier is ours, the parameters valid.
        called(unsafe { rdma_connect(self.id(), &raw mut param) })
    }

    /// Takes what the peer said with the event that the identifier holds.
    fn meet(&self) -> Answer {
        // SAFETY: the identifier is ours, and locked or known to nobody else.
        let event = unsafe { (*self.id()).event };
        // SAFETY: the identifier holds the event of its connection.
        let param = unsafe { &(*event).param };
        // SAFETY: an event of a connection brings this.
        let param = unsafe { param.conn };
        let said = if param.private_data.is_null() {
            &[]
        } else {
            // SAFETY: the private data of an event is as long as it says, and lives as long as the
            // event.
            unsafe {
                std::slice::from_raw_parts(
                    param.private_data.cast::<u8>(),
                    param.private_data_len.into(),
                )
            }
        };
        let hello = Hello::from_bytes(said)
            .map_err(|why| Failure::new(libc::ENOTSUP, format!("the peer is no rsocket: {why}")))?;
        if let Some(conn) = self.conn.get() {
            conn.meet(&hello);
        }
        Ok(())
    }

    /// What the service waits for: nothing while there is nothing to do.
    pub(super) fn interest(&self) -> Option<c_int> {
        match self.phase() {
            Phase::Listening => {
                let listener = self.listener.get()?;
                let queue = listener.queue();
                let has_room = queue.ready.len() + queue.half_open < listener.backlog;
                has_room.then(|| self.channel())
            }
            Phase::Opening(_) | Phase::Connected => Some(self.channel()),
            Phase::New | Phase::Failed => None,
        }
    }

    /// The service found its channel readable.
    pub(super) fn serve(&self, socket: &Arc<Socket>) {
        let mut phase = self.lock();
        match *phase {
            Phase::Listening => {
                drop(phase);
                self.take_request(socket);
            }
            Phase::Opening(step) => {
                // SAFETY: the identifier is ours.
                let done = unsafe { complete(self.id()) };
                let answer = self.go_on(socket, &mut phase, done);
                let now = *phase;
                drop(phase);
                if step == Step::Ready {
                    self.opened(socket, now);
                }
                if now != Phase::Opening(step)
                    && let Err(failure) = answer
                    && failure.errno() != libc::EAGAIN
                {
                    tracing::info!(target: "peerdma::rsocket", "not connected: {failure:?}");
                }
                if !matches!(now, Phase::Opening(_)) {
                    socket.watchers.notify();
                }
            }
            Phase::Connected => {
                drop(phase);
                // SAFETY: the identifier is ours.
                let done = unsafe { complete(self.id()) };
                if done.is_err_and(|failure| failure.errno() == libc::EAGAIN) {
                    return;
                }
                // SAFETY: the identifier is ours; only this thread takes its events once it is
                // connected.
                let event = unsafe { (*self.id()).event };
                // SAFETY: the identifier holds the event that was taken just now, if any.
                let Some(event) = (unsafe { event.as_ref() }) else { return };
                let end = match event.event {
                    event_type::DISCONNECTED => End::Disconnected,
                    event_type::DEVICE_REMOVAL => End::Failed,
                    _ => return,
                };
                if let Some(conn) = self.conn.get() {
                    conn.finish(end);
                }
            }
            Phase::New | Phase::Failed => {}
        }
    }

    /// Takes a request that came to a listener.
    fn take_request(&self, socket: &Arc<Socket>) {
        let mut id = ptr::null_mut();
        // SAFETY: contract: the identifier is ours.
        if unsafe { rdma_get_request(self.id(), &raw mut id) } != 0 {
            return;
        }
        let stream = Self::around(id, Phase::Opening(Step::Ready));
        *stream.parent.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(socket);
        let fd = stream.channel();
        let new = Arc::new(socket.child(fd, Kind::Stream(Box::new(stream))));
        let Kind::Stream(stream) = &new.kind else { return };
        if let Some(listener) = self.listener.get() {
            listener.queue().half_open += 1;
        }
        let accepted = stream.answer(&new);
        let is_waiting = accepted.is_err_and(|failure| failure.errno() == libc::EAGAIN);
        if is_waiting && service::add(&new).is_ok() {
            return;
        }
        if let Err(failure) = accepted {
            tracing::info!(target: "peerdma::rsocket", "a connection is refused: {failure:?}");
            // SAFETY: contract: the identifier is ours. One that was answered cannot be refused any
            // more.
            unsafe { rdma_reject(stream.id(), ptr::null(), 0) };
        }
        let mut phase = stream.lock();
        *phase = if accepted.is_ok() { Phase::Connected } else { Phase::Failed };
        let now = *phase;
        drop(phase);
        if now == Phase::Connected && service::add(&new).is_err() {
            return;
        }
        stream.opened(&new, now);
    }

    /// Accepts the request it was made for.
    fn answer(&self, socket: &Socket) -> Answer {
        set_nonblocking(self.channel(), true)?;
        let sizes = socket.options().sizes;
        // SAFETY: the identifier is ours, has a device, and outlives the connection.
        let conn = unsafe { Conn::create(self.id(), sizes, Arc::clone(&socket.watchers)) }?;
        let hello = conn.hello().to_bytes();
        let _ = self.conn.set(conn);
        self.meet()?;
        // SAFETY: the identifier is ours, and nobody else has it yet.
        let event = unsafe { (*self.id()).event };
        // SAFETY: the identifier holds the event of its request.
        let param = unsafe { &(*event).param };
        // SAFETY: a request brings this.
        let mut param = unsafe { param.conn };
        param.private_data = hello.as_ptr().cast();
        param.private_data_len = Hello::SIZE as u8;
        // SAFETY: contract: the identifier is ours, the parameters valid.
        called(unsafe { rdma_accept(self.id(), &raw mut param) })
    }

    /// A connection that a listener took is there, or is not to be.
    fn opened(&self, socket: &Arc<Socket>, now: Phase) {
        if matches!(now, Phase::Opening(_)) {
            return;
        }
        let parent = mem::take(&mut *self.parent.lock().unwrap_or_else(PoisonError::into_inner));
        let parent = parent.upgrade();
        let listener = parent.as_ref().and_then(|parent| match &parent.kind {
            Kind::Stream(stream) => stream.listener.get(),
            Kind::Datagram(_) => None,
        });
        if let Some(listener) = listener {
            let mut queue = listener.queue();
            queue.half_open -= 1;
            if now == Phase::Connected {
                queue.ready.push_back(Arc::clone(socket));
                // There is room for a byte of each that fits the queue.
                let _ = send(&listener.bell.1, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            }
        }
        if now == Phase::Failed || listener.is_none() {
            service::forget(socket);
        }
        if let Some(parent) = parent {
            parent.watchers.notify();
        }
    }

    /// Sends a probe, if it is connected.
    pub(super) fn probe(&self) {
        if let Some(conn) = self.connected() {
            let mut core = conn.check(false);
            if core.end().is_none() && core.may_control() {
                let _ = conn.control(&mut core, Control::Keepalive);
            }
        }
    }

    /// `shutdown(2)`: tells the peer, and waits until it knows.
    pub(super) fn shutdown(&self, socket: &Socket, how: How) -> Answer {
        let Some(conn) = self.connected() else {
            let what = "rshutdown: the rsocket is not connected";
            return Err(Failure::new(libc::ENOTCONN, what));
        };
        if how != How::Read {
            socket.options().probe = None;
        }
        let mut core = conn.core();
        let control = core.shutdown(how);
        drop(core);
        if let Some(control) = control {
            let mut core =
                conn.wait_for(true, |core| core.may_control() || core.end().is_some())?;
            if core.end().is_none() {
                conn.control(&mut core, control)?;
            }
            drop(core);
            drop(conn.wait_for(true, |core| core.is_idle() || core.end().is_some())?);
        }
        let ended = conn.core().end() == Some(End::Disconnected);
        if ended {
            conn.flush();
        }
        socket.watchers.notify();
        Ok(())
    }

    /// The program is done with it.
    pub(super) fn close(&self, socket: &Arc<Socket>) {
        if self.connected().is_some_and(|conn| conn.core().end().is_none()) {
            // It ends, with or without the peer's knowledge.
            let _ = self.shutdown(socket, How::Both);
        }
        let ready = self.listener.get().map(|listener| mem::take(&mut listener.queue().ready));
        // Nobody will have them: their peers learn it from the connection manager.
        ready.into_iter().flatten().for_each(|new| service::remove(&new));
    }

    /// `getpeername(2)`.
    ///
    /// # Safety
    ///
    /// There is room for an address of the length that is said.
    pub(super) unsafe fn peer_name(&self, addr: *mut sockaddr, len: *mut socklen_t) -> Answer {
        self.conn()?;
        // SAFETY: the identifier is ours.
        let room = unsafe { (*self.id()).route.addr.dst_storage };
        // SAFETY: the caller's promise.
        unsafe { give_address(&room, addr, len) };
        Ok(())
    }

    /// `getsockname(2)`.
    ///
    /// # Safety
    ///
    /// There is room for an address of the length that is said.
    pub(super) unsafe fn own_name(&self, addr: *mut sockaddr, len: *mut socklen_t) -> Answer {
        // SAFETY: the identifier is ours.
        let room = unsafe { (*self.id()).route.addr.src_storage };
        // SAFETY: the caller's promise.
        unsafe { give_address(&room, addr, len) };
        Ok(())
    }
}

impl Drop for StreamSocket {
    fn drop(&mut self) {
        drop(self.conn.take());
        // SAFETY: the identifier is ours, and its queue pair is gone.
        unsafe { rdma_destroy_id(self.id.0) };
    }
}

/// An address of a program, in room for any.
///
/// # Errors
/// EFAULT for NULL, EINVAL for one that is shorter than its family's.
///
/// # Safety
///
/// The address is as long as said.
pub(super) unsafe fn address(
    call: &str,
    addr: *const sockaddr,
    len: socklen_t,
) -> Answer<sockaddr_storage> {
    if addr.is_null() {
        return Err(Failure::new(libc::EFAULT, format!("{call}: no address")));
    }
    let invalid = |what: String| Failure::new(libc::EINVAL, format!("{call}: {what}"));
    let length = len as usize;
    if length < size_of::<libc::sa_family_t>() || length > size_of::<sockaddr_storage>() {
        return Err(invalid(format!("an address of {len} bytes")));
    }
    // SAFETY: the structure is made of integers, for which zero is a value.
    let mut room: sockaddr_storage = unsafe { mem::zeroed() };
    // SAFETY: the caller's promise; the room is larger.
    unsafe { ptr::copy_nonoverlapping(addr.cast::<u8>(), (&raw mut room).cast(), length) };
    let needed = match c_int::from(room.ss_family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        // The scope is optional, as for the kernel (`SIN6_LEN_RFC2133`).
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>() - 4,
        _ => 0,
    };
    if length < needed {
        return Err(invalid(format!("{len} bytes of an address of {needed}")));
    }
    Ok(room)
}

/// Gives an address to a program, as much of it as there is room, and its length.
///
/// # Safety
///
/// There is room for an address of the length that is said.
pub(super) unsafe fn give_address(
    room: &sockaddr_storage,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) {
    let size = match c_int::from(room.ss_family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        _ => size_of::<libc::sockaddr_in6>(),
    };
    // SAFETY: the caller's promise.
    let given = unsafe { len.read() } as usize;
    // SAFETY: the caller's promise.
    unsafe { len.write(size as socklen_t) };
    if !addr.is_null() {
        // SAFETY: the caller's promise; the source is at least as long.
        unsafe {
            ptr::copy_nonoverlapping((&raw const *room).cast::<u8>(), addr.cast(), given.min(size))
        };
    }
}

/// Makes a descriptor non-blocking, or blocking.
pub(super) fn set_nonblocking(fd: c_int, is_on: bool) -> Answer {
    let mut on = c_int::from(is_on);
    // SAFETY: the request takes a pointer to an integer.
    let answer = unsafe { libc::ioctl(fd, libc::FIONBIO, &raw mut on) };
    called(answer)
}
