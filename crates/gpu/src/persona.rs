//! How exporters of real drivers differ, as data (`docs/semantics.md` 1.10, 1.11, 2.6).

use serde::Deserialize;

/// A driver whose exporter is followed.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Preset {
    /// Pins in VRAM if every attachment is peer-to-peer, otherwise in GTT.
    Amdgpu,
    /// As amdgpu, but refuses an importer that could be served neither way.
    #[default]
    Xe,
    /// Serves all importers from system memory, where a buffer stays while it is attached.
    I915,
    /// Never moves anything; peer-to-peer or nothing.
    Habanalabs,
    /// Never moves anything; peer-to-peer, and only importers that can be revoked.
    Vfio,
    /// Never moves anything; refuses importers without a path with an internal errno of the kernel
    /// (ENOTSUPP).
    Nvidia,
}

/// What one exporter does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "programs set single keys")]
pub struct Persona {
    /// Whether there is a pin operation, so that buffers can move while they are attached.
    pub has_pin: bool,
    /// Where pinning puts a buffer.
    pub pin_policy: PinPolicy,
    /// Whether an importer without peer-to-peer is refused at attach (EOPNOTSUPP).
    pub needs_p2p: bool,
    /// Whether an importer that cannot be revoked is refused at attach (EOPNOTSUPP).
    pub needs_revocable: bool,
    /// Whether the CPU may map the buffer.
    pub mmap: bool,
    /// What happens to an importer that cannot reach the device's memory.
    pub without_p2p: WithoutP2p,
    /// Whether unpinned buffers are moved at all.
    pub moves: bool,
    /// Whether a buffer is revoked when its process dies, or stays for the processes that have it.
    pub orphans: Orphans,
}

/// Where pinning puts a buffer.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::exhaustive_enums, reason = "what drivers do")]
pub enum PinPolicy {
    /// In VRAM if that is allowed and every attachment is peer-to-peer, otherwise in GTT.
    VramIfP2p,
    /// In GTT.
    Gtt,
    /// Nowhere: refused (EOPNOTSUPP).
    Refuse,
}

/// What happens to an importer that cannot reach the device's memory, because it never could (a
/// static importer) or because the PCI tree has no path.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
#[expect(clippy::exhaustive_enums, reason = "what drivers do")]
pub enum WithoutP2p {
    /// It attaches without peer-to-peer, and its map finds the buffer in GTT, or fails (EINVAL) if
    /// it may not be there.
    Clear,
    /// As `clear`, but the importer is refused at attach (EOPNOTSUPP) if the buffer may not be in
    /// GTT.
    System,
    /// It attaches; its map fails (EPERM).
    Eperm,
    /// It attaches; its map fails (EINVAL).
    Einval,
    /// It is refused at attach (EOPNOTSUPP).
    Refuse,
    /// It is refused at attach (ENOTSUPP), except for a static importer that has a path, which is
    /// served in VRAM.
    Enotsupp,
}

/// What happens to a buffer whose process died.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
#[expect(clippy::exhaustive_enums, reason = "it stays or it goes")]
pub enum Orphans {
    /// It stays where it is for the processes that have it.
    Keep,
    /// It is revoked.
    Revoke,
}

impl Preset {
    /// The driver's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amdgpu => "amdgpu",
            Self::Xe => "xe",
            Self::I915 => "i915",
            Self::Habanalabs => "habanalabs",
            Self::Vfio => "vfio-pci",
            Self::Nvidia => "nvidia",
        }
    }

    /// The name of its exporter.
    #[doc(alias = "exp_name")]
    pub fn exporter_name(self) -> &'static str {
        match self {
            Self::Nvidia => "nv_dmabuf",
            other => other.name(),
        }
    }

    /// Whether its refusals to map have errnos of their own: the CPU's mmap gets ENOTSUPP, where a
    /// driver without the operation gives EINVAL, and a device's map gets NULL whatever the reason,
    /// which the core takes for ENOMEM.
    pub(crate) fn hides_reasons(self) -> bool {
        self == Self::Nvidia
    }

    /// What its exporter does.
    pub fn persona(self) -> Persona {
        let moving = Persona {
            has_pin: true,
            pin_policy: PinPolicy::VramIfP2p,
            needs_p2p: false,
            needs_revocable: false,
            mmap: true,
            without_p2p: WithoutP2p::System,
            moves: true,
            orphans: Orphans::Keep,
        };
        let fixed = Persona {
            has_pin: false,
            mmap: false,
            without_p2p: WithoutP2p::Eperm,
            moves: false,
            ..moving
        };
        match self {
            Self::Amdgpu => Persona { without_p2p: WithoutP2p::Clear, ..moving },
            Self::Xe => moving,
            Self::I915 => Persona { has_pin: false, pin_policy: PinPolicy::Gtt, ..moving },
            Self::Habanalabs => fixed,
            // `dma_buf_phys_vec_to_sgt` answers EINVAL for a path that does not exist.
            Self::Vfio => Persona {
                needs_p2p: true,
                needs_revocable: true,
                without_p2p: WithoutP2p::Einval,
                orphans: Orphans::Revoke,
                ..fixed
            },
            Self::Nvidia => Persona { without_p2p: WithoutP2p::Enotsupp, mmap: true, ..fixed },
        }
    }
}
