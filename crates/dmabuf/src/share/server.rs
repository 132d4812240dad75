//! The exporting process: its token, its shared buffers, and which processes are admitted.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use descriptors::PrivateFd;
use descriptors::strangers::{self, PeerSocket};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::message::{AT_THE_DOOR, Reply};
use super::{Address, Token, serve, socket};
use crate::exporter::{ExporterError, ExporterErrorKind};
use crate::fork::{self, Locked, Room};
use crate::shared::Shared;
use crate::sys;

/// The most processes that may import from this one at a time.
const CONNECTIONS_MAX: usize = 256;

/// Connections that wait to be accepted; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 256;

#[derive(Debug)]
struct Server {
    token: Token,
    next: u64,
    exports: BTreeMap<u64, Export>,
}

/// A buffer, while this process has it.
#[derive(Debug)]
struct Export {
    shared: Weak<Shared>,
    file: (u64, u64),
}

/// An address for a new buffer. The first one starts the server.
pub(crate) fn reserve() -> Result<Address, Errno> {
    let mut server = server();
    let server = match &mut *server {
        Some(server) => server,
        none => none.insert(start()?),
    };
    server.next += 1;
    Ok(Address { token: server.token, id: server.next })
}

/// The server of this process, once it has reserved an address.
pub(crate) fn token() -> Option<Token> {
    server().as_ref().map(|server| server.token)
}

/// Registers `shared`, with its file `file`, as the buffer with this address.
pub(crate) fn publish(address: Address, shared: &Arc<Shared>, file: (u64, u64)) {
    if let Some(server) = &mut *server() {
        server.exports.retain(|_, export| export.shared.strong_count() > 0);
        server.exports.insert(address.id, Export { shared: Arc::downgrade(shared), file });
    }
}

/// The buffer with this number, if that is its file.
pub(super) fn find(id: u64, file: (u64, u64)) -> Option<Arc<Shared>> {
    let server = server();
    let export = server.as_ref()?.exports.get(&id).filter(|export| export.file == file)?;
    export.shared.upgrade()
}

fn start() -> Result<Server, Errno> {
    let token = Token::random();
    let listener = socket::new_socket()?;
    rustix::net::bind(&listener, &token.socket_name()?)?;
    rustix::net::listen(&listener, BACKLOG)?;
    let listener = PrivateFd::new(listener);
    let thread = sys::spawn("peerdma-dmabuf", move || accept_all(&listener));
    thread.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
    Ok(Server { token, next: 0, exports: BTreeMap::new() })
}

/// Accepts connections until the process ends.
fn accept_all(listener: &PrivateFd) {
    loop {
        let [_] = socket::wait([(listener.as_fd(), PollFlags::IN)], None);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        if !strangers::has_room() {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        if !listener.is_ours() {
            tracing::warn!(
                "the program closed our descriptors: no process can import buffers from here"
            );
            return;
        }
        match rustix::net::accept_with(listener, flags) {
            Ok(peer) => admit(peer),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(errno) => {
                // No descriptors or no memory left. The peer waits as long as this lasts.
                tracing::warn!("a process that wants to import a buffer waits: accept: {errno}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Admits a process of our user, in a separate thread, so that a process that waits for a buffer's
/// lock does not make the others wait.
fn admit(peer: OwnedFd) {
    static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
    let Ok(cred) = descriptors::peer_cred(peer.as_fd()) else { return };
    if !cred.is_same_user() {
        let own = rustix::process::geteuid().as_raw();
        let what = format!(
            "the buffers of a process of user {own} are not for processes of user {}",
            cred.uid
        );
        // Descriptors that it sent are closed where nobody waits for it.
        return refuse(PeerSocket::new(peer, cred), ExporterErrorKind::NotPermitted, what);
    }
    if CONNECTIONS.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
        CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
        let what =
            format!("{CONNECTIONS_MAX} processes import from process {}", std::process::id());
        return refuse(&peer, ExporterErrorKind::Busy, what);
    }
    let thread = sys::spawn("peerdma-dmabuf", move || {
        serve::serve(peer, cred.pid);
        CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
    });
    if let Err(error) = thread {
        CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!("a process that wants to import a buffer was turned away: {error}");
    }
}

fn refuse(peer: impl AsFd, kind: ExporterErrorKind, what: String) {
    tracing::warn!("refused to share a buffer: {what}");
    let reply = Reply::Refused(ExporterError::new(kind, what)).encode(AT_THE_DOOR);
    // A process that sends a request but does not listen gets no answer.
    let _ = socket::send_at_once(peer.as_fd(), &reply, &[]);
}

fn server() -> MutexGuard<'static, Option<Server>> {
    static SERVER: Mutex<Option<Server>> = Mutex::new(None);
    fork::hold(Room::Server, || Box::new(server()));
    SERVER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Locked for MutexGuard<'static, Option<Server>> {
    /// The server belongs to the parent. A buffer that the child exports has another token.
    fn forget(&mut self) {
        **self = None;
    }
}
