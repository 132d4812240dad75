//! An event that a program has: how C sees it, and its acknowledgement.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use device::rdma_cm::ConnParam as Param;
use iba::{QKey, Qpn};

use super::endpoint::Endpoint;
use super::join::{self, Join};
use super::{Failure, call};
use crate::abi::ah;
use crate::abi::object::Object;
use crate::abi::types::CEnum;
use crate::abi::types::ah::AhAttr;
use crate::abi::types::rdma::{CmEvent, CmId, ConnParam, EventParam, MAX_PRIVATE_DATA, UdParam};

/// What the library keeps with an event.
struct OwnEvent {
    endpoint: Arc<Endpoint>,
    join: Option<Arc<Join>>,
    /// The event points into it.
    _private_data: Box<[u8]>,
}

type EventObject = Object<CmEvent, OwnEvent>;

/// An event before it has C's form.
pub(super) struct Draft {
    pub(super) event: CEnum,
    pub(super) status: c_int,
    pub(super) listen_id: *mut CmId,
    pub(super) id: *mut CmId,
    pub(super) detail: Detail,
}

/// What an event brings.
pub(super) enum Detail {
    Nothing,
    Conn(Param),
    Ud(AhAttr, Param),
    Join(Arc<Join>),
    Arg(u64),
}

/// The address vector of an event that names no peer.
pub(super) fn no_address() -> AhAttr {
    ah::attr_of(&iba::Av::default())
}

/// The event as C has it. It waits for its acknowledgement.
pub(super) fn finish(draft: Draft, endpoint: Arc<Endpoint>) -> *mut CmEvent {
    let Draft { event, status, listen_id, id, detail } = draft;
    let private_data: Box<[u8]> = match &detail {
        Detail::Conn(param) | Detail::Ud(_, param) => {
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
    let param = match detail {
        Detail::Nothing => EventParam { ud: ud(no_address(), Qpn::new(0), QKey(0), data, 0) },
        Detail::Conn(param) => EventParam {
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
        Detail::Ud(to, param) => EventParam { ud: ud(to, param.qpn, param.qkey, data, length) },
        Detail::Join(joined) => {
            // The context of the join takes the place of private data (`rdma_join_multicast(3)`).
            let param = ud(joined.address, Qpn::MULTICAST, join::QKEY, joined.context, 0);
            join = Some(joined);
            EventParam { ud: param }
        }
        Detail::Arg(arg) => EventParam { arg },
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
