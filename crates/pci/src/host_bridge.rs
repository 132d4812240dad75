//! Host bridges that forward peer-to-peer traffic (`docs/semantics.md` 4.2).

use std::collections::BTreeSet;
use std::fmt;

use crate::tree::{FunctionKind, Ids, PciTree, RootBus};

/// The facts of the processor that matter for peer-to-peer traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the rule asks for no more")]
pub enum Cpu {
    /// An AMD processor of this family. Zen is 0x17.
    Amd {
        /// The CPU family from CPUID.
        family: u32,
    },
    /// Any other: the host bridge decides.
    #[default]
    Other,
}

impl Cpu {
    /// Whether every host bridge of this processor forwards peer-to-peer traffic.
    #[doc(alias = "cpu_supports_p2pdma")]
    pub fn supports_p2pdma(self) -> bool {
        matches!(self, Self::Amd { family } if family >= 0x17)
    }

    /// Parses `/proc/cpuinfo`. All processors are assumed to equal the first.
    pub fn from_cpuinfo(text: &str) -> Self {
        let value = |key: &str| {
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim())
        };
        match (value("vendor_id"), value("cpu family").and_then(|family| family.parse().ok())) {
            (Some("AuthenticAMD"), Some(family)) => Self::Amd { family },
            _ => Self::Other,
        }
    }

    /// Parses `/sys/devices/system/cpu/modalias`, `cpu:type:x86,ven0002fam0019mod0011:feature:...`.
    /// `None` for a processor whose kernel writes none of it.
    pub fn from_modalias(text: &str) -> Option<Self> {
        const AMD: u32 = 2;
        let hex = |from: &str, digits: &str| {
            let digits = digits.split_once(from)?.1.get(..4)?;
            u32::from_str_radix(digits, 16).ok()
        };
        match (hex("ven", text)?, hex("fam", text)?) {
            (AMD, family) => Some(Self::Amd { family }),
            _ => Some(Self::Other),
        }
    }
}

const INTEL: u16 = 0x8086;
const GOOGLE: u16 = 0x1ae0;
const NVIDIA: u16 = 0x10de;

/// One line of the list: vendor, device (`None`: all of that vendor), and whether only traffic
/// below the same host bridge is known to work.
type Entry = (u16, Option<u16>, bool);

const ALLOWLIST: &[Entry] = &[
    // Xeon E5, Core i7
    (INTEL, Some(0x3c00), true),
    (INTEL, Some(0x3c01), true),
    // Xeon E7 v3, E5 v3, Core i7
    (INTEL, Some(0x2f00), true),
    (INTEL, Some(0x2f01), true),
    // Skylake-E
    (INTEL, Some(0x2030), false),
    (INTEL, Some(0x2031), false),
    (INTEL, Some(0x2032), false),
    (INTEL, Some(0x2033), false),
    (INTEL, Some(0x2020), false),
    (INTEL, Some(0x09a2), false),
    // Accelerators that are the first function on their own root bus: DSA, IAA, QAT
    (INTEL, Some(0x0b25), false),
    (INTEL, Some(0x0cfe), false),
    (INTEL, Some(0x11fb), false),
    (INTEL, Some(0x1212), false),
    (INTEL, Some(0x1216), false),
    (INTEL, Some(0x4940), false),
    (INTEL, Some(0x4942), false),
    (INTEL, Some(0x4944), false),
    (INTEL, Some(0x4946), false),
    (INTEL, Some(0x4948), false),
    (GOOGLE, None, false),
    (NVIDIA, Some(0x2f95), false),
    (NVIDIA, Some(0x2f96), false),
    (NVIDIA, Some(0x2f97), false),
    (NVIDIA, Some(0x2f98), false),
];

impl PciTree {
    /// The IDs of a host bridge: those of the first function on its root bus, if that is device 0
    /// function 0 or a root port.
    #[doc(alias = "pci_host_bridge_dev")]
    pub fn host_bridge_ids(&self, root: RootBus) -> Option<Ids> {
        let first = self
            .functions()
            .filter(|function| function.upstream.is_none() && function.root == root)
            .min_by_key(|function| function.bdf.devfn())?;
        let speaks = first.bdf.devfn() == 0 || first.kind == FunctionKind::RootPort;
        speaks.then_some(first.ids)
    }

