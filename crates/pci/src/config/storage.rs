//! The `[[storage]]` sections of the configuration: NVMe controllers of the machine.
//!
//! ```toml
//! [[storage]]
//! name = "nvme0"
//! cmb = "64M"                  # a controller memory buffer, for other devices; none without it
//! ```
//!
//! A controller is a function of the tree, where a `[[pci.device]]` of its name may put it.

use serde::Deserialize;

use super::{ConfigError, DeviceConfig};

/// The registers of a controller.
const REGISTERS: u64 = 16 << 10;

/// One NVMe controller.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::exhaustive_structs, reason = "programs build it without a file, too")]
pub struct StorageConfig {
    /// Its name.
    pub name: String,
    /// Bytes of its memory buffer, a power of two from 4096; 0 for none.
    #[doc(alias = "CMBSZ")]
    #[serde(deserialize_with = "super::size")]
    pub cmb: u64,
}

impl Default for StorageConfig {
    fn default() -> Self {
        Self { name: "nvme0".to_owned(), cmb: 0 }
    }
}

impl StorageConfig {
    /// Gives the controller its BARs: one of registers, and one of the memory buffer.
    pub(super) fn complete(&self, device: &mut DeviceConfig) -> Result<(), ConfigError> {
        let (name, size) = (self.name.clone(), self.cmb);
        if size != 0 && (!size.is_power_of_two() || size < 4096) {
            return Err(ConfigError::Cmb { name, size });
        }
        if device.bars.is_empty() {
            device.bars = [REGISTERS, size].into_iter().filter(|size| *size > 0).collect();
        }
        Ok(())
    }
}
