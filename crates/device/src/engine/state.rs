//! The engine's own state: what to do next, and how.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::mem;

use smallvec::SmallVec;
use transport::Time;

use super::unasked_acks::UnaskedAcks;
use crate::ids::QpId;
use crate::qp::QpEntry;

/// When the background thread checks again without being woken.
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
    /// Being destroyed: it is a husk in a forked child ([`crate::fork`]).
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

/// The work to do: QPs that can send, and deadlines.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// QPs that can send.
    pub(super) ready: VecDeque<QpId>,
    /// QPs whose carrier has no room.
    pub(super) blocked: Vec<QpId>,
    /// The processes in whose rings there was no room when QPs last had their turn.
    pub(super) full: SmallVec<[u16; 4]>,
    /// Deadlines of QPs, some of which no longer apply.
    pub(super) timers: BinaryHeap<Reverse<(Time, u32)>>,
    /// QPs that were given packets, and may have answers.
    pub(super) touched: Vec<QpId>,
    /// QPs that hold an acknowledgement until there is nothing better to do.
    pub(super) unasked_acks: UnaskedAcks,
}

impl Schedule {
    /// Whether others wait for room in the ring that a QP needs: then it has its turn behind them,
    /// and none is tried in vain.
    pub(super) fn is_full_for(&self, entry: &QpEntry) -> bool {
        !self.full.is_empty() && entry.needs_ring().is_some_and(|vf| self.full.contains(&vf))
    }

    /// There is no room in the ring to a process.
    pub(super) fn note_full(&mut self, vf: u16) {
        if !self.full.contains(&vf) {
            self.full.push(vf);
        }
    }

    /// Has a QP wait for room, unless it waits for its turn already.
    pub(super) fn wait_for_room(&mut self, entry: &mut QpEntry) {
        if !mem::replace(&mut entry.queued, true) {
            self.blocked.push(entry.context.id);
        }
    }

    /// Drops all of it.
    pub(super) fn clear(&mut self) {
        self.ready.clear();
        self.blocked.clear();
        self.full.clear();
        self.timers.clear();
    }
}

/// What recent polls of the program found.
#[derive(Debug, Default)]
pub(super) struct Polls {
    /// Polls since the last one that read the clock, and how many have read it.
    pub(super) since_clock: u32,
    pub(super) clocks: u32,
    /// Checks of a busy socket that found no datagram since the clock was read.
    pub(super) looks: u32,
    /// Whether the program and its peer seem to take turns: the last poll found the rings empty, or
    /// it found the acknowledgement of the only request of its QP, or the program has since sent
    /// such a request.
    pub(super) takes_turns: bool,
}
