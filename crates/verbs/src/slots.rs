//! Places in a queue of a fixed size, which tasks wait for in the order in which they came.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

/// Places, and who waits for some: [`Slots`] for those that have a lock of their own.
#[derive(Debug)]
pub(crate) struct Places {
    free: u32,
    /// Tasks that wait, the longest first. A task that comes later overtakes none.
    waiting: VecDeque<Waiting>,
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    ticket: u64,
    wants: u32,
    waker: Waker,
}

impl Places {
    pub(crate) fn new(count: u32) -> Self {
        Self { free: count, waiting: VecDeque::new(), next: 0 }
    }

    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// The task whose turn it is, if there is room for it. Wake it without a lock.
    fn turn(&self) -> Option<Waker> {
        let first = self.waiting.front()?;
        (first.wants <= self.free).then(|| first.waker.clone())
    }

    /// The tasks that wait.
    pub(crate) fn wakers(&self) -> impl Iterator<Item = Waker> {
        self.waiting.iter().map(|waiting| waiting.waker.clone())
    }

    /// Takes places now, or not at all.
    pub(crate) fn try_take(&mut self, wants: u32) -> bool {
        let is_there = self.waiting.is_empty() && self.free >= wants;
        if is_there {
            self.free -= wants;
        }
        is_there
    }

    /// Takes places if it is the turn of the task with this ticket, and returns whose turn is next;
    /// otherwise the task has a ticket and waits. Never ends for more than there are.
    pub(crate) fn poll_take(
        &mut self,
        ticket: &mut Option<u64>,
        wants: u32,
        cx: &Context<'_>,
    ) -> Poll<Option<Waker>> {
        let at = match *ticket {
            Some(own) => self.waiting.iter().position(|waiting| waiting.ticket == own),
            None => None,
        };
        let is_first = at.map_or(self.waiting.is_empty(), |at| at == 0);
        if is_first && self.free >= wants {
            self.free -= wants;
            if ticket.take().is_some() {
                self.waiting.pop_front();
            }
            return Poll::Ready(self.turn());
        }
        match at {
            Some(at) => self.waiting[at].waker.clone_from(cx.waker()),
            None => {
                *ticket = Some(self.next);
                let waker = cx.waker().clone();
                self.waiting.push_back(Waiting { ticket: self.next, wants, waker });
                self.next += 1;
            }
        }
        Poll::Pending
    }

    /// The task with this ticket waits no more. Returns whose turn is next: it may have been the
    /// first, with no room for it but for the next.
    pub(crate) fn leave(&mut self, ticket: u64) -> Option<Waker> {
        self.waiting.retain(|waiting| waiting.ticket != ticket);
        self.turn()
    }

    /// Gives places back, and returns whose turn is next.
    pub(crate) fn give(&mut self, count: u32) -> Option<Waker> {
        self.free += count;
        self.turn()
    }
}

/// Wakes the task whose turn it is, which [`Places`] returned; without a lock.
pub(crate) fn wake(turn: Option<Waker>) {
    if let Some(waker) = turn {
        waker.wake();
    }
}

/// Places that threads share.
#[derive(Debug)]
pub(crate) struct Slots(Mutex<Places>);

impl Slots {
    pub(crate) fn new(count: u32) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Places::new(count))))
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn free(&self) -> u32 {
        self.places().free()
    }

    /// Takes places now, or not at all.
    pub(crate) fn try_acquire(self: &Arc<Self>, wants: u32) -> Option<Permit> {
        let is_there = self.places().try_take(wants);
        is_there.then(|| Permit { slots: Arc::clone(self), count: wants })
    }

    /// Gives places back that a permit was forgotten for.
    pub(crate) fn give(&self, count: u32) {
        let turn = self.places().give(count);
        wake(turn);
    }

    /// Takes places when it is this task's turn. Never ends for more than there are.
    pub(crate) fn acquire(self: &Arc<Self>, wants: u32) -> Acquire {
        Acquire { slots: Arc::clone(self), wants, ticket: None }
    }
}

/// Places of somebody, given back on drop.
#[derive(Debug)]
pub(crate) struct Permit {
    slots: Arc<Slots>,
    count: u32,
}

impl Permit {
    /// Keeps the places, for [`Slots::give`].
    pub(crate) fn forget(mut self) {
        self.count = 0;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.count > 0 {
            self.slots.give(self.count);
        }
    }
}

/// Waits for places.
#[derive(Debug)]
pub(crate) struct Acquire {
    slots: Arc<Slots>,
    wants: u32,
    ticket: Option<u64>,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let Self { slots, wants, ticket } = &mut *self;
        let turn = ready!(slots.places().poll_take(ticket, *wants, cx));
        wake(turn);
        Poll::Ready(Permit { slots: Arc::clone(slots), count: *wants })
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let turn = self.slots.places().leave(ticket);
        wake(turn);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Task {
        woken: Arc<Count>,
        waits: Pin<Box<Acquire>>,
    }

    impl Task {
        fn new(slots: &Arc<Slots>, wants: u32) -> Self {
            Self { woken: Arc::default(), waits: Box::pin(slots.acquire(wants)) }
        }

        fn poll(&mut self) -> Option<Permit> {
            let waker = Waker::from(Arc::clone(&self.woken));
            match self.waits.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(permit) => Some(permit),
                Poll::Pending => None,
            }
        }

        fn woken(&self) -> u32 {
            self.woken.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn who_comes_first_is_served_first() {
        let slots = Slots::new(2);
        let first = slots.try_acquire(2).unwrap();
        let (mut large, mut small) = (Task::new(&slots, 2), Task::new(&slots, 1));
        assert!(large.poll().is_none() && small.poll().is_none());
        drop(first);
        assert_eq!((large.woken(), small.woken()), (1, 0));
        assert!(small.poll().is_none(), "there is room, but it is not its turn");
        let held = large.poll().unwrap();
        assert!(slots.try_acquire(1).is_none());
        drop(held);
        assert_eq!(small.woken(), 1);
        let one = small.poll().unwrap();
        assert_eq!(slots.free(), 1);
        drop(one);
        assert_eq!(slots.free(), 2);
    }

    #[test]
    fn a_task_that_gives_up_passes_its_turn_on() {
        let slots = Slots::new(1);
        let held = slots.try_acquire(1).unwrap();
        let (mut first, mut second) = (Task::new(&slots, 1), Task::new(&slots, 1));
        assert!(first.poll().is_none() && second.poll().is_none());
        drop(held);
        assert_eq!((first.woken(), second.woken()), (1, 0));
        drop(first);
        assert_eq!(second.woken(), 1);
        assert!(second.poll().is_some());
        assert_eq!(slots.free(), 1);
    }

    #[test]
    fn a_served_task_wakes_the_next_that_there_is_room_for() {
        let slots = Slots::new(3);
        let held = slots.try_acquire(3).unwrap();
        let mut tasks = [Task::new(&slots, 1), Task::new(&slots, 2)];
        assert!(tasks.iter_mut().all(|task| task.poll().is_none()));
        drop(held);
        let one = tasks[0].poll().unwrap();
        assert_eq!(tasks[1].woken(), 1);
        let two = tasks[1].poll().unwrap();
        assert_eq!(slots.free(), 0);
        drop((one, two));
        assert_eq!(slots.free(), 3);
    }
}
