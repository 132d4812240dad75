//! What a run of a tree comes to.

use std::time::Duration;

use iba::WcStatus;
use transport::Time;

/// One connection, and how far it is.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Flow {
    /// The host that sends.
    pub from: usize,
    /// The host that receives.
    pub to: usize,
    /// Messages of the flow.
    pub messages: u64,
    /// Bytes of each.
    pub length: u32,
    /// Messages that are outstanding at a time.
    pub depth: u64,
    /// Messages that were posted.
    pub posted: u64,
    /// Messages that completed.
    pub done: u64,
    /// When it began.
    pub began: Time,
    /// When the last one completed.
    pub ended: Option<Time>,
    /// Why it ended before.
    pub failed: Option<WcStatus>,
    /// Whether it is a stream like TCP's, and not a connection of QPs.
    pub is_stream: bool,
}

impl Flow {
    /// How long it took.
    pub fn took(&self) -> Option<Duration> {
        self.ended.map(|ended| ended.since(self.began))
    }
}

/// What happened in a tree.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Packets that senders sent.
    pub sent: u64,
    /// Packets of the messages that completed.
    pub needed: u64,
    /// Packets that were lost, for whatever reason.
    pub lost: u64,
    /// Those of them that found a queue full.
    pub dropped: u64,
    /// Packets that arrived with a mark.
    pub marked: u64,
    /// Congestion notifications.
    pub notifications: u64,
    /// How often a sender's timer expired.
    pub timeouts: u64,
    /// How often a switch stopped a neighbour.
    pub pauses: u64,
    /// The most bytes that waited in front of a line of a switch.
    pub longest: u64,
    /// Events of the simulation.
    pub events: u64,
}

impl Report {
    /// Packets that were sent again.
    pub fn retransmitted(&self) -> u64 {
        self.sent.saturating_sub(self.needed)
    }
}
