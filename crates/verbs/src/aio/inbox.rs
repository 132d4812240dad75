//! What has arrived at a QP.

use std::collections::VecDeque;
use std::task::Waker;

use iba::WcOpcode;

use super::error::{Error, Failure};
use super::wakers::Wakers;
use crate::Wc;
use crate::owned::Buffer;

/// A message, and the buffer that it is in.
pub(super) type Arrived = (Wc, Buffer);

/// What a receive brought.
pub(super) fn arrived(wc: Wc, mut buffer: Buffer) -> Arrived {
    // A WRITE with immediate data takes the receive and leaves its buffer alone.
    let has_data = wc.opcode == WcOpcode::Recv;
    buffer.set_len(if has_data { wc.byte_len as usize } else { 0 });
    (wc, buffer)
}

/// What has arrived and nobody has taken, and who waits for more.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    arrived: VecDeque<Arrived>,
    pub(super) wakers: Wakers,
    /// Why nothing more will arrive.
    end: Option<Error>,
    /// Whether the end was told to those that take the messages of all QPs of a shared queue.
    is_told: bool,
    /// Whether nobody can take what arrives.
    is_closed: bool,
}

impl Inbox {
    /// Keeps a message, unless nobody can take it. What comes back is for the caller to drop: the
    /// buffer of a receive that failed.
    pub(super) fn arrive(&mut self, wc: Wc, why: Option<String>, buffer: Buffer) -> Option<Buffer> {
        if !wc.is_success() {
            self.end.get_or_insert_with(|| Failure::new(wc, why, true).into());
        } else if !self.is_closed {
            self.arrived.push_back(arrived(wc, buffer));
            return None;
        }
        Some(buffer)
    }

    /// Whether a message that arrives now is the next to be taken.
    pub(super) fn takes_next(&self) -> bool {
        self.arrived.is_empty() && !self.has_ended()
    }

    /// Nothing more will arrive; the first reason stays.
    pub(super) fn end(&mut self, why: impl FnOnce() -> Error) {
        self.end.get_or_insert_with(why);
    }

    /// Whether [`pop`](Self::pop) or [`tell_end`](Self::tell_end) has something.
    pub(super) fn has_more(&self) -> bool {
        !self.arrived.is_empty() || self.end.is_some() && !self.is_told && !self.is_closed
    }

    /// What arrived first.
    pub(super) fn pop(&mut self) -> Option<Arrived> {
        self.arrived.pop_front()
    }

    /// Why nothing more will arrive, once.
    pub(super) fn tell_end(&mut self) -> Option<Error> {
        let end = self.end.as_ref().filter(|_| !self.is_told && !self.is_closed)?;
        self.is_told = true;
        Some(end.clone())
    }

    /// Whether receives are posted no more.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some() || self.is_closed
    }

    /// Nobody takes anything any more. Returns what nobody has taken, to be dropped.
    pub(super) fn close(&mut self) -> VecDeque<Arrived> {
        self.is_closed = true;
        std::mem::take(&mut self.arrived)
    }

    /// What arrived first; otherwise the task is woken when something does.
    pub(super) fn take(&mut self, task: Option<&Waker>) -> Option<Result<Arrived, Error>> {
        if let Some(message) = self.arrived.pop_front() {
            return Some(Ok(message));
        }
        if let Some(end) = &self.end {
            return Some(Err(end.clone()));
        }
        self.wakers.add(task);
        None
    }
}
