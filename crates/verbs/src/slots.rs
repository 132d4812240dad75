//! Places in a queue of a fixed size, which tasks wait for in the order in which they came.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The places.
#[derive(Debug)]
pub(crate) struct Slots {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
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

impl State {
    /// The task whose turn it is, if there is room for it.
    fn turn(&self) -> Option<Waker> {
        let first = self.waiting.front()?;
        (first.wants <= self.free).then(|| first.waker.clone())
    }
}

impl Slots {
    pub(crate) fn new(count: u32) -> Arc<Self> {
        let state = State { free: count, waiting: VecDeque::new(), next: 0 };
        Arc::new(Self { state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn free(&self) -> u32 {
        self.state().free
    }

    /// Takes places now, or not at all.
    pub(crate) fn try_acquire(self: &Arc<Self>, wants: u32) -> Option<Permit> {
        let mut state = self.state();
        if !state.waiting.is_empty() || state.free < wants {
            return None;
        }
        state.free -= wants;
        Some(Permit { slots: Arc::clone(self), count: wants })
    }

    /// Takes places when it is this task's turn. Never ends for more than there are.
    pub(crate) fn acquire(self: &Arc<Self>, wants: u32) -> Acquire {
        Acquire { slots: Arc::clone(self), wants, ticket: None }
    }

    fn release(&self, count: u32) {
        let turn = {
            let mut state = self.state();
            state.free += count;
            state.turn()
        };
        if let Some(waker) = turn {
            waker.wake();
        }
    }
}

/// Places of somebody, given back on drop.
#[derive(Debug)]
pub(crate) struct Permit {
    slots: Arc<Slots>,
    count: u32,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.slots.release(self.count);
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
        let slots = Arc::clone(&self.slots);
        let mut state = slots.state();
        let at = match self.ticket {
            Some(ticket) => state.waiting.iter().position(|waiting| waiting.ticket == ticket),
            None => None,
        };
        let is_first = at.map_or(state.waiting.is_empty(), |at| at == 0);
        if is_first && state.free >= self.wants {
            state.free -= self.wants;
            if self.ticket.take().is_some() {
                state.waiting.pop_front();
            }
            let turn = state.turn();
            drop(state);
            if let Some(waker) = turn {
                waker.wake();
            }
            return Poll::Ready(Permit { slots, count: self.wants });
        }
        match at {
            Some(at) => state.waiting[at].waker.clone_from(cx.waker()),
            None => {
                let ticket = state.next;
                state.next += 1;
                let waiting = Waiting { ticket, wants: self.wants, waker: cx.waker().clone() };
                state.waiting.push_back(waiting);
                self.ticket = Some(ticket);
            }
        }
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let turn = {
            let mut state = self.slots.state();
            state.waiting.retain(|waiting| waiting.ticket != ticket);
            state.turn()
        };
        // It may have been the first, with no room for it but for the next.
        if let Some(waker) = turn {
            waker.wake();
        }
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
