//! Completion events and asynchronous events.
//!
//! Each is taken in two steps: a read from the descriptor that the program may also poll, and then
//! the event itself from the engine. A blocked read holds no lock, and its thread may be cancelled
//! ([`super::cancel`]). A thread that waits for a completion makes progress instead of the read
//! ([`super::waiting`]).

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::ids::CqId;
use device::{Engine, EventSource, Hca};

use super::boundary::control;
use super::cancel::{After, Step, in_steps};
use super::errno;
use super::object::{given, room};
use super::own::context::opened;
use super::own::cq::{self, ChannelObject, OwnChannel};
use super::own::qp;
use super::srq::SrqObject;
use super::types::context::Context;
use super::types::cq::{CompChannel, Cq};
use super::types::event::{AsyncEvent, Element};
use super::waiting::{Next, blocks};

pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut CompChannel,
    cq: *mut *mut Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let found = Cell::new(None);
    let keep = |taken: Option<(CqId, u64)>| {
        found.set(taken.map(|(_, cookie)| cookie_to_pointer::<Cq>(cookie)));
        // Still under the lock, so that a thread that destroys the queue waits for this event.
        // SAFETY: the engine gives events of queues that exist.
        found.get().inspect(|cq| unsafe { cq::own(*cq) }.comp_acks.give()).is_some()
    };
    let hold = || {
        let _rooms = (room(cq), room(cq_context));
        // SAFETY: contract: the channel is one of ours.
        Ok(Arc::clone(unsafe { ChannelObject::own(channel) }))
    };
    in_steps("ibv_get_cq_event", hold, |own: &OwnChannel, after| {
        let is_gone = || own.is_gone.load(Ordering::Relaxed);
        let take = |engine: &mut Engine| !is_gone() && keep(engine.take_cq_event_unread(own.id));
        let next = match after {
            After::Begin => take(&mut own.hca.lock()).then_some(Next::Found),
            // The queue may have been destroyed, and its events with it, since the read.
            After::Read => {
                let mut engine = own.hca.lock();
                (!is_gone() && keep(engine.take_cq_event(own.id))).then_some(Next::Found)
            }
            After::Sleep(..) | After::SleepFailed(_) => own.waiting.end(&own.hca, after, take),
            After::Failed(errno) => return failed(errno),
        };
        let next = match next {
            Some(next @ (Next::Found | Next::Interrupted)) => next,
            // It waits for ever, as for a descriptor that is closed meanwhile.
            _ if is_gone() => own.waiting.set().map_or(Next::Read, Next::Sleep),
            Some(next) => next,
            None => {
                // SAFETY: contract: the channel is alive.
                let fd = unsafe { (*channel).fd };
                // SAFETY: contract: and so is its descriptor.
                let fd = unsafe { BorrowedFd::borrow_raw(fd) };
                if blocks(fd) { own.waiting.begin(&own.hca, fd, take) } else { Next::Read }
            }
        };
        match next {
            Next::Found => {}
            Next::Sleep(set) => return Step::Sleep(set),
            Next::Read if is_gone() => return failed(libc::EBADF),
            // SAFETY: contract: the channel is alive.
            Next::Read => return Step::Read(unsafe { (*channel).fd }),
            Next::Interrupted => return failed(libc::EINTR),
        }
        let Some(found) = found.get() else { return failed(libc::EIO) };
        // SAFETY: contract: the program has room for the pointer.
        unsafe { cq.write(found) };
        // SAFETY: the queue exists at least until its event is acknowledged.
        let context = unsafe { (*found).cq_context };
        // SAFETY: contract: the program has room for the pointer.
        unsafe { cq_context.write(context) };
        Step::Return(0)
    })
}

fn failed(errno: c_int) -> Step {
    errno::set(errno);
    Step::Return(-1)
}

pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut Cq, events: u32) {
    // SAFETY: contract: the queue is one of ours.
    control("ibv_ack_cq_events", (), || unsafe { cq::own(cq) }.comp_acks.acknowledge(events));
}

pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut Context,
    event: *mut AsyncEvent,
) -> c_int {
    // SAFETY: contract: the context is one of ours.
    let hold = || Ok(Arc::clone(&unsafe { opened(context) }.hca));
    in_steps("ibv_get_async_event", hold, |hca: &Hca, after| {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        // SAFETY: contract: the context is alive.
        let read = Step::Read(unsafe { (*context).async_fd });
        let event = room(event);
        match after {
            After::Read => {}
            After::Failed(errno) => return failed(errno),
            _ => return read,
        }
        let mut engine = hca.lock();
        let Some(taken) = engine.take_async_event(open.id) else { return read };
        // Still under the lock, so that a thread that destroys the object waits for this event.
        let element = element_of(&taken);
        drop(engine);
        let answer = AsyncEvent { element, event_type: taken.event as u32 };
        // SAFETY: contract: the program has room for the event.
        unsafe { event.write(answer) };
        Step::Return(0)
    })
}

pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut AsyncEvent) {
    // SAFETY: contract: the event is one that was given.
    control("ibv_ack_async_event", (), || acknowledge(unsafe { given(event) }));
}

fn acknowledge(event: &AsyncEvent) {
    let kind = event.event_type;
    if is_of_qp(kind) {
        // SAFETY: the type says which member is set.
        let qp = unsafe { event.element.qp };
        // SAFETY: the object waits for this acknowledgement.
        unsafe { qp::own(qp) }.acks.acknowledge(1);
    } else if is_of_cq(kind) {
        // SAFETY: the type says which member is set.
        let cq = unsafe { event.element.cq };
        // SAFETY: the object waits for this acknowledgement.
        unsafe { cq::own(cq) }.async_acks.acknowledge(1);
    } else if is_of_srq(kind) {
        // SAFETY: the type says which member is set.
        let srq = unsafe { event.element.srq };
        // SAFETY: the object waits for this acknowledgement.
        unsafe { SrqObject::own(srq) }.acks.acknowledge(1);
    }
    // Events of ports and devices have no object that could go away.
}

/// `IBV_EVENT_CQ_ERR`.
const fn is_of_cq(event_type: u32) -> bool {
    event_type == 0
}

/// `IBV_EVENT_QP_FATAL` to `IBV_EVENT_PATH_MIG_ERR`, and `IBV_EVENT_QP_LAST_WQE_REACHED`.
const fn is_of_qp(event_type: u32) -> bool {
    matches!(event_type, 1..=7 | 16)
}

/// `IBV_EVENT_SRQ_ERR` and `IBV_EVENT_SRQ_LIMIT_REACHED`.
const fn is_of_srq(event_type: u32) -> bool {
    matches!(event_type, 14 | 15)
}

/// The object that the event is about, which now counts it as given. The engine is locked, so the
/// object exists.
fn element_of(event: &device::AsyncEvent) -> Element {
    match event.source {
        EventSource::Cq(_) => {
            let cq = cookie_to_pointer(event.cookie);
            // SAFETY: the engine gives events of objects that exist.
            unsafe { cq::own(cq) }.async_acks.give();
            Element { cq }
        }
        EventSource::Qp(_) => {
            let qp = cookie_to_pointer(event.cookie);
            // SAFETY: as above.
            unsafe { qp::own(qp) }.acks.give();
            Element { qp }
        }
        EventSource::Srq(_) => {
            let srq = cookie_to_pointer(event.cookie);
            // SAFETY: as above.
            unsafe { SrqObject::own(srq) }.acks.give();
            Element { srq }
        }
        EventSource::Port(port) => port_element(c_int::try_from(port).unwrap_or(c_int::MAX)),
        // A device has no number.
        _ => port_element(0),
    }
}

/// An element that is a number, with the rest of the union zero.
fn port_element(port_num: c_int) -> Element {
    // SAFETY: the union is of pointers and an integer, for which zero is a value.
    let mut element: Element = unsafe { mem::zeroed() };
    element.port_num = port_num;
    element
}

/// Objects give the engine their address as a cookie.
fn cookie_to_pointer<T>(cookie: u64) -> *mut T {
    ptr::with_exposed_provenance_mut(cookie as usize)
}
