//! How a QP over a shared receive queue learns that it receives nothing more: by asynchronous
//! events.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll};

use iba::EventType;

use super::inner::Inner;
use super::members::flushed;
use super::reactor::{self, Watch};
use super::readiness::Readiness;
use crate::context::WeakContext;
use crate::events::{Hears, Pump};
use crate::{Context, Result};

/// Has the thread of this library take the events of a context, from now on.
pub(super) fn watch_events(context: &Context) -> Result<()> {
    context.hub().pump().once(|| {
        let watch = Watch::new(&context.events())?;
        let pump = Arc::clone(context.hub().pump());
        reactor::spawn(Take { context: context.downgrade(), watch, pump })
    })
}

/// Takes the events of a context until it is closed.
struct Take {
    context: WeakContext,
    watch: Watch,
    pump: Arc<Pump>,
}

impl Future for Take {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Task<'_>) -> Poll<()> {
        let take = self.get_mut();
        // Before it looks whether the context is open: its end wakes the task.
        take.pump.set_task(cx);
        loop {
            let Some(context) = take.context.upgrade() else { return Poll::Ready(()) };
            let hub = context.hub();
            loop {
                match context.take_event() {
                    Ok(Some(event)) if hub.tell(&event) => {}
                    Ok(Some(event)) => hub.keep(event),
                    Ok(None) => break,
                    Err(_) => {
                        hub.tell_all();
                        return Poll::Ready(());
                    }
                }
            }
            match take.watch.poll_readable(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => {
                    hub.tell_all();
                    return Poll::Ready(());
                }
            }
        }
    }
}

impl Hears for Inner {
    fn hear(self: Arc<Self>, event: EventType) {
        use EventType as E;
        let is_last = event == E::QpLastWqeReached;
        if !is_last && !matches!(event, E::QpFatal | E::QpReqErr | E::QpAccessErr | E::DeviceFatal)
        {
            return;
        }
        let cq = self.cq();
        // What has arrived stands in the queue already, and comes first.
        cq.drain_all();
        let why = cq.cq().explain(&flushed(self.qp().qpn()));
        let mut state = cq.table().lock();
        let wakers = state.end(self.key(), why);
        let last = if is_last { state.take_last(self.key()) } else { None };
        drop(state);
        wakers.wake();
        drop(last);
    }
}
