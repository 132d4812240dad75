//! Two streams connected by memory alone: every byte arrives once and in order, for all sizes.

use std::collections::VecDeque;

use proptest::prelude::*;
use rsocket::{Control, End, How, Mapping, Message, Order, Sent, Sge, Sizes, Stream, Violation};

/// One side with its memory. Addresses are offsets into it.
struct Side {
    stream: Stream,
    memory: Vec<u8>,
    send_buffer: Vec<u8>,
    /// The peer's immediate data that is not yet processed.
    inbox: VecDeque<u32>,
    /// Completions that are not yet processed.
    done: VecDeque<Sent>,
}

/// Offsets in the memory.
const LIST: usize = 0;
const DATA: usize = 4096;

impl Side {
    fn new(sizes: Sizes) -> Self {
        let sizes = sizes.for_stream(1 << 14);
        let at = |addr: usize, key| Sge { addr: addr as u64, key, length: 0 };
        Self {
            stream: Stream::new(sizes, at(LIST, 1), at(DATA, 2)),
            memory: vec![0; DATA + sizes.receive_buffer as usize],
            send_buffer: vec![0; sizes.send_buffer as usize],
            inbox: VecDeque::new(),
            done: VecDeque::new(),
        }
    }

    fn target(&self) -> Sge {
        let at = LIST + self.stream.target() as usize * Sge::SIZE;
        Sge::from_bytes(self.memory[at..at + Sge::SIZE].try_into().unwrap())
    }

    fn set_target(&mut self, index: u32, target: Sge) {
        let at = LIST + index as usize * Sge::SIZE;
        self.memory[at..at + Sge::SIZE].copy_from_slice(&target.to_bytes(Order::Same));
    }

    fn meet(&mut self, other: &Self) {
        let hello = rsocket::Hello::from_bytes(&other.stream.hello().to_bytes()).unwrap();
        let first = self.stream.meet(&hello);
        self.set_target(0, first);
    }

    /// Writes into the peer's memory, only where the peer allows it.
    fn write(
        &mut self,
        peer: &mut Self,
        bytes: &[u8],
        addr: u64,
        message: Option<Message>,
        sent: Sent,
    ) {
        let addr = addr as usize;
        peer.memory[addr..addr + bytes.len()].copy_from_slice(bytes);
        peer.inbox.extend(message.map(Message::encode));
        self.done.push_back(sent);
    }

    /// Sends as much of `data` as possible, and returns how much that was.
    fn send(&mut self, peer: &mut Self, data: &[u8]) -> usize {
        let mut sent = 0;
        while sent < data.len() && self.stream.may_send(self.target()) {
            let index = self.stream.target();
            let wanted = (data.len() - sent).min(65536) as u32;
            let (write, left) = self.stream.send(wanted, self.target());
            self.set_target(index, left);
            let piece = &data[sent..sent + write.length as usize];
            let bytes = match &write.place {
                None => piece.to_vec(),
                Some(ranges) => {
                    let mut rest = piece;
                    let mut gathered = Vec::new();
                    for range in ranges {
                        let (now, later) = rest.split_at(range.len());
                        let place = range.start as usize..range.end as usize;
                        self.send_buffer[place.clone()].copy_from_slice(now);
                        gathered.extend_from_slice(&self.send_buffer[place]);
                        rest = later;
                    }
                    assert!(rest.is_empty());
                    gathered
                }
            };
            assert_eq!(write.key, 2);
            self.write(peer, &bytes, write.addr, write.message, write.sent);
            sent += write.length as usize;
        }
        sent
    }

    /// Processes received messages and completions, and sends credits.
    fn work(&mut self, peer: &mut Self) {
        while let Some(bits) = self.inbox.pop_front() {
            self.stream.received(bits).unwrap();
        }
        while let Some(sent) = self.done.pop_front() {
            self.stream.sent(sent, true);
        }
        while let Some(credit) = self.stream.credit() {
            match credit.offer {
                Some((entry, _, addr, key)) => {
                    assert_eq!(key, 1);
                    self.write(peer, &entry, addr, Some(credit.message), Sent::Credit);
                }
                None => self.write(peer, &[], 0, Some(credit.message), Sent::Credit),
            }
        }
    }

    fn receive(&mut self, wanted: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for range in self.stream.data(wanted) {
            out.extend_from_slice(
                &self.memory[DATA + range.start as usize..DATA + range.end as usize],
            );
        }
        self.stream.consume(out.len() as u32);
        out
    }
}

fn pair(left: Sizes, right: Sizes) -> (Side, Side) {
    let (mut left, mut right) = (Side::new(left), Side::new(right));
    left.meet(&right);
    right.meet(&left);
    (left, right)
}

