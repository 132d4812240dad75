//! Acts on a GPU and its buffers from outside the program, and their results.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::place::Domain;

/// How many refusals are kept in words; the others are only counted.
const KEPT: usize = 16;

/// An act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Buffers move to a domain.
    Move(Domain),
    /// Buffers move out of VRAM.
    Evict,
    /// The owner takes buffers away, for good.
    Revoke,
    Reset,
    Unplug,
    /// This many millionths of VRAM are in use, from now on or while a window is open.
    Fill(u32, Option<u64>),
    /// At most this many bytes are copied per second, from now on or while a window is open; 0 is
    /// no limit.
    Throttle(u64, Option<u64>),
    /// The window of a [`Fill`](Self::Fill) or [`Throttle`](Self::Throttle) ends.
    End(u64),
}

/// The result of an act.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Came {
    /// How many buffers, or GPUs, it was done to.
    pub(crate) done: u64,
    /// How many it could not be done to.
    pub(crate) refused: u64,
    /// The reasons for the first of these.
    pub(crate) why: Vec<String>,
}

impl Act {
    /// What was done, and to how many.
    pub(crate) fn words(&self, count: u64) -> String {
        let (noun, done) = match self {
            Self::Move(Domain::Vram) => ("buffer", "moved to VRAM"),
            Self::Move(Domain::Gtt) => ("buffer", "moved to GTT"),
            Self::Evict => ("buffer", "evicted"),
            Self::Revoke => ("buffer", "revoked"),
            Self::Fill(..) => ("GPU", "filled"),
            Self::Throttle(..) => ("GPU", "throttled"),
            Self::End(_) => ("GPU", "let go of"),
            Self::Reset => ("GPU", "reset"),
            Self::Unplug => ("GPU", "unplugged"),
        };
        let s = if count == 1 { "" } else { "s" };
        format!("{count} {noun}{s} {done}")
    }
}

impl Came {
    pub(crate) fn refuse(&mut self, why: String) {
        self.refused += 1;
        if self.why.len() < KEPT {
            self.why.push(why);
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.done += other.done;
        let unsaid = other.refused.saturating_sub(other.why.len() as u64);
        other.why.into_iter().for_each(|why| self.refuse(why));
        self.refused += unsaid;
    }

    pub(crate) fn note(&mut self, result: Result<bool>) {
        match result {
            Ok(true) => self.done += 1,
            Ok(false) => {}
            Err(refusal) => self.refuse(refusal.what),
        }
    }
}

/// Acts by hand on the GPU of a running program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ByHand {
    /// Buffers move out of VRAM.
    Evict,
    /// Buffers move to VRAM.
    MoveToVram,
    /// Buffers move to GTT.
    MoveToGtt,
    /// The GPU is reset.
    Reset,
    /// The GPU is taken out of the machine.
    Unplug,
}

impl ByHand {
    pub(crate) fn act(self) -> Act {
        match self {
            Self::Evict => Act::Evict,
            Self::MoveToVram => Act::Move(Domain::Vram),
            Self::MoveToGtt => Act::Move(Domain::Gtt),
            Self::Reset => Act::Reset,
            Self::Unplug => Act::Unplug,
        }
    }
}
