//! Where a buffer may be.

use std::fmt;

/// A kind of memory that buffers are in.
#[doc(alias = "ttm_resource")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_enums, reason = "the two that the model has")]
pub enum Domain {
    /// The GPU's own memory.
    Vram,
    /// System memory that the GPU may use.
    #[doc(alias = "TTM_PL_TT")]
    Gtt,
}

bitflags::bitflags! {
    /// A set of [`Domain`]s.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Domains: u8 {
        /// VRAM.
        const VRAM = 1;
        /// GTT.
        const GTT = 2;
    }
}

/// What a buffer requires of its memory.
#[doc(alias = "ttm_placement")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct Place {
    /// Where it should preferably be.
    pub preferred: Domain,
    /// Where it may be. With only VRAM it is never evicted.
    pub allowed: Domains,
    /// Whether it should be in the part of VRAM that the CPU reaches.
    pub visible: bool,
    /// The alignment of its first byte in its domain: a power of two, at least a page.
    pub align: u64,
}

impl Place {
    /// In VRAM, and in GTT when VRAM is short.
    pub const VRAM: Self =
        Self { preferred: Domain::Vram, allowed: Domains::all(), visible: false, align: 0 };
    /// In VRAM where the CPU reaches it, and in GTT when that is short.
    pub const VISIBLE_VRAM: Self = Self { visible: true, ..Self::VRAM };
    /// In VRAM and nowhere else.
    pub const ONLY_VRAM: Self = Self { allowed: Domains::VRAM, ..Self::VRAM };
    /// In GTT.
    pub const GTT: Self =
        Self { preferred: Domain::Gtt, allowed: Domains::GTT, visible: false, align: 0 };
}

impl Domain {
    /// The set of only this domain.
    pub fn only(self) -> Domains {
        match self {
            Self::Vram => Domains::VRAM,
            Self::Gtt => Domains::GTT,
        }
    }

    pub(crate) fn index(self) -> u64 {
        match self {
            Self::Vram => 0,
            Self::Gtt => 1,
        }
    }

    pub(crate) fn from_index(index: u64) -> Option<Self> {
        match index {
            0 => Some(Self::Vram),
            1 => Some(Self::Gtt),
            _ => None,
        }
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vram => "VRAM",
            Self::Gtt => "GTT",
        })
    }
}
