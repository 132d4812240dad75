//! What takes the disk long and cannot be queued: zeros, ranges that are given back, and that what
//! was written lasts. A thread of the session does it, so that the queue's other commands go on.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rustix::fs::{FallocateFlags, fallocate};
use storage::File;

use crate::target::Shared;
use crate::target::io::{MAX_DATA, Op, Plan};
use crate::target::subsystem::Namespace;

/// The thread, from the first command that needs it.
pub(super) struct Slow {
    shared: Arc<Shared>,
    worker: Option<Worker>,
    /// Commands that it has.
    pub(super) busy: u32,
}

struct Worker {
    to: Sender<Job>,
    from: Receiver<Done>,
    thread: JoinHandle<()>,
}

/// A command, by its place.
pub(super) struct Job {
    pub(super) slot: u16,
    pub(super) plan: Plan,
    pub(super) namespace: Arc<Namespace>,
    /// What is to be deallocated: where it begins, and its length.
    pub(super) ranges: Vec<(u64, u64)>,
}

/// A command, by its place, and how it went.
pub(super) struct Done {
    pub(super) slot: u16,
    pub(super) plan: Plan,
    pub(super) result: storage::Result<()>,
}

impl Slow {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), worker: None, busy: 0 }
    }

    /// Hands a command over. False if there can be no thread.
    pub(super) fn give(&mut self, job: Job) -> bool {
        if self.worker.is_none() {
            self.worker = Worker::start(&self.shared);
        }
        let given = self.worker.as_ref().is_some_and(|worker| worker.to.send(job).is_ok());
        self.busy += u32::from(given);
        given
    }

    /// One that is done.
    pub(super) fn poll(&mut self) -> Option<Done> {
        let done = self.worker.as_ref()?.from.try_recv().ok()?;
        self.busy -= 1;
        Some(done)
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        if let Some(Worker { to, from, thread }) = self.worker.take() {
            drop((to, from));
            let _ = thread.join();
        }
    }
}

impl Worker {
    fn start(shared: &Arc<Shared>) -> Option<Self> {
        let (to, jobs) = channel::<Job>();
        let (answers, from) = channel();
        let shared = Arc::clone(shared);
        let run = move || {
            for Job { slot, plan, namespace, ranges } in jobs {
                let result = carry_out(&shared, &namespace, &plan, &ranges);
                if answers.send(Done { slot, plan, result }).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("nvmet-slow".to_owned()).spawn(run);
        Some(Self { to, from, thread: thread.ok()? })
    }
}

fn carry_out(
    shared: &Shared,
    namespace: &Namespace,
    plan: &Plan,
    ranges: &[(u64, u64)],
) -> storage::Result<()> {
    for (offset, len) in ranges.iter().filter(|(_, len)| *len > 0) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A file system that cannot keeps the blocks, with what is in them.
        if let Err(errno) = fallocate(namespace.file(), flags, *offset, *len) {
            tracing::debug!(target: "nvmet", "{len} bytes are not given back: {errno}");
        }
    }
    if plan.op == Op::WriteZeroes {
        zero(shared, namespace.file(), plan)?;
    }
    if plan.fua { namespace.sync() } else { Ok(()) }
}

/// Zeros, by the file system where it can, otherwise as bytes.
fn zero(shared: &Shared, file: &File, plan: &Plan) -> storage::Result<()> {
    let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    if file.is_writable() && fallocate(file, flags, plan.offset, plan.len).is_ok() {
        return Ok(());
    }
    let (mut offset, mut left) = (plan.offset, plan.len);
    while left > 0 {
        let len = left.min(MAX_DATA.into());
        shared.disk.write(file, offset, &shared.zeros.1, 0, len)?;
        (offset, left) = (offset + len, left - len);
    }
    Ok(())
}
