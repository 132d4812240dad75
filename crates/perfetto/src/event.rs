//! An event while it is written.

use crate::proto;
use crate::{NEEDS_NAMES, PACKET, SEQUENCE, SEQUENCE_FLAGS, TIMESTAMP, TRACK_EVENT};

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

/// An event, which is complete when it is dropped.
#[derive(Debug)]
pub struct Event<'a> {
    out: &'a mut Vec<u8>,
    packet: usize,
    event: usize,
}

impl<'a> Event<'a> {
    #[inline]
    pub(crate) fn begin(
        out: &'a mut Vec<u8>,
        (at, sequence): (u64, u64),
        kind: Kind,
        track: u64,
        name: u64,
    ) -> Self {
        let packet = proto::begin(out, PACKET);
        proto::number(out, TIMESTAMP, at);
        proto::number(out, SEQUENCE, sequence);
        proto::number(out, SEQUENCE_FLAGS, NEEDS_NAMES);
        let event = proto::begin(out, TRACK_EVENT);
        proto::number(out, TYPE, kind as u64);
        proto::number(out, TRACK, track);
        if name != 0 {
            proto::number(out, NAME, name);
        }
        Self { out, packet, event }
    }

    /// Its category, by its number.
    #[inline]
    pub fn category(self, category: u64) -> Self {
        proto::number(self.out, CATEGORY, category);
        self
    }

    /// It is part of a flow.
    #[inline]
    pub fn flow(self, flow: u64) -> Self {
        proto::fixed(self.out, FLOW, flow);
        self
    }

    /// It is the last part of a flow.
    #[inline]
    pub fn last_of_flow(self, flow: u64) -> Self {
        proto::fixed(self.out, LAST_OF_FLOW, flow);
        self
    }

    /// It belongs together with the other events of this number, wherever they are.
    #[inline]
    pub fn correlation(self, number: u64) -> Self {
        proto::number(self.out, CORRELATION, number);
        self
    }

    /// A number as an argument.
    #[inline]
    pub fn number(self, name: u64, value: u64) -> Self {
        self.short_argument(name, ARGUMENT_NUMBER, value)
    }

    /// A number as an argument, to be shown in hexadecimal digits.
    #[inline]
    pub fn hex(self, name: u64, value: u64) -> Self {
        self.short_argument(name, ARGUMENT_POINTER, value)
    }

    /// Words as an argument.
    #[inline]
    pub fn text(self, name: u64, value: &str) -> Self {
        proto::message(self.out, ARGUMENT, |out| {
            proto::number(out, ARGUMENT_NAME, name);
            proto::text(out, ARGUMENT_TEXT, value);
        });
        self
    }

    #[inline]
    fn short_argument(self, name: u64, field: u32, value: u64) -> Self {
        proto::short_message(self.out, ARGUMENT, |out| {
            proto::number(out, ARGUMENT_NAME, name);
            proto::number(out, field, value);
        });
        self
    }
}

impl Drop for Event<'_> {
    #[inline]
    fn drop(&mut self) {
        proto::end(self.out, self.event);
        proto::end(self.out, self.packet);
    }
}
