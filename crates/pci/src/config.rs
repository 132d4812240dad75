//! The `[pci]` section of the configuration: a machine's tree, in a few lines.
//!
//! ```toml
//! [pci]
//! cpu = "intel"                # "amd": every host bridge forwards peer-to-peer traffic
//! domain = 0                   # of all addresses; another keeps them apart from the machine's own
//!
//! [[pci.host_bridge]]
//! name = "root0"
//! id = "8086:2020"             # for the allowlist; without it: not on the list
//!
//! [[pci.switch]]
//! name = "switch0"
//! under = "root0"              # a host bridge, or another switch
//! acs = ["RR", "CR"]           # enabled in each of its downstream ports
//!
//! [[pci.device]]
//! name = "gpu0"                # the [[gpu]] or [[nic]] of this name
//! under = "switch0"
//! bars = ["256M"]
//! ```
//!
//! Without the section, or for devices that it does not mention, everything is below one switch, so
//! that all devices reach each other. `sysfs = "/sys"` takes the machine's own tree instead; then
//! each device names its function (`bdf = "0000:3b:00.0"`).

mod build;
mod storage;

use std::path::PathBuf;

use serde::{Deserialize, Deserializer};

use crate::host_bridge::Cpu;
use crate::sysfs::SysfsError;
use crate::tree::{Acs, Ids, TreeError};

pub use storage::StorageConfig;

/// The whole section.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::exhaustive_structs, reason = "programs build it without a file, too")]
pub struct PciConfig {
    /// The vendor of the processor. By default not AMD; with `sysfs`, the vendor in
    /// `/proc/cpuinfo`.
    pub cpu: Option<CpuVendor>,
    /// The family of an AMD processor; Zen by default.
    pub cpu_family: Option<u32>,
    /// The mount point of sysfs, to read the machine's own tree instead.
    pub sysfs: Option<PathBuf>,
    /// The domain of all addresses of the model.
    pub domain: u32,
    /// Host bridges.
    #[serde(rename = "host_bridge")]
    pub host_bridges: Vec<HostBridgeConfig>,
    /// Switches.
    #[serde(rename = "switch")]
    pub switches: Vec<SwitchConfig>,
    /// Devices.
    #[serde(rename = "device")]
    pub devices: Vec<DeviceConfig>,
}

/// The vendor of the processor, which decides about host bridges.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
#[expect(clippy::exhaustive_enums, reason = "the rule asks for no more")]
pub enum CpuVendor {
    /// Not AMD: the allowlist decides.
    Intel,
    /// AMD: all pairs are permitted, from Zen on.
    Amd,
}

/// One host bridge.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::exhaustive_structs, reason = "programs build it without a file, too")]
pub struct HostBridgeConfig {
    /// Its name for `under` of other entries.
    pub name: String,
    /// Vendor and device of the function at device 0; without it there is no such function.
    #[serde(deserialize_with = "ids")]
    pub id: Option<Ids>,
    /// The difference between bus addresses below it and CPU addresses.
    pub bus_offset: i64,
    /// ACS of its root ports.
    #[serde(deserialize_with = "acs")]
    pub acs: Acs,
}

/// One switch.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::exhaustive_structs, reason = "programs build it without a file, too")]
pub struct SwitchConfig {
    /// Its name for `under` of other entries.
    pub name: String,
    /// The host bridge or switch above; the first host bridge if none is named.
    pub under: Option<String>,
    /// ACS of its downstream ports.
    #[serde(deserialize_with = "acs")]
    pub acs: Acs,
}

/// One device.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::exhaustive_structs, reason = "programs build it without a file, too")]
pub struct DeviceConfig {
    /// The GPU's or NIC's name.
    pub name: String,
    /// The host bridge or switch above; the first switch, or else the first host bridge, if none is
    /// named.
    pub under: Option<String>,
    /// Another device; this entry is a further function of it.
    pub function_of: Option<String>,
    /// Its address in the machine's own tree; only with `sysfs`.
    pub bdf: Option<String>,
    /// Sizes of its memory BARs.
    #[serde(deserialize_with = "sizes")]
    pub bars: Vec<u64>,
    /// ACS of the function itself.
    #[serde(deserialize_with = "acs")]
    pub acs: Acs,
}

