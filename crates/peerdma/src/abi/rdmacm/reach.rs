//! Who can be reached from where: questions to the kernel's routing.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use std::{fmt, process, thread};

use link::neighbour;
use threads::whole::Mutex;

use super::sockaddr::wildcard;
use super::{Answer, Failure};

/// The address that the kernel would send from to `to`.
///
/// # Errors
/// That of connect(2), such as ENETUNREACH where there is no route.
pub(super) fn source(to: SocketAddr) -> Answer<IpAddr> {
    // Connecting a datagram socket sends nothing. The port has no part in it, but must not be 0.
    let mut any_port = to;
    any_port.set_port(9);
    let found = UdpSocket::bind((wildcard(to.ip()), 0)).and_then(|socket| {
        socket.connect(any_port)?;
        socket.local_addr()
    });
    found.map(|addr| addr.ip()).map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Failure::new(errno, format!("rdma_resolve_addr: no route to {}: {error}", to.ip()))
    })
}

/// Whether an address is one of this host's, whatever netdev has it.
pub(super) fn is_local(addr: SocketAddr) -> bool {
    let mut any_port = addr;
    any_port.set_port(0);
    UdpSocket::bind(any_port).is_ok()
}

/// Whether the next hop to `to` is known. Where the kernel does not tell it counts as known: the
/// peer answers, or it does not.
pub(super) fn is_known(to: SocketAddr) -> bool {
    neighbour::is_known(to).unwrap_or(true)
}

/// A caller that waits for a next hop.
struct Waiting {
    to: SocketAddr,
    until: Option<Instant>,
    then: Box<dyn FnOnce(Answer) + Send>,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to.fmt(f)
    }
}

/// Those who wait, and the process that has a thread for them: the child of a fork has none.
#[derive(Debug)]
struct Waits {
    waiting: Vec<Waiting>,
    thread_of: Option<u32>,
}

static WAITS: Mutex<Waits> = Mutex::new(Waits { waiting: Vec::new(), thread_of: None });

/// How often the kernel is asked again, and how often it is made to look (`RETRANS_TIMER` of
/// neighbours is a second).
const LOOK: Duration = Duration::from_millis(10);
const SOLICIT: Duration = Duration::from_secs(1);

/// Calls `then` when the next hop to `to` is known, or with ETIMEDOUT when it is not after
/// `patience`.
pub(super) fn when_known(
    to: SocketAddr,
    patience: Option<Duration>,
    then: impl FnOnce(Answer) + Send + 'static,
) -> Answer {
    let until = patience.and_then(|patience| Instant::now().checked_add(patience));
    let mut waits = WAITS.lock();
    let me = process::id();
    let mut of_parent = Vec::new();
    if waits.thread_of != Some(me) {
        of_parent = std::mem::take(&mut waits.waiting);
        threads::spawn("peerdma-addr", watch).map_err(|error| {
            Failure::new(libc::ENOMEM, format!("rdma_resolve_addr: no thread: {error}"))
        })?;
        waits.thread_of = Some(me);
    }
    waits.waiting.push(Waiting { to, until, then: Box::new(then) });
    drop(waits);
    // What they hold may lock devices.
    drop(of_parent);
    Ok(())
}

/// The thread: it lives while a caller waits.
fn watch() {
    let mut solicited: Vec<(IpAddr, Instant)> = Vec::new();
    loop {
        let mut waits = WAITS.lock();
        if waits.waiting.is_empty() {
            waits.thread_of = None;
            return;
        }
        let all = std::mem::take(&mut waits.waiting);
        drop(waits);

        let now = Instant::now();
        solicited.retain(|(_, at)| now < *at + SOLICIT);
        let mut known: Vec<(IpAddr, bool)> = Vec::new();
        let mut left = Vec::new();
        for waiting in all {
            let ip = waiting.to.ip();
            let is_there = match known.iter().find(|(asked, _)| *asked == ip) {
                Some((_, answer)) => *answer,
                None => {
                    let answer = is_known(waiting.to);
                    known.push((ip, answer));
                    answer
                }
            };
            if is_there {
                (waiting.then)(Ok(()));
            } else if waiting.until.is_some_and(|until| until <= now) {
                let what = format!("rdma_resolve_addr: the next hop to {ip} does not answer");
                (waiting.then)(Err(Failure::new(libc::ETIMEDOUT, what)));
            } else {
                if !solicited.iter().any(|(asked, _)| *asked == ip) {
                    neighbour::solicit(waiting.to);
                    solicited.push((ip, now));
                }
                left.push(waiting);
            }
        }
        let is_idle = left.is_empty();
        let mut waits = WAITS.lock();
        waits.waiting.append(&mut left);
        drop(waits);
        if !is_idle {
            thread::sleep(LOOK);
        }
    }
}
