//! One `[[gpu]]` of the configuration.
//!
//! ```toml
//! [[gpu]]
//! name = "gpu0"
//! preset = "xe"                 # xe | amdgpu | i915 | habanalabs | vfio | nvidia
//! vram = "1G"
//! bar = "256M"                  # the part of VRAM that CPU and peers reach
//! gtt = "4G"                    # system memory that the GPU may use
//! iommu = "on"                  # off: a stale access reaches other bytes instead of faulting
//! copy_engine = "thread"        # manual: moves wait for `Gpu::step`; sync: moves are done at once
//! max_pinned = "512M"           # of VRAM, for all processes together
//! max_pinned_client = "256M"    # of VRAM, for one process
//! max_vram_client = "1G"        # of VRAM, for one process
//! soft_pins = false             # true: under pressure, importers that can lose a pinned buffer do
//! evict = "lru"                 # own-first: of the process that needs room before others
//! cgroup_root = "/"             # where proc/self/cgroup and sys/fs/cgroup are, with their dmem.max
//! shared = true                 # false: this process has a GPU of its own
//! cuda_version = 13030          # that of cuDriverGetVersion; the first GPU that sets it counts
//! host_access = false           # true: HSA also maps memory for the CPU, which pins it
//! pack = false                  # true: CUDA packs small allocations, not page-aligned
//! dma_buf = true                # false: CUDA reports that it exports no dma-bufs
//! # each key of a preset can also be set by itself:
//! # has_pin, pin_policy, needs_p2p, needs_revocable, mmap, without_p2p, moves, orphans
//! ```

use std::path::PathBuf;

use dmabuf::{ExporterError, ExporterErrorKind, Iommu};
use serde::{Deserialize, Deserializer};

use crate::persona::{Orphans, Persona, PinPolicy, Preset, WithoutP2p};

/// One GPU.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::exhaustive_structs, reason = "programs also build it without a file")]
pub struct GpuConfig {
    /// Its name.
    pub name: String,
    /// The driver whose exporter it follows.
    pub preset: Preset,
    /// Bytes of VRAM.
    #[serde(deserialize_with = "size")]
    pub vram: u64,
    /// Bytes from the beginning of VRAM that CPU and peers reach; all of VRAM if not given.
    #[serde(deserialize_with = "some_size")]
    pub bar: Option<u64>,
    /// Bytes of system memory that the GPU may use. Unused GTT takes no memory.
    #[serde(deserialize_with = "size")]
    pub gtt: u64,
    /// Whether a stale access is stopped.
    #[serde(deserialize_with = "iommu")]
    pub iommu: Iommu,
    /// How moves are done.
    pub copy_engine: CopyMode,
    /// Bytes of VRAM that may be pinned, by all processes.
    #[serde(deserialize_with = "some_size")]
    pub max_pinned: Option<u64>,
    /// Bytes of VRAM that one process may have pinned.
    #[serde(deserialize_with = "some_size")]
    pub max_pinned_client: Option<u64>,
    /// Bytes of VRAM that one process may have.
    #[serde(deserialize_with = "some_size")]
    pub max_vram_client: Option<u64>,
    /// Whether a pin is soft if all who pinned the buffer can lose it: under memory pressure it is
    /// evicted, and their access ends for good. No kernel does this.
    pub soft_pins: bool,
    /// Whose buffers are evicted first.
    pub evict: EvictOrder,
    /// The directory in which `proc/self/cgroup` and `sys/fs/cgroup` are. The groups of the process
    /// limit its VRAM by `dmem.max`, if the preset is one whose driver charges it.
    pub cgroup_root: PathBuf,
    /// Whether the processes of one user share VRAM.
    pub shared: bool,
    /// The result of `cuDriverGetVersion`: a thousand times the major version and ten times the
    /// minor.
    pub cuda_version: Option<u32>,
    /// Whether CUDA exports dma-bufs, and reports that it does
    /// (`CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`).
    pub dma_buf: Option<bool>,
    /// Whether `cuMemAlloc` packs small allocations, at addresses that are not page-aligned.
    pub pack: bool,
    /// Whether HSA also maps its memory for the CPU, at the address that the GPU uses: a BAR as
    /// large as VRAM. Mapped memory stays where it is.
    pub host_access: bool,
    /// See [`Persona`], also for the fields below. A key that is not set has the preset's value.
    pub has_pin: Option<bool>,
    /// See [`Persona`].
    pub pin_policy: Option<PinPolicy>,
    /// See [`Persona`].
    pub needs_p2p: Option<bool>,
    /// See [`Persona`].
    pub needs_revocable: Option<bool>,
    /// See [`Persona`].
    pub mmap: Option<bool>,
    /// See [`Persona`].
    pub without_p2p: Option<WithoutP2p>,
    /// See [`Persona`].
    pub moves: Option<bool>,
    /// See [`Persona`].
    pub orphans: Option<Orphans>,
}

/// How the copy engine does its work.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
#[expect(clippy::exhaustive_enums, reason = "now, soon, or on request")]
pub enum CopyMode {
    /// In a thread; users of the bytes wait for the KERNEL fence of the move.
    #[default]
    Thread,
    /// Before the move returns.
    Sync,
    /// When [`Gpu::step`](crate::Gpu::step) is called, or when the GPU itself needs the bytes: for
    /// tests.
    Manual,
}

