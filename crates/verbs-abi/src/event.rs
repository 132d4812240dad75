//! Asynchronous events.

use std::ffi::c_int;

use crate::cq::Cq;
use crate::flow::Wq;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::{CEnum, c_struct};

/// What an event is about: which member holds depends on the event's type.
#[derive(Clone, Copy)]
#[repr(C)]
pub union Element {
    pub cq: *mut Cq,
    pub qp: *mut Qp,
    pub srq: *mut Srq,
    pub wq: *mut Wq,
    pub port_num: c_int,
}

c_struct! {
    /// An asynchronous event.
    pub struct AsyncEvent = "struct ibv_async_event" {
        element: Element,
        event_type: CEnum,
    }
}