    /// Whether traffic between these host bridges is known to work. Two different ones must both be
    /// on the list, without the restriction to the same host bridge.
    #[doc(alias = "host_bridge_whitelist")]
    pub(crate) fn host_bridges_allowed(&self, one: RootBus, other: RootBus) -> bool {
        [one, other].into_iter().all(|root| self.unlisted(root, one == other).is_none())
    }

    /// Which of these host bridges stand in the way of traffic between them, and why, in the
    /// order of their addresses. Empty if it is known to work.
    pub fn host_bridge_refusals(&self, one: RootBus, other: RootBus) -> Vec<HostBridgeRefusal> {
        if self.cpu().supports_p2pdma() {
            return vec![];
        }
        let roots = BTreeSet::from([one, other]);
        roots.into_iter().filter_map(|root| self.unlisted(root, one == other)).collect()
    }

    fn unlisted(&self, root: RootBus, same: bool) -> Option<HostBridgeRefusal> {
        let refused = |ids, why| Some(HostBridgeRefusal { root, ids, why });
        let Some(ids) = self.host_bridge_ids(root) else {
            return refused(None, Unlisted::Unidentified);
        };
        let known = ALLOWLIST.iter().find(|(vendor, device, _)| {
            *vendor == ids.vendor && device.is_none_or(|device| device == ids.device)
        });
        match known {
            None => refused(Some(ids), Unlisted::NotThere),
            Some((_, _, true)) if !same => refused(Some(ids), Unlisted::OnlyBelowItself),
            Some(_) => None,
        }
    }
}

/// A host bridge that is not known to forward the traffic in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostBridgeRefusal {
    /// The host bridge.
    pub root: RootBus,
    /// Its IDs, if it has any.
    pub ids: Option<Ids>,
    /// The reason.
    pub why: Unlisted,
}

/// Why a host bridge is not known to forward traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unlisted {
    /// No function says what it is.
    Unidentified,
    /// The allowlist does not have it.
    NotThere,
    /// The allowlist has it for traffic that stays below it, not for traffic to another one.
    OnlyBelowItself,
}

impl fmt::Display for HostBridgeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host bridge {}", self.root)?;
        if let Some(ids) = self.ids {
            write!(f, " ({ids})")?;
        }
        f.write_str(match self.why {
            Unlisted::Unidentified => " is unknown: neither function 00.0 nor a root port is first",
            Unlisted::NotThere => " is not on the allowlist",
            Unlisted::OnlyBelowItself => {
                " is on the allowlist only for traffic that stays below it"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amd_is_recognised_by_vendor_and_family() {
        let zen = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\n";
        assert_eq!(Cpu::from_cpuinfo(zen), Cpu::Amd { family: 25 });
        assert!(Cpu::from_cpuinfo(zen).supports_p2pdma());
        assert!(!Cpu::Amd { family: 0x16 }.supports_p2pdma());
        assert!(Cpu::Amd { family: 0x17 }.supports_p2pdma());
        let intel = "vendor_id\t: GenuineIntel\ncpu family\t: 25\n";
        assert_eq!(Cpu::from_cpuinfo(intel), Cpu::Other);
        assert_eq!(Cpu::from_cpuinfo("CPU architecture: 8\n"), Cpu::Other);
    }

    #[test]
    fn sysfs_tells_vendor_and_family_too() {
        let zen = "cpu:type:x86,ven0002fam0019mod0011:feature:,0000,0001\n";
        assert_eq!(Cpu::from_modalias(zen), Some(Cpu::Amd { family: 0x19 }));
        let intel = "cpu:type:x86,ven0000fam0006mod008F:feature:,0000\n";
        assert_eq!(Cpu::from_modalias(intel), Some(Cpu::Other));
        assert_eq!(Cpu::from_modalias("cpu:type:aarch64:feature:,0000\n"), None);
    }
}
