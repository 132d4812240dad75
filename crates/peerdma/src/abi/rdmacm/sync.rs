//! Synchronous calls: an identifier with a channel of its own waits for the event of each call.

use super::event::take_event;
use super::held_event::{hold, release};
use super::id::endpoint;
use super::{Answer, Failure};
use crate::abi::types::rdma::{CmId, event_type};

/// Waits for the event of a call, if the identifier is synchronous.
///
/// # Errors
/// ECONNREFUSED if the peer refused, else the status of the event.
///
/// # Safety
///
/// `id` is one of ours, and its endpoint's `inner` is not locked.
pub(super) unsafe fn complete(id: *mut CmId) -> Answer {
    // SAFETY: the caller's promise.
    if !unsafe { endpoint(id) }.inner().face.is_sync {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { release(id) };
    // SAFETY: the caller's promise.
    let channel = unsafe { (*id).channel };
    // SAFETY: contract: the channel is the identifier's own.
    let event = unsafe { take_event(channel) }?;
    // SAFETY: the caller's promise; the event was taken just now.
    unsafe { hold(id, event) };
    // SAFETY: as above.
    let event = unsafe { &*event };
    match (event.status, event.event) {
        (0, _) => Ok(()),
        (_, event_type::REJECTED) => {
            Err(Failure::new(libc::ECONNREFUSED, "the peer refused the connection"))
        }
        (status, _) => Err(Failure(status.abs())),
    }
}
