//! A thread that waits for descriptors, for executors that do not, and runs the futures of this
//! library that no executor was given: one for the process, started when it is needed first.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

use rustix::event::epoll;
use slab::Slab;

use super::readiness::Readiness;
use super::tasks::Tasks;
use crate::{Kind, Refusal, Result};

/// Waits for a descriptor by the thread of this library.
#[derive(Debug)]
pub struct Watch {
    reactor: Arc<Reactor>,
    /// A duplicate, so that it is open as long as it is watched.
    fd: OwnedFd,
    key: usize,
}

#[derive(Debug)]
struct Reactor {
    epoll: OwnedFd,
    watched: Mutex<Slab<Watched>>,
    tasks: Arc<Tasks>,
}

/// What the bell of the tasks is known by, which is no key of a watched descriptor.
const BELL: u64 = u64::MAX;

/// Runs a future on the thread of this library.
///
/// # Errors
///
/// [`Kind::Io`] if the process has no descriptor or thread left.
pub(super) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Result<()> {
    let reactor = Reactor::get().map_err(|error| {
        Refusal::new(Kind::Io, format!("starting the thread for events: {error}"))
    })?;
    reactor.tasks.spawn(future);
    Ok(())
}

#[derive(Debug, Default)]
struct Watched {
    is_ready: bool,
    waker: Option<Waker>,
}

impl Watch {
    /// Watches the descriptor of a queue.
    ///
    /// # Errors
    ///
    /// [`Kind::Io`] if the process has no descriptor or thread left.
    pub fn new(fd: &impl AsFd) -> Result<Self> {
        Self::of(fd).map_err(|error| {
            Refusal::new(Kind::Io, format!("create_cq: waiting for its events: {error}"))
        })
    }

    /// Watches any descriptor.
    pub(super) fn of(fd: &impl AsFd) -> io::Result<Self> {
        let reactor = Reactor::get()?;
        let fd = fd.as_fd().try_clone_to_owned()?;
        let key = reactor.watched().insert(Watched::default());
        let data = epoll::EventData::new_u64(key as u64);
        // Nothing is reported before somebody waits.
        if let Err(error) = epoll::add(&reactor.epoll, &fd, data, epoll::EventFlags::ONESHOT) {
            reactor.watched().remove(key);
            return Err(error.into());
        }
        Ok(Self { reactor, fd, key })
    }
}

impl Readiness for Watch {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        {
            let mut watched = self.reactor.watched();
            let own = &mut watched[self.key];
            if std::mem::take(&mut own.is_ready) {
                return Poll::Ready(Ok(()));
            }
            own.waker = Some(cx.waker().clone());
        }
        // Reported once, even if it is readable already.
        let data = epoll::EventData::new_u64(self.key as u64);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        match epoll::modify(&self.reactor.epoll, &self.fd, data, flags) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Fails only for what is not watched.
        let _ = epoll::delete(&self.reactor.epoll, &self.fd);
        self.reactor.watched().remove(self.key);
    }
}

impl Reactor {
    /// That of the process.
    fn get() -> io::Result<Arc<Self>> {
        static REACTOR: OnceLock<Arc<Reactor>> = OnceLock::new();
        if let Some(reactor) = REACTOR.get() {
            return Ok(Arc::clone(reactor));
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let tasks = Tasks::new()?;
        let data = epoll::EventData::new_u64(BELL);
        epoll::add(&epoll, tasks.bell(), data, epoll::EventFlags::IN)?;
        let reactor = Arc::new(Self { epoll, watched: Mutex::default(), tasks });
        // Of two that are made at once one is dropped again, before it has a thread.
        let reactor = Arc::clone(REACTOR.get_or_init(|| reactor));
        static STARTED: Mutex<bool> = Mutex::new(false);
        let mut is_started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_started {
            let own = Arc::clone(&reactor);
            thread::Builder::new().name("verbs-events".into()).spawn(move || own.run())?;
            *is_started = true;
        }
        Ok(reactor)
    }

    fn watched(&self) -> MutexGuard<'_, Slab<Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut events = Vec::with_capacity(64);
        loop {
            self.tasks.run();
            // Fails only when a signal comes.
            let space = rustix::buffer::spare_capacity(&mut events);
            if epoll::wait(&self.epoll, space, None).is_err() {
                continue;
            }
            for event in events.drain(..) {
                if event.data.u64() == BELL {
                    self.tasks.heard();
                    continue;
                }
                let waker = {
                    let mut watched = self.watched();
                    // The key may be of one that came later: it looks once for nothing.
                    let key = usize::try_from(event.data.u64()).ok();
                    let Some(own) = key.and_then(|key| watched.get_mut(key)) else { continue };
                    own.is_ready = true;
                    own.waker.take()
                };
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
    }
}