/// Why a section does not describe a machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A name that is empty or was used before.
    #[error("[pci]: {what} name {name:?}: names are unique and not empty")]
    Name {
        /// Host bridge, switch or device.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// An entry is below something that does not exist.
    #[error(
        "[pci]: {name:?} lies under {under:?}, which is not a host bridge or switch here, or lies under {name:?}"
    )]
    Under {
        /// The name of the entry.
        name: String,
        /// The name that it refers to.
        under: String,
    },
    /// A further function of a device that does not exist or has eight functions.
    #[error(
        "[pci]: {name:?} is a function of {device:?}, which is not a device here or has eight already"
    )]
    FunctionOf {
        /// The name of the entry.
        name: String,
        /// The name that it refers to.
        device: String,
    },
    /// More buses or devices than PCI has numbers for.
    #[error("[pci]: no bus or device number is left for {name:?}")]
    Full {
        /// The entry that did not fit.
        name: String,
    },
    /// A BAR of an invalid size.
    #[error("[pci]: a BAR of {name:?} has {size:#x} bytes: a power of two from 16 to 2^48")]
    BarSize {
        /// The name of the device.
        name: String,
        /// The size.
        size: u64,
    },
    /// A memory buffer of an invalid size.
    #[error("[[storage]]: the cmb of {name:?} has {size:#x} bytes: a power of two from 4096")]
    Cmb {
        /// The name of the controller.
        name: String,
        /// The size.
        size: u64,
    },
    /// An address without `sysfs`, or no address with it.
    #[error(
        "[pci]: {name:?}: with sysfs each device has a bdf and no other key; without sysfs it has no bdf"
    )]
    Bdf {
        /// The name of the device.
        name: String,
    },
    /// An invalid address.
    #[error("[pci]: {name:?}: {error}")]
    BadBdf {
        /// The name of the device.
        name: String,
        /// The error.
        error: crate::BdfError,
    },
    /// The functions do not form a tree.
    #[error("[pci]: {0}")]
    Tree(#[from] TreeError),
    /// The machine's tree cannot be read.
    #[error("[pci]: {0}")]
    Sysfs(#[from] SysfsError),
}

impl PciConfig {
    fn processor(&self) -> Cpu {
        match self.cpu {
            Some(CpuVendor::Amd) => Cpu::Amd { family: self.cpu_family.unwrap_or(0x17) },
            None if self.sysfs.is_some() => {
                Cpu::from_cpuinfo(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
            }
            Some(CpuVendor::Intel) | None => Cpu::Other,
        }
    }
}

/// Parses a size in bytes of the configuration: a number, or one with the suffix K, M or G.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 10),
        b'M' | b'm' => (&text[..text.len() - 1], 20),
        b'G' | b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn sizes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    Vec::<Size>::deserialize(deserializer)?.into_iter().map(Size::bytes).collect()
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Size::deserialize(deserializer)?.bytes()
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Size {
    Bytes(u64),
    Text(String),
}

impl Size {
    fn bytes<E: serde::de::Error>(self) -> Result<u64, E> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Text(text) => {
                parse_size(&text).ok_or_else(|| E::custom(format!("{text:?} is not a size")))
            }
        }
    }
}

fn ids<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Ids>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let number = |digits: &str| u16::from_str_radix(digits, 16).ok();
    let parse = || {
        let (vendor, device) = text.split_once(':')?;
        Some(Ids { vendor: number(vendor)?, device: number(device)? })
    };
    let error = || serde::de::Error::custom(format!("{text:?} is not vendor:device in hex"));
    parse().map(Some).ok_or_else(error)
}

fn acs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Acs, D::Error> {
    let words = Vec::<String>::deserialize(deserializer)?;
    let bit = |word: &String| {
        let error = || {
            let all: Vec<_> = Acs::all().iter_names().map(|(name, _)| name).collect();
            serde::de::Error::custom(format!("{word:?} is not an ACS bit: {}", all.join(" ")))
        };
        Acs::from_name(word).ok_or_else(error)
    };
    words.iter().map(bit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct File {
        pci: PciConfig,
    }

    #[test]
    fn the_documented_section_parses() {
        let example: String = include_str!("config.rs")
            .lines()
            .skip_while(|line| *line != "//! ```toml")
            .skip(1)
            .take_while(|line| *line != "//! ```")
            .map(|line| line.trim_start_matches("//! ").trim_start_matches("//!").to_owned() + "\n")
            .collect();
        let config = toml::from_str::<File>(&example).expect("the example is right").pci;
        assert_eq!(config.host_bridges[0].id, Some(Ids { vendor: 0x8086, device: 0x2020 }));
        assert_eq!(config.switches[0].acs, Acs::RR | Acs::CR);
        assert_eq!(config.devices[0].bars, [256 << 20]);
        assert!(config.build(&[]).is_ok());
    }

    #[test]
    fn errors_name_the_mistake() {
        let error = |text: &str| toml::from_str::<PciConfig>(text).unwrap_err().to_string();
        assert!(error("cpu = \"arm\"").contains("arm"));
        assert!(error("[[switch]]\nacs = [\"XX\"]").contains("XX"));
        assert!(error("[[host_bridge]]\nid = \"8086\"").contains("8086"));
        assert!(error("[[device]]\nbars = [\"1Q\"]").contains("1Q"));
        assert!(error("swich = 1").contains("swich"));
    }
}
