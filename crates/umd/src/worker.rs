//! The thread that does queued work of streams. It starts when there is some for the first time.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::boundary::LOG;

/// Queues in which some work had to wait.
pub(crate) trait Ordered: Send + Sync {
    /// Does queued work, up to what must wait. Returns whether some is left.
    fn run_queued(&self) -> bool;

    /// How much work there was so far.
    fn ticket(&self) -> u64;
}

/// Streams with work to do.
static BUSY: Mutex<Busy> = Mutex::new(Busy { streams: Vec::new(), has_thread: false });
static CALLED: Condvar = Condvar::new();

struct Busy {
    streams: Vec<Arc<dyn Ordered>>,
    has_thread: bool,
}

/// How often to check a wait that no call ends: for a value that a NIC writes.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);

/// A stream has queued work.
pub(crate) fn call(stream: &Arc<dyn Ordered>) {
    let mut busy = lock();
    if !busy.streams.iter().any(|known| is_same(known, stream)) {
        busy.streams.push(Arc::clone(stream));
    }
    if !busy.has_thread {
        let started = threads::spawn("peerdma-gpu", run);
        match started {
            Ok(_) => busy.has_thread = true,
            Err(error) => tracing::error!(target: LOG, "no thread for streams: {error}"),
        }
    }
    drop(busy);
    CALLED.notify_one();
}

fn run() {
    let mut pause = SHORTEST;
    loop {
        let streams = {
            let mut busy = lock();
            while busy.streams.is_empty() {
                busy = CALLED.wait(busy).unwrap_or_else(PoisonError::into_inner);
            }
            std::mem::take(&mut busy.streams)
        };
        let (mut waiting, count) = (Vec::new(), streams.len());
        for stream in streams {
            let before = stream.ticket();
            if stream.run_queued() {
                waiting.push(stream);
            } else if stream.ticket() != before {
                pause = SHORTEST;
            }
        }
        pause = if waiting.len() < count { SHORTEST } else { (pause * 2).min(LONGEST) };
        let mut busy = lock();
        for stream in waiting {
            if !busy.streams.iter().any(|known| is_same(known, &stream)) {
                busy.streams.push(stream);
            }
        }
        if !busy.streams.is_empty() {
            let _ = CALLED.wait_timeout(busy, pause).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn is_same(one: &Arc<dyn Ordered>, other: &Arc<dyn Ordered>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

fn lock() -> MutexGuard<'static, Busy> {
    BUSY.lock().unwrap_or_else(PoisonError::into_inner)
}
