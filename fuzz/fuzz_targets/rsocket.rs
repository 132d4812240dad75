//! A peer of a socket that sends arbitrary data: private data, immediate data, entries of the
//! target list, headers of datagrams.
//!
//! Whatever it sends, this side stays inside its own buffers, and the bytes that the peer may have
//! written agree with a second account here.
#![no_main]

use std::ops::Range;

use libfuzzer_sys::fuzz_target;
use rsocket::datagram::{Ask, Header};
use rsocket::{End, Hello, How, Mapping, Message, Sent, Sge, Sizes, Stream, TARGETS, Violation};

/// Bytes that one step of the peer takes.
const STEP: usize = 18;

/// The socket under test, with what this test knows about it.
struct Socket {
    stream: Stream,
    sizes: Sizes,
    /// The target list, which is the peer's to write.
    list: [Sge; TARGETS as usize],
    /// Requests that have not completed.
    posted: Vec<Sent>,
    /// Bytes that were offered and not reported as written, and messages of data that were not
    /// read.
    offered: u32,
    messages: Vec<u32>,
}

fn inside(ranges: &[Range<u32>], size: u32) -> u32 {
    for range in ranges {
        assert!(range.start <= range.end && range.end <= size, "{range:?} of {size}");
    }
    ranges.iter().map(|range| range.end - range.start).sum()
}

impl Socket {
    fn new(hello: &Hello, wanted: Sizes) -> Self {
        let sizes = wanted.for_stream(1 << 14);
        let at = |addr, key| Sge { addr, key, length: 0 };
        let mut stream = Stream::new(sizes, at(0x1000, 1), at(0x10_0000, 2));
        let mut list = [Sge::default(); TARGETS as usize];
        list[0] = stream.meet(hello);
        let offered = stream.hello().data.length;
        Self { stream, sizes, list, posted: Vec::new(), offered, messages: Vec::new() }
    }

    fn send(&mut self, wanted: u32) {
        let index = self.stream.target() as usize;
        let target = self.list[index];
        if !self.stream.may_send(target) {
            return;
        }
        let (write, left) = self.stream.send(wanted, target);
        assert_eq!((write.addr, write.key), (target.addr, target.key));
        assert_eq!(write.length + left.length, target.length, "no more than the peer said");
        if let Some(place) = &write.place {
            assert_eq!(inside(place, self.sizes.send_buffer), write.length);
        }
        self.list[index] = left;
        self.posted.push(write.sent);
    }

    fn send_mapped(&mut self, mapping: &Mapping, offset: u64, wanted: u32) {
        if !self.stream.may_send(self.list[self.stream.target() as usize]) {
            return;
        }
        if let Some((addr, left)) = mapping.find(offset) {
            let write = self.stream.send_direct(wanted.min(left), addr, mapping.sge.key);
            assert!(write.length <= left);
            if let Some(place) = &write.place {
                assert_eq!(inside(place, self.sizes.send_buffer), write.length);
            }
            self.posted.push(write.sent);
        } else if self.stream.peer_mappings() > 0 {
            let index = wanted % self.stream.peer_mappings();
            let (_, write) = self.stream.send_mapping(index, *mapping);
            assert_eq!(write.message, Some(Message::Mapped(index)));
            self.posted.push(write.sent);
        }
    }

    fn received(&mut self, bits: u32) {
        let had_ended = self.stream.end();
        let answer = self.stream.received(bits);
        let Message::Data(said @ 1..) = Message::decode(bits) else {
            return assert_eq!(answer, Ok(()), "only data can be too much");
        };
        if said > self.offered {
            let offered = self.offered;
            assert_eq!(answer, Err(Violation::TooMuch { said, offered }));
        } else if self.messages.len() >= self.sizes.rq_size as usize {
            assert_eq!(answer, Err(Violation::TooMany));
        } else {
            assert_eq!(answer, Ok(()));
            self.offered -= said;
            self.messages.push(said);
            return;
        }
        assert_eq!(self.stream.end(), had_ended.or(Some(End::Failed)));
    }