/// Whose buffers are evicted first, when VRAM is short.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::exhaustive_enums, reason = "by use, or by owner and then by use")]
pub enum EvictOrder {
    /// Those used least lately, whoever has them, as TTM does.
    #[default]
    Lru,
    /// Those of the process that needs the room, then those of others.
    OwnFirst,
}

impl Default for GpuConfig {
    fn default() -> Self {
        Self {
            name: "gpu0".to_owned(),
            preset: Preset::default(),
            vram: 1 << 30,
            bar: None,
            gtt: 4 << 30,
            iommu: Iommu::On,
            copy_engine: CopyMode::Thread,
            max_pinned: None,
            max_pinned_client: None,
            max_vram_client: None,
            soft_pins: false,
            evict: EvictOrder::Lru,
            cgroup_root: PathBuf::from("/"),
            shared: true,
            cuda_version: None,
            dma_buf: None,
            pack: false,
            host_access: false,
            has_pin: None,
            pin_policy: None,
            needs_p2p: None,
            needs_revocable: None,
            mmap: None,
            without_p2p: None,
            moves: None,
            orphans: None,
        }
    }
}

impl GpuConfig {
    /// What its exporter does: the preset, changed by the keys that are set.
    pub fn persona(&self) -> Persona {
        let preset = self.preset.persona();
        Persona {
            has_pin: self.has_pin.unwrap_or(preset.has_pin),
            pin_policy: self.pin_policy.unwrap_or(preset.pin_policy),
            needs_p2p: self.needs_p2p.unwrap_or(preset.needs_p2p),
            needs_revocable: self.needs_revocable.unwrap_or(preset.needs_revocable),
            mmap: self.mmap.unwrap_or(preset.mmap),
            without_p2p: self.without_p2p.unwrap_or(preset.without_p2p),
            moves: self.moves.unwrap_or(preset.moves),
            orphans: self.orphans.unwrap_or(preset.orphans),
        }
    }

    /// Bytes of VRAM that CPU and peers reach.
    pub fn visible(&self) -> u64 {
        self.bar.unwrap_or(self.vram)
    }

    pub(crate) fn check(&self) -> Result<(), ExporterError> {
        let wrong = |what: String| Err(ExporterError::new(ExporterErrorKind::Invalid, what));
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if self.name.is_empty() || self.name.len() > 32 || !self.name.bytes().all(plain) {
            return wrong(format!("gpu name {:?}: 1 to 32 letters, digits, '_' or '-'", self.name));
        }
        let page = rustix::param::page_size() as u64;
        for (key, size) in [("vram", self.vram), ("bar", self.visible()), ("gtt", self.gtt)] {
            if size == 0 || !size.is_multiple_of(page) || size > 1 << 44 {
                return wrong(format!(
                    "{key} of {} has {size} bytes: whole pages, at most 16T",
                    self.name
                ));
            }
        }
        if self.visible() > self.vram {
            return wrong(format!("bar of {} is larger than its vram", self.name));
        }
        if self.has_pin == Some(true) && self.moves == Some(false) {
            return wrong(format!("{}: has_pin is for buffers that move", self.name));
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Size {
    Bytes(u64),
    Text(String),
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match Size::deserialize(deserializer)? {
        Size::Bytes(bytes) => Ok(bytes),
        Size::Text(text) => pci::parse_size(&text)
            .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not a size"))),
    }
}

fn some_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    size(deserializer).map(Some)
}

fn iommu<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Iommu, D::Error> {
    match String::deserialize(deserializer)?.as_str() {
        "on" => Ok(Iommu::On),
        "off" => Ok(Iommu::Off),
        other => Err(serde::de::Error::custom(format!("iommu is on or off, not {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct File {
        gpu: Vec<GpuConfig>,
    }

    #[test]
    fn the_section_reads_as_documented() {
        let example: String = include_str!("config.rs")
            .lines()
            .skip_while(|line| *line != "//! ```toml")
            .skip(1)
            .take_while(|line| *line != "//! ```")
            .map(|line| line.trim_start_matches("//! ").to_owned() + "\n")
            .collect();
        let config = toml::from_str::<File>(&example).expect("the example is right").gpu.remove(0);
        assert_eq!((config.visible(), config.max_pinned), (256 << 20, Some(512 << 20)));
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn each_key_of_a_preset_can_be_set() {
        let text = "preset = \"vfio\"\nneeds_revocable = false\nwithout_p2p = \"refuse\"";
        let config: GpuConfig = toml::from_str(text).expect("it parses");
        let persona = config.persona();
        assert!(!persona.needs_revocable && persona.needs_p2p && !persona.has_pin);
        assert_eq!(persona.without_p2p, WithoutP2p::Refuse);
    }

    #[test]
    fn mistakes_are_named() {
        let parse = |text: &str| toml::from_str::<GpuConfig>(text);
        assert!(parse("iommu = \"maybe\"").unwrap_err().to_string().contains("maybe"));
        assert!(parse("vram = \"1T\"").unwrap_err().to_string().contains("1T"));
        assert!(parse("vrma = 1").unwrap_err().to_string().contains("vrma"));
        let check = |text: &str| parse(text).expect("it parses").check().unwrap_err().what;
        assert!(check("name = \"a/b\"").contains("a/b"));
        assert!(check("vram = 4097").contains("whole pages"));
        assert!(check("vram = \"1M\"\nbar = \"2M\"").contains("larger"));
        assert!(check("moves = false\nhas_pin = true").contains("move"));
    }
}
