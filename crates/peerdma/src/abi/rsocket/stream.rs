//! Stream sockets: from their beginning to the connection, and its end.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use descriptors::Known;
use device::cm::ConnParam;
use libc::{sockaddr, sockaddr_storage, socklen_t};
use rsocket::{Control, End, Hello, How};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

use super::conn::Conn;
use super::option::route_of;
use super::service;
use super::socket::{Kind, Socket};
use crate::abi::rdmacm::handle::{Event, Handle};
use crate::abi::rdmacm::{Answer, Failure, sockaddr as addresses};

/// How often an address or a route is asked for again, each time for twice as long, beginning with
/// a second.
const RETRIES: u32 = 6;
/// Connections that wait for `raccept` at most, whatever the backlog.
const QUEUE: usize = 128;
/// Requests for connections that may wait at least, whatever the backlog.
const REQUESTS: c_int = 16;

/// See the module.
pub(super) struct StreamSocket {
    /// It goes before the identifier that connected it.
    conn: OnceLock<Conn>,
    id: Handle,
    /// `AF_INET` or `AF_INET6`.
    domain: c_int,
    phase: Mutex<Phase>,
    /// Where it connects to.
    to: Mutex<Option<SocketAddr>>,
    listener: OnceLock<Listener>,
    /// The listener that made it, until it is connected.
    parent: Mutex<Weak<Socket>>,
}

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
    bell: (Known, Known),
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

/// The program took a descriptor of ours away.
fn lost(error: rustix::io::Errno) -> Failure {
    Failure::quiet(error.raw_os_error())
}

impl StreamSocket {
    /// A new socket.
    pub(super) fn create(domain: c_int) -> Answer<Socket> {
        let stream = Self::around(Handle::stream()?, domain, Phase::New);
        Ok(Socket::new(stream.id.fd(), Kind::Stream(Box::new(stream))))
    }

    fn around(id: Handle, domain: c_int, phase: Phase) -> Self {
        Self {
            conn: OnceLock::new(),
            id,
            domain,
            phase: Mutex::new(phase),
            to: Mutex::default(),
            listener: OnceLock::new(),
            parent: Mutex::default(),
        }
    }

