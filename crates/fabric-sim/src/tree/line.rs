//! A line of a tree in one direction, and what waits in front of it.

use std::collections::VecDeque;

use wire::{Headers, Opcode};

use super::other::Say;
use super::stream::Segment;
use super::topology::Path;
use crate::link::Rate;

/// What a packet carries, besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cargo {
    Ib(Headers),
    Stream(Segment),
    Other(Say),
}

/// A packet on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    /// The end that sent it.
    pub(super) end: usize,
    /// The lines that its sender's routing gave it, and how many it has behind it.
    pub(super) path: Path,
    pub(super) hop: usize,
    pub(super) cargo: Cargo,
    pub(super) length: u32,
    pub(super) is_marked: bool,
}

impl Packet {
    /// Its bytes on a line.
    pub(super) fn size(&self) -> u64 {
        u64::from(self.length) + Rate::OVERHEAD
    }

    /// Whether a switch may mark it, if its sender takes part in congestion control.
    pub(super) fn may_be_marked(&self) -> bool {
        match self.cargo {
            Cargo::Ib(headers) => headers.bth.opcode != Opcode::Cnp,
            Cargo::Other(say) => matches!(say, Say::Data(..)),
            Cargo::Stream(_) => false,
        }
    }
}

/// When a switch marks packets: never up to `min` bytes that wait, then at random, and always from
/// `max` bytes on.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "tests build it")]
pub struct Red {
    /// Bytes that may wait without a mark.
    pub min: u64,
    /// Bytes from which each packet is marked.
    pub max: u64,
    /// How many of a thousand are marked just below that.
    pub permille: u32,
}

impl Red {
    /// How many packets of a thousand are marked when this many bytes wait.
    pub fn chance(self, bytes: u64) -> u32 {
        match bytes {
            bytes if bytes <= self.min => 0,
            bytes if bytes >= self.max => 1000,
            // CAST: below `permille`.
            bytes => (u64::from(self.permille) * (bytes - self.min) / (self.max - self.min)) as u32,
        }
    }
}

/// When a switch stops a neighbour (IEEE 802.1Qbb).
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "tests build it")]
pub struct Pfc {
    /// Bytes of one neighbour that a switch may hold before it stops it.
    pub pause: u64,
    /// Bytes from which the neighbour may go on.
    pub resume: u64,
}

/// A line, and the queue in front of it.
#[derive(Debug, Default)]
pub(super) struct Line {
    queue: VecDeque<Packet>,
    /// Bytes that wait.
    pub(super) bytes: u64,
    pub(super) is_busy: bool,
    pub(super) is_paused: bool,
    pub(super) is_cut: bool,
    /// Bytes that came over it, and that the switch behind it holds.
    pub(super) held: u64,
    /// Whether that switch asked it to stop.
    pub(super) asked: bool,
}

impl Line {
    pub(super) fn push(&mut self, packet: Packet) {
        self.bytes += packet.size();
        self.queue.push_back(packet);
    }

    pub(super) fn pop(&mut self) -> Option<Packet> {
        let packet = self.queue.pop_front()?;
        self.bytes -= packet.size();
        Some(packet)
    }

    /// Takes out all that waits.
    pub(super) fn clear(&mut self) -> Vec<Packet> {
        self.bytes = 0;
        self.queue.drain(..).collect()
    }
}
