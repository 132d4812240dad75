//! Models of other reliable connections, to compare the transport with.
//!
//! Both number their packets, and go back to the one that the other end misses. They differ in what
//! limits a sender:
//!
//! * [`Sender::Rxe`], the software device of Linux: a window of 128 packets, whatever happens
//!   (`RXE_MAX_UNACKED_PSNS` of `rxe_param.h`). It goes back once, and again only after an ACK or a
//!   timeout (`started_retry` of `rxe_completer`). Its packets cannot be marked.
//! * [`Sender::Dcqcn`], a NIC: the same window, which stands for what a program has outstanding,
//!   and a [`Pacer`].

use std::collections::VecDeque;
use std::time::Duration;

use transport::Time;

mod pacer;

use self::pacer::Pacer;
use crate::link::Rate;

/// What sends the messages of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "each is a row of a table")]
pub enum Sender {
    /// Crate `transport`.
    #[default]
    Transport,
    /// A model of the kernel's `rdma_rxe`.
    Rxe,
    /// A model of a NIC with DCQCN (Zhu et al., SIGCOMM 2015).
    Dcqcn,
}

/// Packets that may be unacknowledged.
const WINDOW: u64 = 128;
/// An ACK is asked for at the end of each message, and after so many packets without
/// (`RXE_MAX_PKT_PER_ACK`).
const UNASKED: u64 = 64;
/// The least time between two notifications of one connection.
const PAUSE: Duration = Duration::from_micros(50);

/// What a packet of such a connection says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Say {
    /// The packet of this number, and whether it asks for an ACK.
    Data(u64, bool),
    /// Everything before this number has arrived.
    Ack(u64),
    /// The same, and later ones have, too.
    Nak(u64),
    /// Marks were seen.
    Notify,
}

/// One end of such a connection.
#[derive(Debug)]
pub(super) struct Other {
    /// Packets to send, and how many make a message.
    count: u64,
    message: u64,
    /// Bytes of a packet on a line.
    size: u64,
    /// The first one that is not acknowledged, and the next one to send.
    first: u64,
    next: u64,
    unasked: u64,
    /// Only a NIC has one.
    pacer: Option<Pacer>,
    has_gone_back: bool,
    timeout: Option<Duration>,
    deadline: Option<Time>,
    /// What arrived: everything before this number.
    expected: u64,
    has_refused: bool,
    notifies_from: Time,
    answers: VecDeque<Say>,
    /// Packets that were sent.
    pub(super) sent: u64,
    /// How often its timer expired.
    pub(super) timeouts: u64,
    /// Notifications that it sent.
    pub(super) notifications: u64,
}

impl Other {
    /// One that sends `count` packets of `mtu` bytes on a line of `rate` bytes per second.
    pub(super) fn new(
        sender: Sender,
        (count, message): (u64, u64),
        mtu: u32,
        rate: u64,
        timeout: Option<Duration>,
    ) -> Self {
        let pacer = (sender == Sender::Dcqcn).then(|| Pacer::new(rate as f64));
        Self {
            count,
            message,
            size: u64::from(mtu) + Rate::OVERHEAD,
            first: 0,
            next: 0,
            unasked: 0,
            pacer,
            has_gone_back: false,
            timeout,
            deadline: None,
            expected: 0,
            has_refused: false,
            notifies_from: Time::ZERO,
            answers: VecDeque::new(),
            sent: 0,
            timeouts: 0,
            notifications: 0,
        }
    }

    /// Whether switches may mark its packets.
    pub(super) fn is_capable_of_marks(&self) -> bool {
        self.pacer.is_some()
    }

    /// Packets that have arrived at the other end, as far as this one knows.
    pub(super) fn acknowledged(&self) -> u64 {
        self.first
    }

    fn has_more(&self) -> bool {
        self.next < self.count && self.next - self.first < WINDOW
    }

