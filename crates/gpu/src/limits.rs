//! Limits on VRAM: of one process, by the configuration; and of a control group, by `dmem.max`
//! (`docs/semantics.md` 2.7).

use std::collections::BTreeSet;

use cgroup::{Group, Groups, Limit};

use crate::device::Device;
use crate::error::{again, no_memory};
use crate::ledger::Entry;
use crate::need::{BALLAST, Need};
use crate::persona::Preset;
use crate::place::Domain;

/// The control groups of this process, as far as they concern the GPU.
#[derive(Debug)]
pub(crate) struct GpuGroups {
    groups: Groups,
    /// What the driver calls its VRAM. `None` if it charges nothing.
    region: Option<String>,
    /// The number of the group to which buffers are charged; 0 if there is none.
    pub(crate) own: u64,
}

/// A limit on VRAM, for the buffers that count.
#[derive(Debug)]
pub(crate) enum VramLimit {
    /// Those of this process.
    Client(u64),
    /// Those of a group and of the ones below it.
    Group { group: Group, most: u64, ids: BTreeSet<u64> },
}

impl GpuGroups {
    /// Region names are those of `drmm_cgroup_register_region`, which amdgpu and xe call.
    pub(crate) fn new(root: &std::path::Path, preset: Preset, bdf: Option<pci::Bdf>) -> Self {
        let groups = Groups::of_self(root);
        let vram = match preset {
            Preset::Xe => Some("vram0"),
            Preset::Amdgpu => Some("vram"),
            _ => None,
        };
        let region = vram.zip(bdf).map(|(vram, bdf)| format!("drm/{bdf}/{vram}"));
        let own = groups.own("dmem").and_then(|group| group.id()).unwrap_or(0);
        Self { groups, region, own }
    }

    fn limits(&self) -> Vec<VramLimit> {
        let Some(region) = &self.region else { return vec![] };
        let limits = self.groups.dmem_max(region).into_iter();
        let of = |Limit { group, most, .. }| {
            let ids = group.ids_below();
            VramLimit::Group { group, most, ids }
        };
        limits.map(of).collect()
    }
}

impl VramLimit {
    /// Whether a placement counts. `ours` is the number of this process.
    pub(crate) fn counts(&self, entry: &Entry, ours: u8) -> bool {
        match self {
            Self::Client(_) => entry.owner == ours,
            Self::Group { ids, .. } => ids.contains(&entry.group),
        }
    }

    fn most(&self) -> u64 {
        match self {
            Self::Client(most) | Self::Group { most, .. } => *most,
        }
    }
}

impl Device {
    /// The limits on a domain now. The kernel looks at each allocation, too.
    pub(crate) fn limits(&self, domain: Domain) -> Vec<VramLimit> {
        if domain != Domain::Vram {
            return vec![];
        }
        let client = self.config.max_vram_client.map(VramLimit::Client);
        client.into_iter().chain(self.groups.limits()).collect()
    }

    /// The first limit that `len` more bytes of VRAM would pass.
    pub(crate) fn passed(
        &self,
        limits: Vec<VramLimit>,
        table: &[Entry],
        len: u64,
    ) -> Option<VramLimit> {
        let ours = self.pools.ledger.owner();
        limits.into_iter().find(|limit| {
            let counts = |entry: &&Entry| {
                entry.domain == Domain::Vram && entry.bo != BALLAST && limit.counts(entry, ours)
            };
            let used: u64 = table.iter().filter(counts).map(|entry| entry.len).sum();
            used.saturating_add(len) > limit.most()
        })
    }

    /// The refusal once nothing that counts can be evicted. The kernel charges a buffer to its
    /// group with EAGAIN, which TTM takes for a place that is full: it evicts, and then has no
    /// memory.
    pub(crate) fn over_limit(&self, limit: &VramLimit, need: Need) -> dmabuf::ExporterError {
        let (name, len, most) = (&self.config.name, need.len, limit.most());
        match limit {
            VramLimit::Client(_) => again(format!(
                "pool VRAM of {name}: {len:#x} bytes more would pass max_vram_client, {most:#x}, and nothing of this process can be evicted"
            )),
            VramLimit::Group { group, .. } => no_memory(format!(
                "pool VRAM of {name}: {len:#x} bytes more would pass dmem.max of {group}, {most:#x}, and nothing of that group can be evicted"
            )),
        }
    }
}
