//! The copy engine: moves the bytes of buffers, one job after the other, and signals a fence for
//! each.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use dmabuf::{Fence, SignallingSection, Timeline};
use rustix::io::Errno;

use crate::config::CopyMode;
use crate::error::{Result, no_memory};
use crate::pools::Resource;
use crate::throttle::Throttle;

/// Does jobs in order. Dropping it does the remaining jobs.
pub(crate) struct CopyEngine {
    shared: Arc<Shared>,
    mode: CopyMode,
    thread: Mutex<Option<JoinHandle<()>>>,
    pid: u32,
}

/// One move. It owns the old place, and gives it back when the bytes have left it.
struct Job {
    from: Arc<Resource>,
    to: Arc<Resource>,
    fence: Fence,
}

struct Shared {
    timeline: Timeline,
    jobs: Mutex<Jobs>,
    more: Condvar,
    throttle: Arc<Throttle>,
    /// Held while a job is done: two jobs at once could signal in the wrong order.
    doing: Mutex<()>,
}

#[derive(Default)]
struct Jobs {
    queue: VecDeque<Job>,
    last: Option<Fence>,
    is_ended: bool,
}

impl CopyEngine {
    pub(crate) fn new(name: &str, mode: CopyMode, throttle: &Arc<Throttle>) -> Self {
        let shared = Shared {
            timeline: Timeline::new(name, "copy"),
            jobs: Mutex::default(),
            more: Condvar::new(),
            throttle: Arc::clone(throttle),
            doing: Mutex::new(()),
        };
        Self { shared: Arc::new(shared), mode, thread: Mutex::new(None), pid: std::process::id() }
    }

    /// Makes sure that a job can be done: after this, [`copy`](Self::copy) cannot fail.
    pub(crate) fn prepare(&self) -> Result<()> {
        if self.mode != CopyMode::Thread {
            return Ok(());
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let builder = Builder::new().name("peerdma-copy".to_owned()).stack_size(128 << 10);
            let spawned = threads::start(builder, move || shared.run());
            let spawned = spawned
                .map_err(|error| no_memory(format!("no thread for the copy engine: {error}")))?;
            *thread = Some(spawned);
        }
        Ok(())
    }

    /// Copies the bytes of `from` to `to`. The fence is signaled when the bytes are there and the
    /// old place is free.
    pub(crate) fn copy(&self, from: Arc<Resource>, to: Arc<Resource>) -> Fence {
        let mut jobs = self.shared.jobs();
        // Under the lock, so that fences are in the order of the jobs.
        let fence = self.shared.timeline.point();
        jobs.last = Some(fence.clone());
        jobs.queue.push_back(Job { from, to, fence: fence.clone() });
        drop(jobs);
        match self.mode {
            CopyMode::Thread => self.shared.more.notify_one(),
            CopyMode::Sync => while self.step() {},
            CopyMode::Manual => {}
        }
        fence
    }

    /// Waits until all jobs that were queued when it was called are done.
    pub(crate) fn wait_idle(&self) {
        let last = self.shared.jobs().last.clone();
        if let Some(last) = last {
            self.wait(&last);
        }
    }

    /// Does the next job, if there is one.
    pub(crate) fn step(&self) -> bool {
        self.shared.step()
    }

    /// Waits for a fence, of this engine or not. A manual engine does its work now.
    pub(crate) fn wait(&self, fence: &Fence) {
        if self.mode == CopyMode::Manual {
            while !fence.is_signaled() && self.step() {}
        }
        // TIMEOUT: none; a fence is signaled in finite time without outside help.
        let _ = fence.wait(None);
    }
}

impl Shared {
    fn run(&self) {
        loop {
            let mut jobs = self.jobs();
            while jobs.queue.is_empty() {
                if jobs.is_ended {
                    return;
                }
                jobs = self.more.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            }
            drop(jobs);
            self.step();
        }
    }

    fn step(&self) -> bool {
        let _doing = self.doing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Job { from, to, fence }) = self.jobs().queue.pop_front() else { return false };
        let _signalling = SignallingSection::begin();
        let is_done = to.copy_from(&from);
        self.throttle.pace(from.len.min(to.len));
        // Code that waited for the fence may rely on the old place being free.
        drop((from, to));
        if is_done {
            self.timeline.signal(fence.seqno());
        } else {
            tracing::error!(target: "peerdma::gpu", "no memory for a page of a buffer: its bytes are lost");
            // The fence cannot have been signaled: its job was in the queue.
            let _ = self.timeline.fail(&fence, Errno::IO);
        }
        true
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CopyEngine {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            // A forked child has neither the thread nor the right to the memory.
            return;
        }
        self.shared.throttle.set(0, None);
        self.shared.jobs().is_ended = true;
        self.shared.more.notify_all();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        match thread {
            // The last buffer may be freed in a callback that runs on the engine's own thread.
            Some(thread) if thread.thread().id() == std::thread::current().id() => {}
            Some(thread) => {
                let _ = thread.join();
            }
            None => while self.step() {},
        }
    }
}
