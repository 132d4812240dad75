//! Memory regions and pools: what each agent has. A pool is a region under another name.

use crate::process::Process;
use crate::status::{Refusal, Result, Status};

/// A region.
#[doc(alias = "hsa_region_t")]
#[doc(alias = "hsa_amd_memory_pool_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Region {
    /// Host memory; the kind of coherence makes no difference here.
    System(Coherence),
    /// VRAM of the GPU with this number.
    Vram(usize),
    /// The memory that work groups of that GPU would share. Nothing can be allocated there.
    Group(usize),
}

/// The kind of coherence of host memory, as reported to programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coherence {
    Fine,
    Kernarg,
    Coarse,
}

/// The handle of the first region; the others follow.
const REGIONS: u64 = 0x5a00_0000_0000;

/// The distance between the handles of two regions.
const STEP: u64 = 64;

const SYSTEM: [Region; 3] = [
    Region::System(Coherence::Fine),
    Region::System(Coherence::Kernarg),
    Region::System(Coherence::Coarse),
];

impl Region {
    pub(crate) fn handle(self) -> u64 {
        let index = match self {
            Self::System(Coherence::Fine) => 0,
            Self::System(Coherence::Kernarg) => 1,
            Self::System(Coherence::Coarse) => 2,
            Self::Vram(gpu) => 3 + 2 * gpu as u64,
            Self::Group(gpu) => 4 + 2 * gpu as u64,
        };
        REGIONS + STEP * index
    }

    /// The number of the region's agent.
    pub(crate) fn agent(self) -> usize {
        match self {
            Self::System(_) => 0,
            Self::Vram(gpu) | Self::Group(gpu) => gpu + 1,
        }
    }

    /// The flags of a region of segment "global": kernarg 1, fine-grained 2, coarse-grained 4.
    pub(crate) fn flags(self) -> u32 {
        match self {
            Self::System(Coherence::Fine) => 2,
            Self::System(Coherence::Kernarg) => 3,
            Self::System(Coherence::Coarse) | Self::Vram(_) => 4,
            Self::Group(_) => 0,
        }
    }
}

impl Process {
    /// The region of a handle.
    ///
    /// # Errors
    ///
    /// `wrong`: there is no such region.
    pub(crate) fn region(&self, handle: u64, wrong: Status) -> Result<Region> {
        let from = handle.wrapping_sub(REGIONS);
        let index = usize::try_from(from / STEP).ok().filter(|_| from.is_multiple_of(STEP));
        let found = index.and_then(|index| match index {
            0..3 => Some(SYSTEM[index]),
            _ if (index - 3) / 2 >= self.gpus.len() => None,
            _ if index % 2 == 1 => Some(Region::Vram((index - 3) / 2)),
            _ => Some(Region::Group((index - 3) / 2)),
        });
        found.ok_or_else(|| Refusal::new(wrong, format!("{handle:#x} is not a region")))
    }

    /// An agent's own regions, in the order in which programs see them.
    pub(crate) fn own_regions(agent: usize) -> Vec<Region> {
        match agent.checked_sub(1) {
            None => SYSTEM.to_vec(),
            Some(gpu) => vec![Region::Vram(gpu), Region::Group(gpu)],
        }
    }

    /// The regions that an agent reaches.
    pub(crate) fn regions(agent: usize) -> Vec<Region> {
        let mut all = Self::own_regions(agent);
        if agent > 0 {
            all.extend(SYSTEM);
        }
        all
    }
}
