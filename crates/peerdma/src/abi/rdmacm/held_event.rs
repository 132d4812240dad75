//! The event that a synchronous identifier holds: the program reads the event of its last call
//! there, and the next call acknowledges it.

use std::mem;
use std::ptr;

use super::given_event::rdma_ack_cm_event;
use crate::abi::types::rdma::{CmEvent, CmId};

/// Gives a synchronous identifier an event to hold.
///
/// # Safety
///
/// `id` is one of ours and holds no event, and `event` is one that is not acknowledged.
pub(super) unsafe fn hold(id: *mut CmId, event: *mut CmEvent) {
    // SAFETY: the caller's promise; nobody else has the field of a synchronous identifier.
    unsafe { (*id).event = event };
}

/// Acknowledges the event that a synchronous identifier holds.
///
/// # Safety
///
/// `id` is one of ours.
pub(super) unsafe fn release(id: *mut CmId) {
    // SAFETY: the caller's promise; nobody else has the field of a synchronous identifier.
    let event = unsafe { mem::replace(&mut (*id).event, ptr::null_mut()) };
    if !event.is_null() {
        // SAFETY: contract: the event is the identifier's own.
        unsafe { rdma_ack_cm_event(event) };
    }
}
