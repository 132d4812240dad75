//! Asynchronous events.

use std::ffi::c_int;

use super::cq::Cq;
use super::flow::Wq;
use super::qp::Qp;
use super::srq::Srq;
use super::{CEnum, c_struct};

/// What an event is about: which member holds depends on the event's type.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Element {
    pub(crate) cq: *mut Cq,
    pub(crate) qp: *mut Qp,
    pub(crate) srq: *mut Srq,
    pub(crate) wq: *mut Wq,
    pub(crate) port_num: c_int,
}

c_struct! {
    /// An asynchronous event.
    pub(crate) struct AsyncEvent = "struct ibv_async_event" {
        element: Element,
        event_type: CEnum,
    }
}
