//! Events: points in the order of streams.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use umd::queue::Progress;
use umem::{HostBuf, HostBufError};

use crate::status::{Refusal, Result, Status};

/// An event.
pub(crate) struct Event {
    pub(crate) handle: u64,
    /// The handle of its context.
    pub(crate) context: u64,
    pub(crate) flags: u32,
    /// The number of records, and of the last record that is reached.
    counts: Counts,
    /// The time at which the last record was reached.
    at: Mutex<Option<Instant>>,
}

/// Two counters, in memory that processes may share.
struct Counts(HostBuf);

/// The index of each counter.
const RECORDED: usize = 0;
const REACHED: usize = 64;

impl Counts {
    fn get(&self, which: usize) -> u64 {
        self.0.load_u64(which, Ordering::Acquire).unwrap_or_default()
    }

    fn record(&self) -> u64 {
        self.0.fetch_add_u64(RECORDED, 1, Ordering::AcqRel).map_or(0, |before| before + 1)
    }

    /// Returns whether this record is reached for the first time.
    fn reach(&self, number: u64) -> bool {
        loop {
            let now = self.get(REACHED);
            if now >= number {
                return false;
            }
            if self.0.compare_swap_u64(REACHED, now, number).is_ok_and(|found| found == now) {
                return true;
            }
        }
    }
}

/// The event takes no timestamps.
#[doc(alias = "CU_EVENT_DISABLE_TIMING")]
pub(crate) const DISABLE_TIMING: u32 = 2;

/// Other processes may wait for it.
#[doc(alias = "CU_EVENT_INTERPROCESS")]
pub(crate) const INTERPROCESS: u32 = 4;

/// The first sleep of a wait; later ones are longer.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);

impl Event {
    /// # Errors
    ///
    /// No memory.
    pub(crate) fn new(flags: u32) -> Result<Self> {
        let size = rustix::param::page_size();
        let counts = if flags & INTERPROCESS != 0 {
            HostBuf::memfd("peerdma-event", size)
        } else {
            HostBuf::anonymous(size)
        };
        Self::of(flags, counts)
    }

    /// The event of another process that this file belongs to.
    ///
    /// # Errors
    ///
    /// The file is not that of an event.
    pub(crate) fn opened(file: OwnedFd) -> Result<Self> {
        let counts = HostBuf::received(file, rustix::param::page_size());
        Self::of(INTERPROCESS | DISABLE_TIMING, counts)
    }

    fn of(flags: u32, counts: std::result::Result<HostBuf, HostBufError>) -> Result<Self> {
        let none =
            |error| Refusal::new(Status::OutOfMemory, format!("no memory for an event: {error}"));
        let counts = Counts(counts.map_err(none)?);
        Ok(Self { handle: 0, context: 0, flags, counts, at: Mutex::default() })
    }

    /// The same event, with a handle.
    pub(crate) fn at(self, handle: u64, context: u64) -> Self {
        Self { handle, context, ..self }
    }

    /// The file by which other processes open it.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        (self.flags & INTERPROCESS != 0).then(|| self.counts.0.fd()).flatten()
    }

    /// Records it. The result is the work for the stream: the event is reached when that work runs.
    pub(crate) fn record(self: &Arc<Self>) -> impl FnMut() -> Result<Progress> + Send + 'static {
        let (number, event) = (self.counts.record(), Arc::clone(self));
        move || {
            if event.counts.reach(number) {
                *event.at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            }
            Ok(Progress::Done)
        }
    }

    /// Whether all work before the last record is done; true for an event that was never recorded.
    pub(crate) fn is_reached(&self) -> bool {
        self.has_reached(self.counts.get(RECORDED))
    }

    fn has_reached(&self, number: u64) -> bool {
        self.counts.get(REACHED) >= number
    }

    /// Waits until all work before the last record is done.
    pub(crate) fn synchronize(&self) {
        let number = self.counts.get(RECORDED);
        let mut pause = SHORTEST;
        while !self.has_reached(number) {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// Work for a stream that finishes when the last record is reached; `None` if it is reached
    /// already.
    pub(crate) fn delay(
        self: &Arc<Self>,
    ) -> Option<impl FnMut() -> Result<Progress> + Send + 'static> {
        let number = self.counts.get(RECORDED);
        if self.has_reached(number) {
            return None;
        }
        let event = Arc::clone(self);
        Some(move || Ok(if event.has_reached(number) { Progress::Done } else { Progress::Waiting }))
    }

    /// Milliseconds from another event to this one.
    ///
    /// # Errors
    ///
    /// One of them takes no timestamps, was not recorded, or is not reached.
    pub(crate) fn since(&self, earlier: &Self) -> Result<f32> {
        let at = |event: &Self| {
            if event.flags & DISABLE_TIMING != 0 {
                return Err(Refusal::new(Status::InvalidHandle, "the event takes no timestamps"));
            }
            if event.counts.get(RECORDED) == 0 {
                return Err(Refusal::new(Status::InvalidHandle, "the event was never recorded"));
            }
            let at = *event.at.lock().unwrap_or_else(PoisonError::into_inner);
            let at = at.filter(|_| event.is_reached());
            at.ok_or_else(|| Refusal::new(Status::NotReady, "the event is not reached"))
        };
        let (from, to) = (at(earlier)?, at(self)?);
        let forward = to.checked_duration_since(from);
        let seconds = match forward {
            Some(time) => time.as_secs_f32(),
            None => -from.duration_since(to).as_secs_f32(),
        };
        Ok(seconds * 1000.0)
    }
}
