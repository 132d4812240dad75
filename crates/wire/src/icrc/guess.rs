//! Guesses the identification of the next packet, so that its ICRC is mostly right at the first
//! try.
//!
//! Identifications count up within a train. How a train begins depends on the sender's socket:
//! always with 0, or with one more than the train before it, as single packets of such a socket
//! count up, too. The sender's last two trains show which of the two applies. A wrong guess only
//! costs the receiver some tens of nanoseconds.

use super::Flow;

/// The number of senders that are distinguished. Senders that share a slot spoil each other's
/// guesses.
const SENDERS: usize = 16;

/// Guesses identifications.
#[derive(Clone, Debug)]
pub(super) struct Guess {
    next: u16,
    senders: [Sender; SENDERS],
    /// The sender whose train begins with the next packet.
    begins: Option<u8>,
}

/// How the trains of a sender begin.
#[derive(Clone, Copy, Debug)]
struct Sender {
    /// The first identification of the last train.
    last: u16,
    /// How much it grows from one train to the next: 0 or 1.
    step: u16,
}

impl Guess {
    pub(super) const fn new() -> Self {
        Self { next: 0, senders: [Sender { last: 0, step: 0 }; SENDERS], begins: None }
    }

    /// The most likely identification of the next packet.
    #[inline]
    pub(super) const fn next(&self) -> u16 {
        self.next
    }

    /// Notes that the next packet is the first of a train of this flow.
    #[inline]
    pub(super) fn begin_train(&mut self, flow: &Flow) {
        // A flow over IPv6 has no identification to guess.
        let Flow::V4 { src, src_port, .. } = flow else { return };
        let [.., low] = src.octets();
        let place = usize::from(low ^ *src_port as u8) % SENDERS;
        let Sender { last, step } = self.senders[place];
        self.next = last.wrapping_add(step);
        self.begins = Some(place as u8);
    }

    /// Notes that a packet had this identification.
    #[inline]
    pub(super) fn found(&mut self, id: u16) {
        self.next = id.wrapping_add(1);
        if let Some(place) = self.begins.take() {
            let Sender { last, step } = &mut self.senders[usize::from(place) % SENDERS];
            let grown = id.wrapping_sub(*last);
            if grown <= 1 {
                *step = grown;
            }
            *last = id;
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;

    fn flow(from: u8) -> Flow {
        let [src, dst] = [[10, 0, 0, from], [10, 0, 0, 0]].map(|ip| SocketAddr::from((ip, 4791)));
        Flow::new(src, dst).unwrap()
    }

    /// Feeds a train and returns how many of its identifications were not guessed.
    fn wrong(guess: &mut Guess, flow: &Flow, first: u16, packets: u16) -> u16 {
        guess.begin_train(flow);
        let mut wrong = 0;
        for index in 0..packets {
            let id = first.wrapping_add(index);
            wrong += u16::from(guess.next() != id);
            guess.found(id);
        }
        wrong
    }

    #[test]
    fn trains_begin_where_the_last_one_did() {
        let mut guess = Guess::new();
        for packets in [1, 2, 64, 2, 1, 1] {
            assert_eq!(wrong(&mut guess, &flow(1), 0, packets), 0);
        }
    }

    #[test]
    fn trains_may_begin_with_one_more_than_the_last_one() {
        let mut guess = Guess::new();
        let first = |train: u16| 0xfffd_u16.wrapping_add(train);
        for (train, packets) in (0..9).zip([1, 2, 1, 2, 2, 64, 1, 3, 2]) {
            let expected = match train {
                0 | 1 => 1, // A place to begin with, and how to go on from there.
                _ => 0,
            };
            assert_eq!(wrong(&mut guess, &flow(1), first(train), packets), expected, "{train}");
        }
    }

    #[test]
    fn each_sender_has_its_own_way_to_begin_trains() {
        let mut guess = Guess::new();
        let mut missed = 0;
        for train in 0..20 {
            missed += wrong(&mut guess, &flow(1), 0, 2);
            missed += wrong(&mut guess, &flow(2), 7000 + train, 3);
            missed += wrong(&mut guess, &flow(3), 50 + train, 1);
        }
        assert_eq!(missed, 4);
    }

    #[test]
    fn one_other_start_does_not_change_how_trains_begin() {
        let mut guess = Guess::new();
        for train in 0..5 {
            wrong(&mut guess, &flow(1), 100 + train, 2);
        }
        assert_eq!(wrong(&mut guess, &flow(1), 900, 2), 1);
        assert_eq!(wrong(&mut guess, &flow(1), 901, 2), 0);
    }
}
