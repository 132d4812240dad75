//! The futures that the thread of this library runs.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

use rustix::event::{EventfdFlags, eventfd};

/// The tasks that can go on.
#[derive(Debug)]
pub(super) struct Tasks {
    ready: Mutex<Ready>,
    /// Readable when a task was woken while the thread waited.
    bell: OwnedFd,
}

#[derive(Debug, Default)]
struct Ready {
    tasks: VecDeque<Arc<Task>>,
    /// Whether the thread waits, or is about to.
    is_waiting: bool,
}

/// A future, held by its wakers and by the queue.
struct Task {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    is_ready: AtomicBool,
    of: Arc<Tasks>,
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("is_ready", &self.is_ready).finish_non_exhaustive()
    }
}

impl Tasks {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { ready: Mutex::default(), bell }))
    }

    pub(super) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// Makes a future one of them.
    pub(super) fn spawn(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) {
        let future = Mutex::new(Some(Box::pin(future) as _));
        let is_ready = AtomicBool::new(false);
        Arc::new(Task { future, is_ready, of: Arc::clone(self) }).wake();
    }

    /// Runs those that can go on, until there are none and a wake rings the bell. Only the thread
    /// calls this.
    pub(super) fn run(&self) {
        loop {
            let ready = {
                let mut ready = self.lock();
                ready.is_waiting = ready.tasks.is_empty();
                std::mem::take(&mut ready.tasks)
            };
            if ready.is_empty() {
                return;
            }
            ready.into_iter().for_each(Task::run);
        }
    }

    /// The bell rang, and rings no more.
    pub(super) fn heard(&self) {
        // Fails only if it did not ring.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    fn push(&self, task: Arc<Task>) {
        let is_waiting = {
            let mut ready = self.lock();
            ready.tasks.push_back(task);
            std::mem::take(&mut ready.is_waiting)
        };
        if is_waiting {
            // Full only after 2^64 - 2 rings.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ready> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Task {
    fn run(self: Arc<Self>) {
        // Before it is polled: a wake while it runs makes it ready again.
        self.is_ready.store(false, Ordering::Release);
        let waker = Waker::from(Arc::clone(&self));
        let mut slot = self.future.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(future) = &mut *slot else { return };
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            let done = slot.take();
            drop(slot);
            drop(done);
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if !self.is_ready.swap(true, Ordering::AcqRel) {
            let of = Arc::clone(&self.of);
            of.push(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;

    #[test]
    fn a_task_runs_when_it_is_woken_and_rings_where_the_thread_waits() {
        let tasks = Tasks::new().unwrap();
        let (polled, waker) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(None)));
        tasks.spawn({
            let (polled, waker) = (Arc::clone(&polled), Arc::clone(&waker));
            poll_fn(move |cx| {
                let mut polled = polled.lock().unwrap();
                *polled += 1;
                *waker.lock().unwrap() = Some(cx.waker().clone());
                match *polled {
                    // As a task that lets others run.
                    2 => cx.waker().wake_by_ref(),
                    4 => return Poll::Ready(()),
                    _ => {}
                }
                Poll::Pending
            })
        });
        let rang = || rustix::io::read(tasks.bell(), &mut [0; 8]).is_ok();
        assert!(!rang(), "nobody waits yet");
        tasks.run();
        assert_eq!(*polled.lock().unwrap(), 1);
        let wake = || waker.lock().unwrap().clone().unwrap().wake();
        wake();
        wake();
        assert!(rang() && !rang());
        tasks.run();
        assert_eq!(*polled.lock().unwrap(), 3, "it woke itself once");
        wake();
        tasks.run();
        assert_eq!(*polled.lock().unwrap(), 4);
        wake();
        tasks.run();
        assert_eq!((*polled.lock().unwrap(), Arc::strong_count(&polled)), (4, 1), "it has ended");
    }
}