    /// The next packet, if one may be sent.
    pub(super) fn poll(&mut self, now: Time) -> Option<Say> {
        if let Some(answer) = self.answers.pop_front() {
            return Some(answer);
        }
        if !self.has_more() {
            return None;
        }
        if let Some(pacer) = &mut self.pacer
            && !pacer.send(self.size, now)
        {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.unasked += 1;
        let is_last = self.next.is_multiple_of(self.message) || self.next == self.count;
        let asks = is_last || self.unasked > UNASKED;
        if asks {
            self.unasked = 0;
        }
        self.sent += 1;
        if self.deadline.is_none() {
            self.deadline = self.timeout.map(|timeout| now + timeout);
        }
        Some(Say::Data(number, asks))
    }

    /// A packet came.
    pub(super) fn take(&mut self, say: Say, is_marked: bool, now: Time) {
        match say {
            Say::Data(number, asks) => {
                if is_marked && now >= self.notifies_from {
                    self.notifies_from = now + PAUSE;
                    self.notifications += 1;
                    self.answers.push_back(Say::Notify);
                }
                self.arrived(number, asks);
            }
            Say::Ack(number) => {
                self.has_gone_back = false;
                self.advance(number, now);
            }
            Say::Nak(number) => {
                self.advance(number, now);
                // A NIC goes back each time.
                if self.pacer.is_some() || !self.has_gone_back {
                    self.go_back();
                }
            }
            Say::Notify => {
                if let Some(pacer) = &mut self.pacer {
                    pacer.notified(now);
                }
            }
        }
    }

    fn arrived(&mut self, number: u64, asks: bool) {
        if number == self.expected {
            self.expected += 1;
            self.has_refused = false;
            if asks {
                self.answers.push_back(Say::Ack(self.expected));
            }
        } else if number < self.expected {
            // A duplicate is acknowledged again (IBA C9-105).
            self.answers.push_back(Say::Ack(self.expected));
        } else if !self.has_refused {
            self.has_refused = true;
            self.answers.push_back(Say::Nak(self.expected));
        }
    }

    fn advance(&mut self, to: u64, now: Time) {
        if to > self.first {
            self.first = to;
            self.next = self.next.max(to);
            let timeout = self.timeout.filter(|_| self.first < self.next);
            self.deadline = timeout.map(|timeout| now + timeout);
        }
    }

    fn go_back(&mut self) {
        (self.next, self.unasked, self.has_gone_back) = (self.first, 0, true);
    }

    /// When it has something to do: to send what was not acknowledged, or what its rate delays
    /// unless it waits for its port.
    pub(super) fn timeout(&self, waits: bool) -> Option<Time> {
        let pacer = self.pacer.as_ref().filter(|_| !waits && self.has_more());
        let times = [self.deadline, pacer.map(Pacer::next)];
        times.into_iter().flatten().min()
    }

    /// Does what is due.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.deadline = None;
            self.timeouts += 1;
            self.go_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries packets between two ends, a round trip at a time, but those that `is_lost` names.
    fn run(sender: Sender, mut is_lost: impl FnMut(u64, u64) -> bool) -> Other {
        let new = |count| {
            let rate = 12_500_000_000;
            Other::new(sender, (count, 16), 4096, rate, Some(Duration::from_millis(1)))
        };
        let (mut sender, mut receiver) = (new(2000), new(0));
        let mut now = Time::ZERO;
        for round in 0..10_000 {
            if sender.acknowledged() == 2000 {
                return sender;
            }
            sender.handle_timeout(now);
            while let Some(say) = sender.poll(now) {
                let Say::Data(number, _) = say else { continue };
                if !is_lost(round, number) {
                    receiver.take(say, false, now);
                }
            }
            now = now + Duration::from_micros(20);
            while let Some(say) = receiver.poll(now) {
                sender.take(say, false, now);
            }
        }
        panic!("it does not end: {sender:?}");
    }

    #[test]
    fn without_losses_each_packet_is_sent_once() {
        for sender in [Sender::Rxe, Sender::Dcqcn] {
            let sender = run(sender, |_, _| false);
            assert_eq!((sender.sent, sender.timeouts), (2000, 0));
        }
    }

    #[test]
    fn a_loss_costs_what_was_sent_behind_it() {
        let mut lost = 0;
        let sender = run(Sender::Rxe, |_, number| {
            let is_lost = number == 130 && lost == 0;
            lost += u64::from(is_lost);
            is_lost
        });
        assert_eq!((sender.sent, sender.timeouts), (2000 + WINDOW - 2, 0));
    }

    #[test]
    fn rxe_goes_back_a_second_time_only_after_a_timeout() {
        for (sender, timeouts) in [(Sender::Rxe, 1), (Sender::Dcqcn, 0)] {
            // The packets behind each loss arrive, those before it do not fill a message.
            let sender = run(sender, |round, number| match round {
                0 => number == 3,
                1 => number == 5,
                _ => false,
            });
            assert_eq!(sender.timeouts, timeouts);
        }
    }

    #[test]
    fn a_silent_network_is_asked_again_after_the_timeout() {
        let sender = run(Sender::Rxe, |round, _| (5..8).contains(&round));
        assert!(sender.timeouts > 0 && sender.sent > 2000);
    }
}
