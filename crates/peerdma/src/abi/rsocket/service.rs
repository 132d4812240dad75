//! The thread that serves sockets while their program does something else.

use std::ffi::c_int;
use std::fmt::Display;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use threads::first::First;
use threads::fork::Handlers;

use crate::abi::rdmacm::bell::Bell;
use crate::abi::rdmacm::{self, Answer, Failure};

/// A socket, as the thread knows it.
pub(super) trait Served: Send + Sync {
    /// The descriptor that the thread waits for: `None` if the program has taken its number.
    fn interest(&self) -> Option<c_int>;

    /// That descriptor is readable.
    fn serve(self: Arc<Self>);

    /// Sends a probe if one is due, and returns when the next one is.
    fn probe(&self) -> Option<Instant>;
}

/// What the thread and the program share.
struct Service {
    /// The thread, once there is one.
    thread: Option<Thread>,
    /// The sockets that the thread serves.
    sockets: Vec<Arc<dyn Served>>,
    /// Counts how often the thread has released all sockets.
    round: u64,
}

impl Service {
    fn drop_one<S: Served>(&mut self, socket: &Arc<S>) {
        self.sockets.retain(|known| !ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(socket)));
    }
}

struct Thread {
    id: ThreadId,
    bell: Arc<Bell>,
}

static SERVICE: Mutex<Service> =
    Mutex::new(Service { thread: None, sockets: Vec::new(), round: 0 });
static ROUND: Condvar = Condvar::new();
/// Held while the thread works on sockets: a fork waits for it.
static AT_WORK: Mutex<()> = Mutex::new(());

fn lock() -> MutexGuard<'static, Service> {
    SERVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn at_work() -> MutexGuard<'static, ()> {
    AT_WORK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves a socket from now on.
pub(super) fn add<S: Served + 'static>(socket: &Arc<S>) -> Answer {
    watch_forks();
    let mut service = lock();
    if service.thread.is_none() {
        service.thread = Some(start()?);
    }
    service.sockets.push(Arc::clone(socket) as Arc<dyn Served>);
    ring(&service);
    Ok(())
}

/// Stops serving a socket. The thread may use it until its next round.
pub(super) fn forget<S: Served>(socket: &Arc<S>) {
    let mut service = lock();
    service.drop_one(socket);
    ring(&service);
}

/// Stops serving a socket, and waits until the thread has released it.
pub(super) fn remove<S: Served>(socket: &Arc<S>) {
    let mut service = lock();
    service.drop_one(socket);
    let Some(thread) = &service.thread else { return };
    if thread.id == thread::current().id() {
        return;
    }
    ring(&service);
    let now = service.round;
    while service.round == now && service.thread.is_some() {
        service = ROUND.wait(service).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Wakes the thread: something has changed for it.
pub(super) fn wake() {
    ring(&lock());
}

fn ring(service: &Service) {
    if let Some(thread) = &service.thread {
        thread.bell.ring();
    }
}

fn failed(errno: i32, what: impl Display) -> Failure {
    Failure::new(errno, format!("the rsocket thread: {what}"))
}

fn new_bell() -> Answer<Arc<Bell>> {
    Bell::new().map(Arc::new).map_err(|error| failed(error.raw_os_error(), error))
}

fn start() -> Answer<Thread> {
    let bell = new_bell()?;
    let own = Arc::clone(&bell);
    let handle = threads::spawn("peerdma-rsocket", move || run(own))
        .map_err(|error| failed(error.raw_os_error().unwrap_or(libc::EAGAIN), error))?;
    Ok(Thread { id: handle.thread().id(), bell })
}

/// The time between two rounds where no wait is possible.
const WITHOUT_BELL: Duration = Duration::from_millis(10);
// TIMEOUT: if the program replaces a descriptor that the thread waits for, the thread keeps waiting
// for the old file, and nobody can wake it.
const MOST_ASLEEP: Duration = Duration::from_secs(1);

fn run(mut bell: Arc<Bell>) {
    let mut sockets: Vec<Arc<dyn Served>> = Vec::new();
    let mut fds = Vec::new();
    loop {
        // Release the sockets, and only then say so.
        sockets.clear();
        let mut service = lock();
        service.round += 1;
        ROUND.notify_all();
        // The program has taken it: nobody could wake us.
        if !bell.descriptor().is_ours()
            && let Ok(fresh) = new_bell()
            && let Some(thread) = &mut service.thread
        {
            thread.bell = Arc::clone(&fresh);
            bell = fresh;
        }
        sockets.clone_from(&service.sockets);
        drop(service);

        let working = at_work();
        fds.clear();
        fds.push(libc::pollfd {
            fd: bell.descriptor().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        });
        let mut next: Option<Instant> = None;
        for socket in &sockets {
            // poll(2) skips a negative descriptor.
            let fd = socket.interest().unwrap_or(-1);
            fds.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            if let Some(due) = socket.probe() {
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        drop(working);
        let left = next.map(|due| due.saturating_duration_since(Instant::now()));
        let left = left.unwrap_or(MOST_ASLEEP).min(MOST_ASLEEP).as_millis() as i32 + 1;
        // SAFETY: the entries outlive the call, and the count is theirs.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, left) };
        if bell.descriptor().is_ours() {
            bell.silence();
        } else {
            // A wait on a closed descriptor ends at once.
            thread::sleep(WITHOUT_BELL);
        }
        let working = at_work();
        for (socket, fd) in sockets.iter().zip(&fds[1..]) {
            if fd.revents != 0 {
                Arc::clone(socket).serve();
            }
        }
        drop(working);
    }
}

thread_local! {
    static HELD: std::cell::RefCell<Option<(MutexGuard<'static, ()>, MutexGuard<'static, Service>)>> =
        const { std::cell::RefCell::new(None) };
}

/// Registers the fork handlers, at the first socket.
fn watch_forks() {
    static WATCH: First = First::new();
    WATCH.call(|| {
        rdmacm::watch_forks();
        Handlers { prepare: Some(prepare), parent: Some(parent), child: Some(child) }.register();
    });
}

/// Before a fork: the thread is idle, and stays idle.
extern "C" fn prepare() {
    let working = at_work();
    HELD.set(Some((working, lock())));
}

/// After a fork, in the parent.
extern "C" fn parent() {
    HELD.take();
}

/// After a fork, in the child: it has no thread, and the sockets are the parent's.
extern "C" fn child() {
    if let Some((_working, mut service)) = HELD.take() {
        service.thread = None;
        // Their queue pairs are the parent's; the last reference here would only free the husk of
        // one.
        std::mem::forget(std::mem::take(&mut service.sockets));
    }
}
