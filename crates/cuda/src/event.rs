//! Events: points in the order of streams.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::process::Process;
use crate::status::{Refusal, Result, Status};
use crate::stream::{Progress, Stream, When};

/// An event.
pub(crate) struct Event {
    pub(crate) handle: u64,
    /// The handle of its context.
    pub(crate) context: u64,
    pub(crate) flags: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How often it was recorded, and which of those is reached.
    recorded: u64,
    reached: u64,
    at: Option<Instant>,
}

/// It keeps no time.
#[doc(alias = "CU_EVENT_DISABLE_TIMING")]
pub(crate) const DISABLE_TIMING: u32 = 2;

impl Event {
    pub(crate) fn new(handle: u64, context: u64, flags: u32) -> Self {
        Self { handle, context, flags, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Puts it into the order of a stream.
    ///
    /// # Errors
    ///
    /// The stream was destroyed.
    pub(crate) fn record(self: &Arc<Self>, process: &Process, stream: &Arc<Stream>) -> Result<()> {
        let number = {
            let mut state = self.lock();
            state.recorded += 1;
            state.recorded
        };
        let event = Arc::clone(self);
        process.submit(stream, When::Now, move || {
            event.reach(number);
            Ok(Progress::Done)
        })
    }

    fn reach(&self, number: u64) {
        let mut state = self.lock();
        if number > state.reached {
            state.reached = number;
            state.at = Some(Instant::now());
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Whether all before the last record is done. One that was never recorded is.
    pub(crate) fn is_reached(&self) -> bool {
        let state = self.lock();
        state.reached >= state.recorded
    }

    /// Waits until all before the last record is done.
    pub(crate) fn synchronize(&self) {
        let mut state = self.lock();
        let number = state.recorded;
        while state.reached < number {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets a stream wait for the last record.
    ///
    /// # Errors
    ///
    /// The stream was destroyed.
    pub(crate) fn delay(self: &Arc<Self>, process: &Process, stream: &Arc<Stream>) -> Result<()> {
        let number = self.lock().recorded;
        if self.is_reached() {
            return Ok(());
        }
        let event = Arc::clone(self);
        process.submit(stream, When::Now, move || {
            let is_reached = event.lock().reached >= number;
            Ok(if is_reached { Progress::Done } else { Progress::Waiting })
        })
    }

    /// Milliseconds from another event to this one.
    ///
    /// # Errors
    ///
    /// One of them keeps no time, was not recorded, or is not reached.
    pub(crate) fn since(&self, earlier: &Self) -> Result<f32> {
        let at = |event: &Self| {
            if event.flags & DISABLE_TIMING != 0 {
                return Err(Refusal::new(Status::InvalidHandle, "the event keeps no time"));
            }
            let state = event.lock();
            if state.recorded == 0 {
                return Err(Refusal::new(Status::InvalidHandle, "the event was never recorded"));
            }
            let is_reached = state.reached >= state.recorded;
            let at = state.at.filter(|_| is_reached);
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
