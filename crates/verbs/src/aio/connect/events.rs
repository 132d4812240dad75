//! The events of a NIC's connections, each given to the future that waits for it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::aio::reactor::{self, Watch};
use crate::aio::readiness::Readiness;
use crate::aio::wakers::Wakers;
use crate::cm::{Event, EventChannel, EventKind, Id};
use crate::{Refusal, Result};

/// The events of all connections of a NIC. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Events(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    channel: EventChannel,
    /// Where the events of each identifier go.
    boxes: Mutex<BTreeMap<usize, Arc<Mailbox>>>,
    pump: Arc<Mutex<Option<Waker>>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let pump = self.pump.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = pump {
            waker.wake();
        }
    }
}

/// Events that nobody has taken, and who waits for more.
#[derive(Debug, Default)]
pub(super) struct Mailbox(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    events: VecDeque<Event>,
    wakers: Wakers,
    /// Why nothing more will come.
    end: Option<Refusal>,
}

impl fmt::Debug for Waiting {
    // An event has its identifier, which has its channel: too much to print.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("events", &self.events.len()).finish_non_exhaustive()
    }
}

impl Events {
    pub(super) fn new(context: &crate::Context) -> Result<Self> {
        let channel = EventChannel::new(context)?;
        let watch = Watch::new(&channel)?;
        let pump = Arc::<Mutex<Option<Waker>>>::default();
        let boxes = Mutex::default();
        let shared = Shared { channel: channel.clone(), boxes, pump: Arc::clone(&pump) };
        let shared = Arc::new(shared);
        reactor::spawn(Pump { shared: Arc::downgrade(&shared), channel, watch, own: pump })?;
        Ok(Self(shared))
    }

    pub(super) fn channel(&self) -> &EventChannel {
        &self.0.channel
    }

    /// Gives the events of an identifier to a mailbox, from now on.
    pub(super) fn register(&self, id: Id, mailbox: Arc<Mailbox>) -> End {
        self.0.boxes().insert(id.key(), Arc::clone(&mailbox));
        End { events: self.clone(), id, mailbox }
    }
}

impl Shared {
    fn boxes(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<Mailbox>>> {
        self.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deliver(&self, event: Event) {
        if let EventKind::Disconnected { timed_out: false } = event.kind {
            // Confirmed, and what is in flight ends: its futures say so. Refused if this side ended
            // the connection.
            let _ = event.id.disconnect();
        }
        let of = event.listener.as_ref().unwrap_or(&event.id).key();
        let wakers = {
            let boxes = self.boxes();
            // Nobody waits: a request is refused as it is dropped.
            let Some(mailbox) = boxes.get(&of) else { return };
            let mut waiting = mailbox.waiting();
            waiting.events.push_back(event);
            waiting.wakers.take()
        };
        wakers.wake();
    }

    /// Nothing more comes.
    fn end(&self, why: &Refusal) {
        let boxes: Vec<_> = self.boxes().values().cloned().collect();
        for mailbox in boxes {
            mailbox.waiting().end = Some(why.clone());
            mailbox.wake();
        }
    }
}

impl Mailbox {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the oldest event; otherwise the task is woken when there is one.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<Result<Event>> {
        let mut waiting = self.waiting();
        if let Some(event) = waiting.events.pop_front() {
            return Poll::Ready(Ok(event));
        }
        if let Some(end) = &waiting.end {
            return Poll::Ready(Err(end.clone()));
        }
        waiting.wakers.add(Some(cx.waker()));
        Poll::Pending
    }

    /// Wakes all tasks that wait.
    pub(super) fn wake(&self) {
        let wakers = self.waiting().wakers.take();
        wakers.wake();
    }
}

/// An identifier whose events go to a mailbox until this is dropped.
#[derive(Debug)]
pub(super) struct End {
    events: Events,
    id: Id,
    mailbox: Arc<Mailbox>,
}

impl End {
    pub(super) fn id(&self) -> &Id {
        &self.id
    }

    pub(super) fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    pub(super) async fn next(&self) -> Result<Event> {
        poll_fn(|cx| self.mailbox.poll(cx)).await
    }

    /// Gives its events to a mailbox of its own, with those that wait.
    pub(super) fn on_its_own(&mut self) {
        let own = Arc::new(Mailbox::default());
        let mut boxes = self.events.0.boxes();
        boxes.insert(self.id.key(), Arc::clone(&own));
        let mut shared = self.mailbox.waiting();
        let events = std::mem::take(&mut shared.events);
        let (mine, others) = events.into_iter().partition(|event| event.id == self.id);
        shared.events = others;
        *own.waiting() =
            Waiting { events: mine, wakers: Wakers::default(), end: shared.end.clone() };
        drop((shared, boxes));
        self.mailbox = own;
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mailbox = self.events.0.boxes().remove(&self.id.key());
        // An event has an identifier, whose end may end others.
        drop(mailbox);
    }
}

/// Takes events from the channel. It ends when the NIC and all that was made of it are gone.
struct Pump {
    shared: Weak<Shared>,
    channel: EventChannel,
    watch: Watch,
    own: Arc<Mutex<Option<Waker>>>,
}

impl Future for Pump {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let pump = self.get_mut();
        // Before it looks whether somebody is left: the last wakes it.
        *pump.own.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        loop {
            let Some(shared) = pump.shared.upgrade() else { return Poll::Ready(()) };
            loop {
                match pump.channel.event(Duration::ZERO) {
                    Ok(Some(event)) => shared.deliver(event),
                    Ok(None) => break,
                    Err(why) => {
                        shared.end(&why);
                        return Poll::Ready(());
                    }
                }
            }
            match pump.watch.poll_readable(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    let what = format!("waiting for the events of connections: {error}");
                    shared.end(&Refusal::new(crate::Kind::Io, what));
                    return Poll::Ready(());
                }
            }
        }
    }
}
