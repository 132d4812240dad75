//! The requests that wait for room at their listeners, as [`super::crowded`] has them wait.

use std::collections::{BTreeMap, VecDeque};

use ::cm::{ListenId, Peer};
use iba::Time;
use wire::cm::CommId;

use crate::mad::Arrived;

/// How many may wait, over all listeners. Those beyond that are dropped.
const MAX: usize = 1 << 14;

/// A request, and until when it waits.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) until: Time,
    pub(super) id: CommId,
    pub(super) arrived: Arrived,
}

/// The requests that wait, for each listener.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    waiting: BTreeMap<ListenId, VecDeque<Request>>,
    count: usize,
}

impl Crowd {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Those whose requests wait.
    pub(super) fn listeners(&self) -> Vec<ListenId> {
        self.waiting.keys().copied().collect()
    }

    /// Forgets requests, and says whether there were any.
    fn forget(&mut self, is_meant: impl Fn(&Request) -> bool) -> bool {
        let before = self.count;
        for requests in self.waiting.values_mut() {
            requests.retain(|request| !is_meant(request));
        }
        self.waiting.retain(|_, requests| !requests.is_empty());
        self.count = self.waiting.values().map(VecDeque::len).sum();
        self.count < before
    }

    /// Forgets the requests of a process that is gone.
    pub(super) fn forget_process(&mut self, vf: u16) {
        self.forget(|request| request.arrived.from.via == Some(vf));
    }

    /// Forgets a request that its sender takes back.
    pub(super) fn take_back(&mut self, from: Peer, id: CommId) -> bool {
        !self.is_empty() && self.forget(|it| it.id == id && it.arrived.from == from)
    }

    /// Adds a request, unless too many wait.
    pub(super) fn push(&mut self, listener: ListenId, request: Request) -> bool {
        let has_room = self.count < MAX;
        if has_room {
            self.count += 1;
            self.waiting.entry(listener).or_default().push_back(request);
        }
        has_room
    }

    /// Takes the oldest of a listener.
    pub(super) fn pop(&mut self, listener: ListenId) -> Option<Request> {
        let requests = self.waiting.get_mut(&listener)?;
        let oldest = requests.pop_front();
        if requests.is_empty() {
            self.waiting.remove(&listener);
        }
        self.count -= usize::from(oldest.is_some());
        oldest
    }
}
