//! What has arrived at a QP.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Context;

use iba::WcOpcode;

use super::error::{Error, Failure};
use super::wakers::Wakers;
use crate::Wc;
use crate::owned::Buffer;

/// What has arrived and nobody has taken, and who waits for more.
#[derive(Debug, Default)]
pub(super) struct Inbox(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    arrived: VecDeque<(Wc, Buffer)>,
    wakers: Wakers,
    /// Why nothing more will arrive.
    end: Option<Error>,
}

impl Inbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a message. The buffer of a receive that failed comes back.
    pub(super) fn arrive(&self, wc: Wc, why: Option<String>, mut buffer: Buffer) -> Option<Buffer> {
        let mut state = self.state();
        if wc.is_success() {
            // A WRITE with immediate data takes the receive and leaves its buffer alone.
            let has_data = wc.opcode == WcOpcode::Recv;
            buffer.set_len(if has_data { wc.byte_len as usize } else { 0 });
            state.arrived.push_back((wc, buffer));
            return None;
        }
        state.end.get_or_insert_with(|| Failure::new(wc, why, true).into());
        Some(buffer)
    }

    pub(super) fn wakers(&self) -> Wakers {
        self.state().wakers.take()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state().end.is_some()
    }

    /// What arrived first; otherwise the task is woken when something does.
    pub(super) fn take(&self, cx: &Context<'_>) -> Option<Result<(Wc, Buffer), Error>> {
        let mut state = self.state();
        if let Some(message) = state.arrived.pop_front() {
            return Some(Ok(message));
        }
        if let Some(end) = &state.end {
            return Some(Err(end.clone()));
        }
        state.wakers.add(cx);
        None
    }
}