    fn read(&mut self, wanted: u32) {
        let there: u32 = self.messages.iter().sum();
        assert_eq!(self.stream.available(), there);
        let ranges = self.stream.data(wanted as usize);
        let mut left = inside(&ranges, self.sizes.receive_buffer);
        assert_eq!(left, wanted.min(there));
        self.stream.consume(left);
        while left > 0 {
            let taken = left.min(self.messages[0]);
            self.messages[0] -= taken;
            left -= taken;
            if self.messages[0] == 0 {
                self.messages.remove(0);
            }
        }
    }

    fn credit(&mut self) {
        let Some(credit) = self.stream.credit() else { return };
        assert!(matches!(credit.message, Message::Credit(_)));
        if let Some((entry, slot, ..)) = credit.offer {
            let offer = Sge::from_bytes(&entry);
            self.offered += self.stream.hello().data.length;
            assert!(slot < rsocket::Credit::SLOTS && (offer.key == 2 || offer.key == 2 << 24));
        }
        // The ranges that the peer may write and those not yet read never overlap.
        let unread: u32 = self.messages.iter().sum();
        assert!(self.offered + unread <= self.sizes.receive_buffer);
        self.posted.push(Sent::Credit);
    }
}

fuzz_target!(|bytes: &[u8]| {
    if let Some(header) = Header::from_bytes(bytes) {
        let again = Header::from_bytes(&header.to_bytes()[..header.size()]);
        assert_eq!(again, Some(header));
    }
    if let Some(ask) = Ask::from_bytes(bytes) {
        assert_eq!(Ask::from_bytes(&ask.to_bytes()[..ask.size()]), Some(ask));
    }
    let Ok(hello) = Hello::from_bytes(bytes) else { return };
    let (said, steps) = bytes.split_at(Hello::SIZE);
    // Small buffers, so that they overflow soon; bytes that mean nothing to a peer decide which.
    let wanted = Sizes {
        sq_size: 8 << (said[4] % 8),
        rq_size: 8 << (said[5] % 8),
        send_buffer: 128 << (said[6] % 8),
        receive_buffer: 128 << (said[6] / 8 % 8),
        ..Sizes::default()
    };
    let mut socket = Socket::new(&hello, wanted);
    for step in steps.chunks_exact(STEP) {
        let word = u32::from_le_bytes([step[2], step[3], step[4], step[5]]);
        let entry = step[2..].first_chunk().expect("a step has eighteen bytes");
        match step[0] % 9 {
            0 => socket.received(word),
            // About as much as was offered.
            1 => {
                let said = (socket.offered + word % 3).saturating_sub(1);
                socket.received(Message::Data(said).encode());
            }
            // Data of a length that may be right.
            2 => socket.received(Message::Data(word % 512).encode()),
            3 => socket.list[step[1] as usize % TARGETS as usize] = Sge::from_bytes(entry),
            4 => socket.send(word % 4096 + 1),
            5 => socket.read(word % 4096),
            6 => socket.credit(),
            7 => {
                let sge = Sge::from_bytes(entry);
                let mapping = Mapping { offset: sge.addr.rotate_left(step[1].into()), sge };
                socket.send_mapped(&mapping, sge.addr, word % 4096 + 1);
            }
            _ => {
                if step[1] & 1 != 0 && !socket.posted.is_empty() {
                    let sent = socket.posted.remove(0);
                    assert_eq!(Sent::decode(sent.encode()), sent, "it comes back as it went");
                    socket.stream.sent(sent, step[1] & 2 == 0);
                } else if socket.stream.may_control() {
                    let how = [How::Read, How::Write, How::Both][step[1] as usize / 4 % 3];
                    if let Some(control) = socket.stream.shutdown(how) {
                        let (message, sent) = socket.stream.control(control);
                        assert_eq!(message, Message::Control(control));
                        socket.posted.push(sent);
                    }
                    assert!(!matches!(how, How::Both) || !socket.stream.is_writable());
                }
            }
        }
    }
    // When everything completed, everything can be used again.
    for sent in std::mem::take(&mut socket.posted) {
        socket.stream.sent(sent, true);
    }
    assert!(socket.stream.is_idle());
});
