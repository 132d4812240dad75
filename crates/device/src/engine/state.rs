//! The engine's own state: what to do next, and how.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use transport::Time;

use crate::ids::QpId;

/// When the background thread looks again without being woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alarm {
    /// Before it sleeps, or soon.
    Awake,
    /// At this time.
    At(Time),
    /// Not at all.
    Never,
}

/// What an engine can be used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Everything.
    Alive,
    /// Being destroyed: it is what a fork left in the child ([`crate::fork`]).
    Husk,
    /// Being destroyed: it failed, and this is why.
    Failed(Box<str>),
}

/// When descriptors were checked.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    pub(super) looked: Option<Time>,
    /// The same for the UDP sockets only.
    pub(super) looked_at_udp: Option<Time>,
    /// The peer whose turn is next.
    pub(super) next: usize,
}

/// The work to do: QPs that can send, and when to check again.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// QPs that can send.
    pub(super) ready: VecDeque<QpId>,
    /// QPs whose carrier has no room.
    pub(super) blocked: Vec<QpId>,
    /// Deadlines of QPs, some of which are not theirs any more.
    pub(super) timers: BinaryHeap<Reverse<(Time, u32)>>,
    /// QPs that were given packets, and may have answers.
    pub(super) touched: Vec<QpId>,
}

impl Schedule {
    /// Forgets all of it.
    pub(super) fn clear(&mut self) {
        self.ready.clear();
        self.blocked.clear();
        self.timers.clear();
    }
}

/// What the polls of the program found lately.
#[derive(Debug, Default)]
pub(super) struct Polls {
    /// Polls since one read the clock, and how many did.
    pub(super) since_clock: u32,
    pub(super) clocks: u32,
    /// Looks at a socket where datagrams come, which found none, since the clock was read.
    pub(super) looks: u32,
    /// Whether the program and its peer seem to take turns: the last poll found the rings empty, or
    /// an acknowledgement, or the program sent something since, and either was of the only request
    /// of its QP.
    pub(super) takes_turns: bool,
}
