//! One end of a stream like TCP's: what shares a network with RDMA.
//!
//! NewReno (RFC 5681, 6582) with a timeout: the window doubles in each round trip up to a
//! threshold, then grows by a packet; three duplicates mean a loss and halve it, silence begins
//! anew. Sequence numbers count packets. It takes no marks.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use transport::Time;

/// The first window (RFC 6928).
const START: f64 = 10.0;
/// The largest window: what a receiver has room for.
const LIMIT: f64 = 256.0;
/// TIMEOUT: the least that data centres use in place of the 200 ms of Linux.
const SILENCE: Duration = Duration::from_millis(5);

/// What a packet of a stream says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// The packet of this number.
    Data(u64),
    /// Everything before this number has arrived.
    Ack(u64),
}

impl Segment {
    /// Its bytes, if those of data are this many.
    pub(super) const fn length(self, data: u32) -> u32 {
        match self {
            Self::Data(_) => data,
            Self::Ack(_) => 0,
        }
    }
}

/// Sends packets to the other end, and acknowledges those that come.
#[derive(Debug)]
pub(super) struct Stream {
    /// Packets to send.
    count: u64,
    /// The first one that is not acknowledged, and the next one to send.
    first: u64,
    next: u64,
    window: f64,
    threshold: f64,
    duplicates: u32,
    /// Up to here a loss is being repaired.
    recovers: Option<u64>,
    /// The first one is to be sent again.
    again: bool,
    deadline: Option<Time>,
    /// What arrived: everything before this number, and others.
    expected: u64,
    early: BTreeSet<u64>,
    acks: VecDeque<u64>,
    /// Packets that were sent.
    pub(super) sent: u64,
    /// How often its timer expired.
    pub(super) timeouts: u64,
}

impl Stream {
    /// One that sends this many packets.
    pub(super) fn new(count: u64) -> Self {
        Self {
            count,
            first: 0,
            next: 0,
            window: START,
            threshold: LIMIT,
            duplicates: 0,
            recovers: None,
            again: false,
            deadline: None,
            expected: 0,
            early: BTreeSet::new(),
            acks: VecDeque::new(),
            sent: 0,
            timeouts: 0,
        }
    }

    /// Packets that have arrived at the other end, as far as this one knows.
    pub(super) fn acknowledged(&self) -> u64 {
        self.first
    }

    /// The next packet, if one may be sent.
    pub(super) fn poll(&mut self, now: Time) -> Option<Segment> {
        if let Some(ack) = self.acks.pop_front() {
            return Some(Segment::Ack(ack));
        }
        let number = if self.again {
            self.again = false;
            self.first
        } else if self.next < self.count && ((self.next - self.first) as f64) < self.window {
            self.next += 1;
            self.next - 1
        } else {
            return None;
        };
        self.sent += 1;
        self.deadline.get_or_insert(now + SILENCE);
        Some(Segment::Data(number))
    }

    /// A packet came.
    pub(super) fn take(&mut self, segment: Segment, now: Time) {
        match segment {
            Segment::Data(number) => {
                if number >= self.expected {
                    self.early.insert(number);
                }
                while self.early.remove(&self.expected) {
                    self.expected += 1;
                }
                self.acks.push_back(self.expected);
            }
            Segment::Ack(number) if number > self.first => self.advance(number, now),
            Segment::Ack(number) if number == self.first && self.next > self.first => {
                self.duplicates += 1;
                match self.recovers {
                    // Another packet has left the network.
                    Some(_) => self.window += 1.0,
                    None if self.duplicates == 3 => {
                        self.threshold = (self.flight() / 2.0).max(2.0);
                        self.window = self.threshold + 3.0;
                        (self.recovers, self.again) = (Some(self.next), true);
                    }
                    None => {}
                }
            }
            Segment::Ack(_) => {}
        }
    }

    fn flight(&self) -> f64 {
        (self.next - self.first) as f64
    }

    fn advance(&mut self, to: u64, now: Time) {
        let arrived = (to - self.first) as f64;
        self.first = to;
        self.next = self.next.max(to);
        self.duplicates = 0;
        match self.recovers {
            // The next hole.
            Some(until) if to < until => {
                self.again = true;
                self.window = (self.window - arrived + 1.0).max(1.0);
            }
            Some(_) => (self.recovers, self.window) = (None, self.threshold),
            None if self.window < self.threshold => self.window += arrived,
            None => self.window += arrived / self.window,
        }
        self.window = self.window.min(LIMIT);
        self.deadline = (self.first < self.next).then(|| now + SILENCE);
    }

    /// When its timer is due.
    pub(super) fn timeout(&self) -> Option<Time> {
        self.deadline
    }

    /// Does what is due.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.threshold = (self.flight() / 2.0).max(2.0);
            self.window = 1.0;
            // All of it counts as lost.
            (self.next, self.again) = (self.first, false);
            (self.recovers, self.duplicates, self.deadline) = (None, 0, None);
            self.timeouts += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries packets between two ends, a round trip at a time, but those that `is_lost` names.
    fn run(count: u64, mut is_lost: impl FnMut(u64, u64) -> bool) -> Stream {
        let (mut sender, mut receiver) = (Stream::new(count), Stream::new(0));
        let mut now = Time::ZERO;
        for round in 0..10_000 {
            if sender.acknowledged() == count {
                return sender;
            }
            sender.handle_timeout(now);
            while let Some(segment) = sender.poll(now) {
                let Segment::Data(number) = segment else { continue };
                if !is_lost(round, number) {
                    receiver.take(segment, now);
                }
            }
            now = now + Duration::from_micros(20);
            while let Some(segment) = receiver.poll(now) {
                sender.take(segment, now);
            }
        }
        panic!("it does not end: {sender:?}");
    }

    #[test]
    fn without_losses_each_packet_is_sent_once() {
        let sender = run(5000, |_, _| false);
        assert_eq!((sender.sent, sender.timeouts), (5000, 0));
    }

    #[test]
    fn a_loss_in_a_window_is_repaired_without_a_timeout() {
        let mut lost = 0;
        let sender = run(5000, |_, number| {
            let is_lost = number == 500 && lost == 0;
            lost += u64::from(is_lost);
            is_lost
        });
        assert_eq!((sender.sent, sender.timeouts), (5001, 0));
    }

    #[test]
    fn when_all_is_lost_the_timer_begins_anew() {
        let sender = run(2000, |round, _| (5..8).contains(&round));
        assert!(sender.timeouts > 0 && sender.sent > 2000);
    }
}
