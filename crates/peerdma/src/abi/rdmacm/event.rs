//! Events: taking one, and what becomes of it before the program sees it.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use device::cm::{ConnParam as Param, EventKind, Path};
use iba::{QKey, Qpn};

use super::channel::{ChannelObject, Entry, What};
use super::connect::{follow, qp, to_error_of};
use super::endpoint::Endpoint;
use super::id::{self, migrate, publish};
use super::mcast::{self, Join};
use super::path::vector;
use super::{Answer, Failure, call};
use crate::abi::ah;
use crate::abi::object::Object;
use crate::abi::types::CEnum;
use crate::abi::types::ah::AhAttr;
use crate::abi::types::rdma::{
    CmEvent, CmId, ConnParam, EventChannel, EventParam, MAX_PRIVATE_DATA, UdParam, event_type,
};

/// What the library keeps with an event.
pub(super) struct OwnEvent {
    endpoint: Arc<Endpoint>,
    join: Option<Arc<Join>>,
    /// The event points into it.
    _private_data: Box<[u8]>,
}

type EventObject = Object<CmEvent, OwnEvent>;

/// An event that is about to be.
struct Draft {
    event: CEnum,
    status: c_int,
    listen_id: *mut CmId,
    id: *mut CmId,
    param: Said,
}

/// What an event brings.
enum Said {
    Nothing,
    Conn(Param),
    Ud(AhAttr, Param),
    Join(Arc<Join>),
    Arg(u64),
}

pub(crate) unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut EventChannel,
    event: *mut *mut CmEvent,
) -> c_int {
    call("rdma_get_cm_event", || {
        if event.is_null() {
            return Err(Failure::new(libc::EINVAL, "rdma_get_cm_event: no room for the event"));
        }
        // SAFETY: contract: the channel is one of ours.
        let taken = unsafe { take_event(channel) }?;
        // SAFETY: contract: the program has room for the pointer.
        unsafe { event.write(taken) };
        Ok(())
    })
}

/// How long a program whose channel is gone has to end.
const PARTING: Duration = Duration::from_secs(1);

/// Takes the next event of a channel, and waits for one.
///
/// # Safety
///
/// `channel` is one of ours.
pub(super) unsafe fn take_event(channel: *mut EventChannel) -> Answer<*mut CmEvent> {
    // SAFETY: the caller's promise.
    let queue = match unsafe { ChannelObject::find(channel) } {
        Ok(own) => Arc::clone(&own.channel),
        Err(what) => {
            // Programs end by destroying the channel on which a thread of theirs waits. One that is
            // only on its way here, and a moment earlier would have waited for good, must not make
            // the program fail at its end (`rping` does).
            std::thread::sleep(PARTING);
            return Err(Failure::new(libc::EINVAL, format!("rdma_get_cm_event: {what}")));
        }
    };
    loop {
        let Entry { endpoint, what } = queue.take()?;
        // SAFETY: the endpoint lives until this event is acknowledged, and with it the identifier.
        match unsafe { present(&endpoint, what) } {
            Some(draft) => return Ok(finish(draft, endpoint)),
            None => endpoint.acks.acknowledge(1),
        }
    }
}

/// What an event is for the program; nothing if the program is not to see it.
unsafe fn present(endpoint: &Arc<Endpoint>, what: What) -> Option<Draft> {
    let id = endpoint.id();
    let draft = |event, status, param| {
        Some(Draft { event, status, listen_id: std::ptr::null_mut(), id, param })
    };
    match what {
        What::Addr(Ok(())) => {
            // SAFETY: the caller's promise.
            unsafe { publish(id, &mut endpoint.inner()) };
            draft(event_type::ADDR_RESOLVED, 0, Said::Nothing)
        }
        What::Addr(Err(failure)) => draft(event_type::ADDR_ERROR, failure.status(), Said::Nothing),
        What::Route => {
            // SAFETY: the caller's promise.
            unsafe { publish(id, &mut endpoint.inner()) };
            draft(event_type::ROUTE_RESOLVED, 0, Said::Nothing)
        }
        // SAFETY: the caller's promise.
        What::Cm(kind) => unsafe { present_cm(endpoint, kind) }
            .and_then(|(event, status, param)| draft(event, status, param)),
        What::Request { child, param } => {
            // SAFETY: the caller's promise.
            let new = unsafe { request(id, endpoint, &child, &param) };
            let is_ud = child.inner().is_ud();
            let param = if is_ud { Said::Ud(no_address(), param) } else { Said::Conn(param) };
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
                param,
            })
        }
        What::Join(join) => {
            // SAFETY: the caller's promise.
            match unsafe { mcast::attach(id, &join) } {
                Ok(()) => draft(event_type::MULTICAST_JOIN, 0, Said::Join(join)),
                Err(failure) => {
                    draft(event_type::MULTICAST_ERROR, failure.status(), Said::Join(join))
                }
            }
        }
        What::AddrInfo => draft(event_type::ADDRINFO_RESOLVED, 0, Said::Nothing),
        What::User { status, arg } => draft(event_type::USER, status, Said::Arg(arg)),
    }
}