fn sizes() -> impl Strategy<Value = Sizes> {
    let queue = 16..64_u32;
    let buffer = 2048..20_000_u32;
    (queue.clone(), queue, 0..128_u32, buffer.clone(), buffer).prop_map(
        |(sq_size, rq_size, inline, send_buffer, receive_buffer)| Sizes {
            sq_size,
            rq_size,
            inline,
            send_buffer,
            receive_buffer,
            mappings: 0,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_arrive_once_and_in_order(
        (a, b) in (sizes(), sizes()),
        steps in proptest::collection::vec((1..5000_usize, 1..5000_usize, any::<bool>()), 50..200),
    ) {
        let (mut left, mut right) = pair(a, b);
        let (mut next, mut seen) = (0_usize, 0_usize);
        let byte = |at: usize| (at.wrapping_mul(31) >> 3) as u8;
        for (send, receive, works) in steps {
            let data: Vec<u8> = (next..next + send).map(byte).collect();
            next += left.send(&mut right, &data);
            if works {
                left.work(&mut right);
            }
            right.work(&mut left);
            for got in right.receive(receive) {
                prop_assert_eq!(got, byte(seen));
                seen += 1;
            }
        }
        // The stream never stalls: data arrives, and more can be sent.
        for _ in 0..1000 {
            right.work(&mut left);
            left.work(&mut right);
            for got in right.receive(700) {
                prop_assert_eq!(got, byte(seen));
                seen += 1;
            }
        }
        prop_assert_eq!(seen, next);
        left.work(&mut right);
        prop_assert!(left.stream.is_idle());
        prop_assert_eq!(left.send(&mut right, &[byte(next)]), 1);
    }

    #[test]
    fn any_message_of_a_peer_is_accepted_or_refused(words in proptest::collection::vec(any::<u32>(), 0..200)) {
        let (mut left, _) = pair(Sizes::default(), Sizes::default());
        for word in words {
            let refused = left.stream.received(word).is_err();
            prop_assert!(!refused || left.stream.end() == Some(End::Failed));
            let _ = left.stream.credit();
            let read: u32 = left.stream.data(1000).iter().map(|range| range.len() as u32).sum();
            left.stream.consume(read);
        }
    }
}

#[test]
fn more_than_was_offered_is_refused() {
    let (mut left, _) = pair(Sizes::default(), Sizes::default());
    let half = 1 << 16;
    assert_eq!(left.stream.received(Message::Data(half).encode()), Ok(()));
    let refused = left.stream.received(Message::Data(1).encode());
    assert_eq!(refused, Err(Violation::TooMuch { said: 1, offered: 0 }));
    assert_eq!(left.stream.end(), Some(End::Failed));
    // The data received before can still be read.
    assert_eq!(left.stream.available(), half);
}

#[test]
fn more_messages_than_credits_are_refused() {
    let (mut left, _) = pair(Sizes::default(), Sizes::default());
    let mut said = (0..385).map(|_| left.stream.received(Message::Data(1).encode()));
    assert_eq!(said.by_ref().take(384).find(Result::is_err), None);
    assert_eq!(said.next(), Some(Err(Violation::TooMany)));
}

#[test]
fn each_direction_ends_by_itself() {
    let (mut left, mut right) = pair(Sizes::default(), Sizes::default());
    assert_eq!(left.stream.shutdown(How::Write), Some(Control::Shutdown));
    assert!(!left.stream.is_writable() && left.stream.is_readable());
    let (message, sent) = left.stream.control(Control::Shutdown);
    left.write(&mut right, &[], 0, Some(message), sent);
    right.work(&mut left);
    assert!(right.stream.is_writable() && !right.stream.is_readable());
    // The other direction still works.
    assert_eq!(right.send(&mut left, b"more"), 4);
    left.work(&mut right);
    assert_eq!(left.receive(9), b"more");
    assert_eq!(right.stream.shutdown(How::Write), Some(Control::Disconnect));
    let (message, sent) = right.stream.control(Control::Disconnect);
    right.write(&mut left, &[], 0, Some(message), sent);
    left.work(&mut right);
    assert_eq!(left.stream.end(), Some(End::Disconnected));
    right.work(&mut left);
    assert_eq!(right.stream.end(), Some(End::Disconnected));
    assert_eq!(right.stream.shutdown(How::Both), None);
}

#[test]
fn a_shutdown_of_reading_is_sent_once_writing_is_shut_down_too() {
    let (mut left, _) = pair(Sizes::default(), Sizes::default());
    assert_eq!(left.stream.shutdown(How::Read), None);
    assert_eq!(left.stream.shutdown(How::Write), Some(Control::Disconnect));
}

#[test]
fn a_failed_request_ends_it_unless_it_has_ended() {
    let (mut left, mut right) = pair(Sizes::default(), Sizes::default());
    left.send(&mut right, b"x");
    let sent = left.done.pop_front().unwrap();
    left.stream.sent(sent, false);
    assert_eq!(left.stream.end(), Some(End::Failed));
    right.stream.finish(End::Disconnected);
    right.stream.finish(End::Failed);
    assert_eq!(right.stream.end(), Some(End::Disconnected));
}

#[test]
fn mappings_go_after_the_target_list_and_cost_a_credit_that_is_returned() {
    let room = Sizes { mappings: 2, ..Sizes::default() };
    let (mut left, mut right) = pair(room, room);
    assert_eq!(left.stream.peer_mappings(), 2);
    let mapping = Mapping { offset: 77, sge: Sge { addr: 5, key: 6, length: 7 } };
    // More mappings than there are credits.
    for _ in 0..1000 {
        assert!(left.stream.may_send(left.target()));
        let (bytes, write) = left.stream.send_mapping(1, mapping);
        assert_eq!(write.addr, (2 * Sge::SIZE + Mapping::SIZE) as u64);
        left.write(&mut right, &bytes, write.addr, write.message, write.sent);
        right.work(&mut left);
        left.work(&mut right);
    }
    let at = 2 * Sge::SIZE + Mapping::SIZE;
    let bytes = right.memory[at..at + Mapping::SIZE].try_into().unwrap();
    assert_eq!(Mapping::from_bytes(bytes).find(80), Some((8, 4)));
}