    pub(super) fn id(&self) -> &Handle {
        &self.id
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
        let room = unsafe { address("rbind", addr, len) }?;
        // SAFETY: the room is as long as any address.
        self.id.bind(unsafe { addresses::read("rbind", (&raw const room).cast()) }?)
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
        self.id.listen(waiting)?;
        self.id.set_blocking(false)?;
        let backlog = usize::try_from(backlog).unwrap_or(QUEUE).clamp(1, QUEUE);
        let bell = (Known::new(bell.0), Known::new(bell.1));
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
        listener.bell.0.look().map_err(lost)?;
        recv(&listener.bell.0, &mut [0; 1], flags).map_err(lost)?;
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

    /// The descriptor that is readable when something happened, if there is one.
    ///
    /// # Errors
    /// EBADF if the program took its number.
    pub(super) fn descriptor(&self) -> Answer<Option<RawFd>> {
        let own = match (self.connected(), self.listener.get()) {
            (Some(conn), _) => conn.own_fd(),
            (None, Some(listener)) => {
                let bell = &listener.bell.0;
                bell.is_ours().then(|| bell.as_raw_fd())
            }
            (None, None) => return Ok(None),
        };
        own.map(Some).ok_or(Failure::quiet(libc::EBADF))
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
        // SAFETY: the room is as long as any address.
        let to = unsafe { addresses::read("rconnect", (&raw const room).cast()) }?;
        self.id.set_blocking(!socket.is_nonblocking())?;
        *self.to.lock().unwrap_or_else(PoisonError::into_inner) = Some(to);
        let mut now = Phase::Opening(Step::Address(0));
        let begun = self.ask_address(0);
        let answer = self.go_on(socket, &mut now, begun);
        *phase = now;
        drop(phase);
        if now == Phase::Failed {
            return answer;
        }
        self.id.set_blocking(false)?;
        service::add(socket)?;
        if now == Phase::Connected {
            return Ok(());
        }
        Err(Failure::quiet(libc::EINPROGRESS))
    }

    fn ask_address(&self, times: u32) -> Answer<Event> {
        let to = *self.to.lock().unwrap_or_else(PoisonError::into_inner);
        let to = to.ok_or_else(|| Failure::new(libc::EINVAL, "rconnect: there is no address"))?;
        // The route finds the source.
        self.id.resolve_addr(None, to, 1000 << times)?;
        self.id.happened(None)
    }

    fn ask_route(&self, socket: &Socket) -> Answer<Event> {
        let route = mem::take(&mut socket.options().route);
        if route.is_empty() {
            self.id.resolve_route()?;
        } else {
            self.id.set_path(&route_of(&route)?)?;
        }
        self.id.happened(None)
    }

    /// Goes through the steps of a connection until one has to wait, which is EAGAIN. `done` is
    /// what came of the step it is at.
    fn go_on(&self, socket: &Socket, phase: &mut Phase, done: Answer<Event>) -> Answer {
        let mut done = done;
        loop {
            let Phase::Opening(step) = *phase else { return done.map(drop) };
            let done_so_far = done.and_then(|event| match event {
                Event::Done(said) => Ok(said),
                Event::Disconnected | Event::Removed => {
                    Err(Failure::new(libc::ECONNRESET, "the connection ended as it began"))
                }
            });
            let (next, answer) = match (step, done_so_far) {
                (_, Err(failure)) if failure.errno() == libc::EAGAIN => return Err(failure),
                (Step::Address(times), Err(late))
                    if late.errno() == libc::ETIMEDOUT && times < RETRIES =>
                {
                    (Step::Address(times + 1), self.ask_address(times + 1))
                }
                (Step::Route(times), Err(late))
                    if late.errno() == libc::ETIMEDOUT && times < RETRIES =>
                {
                    (Step::Route(times + 1), self.ask_route(socket))
                }
                (_, Err(failure)) => {
                    *phase = Phase::Failed;
                    socket.options().error = failure.errno();
                    return Err(failure);
                }
                (Step::Address(_), Ok(_)) => (Step::Route(0), self.ask_route(socket)),
                (Step::Route(_), Ok(_)) => (Step::Response, self.ask_peer(socket)),
                (Step::Response, Ok(said)) => match self.meet(&said) {
                    Ok(()) => {
                        *phase = Phase::Connected;
                        return Ok(());
                    }
                    Err(refused) => (Step::Response, Err(refused)),
                },
                (Step::Ready, Ok(_)) => {
                    *phase = Phase::Connected;
                    return Ok(());
                }
            };
            *phase = Phase::Opening(next);
            done = answer;
        }
    }

    /// Makes the queue pair and asks the peer.
    fn ask_peer(&self, socket: &Socket) -> Answer<Event> {
        let conn = self.make_conn(socket)?;
        self.id.connect(conn.qp(), &conn.hello().to_bytes())?;
        self.id.happened(Some(conn.qp()))
    }

    /// Makes the queue pair. This is done once.
    fn make_conn(&self, socket: &Socket) -> Answer<&Conn> {
        let sizes = socket.options().sizes;
        let conn = Conn::create(&self.id, sizes, Arc::clone(&socket.watchers))?;
        Ok(self.conn.get_or_init(|| conn))
    }

    /// Takes what the peer said.
    fn meet(&self, said: &[u8]) -> Answer {
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
                if has_room { self.id.own_fd() } else { None }
            }
            Phase::Opening(_) | Phase::Connected => self.id.own_fd(),
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
                let done = self.id.happened(self.conn.get().map(Conn::qp));
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
                let Some(conn) = self.conn.get() else { return };
                match self.id.happened(Some(conn.qp())) {
                    Ok(Event::Disconnected) => conn.finish(End::Disconnected),
                    Ok(Event::Removed) => conn.finish(End::Failed),
                    Ok(Event::Done(_)) | Err(_) => {}
                }
            }
            Phase::New | Phase::Failed => {}
        }
    }

    /// Takes a request that came to a listener.
    fn take_request(&self, socket: &Arc<Socket>) {
        let (id, asked) = match self.id.request() {
            Ok(request) => request,
            Err(failure) => {
                if failure.errno() != libc::EAGAIN {
                    tracing::warn!(target: "peerdma::rsocket", "a request is dropped: {failure:?}");
                }
                return;
            }
        };
        let stream = Self::around(id, self.domain, Phase::Opening(Step::Ready));
        *stream.parent.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(socket);
        let fd = stream.id.fd();
        let new = Arc::new(socket.child(fd, Kind::Stream(Box::new(stream))));
        let Kind::Stream(stream) = &new.kind else { return };
        if let Some(listener) = self.listener.get() {
            listener.queue().half_open += 1;
        }
        let accepted = stream.answer(&new, asked);
        let is_waiting = accepted.is_err_and(|failure| failure.errno() == libc::EAGAIN);
        if is_waiting && service::add(&new).is_ok() {
            return;
        }
        if let Err(failure) = accepted {
            tracing::info!(target: "peerdma::rsocket", "a connection is refused: {failure:?}");
            stream.id.reject();
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
    fn answer(&self, socket: &Socket, asked: ConnParam) -> Answer {
        self.id.set_blocking(false)?;
        let conn = self.make_conn(socket)?;
        self.meet(&asked.private_data)?;
        self.id.accept(conn.qp(), asked, &conn.hello().to_bytes())?;
        self.id.happened(Some(conn.qp())).map(drop)
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
                if listener.bell.1.look().is_ok() {
                    let _ = send(&listener.bell.1, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                }
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
        let peer = self.id.remote().unwrap_or_else(|| self.nowhere());
        // SAFETY: the caller's promise.
        unsafe { give_address(&addresses::write(peer), addr, len) };
        Ok(())
    }

    /// `getsockname(2)`.
    ///
    /// # Safety
    ///
    /// There is room for an address of the length that is said.
    pub(super) unsafe fn own_name(&self, addr: *mut sockaddr, len: *mut socklen_t) -> Answer {
        let own = self.id.local().unwrap_or_else(|| self.nowhere());
        // SAFETY: the caller's promise.
        unsafe { give_address(&addresses::write(own), addr, len) };
        Ok(())
    }

    /// The address of a socket that has none.
    fn nowhere(&self) -> SocketAddr {
        match self.domain {
            libc::AF_INET6 => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
            _ => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        }
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
