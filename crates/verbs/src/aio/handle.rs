//! A completion queue and the requests that it knows, as all parts of this module hold it.

use std::iter;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as Task, Poll, Waker};

use threads::biased;

use super::table::{After, State, Table};
use crate::slots::wake;
use crate::{Context, Cq, Kind, Refusal, Result, Wc};

/// One of the holders of a queue. The driver ends when there is no other.
#[derive(Debug)]
pub(super) struct Handle(Arc<Queue>);

#[derive(Debug)]
struct Queue {
    cq: Cq,
    table: Table,
    /// How many completions it has room for, and how many its QPs can have at once.
    entries: u32,
    taken: AtomicU32,
    /// Whether somebody waits for events. If not, the tasks that wait look for themselves.
    is_driven: AtomicBool,
    /// How many handles there are.
    handles: AtomicUsize,
    /// The task of the driver.
    driver: Mutex<Option<Waker>>,
}

/// What a task waits for.
pub(super) trait Wanted {
    type Found;

    /// Looks for it in the table. If it is not there, the task is left where a completion finds it;
    /// none if tasks look for themselves.
    fn find(&self, state: &mut State, task: Option<&Waker>) -> Option<Self::Found>;

    /// Takes a completion that is what it waits for, without a way through the table. Returns the
    /// task whose turn it is to send, too. A failure takes the other way.
    fn claim(&self, _state: &mut State, _wc: &Wc) -> Option<(Self::Found, Option<Waker>)> {
        None
    }
}

/// Nothing: the completions are others'.
struct Others;

impl Wanted for Others {
    type Found = ();

    fn find(&self, _state: &mut State, _task: Option<&Waker>) -> Option<()> {
        None
    }
}

/// How often a task looks at a queue that nobody drives before it lets others run: so many times
/// with the table locked, and so many looks each time.
const TIMES: u32 = 32;
const LOOKS: u32 = 8;
/// How many completions are taken before somebody else's turn.
const BATCH: usize = 64;

impl Handle {
    pub(super) fn new(context: &Context, entries: u32, is_driven: bool) -> Result<Self> {
        let cq = context.create_cq(entries)?;
        Ok(Self(Arc::new(Queue {
            cq,
            table: Table::default(),
            entries,
            taken: AtomicU32::new(0),
            is_driven: AtomicBool::new(is_driven),
            handles: AtomicUsize::new(1),
            driver: Mutex::default(),
        })))
    }

    pub(super) fn cq(&self) -> &Cq {
        &self.0.cq
    }

    pub(super) fn table(&self) -> &Table {
        &self.0.table
    }

    /// Takes up to a batch of completions and wakes the tasks that wait; how many that were.
    pub(super) fn drain(&self) -> usize {
        let take = || self.take_one(self.table().lock(), 1, &Others, None);
        iter::from_fn(take).take(BATCH).count()
    }

    /// Takes a completion, and wakes the task that waits for it. Returns what is wanted, if it is
    /// there now. `None` if so many looks found no completion.
    fn take_one<W: Wanted>(
        &self,
        mut state: biased::MutexGuard<'_, State>,
        looks: u32,
        wanted: &W,
        task: Option<&Waker>,
    ) -> Option<Option<W::Found>> {
        let cq = self.cq();
        // Locked also while a completion is taken: another thread that took a later one at the same
        // time could hand it over earlier.
        let wc = (0..looks).find_map(|_| cq.poll())?;
        if let Some((found, turn)) = wanted.claim(&mut state, &wc) {
            drop(state);
            wake(turn);
            return Some(Some(found));
        }
        let mut after = After::default();
        state.complete(wc, cq, &mut after);
        let found = wanted.find(&mut state, task);
        drop(state);
        after.finish();
        Some(found)
    }

    /// Waits for what is wanted.
    pub(super) fn wait<W: Wanted>(&self, cx: &Task<'_>, wanted: &W) -> Poll<W::Found> {
        let mut state = self.table().lock();
        // ORDERING: a task that leaves its waker in the table does so under this lock. If
        // `undriven` did not find it there, it was before, and the lock shows here what it stored.
        let is_driven = self.is_driven();
        let task = is_driven.then(|| cx.waker());
        // An answer that is here already needs no look at the device.
        if let Some(found) = wanted.find(&mut state, task) {
            return Poll::Ready(found);
        }
        let mut locked = Some(state);
        let (times, looks) = if is_driven { (1, 1) } else { (TIMES, LOOKS) };
        for _ in 0..times {
            let state = locked.take().unwrap_or_else(|| self.table().lock());
            // A completion leaves what it is for where `find` looks: without one, nothing changed.
            match self.take_one(state, looks, wanted, task) {
                Some(Some(found)) => return Poll::Ready(found),
                // Another task's, which may wait for this thread.
                Some(None) => break,
                None => {}
            }
        }
        if !is_driven {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// For a task that waits for something else of this queue, which completions give back, and
    /// left its waker in the table. If nobody drives the queue, it looks itself.
    pub(super) fn look_meanwhile(&self, cx: &Task<'_>) {
        // ORDERING: as in `wait`.
        if !self.is_driven() {
            self.drain();
            cx.waker().wake_by_ref();
        }
    }

    pub(super) fn is_driven(&self) -> bool {
        self.0.is_driven.load(Ordering::Relaxed)
    }

    /// From now on, tasks look for themselves.
    pub(super) fn undriven(&self) {
        self.0.is_driven.store(false, Ordering::Relaxed);
        for waker in self.0.table.wakers() {
            waker.wake();
        }
    }

    /// Whether the driver alone is left. It is woken when that becomes so.
    pub(super) fn is_last(&self) -> bool {
        self.0.handles.load(Ordering::Acquire) == 1
    }

    pub(super) fn set_driver(&self, task: &Task<'_>) {
        let mut driver = self.0.driver.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *driver {
            Some(waker) => waker.clone_from(task.waker()),
            None => *driver = Some(task.waker().clone()),
        }
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Takes all completions that are here now.
    pub(super) fn drain_all(&self) {
        let mut left = self.0.entries as usize;
        while left > 0 {
            match self.drain() {
                0 => return,
                // More come all the time.
                taken => left = left.saturating_sub(taken),
            }
        }
    }

    /// Takes room for completions.
    fn reserve(&self, count: u32, call: &str) -> Result<()> {
        let room = self.0.entries;
        let more = |taken: u32| taken.checked_add(count).filter(|sum| *sum <= room);
        let order = Ordering::Relaxed;
        self.0.taken.fetch_update(order, order, more).map(drop).map_err(|taken| {
            Refusal::new(
                Kind::NoMemory,
                format!(
                    "{call}: its {count} requests could overrun the completion queue of {room} \
                     entries, of which others have {taken}"
                ),
            )
        })
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        self.0.handles.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // ORDERING: counted before the driver's waker is looked for. A driver that left it later
        // sees the count, by the lock.
        if self.0.handles.fetch_sub(1, Ordering::AcqRel) != 2 {
            return;
        }
        let driver = self.0.driver.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = driver {
            waker.wake();
        }
    }
}

/// Room in a completion queue.
#[derive(Debug)]
pub(super) struct Room(Handle, u32);

impl Room {
    /// Room for `count` completions of what `call` makes.
    pub(super) fn new(queue: &Handle, count: u32, call: &str) -> Result<Self> {
        queue.reserve(count, call)?;
        Ok(Self(queue.clone(), count))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.0.0.taken.fetch_sub(self.1, Ordering::Relaxed);
    }
}
