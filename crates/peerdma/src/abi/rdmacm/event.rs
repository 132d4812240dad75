//! Events: taking one, and what the library does with it before the program sees it.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;
use std::{mem, ptr};

use device::rdma_cm::{ConnParam, EventKind, Path};

use super::channel::{Channel, Taken};
use super::endpoint::{Endpoint, Entry, What};
use super::event_channel::ChannelObject;
use super::given_event::{Detail, Draft, finish, no_address};
use super::id::{self, migrate, publish};
use super::id_qp::{follow, qp, to_error_of};
use super::path::vector;
use super::{Answer, Failure, call};
use crate::abi::ah;
use crate::abi::cancel::{After, Step, in_steps};
use crate::abi::errno;
use crate::abi::types::CEnum;
use crate::abi::types::ah::AhAttr;
use crate::abi::types::rdma::{CmEvent, CmId, EventChannel, event_type};

pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut EventChannel,
    event: *mut *mut CmEvent,
) -> c_int {
    let failed = |failure: Failure| {
        errno::set(failure.errno());
        Step::Return(-1)
    };
    let hold = || {
        if event.is_null() {
            let what = "rdma_get_cm_event: no room for the event";
            return Err(Failure::new(libc::EINVAL, what).errno());
        }
        // SAFETY: contract: the channel is one of ours.
        unsafe { find_queue(channel) }.map_err(|failure| failure.errno())
    };
    in_steps("rdma_get_cm_event", hold, |queue: &Channel<Entry>, after| {
        match take_in_steps(queue, after) {
            Ok(Taken::Entry(taken)) => {
                // SAFETY: contract: the program has room for the pointer.
                unsafe { event.write(taken) };
                Step::Return(0)
            }
            Ok(Taken::NotYet(step)) => step,
            Err(failure) => failed(failure),
        }
    })
}

/// How long a program has to end once its channel is gone: the thread that ends it is most often
/// the first one, which is refused sooner.
const PARTING: Duration = Duration::from_secs(10);
const PARTING_OF_FIRST: Duration = Duration::from_secs(1);

/// Takes the next event of a channel, and waits for one.
///
/// # Safety
///
/// `channel` is one of ours.
pub(super) unsafe fn take_event(channel: *mut EventChannel) -> Answer<*mut CmEvent> {
    // SAFETY: the caller's promise.
    let queue = unsafe { find_queue(channel) }?;
    loop {
        if let Some(event) = shown(Entry::take(&queue)?) {
            return Ok(event);
        }
    }
}

/// A step of the same.
fn take_in_steps(queue: &Channel<Entry>, mut after: After) -> Answer<Taken<*mut CmEvent>> {
    loop {
        match Entry::take_in_steps(queue, mem::replace(&mut after, After::Begin))? {
            Taken::NotYet(step) => return Ok(Taken::NotYet(step)),
            Taken::Entry(entry) => {
                if let Some(event) = shown(entry) {
                    return Ok(Taken::Entry(event));
                }
            }
        }
    }
}

/// The event for the program, unless it is not to see this one.
fn shown(Entry { endpoint, what }: Entry) -> Option<*mut CmEvent> {
    // SAFETY: the endpoint lives until this event is acknowledged, and with it the identifier.
    if let Some(draft) = unsafe { present(&endpoint, what) } {
        return Some(finish(draft, endpoint));
    }
    endpoint.acks.acknowledge(1);
    None
}

/// The queue of a channel.
///
/// # Safety
///
/// `channel` is one of ours.
unsafe fn find_queue(channel: *mut EventChannel) -> Answer<Arc<Channel<Entry>>> {
    // SAFETY: the caller's promise.
    match unsafe { ChannelObject::find(channel) } {
        Ok(own) => Ok(Arc::clone(&own.channel)),
        Err(what) => {
            // Some programs end by destroying the channel on which one of their threads waits
            // (`rping` does). A thread that comes here just after that must not make the program
            // fail at its end: a moment earlier it would have waited until the end.
            let is_first = rustix::thread::gettid() == rustix::process::getpid();
            std::thread::sleep(if is_first { PARTING_OF_FIRST } else { PARTING });
            Err(Failure::new(libc::EINVAL, format!("rdma_get_cm_event: {what}")))
        }
    }
}

/// The event that the program sees; nothing if it is not to see one.
unsafe fn present(endpoint: &Arc<Endpoint>, what: What) -> Option<Draft> {
    let id = endpoint.id();
    let draft = |event, status, detail| {
        Some(Draft { event, status, listen_id: ptr::null_mut(), id, detail })
    };
    match what {
        What::Addr(Ok(())) => {
            // SAFETY: the caller's promise.
            unsafe { publish(id, &mut endpoint.inner()) };
            draft(event_type::ADDR_RESOLVED, 0, Detail::Nothing)
        }
        What::Addr(Err(failure)) => {
            draft(event_type::ADDR_ERROR, failure.status(), Detail::Nothing)
        }
        What::Route => {
            // SAFETY: the caller's promise.
            unsafe { publish(id, &mut endpoint.inner()) };
            draft(event_type::ROUTE_RESOLVED, 0, Detail::Nothing)
        }
        // SAFETY: the caller's promise.
        What::Cm(kind) => unsafe { present_cm(endpoint, kind) }
            .and_then(|(event, status, detail)| draft(event, status, detail)),
        What::Request { child, param } => {
            // SAFETY: the caller's promise.
            let new = unsafe { request(id, endpoint, &child, &param) };
            let is_ud = child.inner().is_ud();
            let detail = if is_ud { Detail::Ud(no_address(), param) } else { Detail::Conn(param) };
            let new = new
                .inspect_err(|failure| {
                    tracing::warn!(target: "peerdma::cm", "a request is dropped: {failure:?}");
                })
                .ok()?;
            Some(Draft {
                event: event_type::CONNECT_REQUEST,
                status: 0,
                listen_id: id,
                id: new,
                detail,
            })
        }
        What::Join(join) => {
            // SAFETY: the caller's promise.
            match join.attach(unsafe { qp(id) }) {
                Ok(()) => draft(event_type::MULTICAST_JOIN, 0, Detail::Join(join)),
                Err(failure) => {
                    draft(event_type::MULTICAST_ERROR, failure.status(), Detail::Join(join))
                }
            }
        }
        What::AddrInfo => draft(event_type::ADDRINFO_RESOLVED, 0, Detail::Nothing),
        What::User { status, arg } => draft(event_type::USER, status, Detail::Arg(arg)),
    }
}

