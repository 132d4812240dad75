//! Stream sockets: creation, connection, end.

use std::collections::VecDeque;
use std::ffi::{c_int, c_short};
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use descriptors::Known;
use device::rdma_cm::ConnParam;
use libc::{sockaddr, socklen_t};
use rsocket::{Control, End, Hello, How};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

use super::common::{Common, IN, OUT};
use super::conn::Conn;
use super::names::internet;
use super::route::route_of;
use super::service::{self, Served};
use crate::abi::rdmacm::handle::{Event, Handle};
use crate::abi::rdmacm::{Answer, Failure};

/// How often the resolution of an address or a route is retried, each time for twice as long,
/// beginning with one second.
const RETRIES: u32 = 6;
/// The most connections that wait for `raccept`, whatever the backlog.
const QUEUE: usize = 128;
/// The number of connection requests that may always wait, whatever the backlog.
const REQUESTS: c_int = 16;

/// See the module.
pub(super) struct StreamSocket {
    pub(super) common: Common,
    /// Dropped before the identifier that connected it.
    conn: OnceLock<Conn>,
    id: Handle,
    /// `AF_INET` or `AF_INET6`.
    domain: c_int,
    phase: Mutex<Phase>,
    /// Where it connects to.
    to: Mutex<Option<SocketAddr>>,
    listener: OnceLock<Listener>,
    /// The listener that created it, until it is connected.
    parent: Mutex<Weak<Self>>,
}

/// The state of a socket.
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
    /// The address, and how many times it was requested.
    Address(u32),
    /// The route, and how many times it was requested.
    Route(u32),
    Response,
    /// That the peer knows of the accept.
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
    ready: VecDeque<Arc<StreamSocket>>,
    /// Accepted connections that are not established yet.
    half_open: usize,
}

impl Listener {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The failure if the program has taken a descriptor of ours.
fn lost(error: rustix::io::Errno) -> Failure {
    Failure::quiet(error.raw_os_error())
}

impl StreamSocket {
    /// A new socket.
    pub(super) fn create(domain: c_int) -> Answer<Self> {
        let id = Handle::stream()?;
        Ok(Self::around(Common::new(id.fd()), id, domain, Phase::New))
    }

    fn around(common: Common, id: Handle, domain: c_int, phase: Phase) -> Self {
        Self {
            common,
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

    /// Its state.
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
    /// EAGAIN while it connects, ENOTCONN if it is neither.
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
    /// The address has the given length.
    pub(super) unsafe fn bind(&self, addr: *const sockaddr, len: socklen_t) -> Answer {
        let _phase = self.lock();
        // SAFETY: the caller's promise.
        self.id.bind(unsafe { internet("rbind", addr, len) }?)
    }

    /// `listen(2)`.
    pub(super) fn listen(self: &Arc<Self>, backlog: c_int) -> Answer {
        let mut phase = self.lock();
        match *phase {
            Phase::Listening => return Ok(()),
            Phase::New => {}
            _ => return Err(Failure::new(libc::EINVAL, "rlisten: the rsocket is connected")),
        }
        let bell = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|error| Failure::new(error.raw_os_error(), format!("rlisten: {error}")))?;
        // Requests beyond the backlog wait in the connection manager; beyond that they are lost,
        // and their senders retry after seconds.
        let waiting = backlog.max(REQUESTS);
        self.id.listen(waiting)?;
        self.id.set_blocking(false)?;
        let backlog = usize::try_from(backlog).unwrap_or(QUEUE).clamp(1, QUEUE);
        let bell = (Known::new(bell.0), Known::new(bell.1));
        let listener = Listener { backlog, bell, queue: Mutex::default() };
        // The phase says that there is no other.
        let _ = self.listener.set(listener);
        service::add(self)?;
        *phase = Phase::Listening;
        Ok(())
    }

    /// `accept(2)`.
    pub(super) fn accept(&self, may_wait: bool) -> Answer<Arc<Self>> {
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
        // Now there may be room for another one.
        service::wake();
        new.ok_or_else(|| Failure::new(libc::ECONNABORTED, "raccept: the connection is gone"))
    }

    /// What `rpoll` reports for a listener.
    pub(super) fn has_connections(&self) -> bool {
        self.listener.get().is_some_and(|listener| !listener.queue().ready.is_empty())
    }

    /// What `poll(2)` would report. With `arm`, its descriptor becomes readable when that may
    /// change.
    pub(super) fn ready(&self, arm: bool) -> c_short {
        match (self.phase(), self.connected()) {
            (Phase::Listening, _) if self.has_connections() => IN,
            (Phase::Failed, _) => IN | OUT | libc::POLLERR,
            (Phase::Connected, Some(conn)) => {
                let core = conn.check(arm);
                let mut ready = 0;
                if core.available() > 0 || !core.is_readable() {
                    ready |= IN;
                }
                if conn.may_send(&core) || !core.is_writable() {
                    ready |= OUT;
                }
                ready
                    | match core.end() {
                        None => 0,
                        // Programs take POLLHUP for the end, even if there is data to read first.
                        Some(End::Disconnected) if core.available() > 0 => 0,
                        Some(End::Disconnected) => libc::POLLHUP,
                        Some(End::Failed) => libc::POLLERR,
                    }
            }
            _ => 0,
        }
    }

    /// Its descriptor has become readable.
    pub(super) fn happened(&self) {
        if let Some(conn) = self.connected() {
            conn.take_event();
        }
    }

    /// The descriptor that is readable when something happened, if there is one.
    ///
    /// # Errors
    /// EBADF if the program has taken its number.
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
    /// The address has the given length.
    pub(super) unsafe fn connect(
        self: &Arc<Self>,
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
                let what = "rconnect: the rsocket is a listener, or has failed to connect";
                return Err(Failure::new(libc::EINVAL, what));
            }
        }
        // SAFETY: the caller's promise.
        let to = unsafe { internet("rconnect", addr, len) }?;
        self.id.set_blocking(!self.common.is_nonblocking())?;
        *self.to.lock().unwrap_or_else(PoisonError::into_inner) = Some(to);
        let mut now = Phase::Opening(Step::Address(0));
        let begun = self.ask_address(0);
        let answer = self.go_on(&mut now, begun);
        *phase = now;
        drop(phase);
        if now == Phase::Failed {
            return answer;
        }
        self.id.set_blocking(false)?;
        service::add(self)?;
        if now == Phase::Connected {
            return Ok(());
        }
        Err(Failure::quiet(libc::EINPROGRESS))
    }