/// What an event of a connection is for the program, with the statuses of `rdma_cm(7)` and the
/// kernel's `cma_ib_handler`.
unsafe fn present_cm(endpoint: &Arc<Endpoint>, kind: EventKind) -> Option<(CEnum, c_int, Said)> {
    use event_type as event;
    let id = endpoint.id();
    let (is_ud, has_failed, path) = {
        let inner = endpoint.inner();
        (inner.is_ud(), inner.has_failed, inner.route.path)
    };
    let said = |param: Param| if is_ud { Said::Ud(no_address(), param) } else { Said::Conn(param) };
    let nothing = || said(Param::default());
    let timed_out = -libc::ETIMEDOUT;
    Some(match kind {
        EventKind::ConnectResponse { param } => {
            // SAFETY: the caller's promise.
            if unsafe { qp(id) }.is_none() {
                endpoint.inner().terms.remote_ece = param.ece;
                return Some((event::CONNECT_RESPONSE, 0, Said::Conn(param)));
            }
            // SAFETY: the caller's promise.
            match unsafe { follow(id, endpoint, param.ece) } {
                Ok(()) => (event::ESTABLISHED, 0, Said::Conn(param)),
                Err(failure) => {
                    endpoint.inner().has_failed = true;
                    (event::CONNECT_ERROR, failure.status(), Said::Conn(param))
                }
            }
        }
        EventKind::Established { param } if is_ud => {
            let to = path.map_or_else(no_address, |path| address(&path));
            (event::ESTABLISHED, 0, Said::Ud(to, param))
        }
        EventKind::Established { param } => (event::ESTABLISHED, 0, Said::Conn(param)),
        EventKind::Unreachable => (event::UNREACHABLE, timed_out, nothing()),
        EventKind::SidrRefused { status, private_data } => {
            let param = Param { private_data, ..Param::default() };
            (event::UNREACHABLE, c_int::from(status.0), said(param))
        }
        EventKind::Rejected { .. } | EventKind::Disconnected { .. } if has_failed => return None,
        EventKind::Rejected { reason, private_data, .. } => {
            // SAFETY: the caller's promise.
            unsafe { to_error_of(id) };
            let param = Param { private_data, ..Param::default() };
            (event::REJECTED, c_int::from(reason.0), said(param))
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

/// The identifier of a request that came to a listener.
unsafe fn request(
    listener: *mut CmId,
    endpoint: &Arc<Endpoint>,
    child: &Arc<Endpoint>,
    param: &Param,
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
        if is_sync { unsafe { migrate(new, std::ptr::null_mut()) } } else { Ok(()) }
    });
    if let Err(failure) = done {
        // SAFETY: nobody has seen it.
        unsafe { id::destroy(new) };
        return Err(failure);
    }
    Ok(new)
}

/// An address vector for the way.
fn address(path: &Path) -> AhAttr {
    ah::attr_of(&vector(path))
}

fn no_address() -> AhAttr {
    ah::attr_of(&iba::Av::default())
}

/// The event as C has it.
fn finish(draft: Draft, endpoint: Arc<Endpoint>) -> *mut CmEvent {
    let Draft { event, status, listen_id, id, param } = draft;
    let private_data: Box<[u8]> = match &param {
        Said::Conn(param) | Said::Ud(_, param) => {
            let length = param.private_data.len().min(MAX_PRIVATE_DATA - 1);
            param.private_data[..length].into()
        }
        _ => Box::default(),
    };
    let data: *const c_void =
        if private_data.is_empty() { std::ptr::null() } else { private_data.as_ptr().cast() };
    let length = private_data.len() as u8;
    let ud = |ah_attr, qpn: Qpn, qkey: QKey, private_data, private_data_len| UdParam {
        private_data,
        private_data_len,
        ah_attr,
        qp_num: qpn.value(),
        qkey: qkey.0,
    };
    let mut join = None;
    let param = match param {
        Said::Nothing => EventParam { ud: ud(no_address(), Qpn::new(0), QKey(0), data, 0) },
        Said::Conn(param) => EventParam {
            conn: ConnParam {
                private_data: data,
                private_data_len: length,
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
                flow_control: param.flow_control.into(),
                retry_count: param.retry_count,
                rnr_retry_count: param.rnr_retry_count,
                srq: param.srq.into(),
                qp_num: param.qpn.value(),
            },
        },
        Said::Ud(to, param) => EventParam { ud: ud(to, param.qpn, param.qkey, data, length) },
        Said::Join(joined) => {
            // The context of the join takes the place of private data (`rdma_join_multicast(3)`).
            let param = ud(joined.address, Qpn::MULTICAST, mcast::QKEY, joined.context, 0);
            join = Some(joined);
            EventParam { ud: param }
        }
        Said::Arg(arg) => EventParam { arg },
    };
    if let Some(join) = &join {
        join.acks.give();
    }
    let c = CmEvent { id, listen_id, event, status, param };
    EventObject::create(c, OwnEvent { endpoint, join, _private_data: private_data })
}

pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut CmEvent) -> c_int {
    call("rdma_ack_cm_event", || {
        if event.is_null() {
            return Err(Failure::new(libc::EINVAL, "rdma_ack_cm_event: no event"));
        }
        // SAFETY: contract: the event is one that was given, and the program uses it no more.
        let own = unsafe { EventObject::destroy(event) };
        if let Some(join) = &own.join {
            join.acks.acknowledge(1);
        }
        own.endpoint.acks.acknowledge(1);
        Ok(())
    })
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
