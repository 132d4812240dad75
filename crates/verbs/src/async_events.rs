//! Asynchronous events for programs: what they are of, and a descriptor for them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;

use crate::{AsyncEvent, Context, Cq, Kind, Refusal, Result, Srq};

impl AsyncEvent {
    /// Whether it happened to this completion queue.
    pub fn is_of_cq(&self, cq: &Cq) -> bool {
        self.queue() == Some(cq.queue_id())
    }

    /// Whether it happened to this shared receive queue.
    pub fn is_of_srq(&self, srq: &Srq) -> bool {
        self.queue() == Some(srq.queue_id())
    }
}

/// The asynchronous events of a context for an event loop: a descriptor to wait for, and a call
/// that takes an event and never waits. It keeps the context open.
///
/// ```no_run
/// # fn on_readable(fd: impl std::os::fd::AsFd) {}
/// # fn f(context: &verbs::Context) -> verbs::Result<()> {
/// let events = context.async_events()?;
/// on_readable(&events); // by poll, epoll, or `tokio::io::unix::AsyncFd`
/// while let Some(event) = events.take()? {
///     println!("{event:?}");
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct AsyncEvents {
    /// Holds the descriptor of the device, and that of the events which are kept for the program.
    epoll: OwnedFd,
    context: Context,
}

impl Context {
    /// A descriptor for the asynchronous events. There may be several; each event goes to whoever
    /// takes it first, be it by [`AsyncEvents::take`] or [`Context::async_event`].
    ///
    /// # Errors
    ///
    /// [`Kind::NoMemory`] if the process or its user can have no more of them.
    pub fn async_events(&self) -> Result<AsyncEvents> {
        AsyncEvents::new(self).map_err(|error| {
            Refusal::new(Kind::NoMemory, format!("a descriptor for events: {error}"))
        })
    }
}

impl AsyncEvents {
    fn new(context: &Context) -> std::result::Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for fd in [context.events(), context.hub().bell().as_fd()] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(Self { epoll, context: context.clone() })
    }

    /// The device they are of.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The oldest event, if one waits.
    ///
    /// # Errors
    ///
    /// As [`Context::async_event`].
    #[doc(alias = "ibv_get_async_event")]
    pub fn take(&self) -> Result<Option<AsyncEvent>> {
        self.context.async_event(Duration::ZERO)
    }
}

impl AsFd for AsyncEvents {
    /// Readable while an event waits. It may be readable for nothing: some events are for QPs of
    /// [`aio`](crate::aio) alone, and others may be taken by another thread.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl AsRawFd for AsyncEvents {
    /// The same descriptor, for `tokio::io::unix::AsyncFd`, which takes this as it is.
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use iba::EventType;

    use super::*;
    use crate::soft::{self, NicConfig};
    use crate::wait::readable;

    #[test]
    fn it_is_readable_for_an_event_that_was_taken_in_the_programs_stead() {
        let name = format!("async-events-{}", std::process::id());
        let device = soft::device(NicConfig { name, ..NicConfig::default() }).unwrap();
        let context = device.open().unwrap();
        let events = context.async_events().unwrap();
        let is_readable = || readable(&events, Duration::from_nanos(1)).unwrap();
        assert!(!is_readable());
        let event = AsyncEvent::of_port(EventType::PortActive, Some(1));
        context.hub().keep(event);
        context.hub().keep(event);
        for _ in 0..2 {
            assert!(is_readable());
            assert_eq!(events.take().unwrap(), Some(event));
        }
        assert!(!is_readable());
        assert_eq!(events.take().unwrap(), None);
    }
}