/// The event that the program sees of a connection, with the statuses of `rdma_cm(7)` and the
/// kernel's `cma_ib_handler`.
unsafe fn present_cm(endpoint: &Arc<Endpoint>, kind: EventKind) -> Option<(CEnum, c_int, Detail)> {
    use event_type as event;
    let id = endpoint.id();
    let (is_ud, has_failed, path) = {
        let inner = endpoint.inner();
        (inner.is_ud(), inner.has_failed, inner.route.path)
    };
    let detail = |param: ConnParam| {
        if is_ud { Detail::Ud(no_address(), param) } else { Detail::Conn(param) }
    };
    let nothing = || detail(ConnParam::default());
    let timed_out = -libc::ETIMEDOUT;
    Some(match kind {
        EventKind::ConnectResponse { param } => {
            // SAFETY: the caller's promise.
            if unsafe { qp(id) }.is_none() {
                endpoint.inner().terms.remote_ece = param.ece;
                return Some((event::CONNECT_RESPONSE, 0, Detail::Conn(param)));
            }
            // SAFETY: the caller's promise.
            match unsafe { follow(id, endpoint, param.ece) } {
                Ok(()) => (event::ESTABLISHED, 0, Detail::Conn(param)),
                Err(failure) => {
                    endpoint.inner().has_failed = true;
                    (event::CONNECT_ERROR, failure.status(), Detail::Conn(param))
                }
            }
        }
        EventKind::Established { param } if is_ud => {
            let to = path.map_or_else(no_address, |path| address(&path));
            (event::ESTABLISHED, 0, Detail::Ud(to, param))
        }
        EventKind::Established { param } => (event::ESTABLISHED, 0, Detail::Conn(param)),
        EventKind::Unreachable => (event::UNREACHABLE, timed_out, nothing()),
        EventKind::SidrRefused { status, private_data } => {
            let param = ConnParam { private_data, ..ConnParam::default() };
            (event::UNREACHABLE, c_int::from(status.0), detail(param))
        }
        EventKind::Rejected { .. } | EventKind::Disconnected { .. } if has_failed => return None,
        EventKind::Rejected { reason, private_data, .. } => {
            // SAFETY: the caller's promise.
            unsafe { to_error_of(id) };
            let param = ConnParam { private_data, ..ConnParam::default() };
            (event::REJECTED, c_int::from(reason.0), detail(param))
        }
        EventKind::Disconnected { timed_out: late } => {
            (event::DISCONNECTED, if late { timed_out } else { 0 }, nothing())
        }
        EventKind::TimewaitExit => (event::TIMEWAIT_EXIT, 0, nothing()),
        EventKind::DeviceRemoval => (event::DEVICE_REMOVAL, 0, nothing()),
        other => {
            tracing::debug!(target: "peerdma::cm", "not for programs: {other:?}");
            return None;
        }
    })
}

/// Makes the identifier of a request that came to a listener.
unsafe fn request(
    listener: *mut CmId,
    endpoint: &Arc<Endpoint>,
    child: &Arc<Endpoint>,
    param: &ConnParam,
) -> Answer<*mut CmId> {
    let (space, qp_type, is_sync) = {
        let inner = endpoint.inner();
        (inner.port_space, inner.qp_type, inner.face.is_sync)
    };
    // SAFETY: the caller's promise: the listener is alive.
    let listener = unsafe { &*listener };
    let new = id::wrap(Arc::clone(child), listener.channel, listener.context, space, qp_type);
    let done = endpoint.adopt(child, param).and_then(|()| {
        // SAFETY: it was made just now.
        unsafe { publish(new, &mut child.inner()) };
        // SAFETY: as above.
        if is_sync { unsafe { migrate(new, ptr::null_mut()) } } else { Ok(()) }
    });
    if let Err(failure) = done {
        // SAFETY: nobody has seen it.
        unsafe { id::destroy(new) };
        return Err(failure);
    }
    Ok(new)
}

/// The address vector of a path.
fn address(path: &Path) -> AhAttr {
    ah::attr_of(&vector(path))
}

pub(crate) unsafe extern "C" fn rdma_write_cm_event(
    id: *mut CmId,
    event: CEnum,
    status: c_int,
    arg: u64,
) -> c_int {
    call("rdma_write_cm_event", || {
        if event != event_type::USER {
            let what =
                format!("rdma_write_cm_event: event {event}; programs write RDMA_CM_EVENT_USER");
            return Err(Failure::new(libc::EINVAL, what));
        }
        // SAFETY: contract: the identifier is one of ours.
        unsafe { id::endpoint(id) }.post(What::User { status, arg });
        Ok(())
    })
}