    fn ask_address(&self, times: u32) -> Answer<Event> {
        let to = *self.to.lock().unwrap_or_else(PoisonError::into_inner);
        let to = to.ok_or_else(|| Failure::new(libc::EINVAL, "rconnect: there is no address"))?;
        // The route determines the source address.
        self.id.resolve_addr(None, to, 1000 << times)?;
        self.id.happened(None)
    }

    fn ask_route(&self) -> Answer<Event> {
        let route = mem::take(&mut self.common.options().route);
        if route.is_empty() {
            self.id.resolve_route()?;
        } else {
            self.id.set_path(&route_of(&route)?)?;
        }
        self.id.happened(None)
    }

    /// Takes the steps of a connection until one has to wait, which is EAGAIN. `done` is the
    /// outcome of the current step.
    fn go_on(&self, phase: &mut Phase, done: Answer<Event>) -> Answer {
        let mut done = done;
        loop {
            let Phase::Opening(step) = *phase else { return done.map(drop) };
            let done_so_far = done.and_then(|event| match event {
                Event::Done(said) => Ok(said),
                Event::Disconnected | Event::Removed => {
                    Err(Failure::new(libc::ECONNRESET, "the connection ended while it was set up"))
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
                    (Step::Route(times + 1), self.ask_route())
                }
                (_, Err(failure)) => {
                    *phase = Phase::Failed;
                    self.common.options().error = failure.errno();
                    return Err(failure);
                }
                (Step::Address(_), Ok(_)) => (Step::Route(0), self.ask_route()),
                (Step::Route(_), Ok(_)) => (Step::Response, self.ask_peer()),
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

    /// Creates the queue pair and sends the connection request.
    fn ask_peer(&self) -> Answer<Event> {
        let conn = self.make_conn()?;
        self.id.connect(conn.qp(), &conn.hello().to_bytes())?;
        self.id.happened(Some(conn.qp()))
    }

    /// Creates the queue pair, once.
    fn make_conn(&self) -> Answer<&Conn> {
        let sizes = self.common.options().sizes;
        let conn = Conn::create(&self.id, sizes, Arc::clone(&self.common.watchers))?;
        Ok(self.conn.get_or_init(|| conn))
    }

    /// Takes the peer's private data.
    fn meet(&self, said: &[u8]) -> Answer {
        let hello = Hello::from_bytes(said).map_err(|why| {
            Failure::new(libc::ENOTSUP, format!("the peer is not an rsocket: {why}"))
        })?;
        if let Some(conn) = self.conn.get() {
            conn.meet(&hello);
        }
        Ok(())
    }

    /// Handles a connection request to a listener.
    fn take_request(self: &Arc<Self>) {
        let (id, asked) = match self.id.request() {
            Ok(request) => request,
            Err(failure) => {
                if failure.errno() != libc::EAGAIN {
                    tracing::warn!(target: "peerdma::rsocket", "dropped a connection request: {failure:?}");
                }
                return;
            }
        };
        let common = self.common.child(id.fd());
        let new = Arc::new(Self::around(common, id, self.domain, Phase::Opening(Step::Ready)));
        *new.parent.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(self);
        if let Some(listener) = self.listener.get() {
            listener.queue().half_open += 1;
        }
        let accepted = new.answer(asked);
        let is_waiting = accepted.is_err_and(|failure| failure.errno() == libc::EAGAIN);
        if is_waiting && service::add(&new).is_ok() {
            return;
        }
        if let Err(failure) = accepted {
            tracing::info!(target: "peerdma::rsocket", "refused a connection: {failure:?}");
            new.id.reject();
        }
        let mut phase = new.lock();
        *phase = if accepted.is_ok() { Phase::Connected } else { Phase::Failed };
        let now = *phase;
        drop(phase);
        if now == Phase::Connected && service::add(&new).is_err() {
            return;
        }
        new.opened(now);
    }

    /// Accepts the request that it was created for.
    fn answer(&self, asked: ConnParam) -> Answer {
        self.id.set_blocking(false)?;
        let conn = self.make_conn()?;
        self.meet(&asked.private_data)?;
        self.id.accept(conn.qp(), asked, &conn.hello().to_bytes())?;
        self.id.happened(Some(conn.qp())).map(drop)
    }

    /// A connection of a listener is established, or has failed.
    fn opened(self: &Arc<Self>, now: Phase) {
        if matches!(now, Phase::Opening(_)) {
            return;
        }
        let parent = mem::take(&mut *self.parent.lock().unwrap_or_else(PoisonError::into_inner));
        let parent = parent.upgrade();
        let listener = parent.as_ref().and_then(|parent| parent.listener.get());
        if let Some(listener) = listener {
            let mut queue = listener.queue();
            queue.half_open -= 1;
            if now == Phase::Connected {
                queue.ready.push_back(Arc::clone(self));
                // There is room for one byte for each connection in the queue.
                if listener.bell.1.look().is_ok() {
                    let _ = send(&listener.bell.1, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                }
            }
        }
        if now == Phase::Failed || listener.is_none() {
            service::forget(self);
        }
        if let Some(parent) = parent {
            parent.common.watchers.notify();
        }
    }

    /// Sends a probe, if it is connected.
    fn send_probe(&self) {
        if let Some(conn) = self.connected() {
            let mut core = conn.check(false);
            if core.end().is_none() && core.may_control() {
                let _ = conn.control(&mut core, Control::Keepalive);
            }
        }
    }

    /// `shutdown(2)`: tells the peer, and waits until the peer knows.
    pub(super) fn shutdown(&self, how: How) -> Answer {
        let Some(conn) = self.connected() else {
            let what = "rshutdown: the rsocket is not connected";
            return Err(Failure::new(libc::ENOTCONN, what));
        };
        if how != How::Read {
            self.common.options().probe = None;
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
        self.common.watchers.notify();
        Ok(())
    }

    /// The program has closed it.
    pub(super) fn close(&self) {
        if self.connected().is_some_and(|conn| conn.core().end().is_none()) {
            // It ends, whether or not the peer learns of it.
            let _ = self.shutdown(How::Both);
        }
        let ready = self.listener.get().map(|listener| mem::take(&mut listener.queue().ready));
        // Nobody will accept these: the connection manager tells their peers.
        ready.into_iter().flatten().for_each(|new| service::remove(&new));
    }

    /// `getpeername(2)`.
    ///
    /// # Errors
    /// As for [`conn`](Self::conn).
    pub(super) fn peer_name(&self) -> Answer<SocketAddr> {
        self.conn()?;
        Ok(self.id.remote().unwrap_or_else(|| self.nowhere()))
    }

    /// `getsockname(2)`.
    pub(super) fn own_name(&self) -> SocketAddr {
        self.id.local().unwrap_or_else(|| self.nowhere())
    }

    /// The address of a socket that has none.
    fn nowhere(&self) -> SocketAddr {
        match self.domain {
            libc::AF_INET6 => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
            _ => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        }
    }
}

impl Served for StreamSocket {
    /// `None` while there is nothing to do.
    fn interest(&self) -> Option<c_int> {
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

    /// Its channel has become readable.
    fn serve(self: Arc<Self>) {
        let mut phase = self.lock();
        match *phase {
            Phase::Listening => {
                drop(phase);
                self.take_request();
            }
            Phase::Opening(step) => {
                let done = self.id.happened(self.conn.get().map(Conn::qp));
                let answer = self.go_on(&mut phase, done);
                let now = *phase;
                drop(phase);
                if step == Step::Ready {
                    self.opened(now);
                }
                if now != Phase::Opening(step)
                    && let Err(failure) = answer
                    && failure.errno() != libc::EAGAIN
                {
                    tracing::info!(target: "peerdma::rsocket", "not connected: {failure:?}");
                }
                if !matches!(now, Phase::Opening(_)) {
                    self.common.watchers.notify();
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

    fn probe(&self) -> Option<Instant> {
        let mut options = self.common.options();
        let due = options.probe?;
        let now = Instant::now();
        if due > now {
            return Some(due);
        }
        let next = now + options.keep_idle();
        options.probe = Some(next);
        drop(options);
        self.send_probe();
        Some(next)
    }
}
