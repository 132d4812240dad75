//! Asynchronous events, for the program and for QPs of this library that must know theirs.

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context as Task, Waker};

use iba::{EventType, Qpn};
use sysverbs::QueueId;

use crate::Result;
use crate::wait::Bell;

/// An asynchronous event of an object: a QP, a queue, a port, or else the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_async_event")]
#[non_exhaustive]
pub struct AsyncEvent {
    /// What happened.
    pub event: EventType,
    /// The QP it happened to, if any.
    pub qpn: Option<Qpn>,
    /// The port it happened to, if any, from 1.
    pub port: Option<u8>,
    /// The completion queue or the shared receive queue it happened to, if any.
    queue: Option<QueueId>,
}

impl AsyncEvent {
    pub(crate) fn of_device(event: EventType) -> Self {
        Self { event, qpn: None, port: None, queue: None }
    }

    pub(crate) fn of_qp(event: EventType, qpn: Option<Qpn>) -> Self {
        Self { qpn, ..Self::of_device(event) }
    }

    pub(crate) fn of_port(event: EventType, port: Option<u8>) -> Self {
        Self { port, ..Self::of_device(event) }
    }

    pub(crate) fn of_queue(event: EventType, queue: Option<QueueId>) -> Self {
        Self { queue, ..Self::of_device(event) }
    }

    pub(crate) fn queue(&self) -> Option<QueueId> {
        self.queue
    }
}

/// A QP that is told of its events.
pub(crate) trait Hears: Debug + Send + Sync {
    fn hear(self: Arc<Self>, event: EventType);
}

/// The QPs that are told of the events of a context, and the events that are kept for the program.
/// Each event is taken from the device once, by the program or by the pump, and given to all.
#[derive(Debug)]
pub(crate) struct Hub {
    qps: Mutex<HashMap<Qpn, Weak<dyn Hears>>>,
    /// For the program, taken from the device in its stead.
    kept: Mutex<VecDeque<AsyncEvent>>,
    /// Rings once for each that is kept.
    bell: Bell,
    pump: Arc<Pump>,
}

/// The task that takes events when the program does not.
#[derive(Debug, Default)]
pub(crate) struct Pump {
    is_started: Mutex<bool>,
    waker: Mutex<Option<Waker>>,
}

/// How many events are kept for a program that does not ask for them. The oldest are forgotten.
const MOST: usize = 1024;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    pub(crate) fn new() -> Result<Self> {
        let (qps, kept, pump) = (Mutex::default(), Mutex::default(), Arc::default());
        Ok(Self { qps, kept, bell: Bell::new()?, pump })
    }

    /// A QP is told of its events from now on.
    pub(crate) fn register(&self, qpn: Qpn, qp: Weak<dyn Hears>) {
        lock(&self.qps).insert(qpn, qp);
    }

    pub(crate) fn forget(&self, qpn: Qpn) {
        lock(&self.qps).remove(&qpn);
    }

    /// Tells the QPs that an event is about. True if nobody else need know it: a queue of its own
    /// is not the program's.
    pub(crate) fn tell(&self, event: &AsyncEvent) -> bool {
        if event.event == EventType::DeviceFatal {
            self.tell_all();
            return false;
        }
        let Some(qpn) = event.qpn else { return false };
        let Some(qp) = lock(&self.qps).get(&qpn).map(Weak::upgrade) else { return false };
        if let Some(qp) = qp {
            qp.hear(event.event);
        }
        event.event == EventType::QpLastWqeReached
    }

    /// Tells every QP that the device failed, or that no event can be had any more.
    pub(crate) fn tell_all(&self) {
        let qps: Vec<_> = lock(&self.qps).values().filter_map(Weak::upgrade).collect();
        for qp in qps {
            qp.hear(EventType::DeviceFatal);
        }
    }

    /// Keeps an event for the program.
    pub(crate) fn keep(&self, event: AsyncEvent) {
        let mut kept = lock(&self.kept);
        if kept.len() == MOST {
            kept.pop_front();
            self.bell.take();
        }
        kept.push_back(event);
        self.bell.ring();
    }

    /// The oldest event that is kept.
    pub(crate) fn take(&self) -> Option<AsyncEvent> {
        let mut kept = lock(&self.kept);
        let event = kept.pop_front()?;
        self.bell.take();
        Some(event)
    }

    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    pub(crate) fn pump(&self) -> &Arc<Pump> {
        &self.pump
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let waker = lock(&self.pump.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Pump {
    /// Starts it by `start`, unless it runs.
    pub(crate) fn once(&self, start: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut is_started = lock(&self.is_started);
        if !*is_started {
            start()?;
            *is_started = true;
        }
        Ok(())
    }

    /// The task to wake when the context is gone.
    pub(crate) fn set_task(&self, task: &Task<'_>) {
        *lock(&self.waker) = Some(task.waker().clone());
    }
}
