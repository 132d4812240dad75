//! An event while it is written.

use crate::proto::{self, BYTES, FIXED64, LENGTH, VARINT};
use crate::{NEEDS_NAMES, PACKET, SEQUENCE, SEQUENCE_FLAGS, TIMESTAMP, TRACK_BITS, TRACK_EVENT};

/// Fields of `TrackEvent`.
const CATEGORY: u32 = 3;
const ARGUMENT: u32 = 4;
const TYPE: u32 = 9;
const NAME: u32 = 10;
const TRACK: u32 = 11;
const FLOW: u32 = 47;
const LAST_OF_FLOW: u32 = 48;
const CORRELATION: u32 = 52;
/// Fields of `DebugAnnotation`.
const ARGUMENT_NAME: u32 = 1;
const ARGUMENT_NUMBER: u32 = 3;
const ARGUMENT_TEXT: u32 = 6;
const ARGUMENT_POINTER: u32 = 7;
const ARGUMENT_WORD: u32 = 17;

/// What an event is on its track. The numbers are those of `TrackEvent.Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "what a trace of this crate has")]
pub enum Kind {
    /// The beginning of a slice.
    Begin = 1,
    /// The end of the last slice that began.
    End = 2,
    /// A moment.
    Instant = 3,
}

/// Bytes that an event may have between two texts: more than ten arguments and flows.
const ROOM: usize = 256;

/// An event, which is complete when it is dropped.
///
/// A NIC writes many of these while a program waits. So the bytes go to an array first, and numbers
/// have as many bytes as their types need and not their values: then the compiler knows the place
/// of almost every byte.
///
/// # Panics
///
/// Its functions panic if more than 256 bytes would follow one another without a text.
#[derive(Debug)]
pub struct Event<'a> {
    out: &'a mut Vec<u8>,
    /// Where the event begins in `out`.
    start: usize,
    room: [u8; ROOM],
    at: usize,
}

/// Where the packet's content begins, and that of the event in it: behind a tag and a length; and
/// behind the time, the sequence, and the flags.
const PACKET_AT: usize = 1 + LENGTH;
const EVENT_AT: usize = PACKET_AT + (1 + 9) + (1 + 5) + (1 + 1) + (1 + LENGTH);

impl<'a> Event<'a> {
    #[inline(always)]
    pub(crate) fn begin(
        out: &'a mut Vec<u8>,
        (at, sequence): (u64, u64),
        kind: Kind,
        track: u64,
        name: u64,
    ) -> Self {
        let mut event = Self { start: out.len(), out, room: [0; ROOM], at: 0 };
        event.nested(PACKET);
        event.tag(TIMESTAMP, VARINT);
        event.put(proto::wide::<9>(at));
        event.tag(SEQUENCE, VARINT);
        event.put(proto::wide::<5>(sequence));
        event.tag(SEQUENCE_FLAGS, VARINT);
        event.put([NEEDS_NAMES as u8]);
        event.nested(TRACK_EVENT);
        debug_assert_eq!(event.at, EVENT_AT);
        event.tag(TYPE, VARINT);
        event.put([kind as u8]);
        event.tag(TRACK, VARINT);
        event.put(proto::wide::<{ TRACK_BITS.div_ceil(7) as usize }>(track));
        if name != 0 {
            event.tag(NAME, VARINT);
            event.value(name);
        }
        event
    }

    /// Its category, by its number.
    #[inline(always)]
    pub fn category(&mut self, category: u64) -> &mut Self {
        self.tag(CATEGORY, VARINT);
        self.value(category);
        self
    }

    /// It is part of a flow.
    #[inline(always)]
    pub fn flow(&mut self, flow: u64) -> &mut Self {
        self.tag(FLOW, FIXED64);
        self.put(flow.to_le_bytes());
        self
    }

    /// It is the last part of a flow.
    #[inline(always)]
    pub fn last_of_flow(&mut self, flow: u64) -> &mut Self {
        self.tag(LAST_OF_FLOW, FIXED64);
        self.put(flow.to_le_bytes());
        self
    }

    /// It belongs together with the other events of this number, wherever they are.
    #[inline(always)]
    pub fn correlation(&mut self, number: u64) -> &mut Self {
        self.tag(CORRELATION, VARINT);
        self.put(proto::wide::<10>(number));
        self
    }

    /// A number as an argument.
    #[inline(always)]
    pub fn number(&mut self, name: u64, value: u64) -> &mut Self {
        self.short_argument(name, ARGUMENT_NUMBER, value)
    }

    /// A number as an argument, to be shown in hexadecimal digits.
    #[inline(always)]
    pub fn hex(&mut self, name: u64, value: u64) -> &mut Self {
        self.short_argument(name, ARGUMENT_POINTER, value)
    }

    /// A text of [`Names::words`](crate::Names) as an argument, by its number.
    #[inline(always)]
    pub fn word(&mut self, name: u64, word: u64) -> &mut Self {
        self.short_argument(name, ARGUMENT_WORD, word)
    }

    /// Words as an argument.
    pub fn text(&mut self, name: u64, value: &str) -> &mut Self {
        self.out.extend_from_slice(&self.room[..self.at]);
        self.at = 0;
        proto::message(self.out, ARGUMENT, |out| {
            proto::number(out, ARGUMENT_NAME, name);
            proto::text(out, ARGUMENT_TEXT, value);
        });
        self
    }

    #[inline(always)]
    fn short_argument(&mut self, name: u64, field: u32, value: u64) -> &mut Self {
        self.tag(ARGUMENT, BYTES);
        let length = self.at;
        self.put([0]);
        self.tag(ARGUMENT_NAME, VARINT);
        self.value(name);
        self.tag(field, VARINT);
        self.value(value);
        // CAST: three numbers.
        self.room[length] = (self.at - length - 1) as u8;
        self
    }

    /// Begins a field.
    #[inline(always)]
    fn tag(&mut self, field: u32, wire_type: u32) {
        self.value(u64::from(field << 3 | wire_type));
    }

    /// Begins a message, whose length is known at the end.
    #[inline(always)]
    fn nested(&mut self, field: u32) {
        self.tag(field, BYTES);
        self.put([0; LENGTH]);
    }

    /// A number that is short, or of 35 bits, or longer.
    #[inline(always)]
    fn value(&mut self, value: u64) {
        if value < 1 << 7 {
            // CAST: seven bits.
            self.put([value as u8]);
        } else if value < 1 << 14 {
            self.put(proto::wide::<2>(value));
        } else if value < 1 << 35 {
            self.put(proto::wide::<5>(value));
        } else {
            self.put(proto::wide::<10>(value));
        }
    }

    #[inline(always)]
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        *self.room[self.at..].first_chunk_mut().expect("events are short") = bytes;
        self.at += N;
    }
}

impl Drop for Event<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.out.extend_from_slice(&self.room[..self.at]);
        proto::end(self.out, self.start + EVENT_AT);
        proto::end(self.out, self.start + PACKET_AT);
    }
}
