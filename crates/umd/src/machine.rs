//! The GPUs of the machine: what each is called, and where it is.
//!
//! Read once from the configuration, without opening any. All drivers number GPUs by this list, so
//! names, addresses and UUIDs agree.

use std::sync::{Arc, OnceLock};

use gpu::{Gpu, GpuConfig, Machine, Presets};
use pci::{Bdf, PciTree};

use crate::boundary::LOG;
use crate::refusal::{Kind, Refusal, Result};

/// How far one GPU is from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "drivers have a number for each")]
pub enum Nearness {
    /// They are one.
    Same,
    /// One switch, or one port.
    OneSwitch,
    /// Switches, and no host bridge.
    Switches,
    /// Through one host bridge.
    HostBridge,
    /// From one host bridge to another.
    System,
}

/// One GPU.
#[derive(Debug)]
#[non_exhaustive]
pub struct Device {
    /// Its name in the configuration.
    pub name: String,
    /// How it is configured.
    pub config: GpuConfig,
    /// Where it is.
    pub bdf: Bdf,
    /// Its UUID: the same in every process of this host, and another on another host.
    pub uuid: [u8; 16],
    tree: Arc<PciTree>,
    gpu: OnceLock<std::result::Result<Gpu, Refusal>>,
}

/// All GPUs, in the order of their PCI addresses. None if the configuration cannot be read, which
/// is logged. A GPU whose preset is not named has the `default` of the driver that asks first.
pub fn devices(default: &str) -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| read(default).unwrap_or_default())
}

/// The machine that a driver finds: that of the configuration, where a GPU whose preset is not
/// named has the `default` one.
///
/// # Errors
///
/// What is wrong with the configuration, in words.
pub fn load(default: &str) -> std::result::Result<Machine, String> {
    let presets = Presets { default: Some(default), all: None };
    Machine::load_with(presets).map_err(|error| error.what)
}

fn read(default: &str) -> Option<Vec<Device>> {
    let machine = match load(default) {
        Ok(machine) => machine,
        Err(what) => {
            tracing::warn!(target: LOG, "no GPU: {what}");
            return None;
        }
    };
    let tree = machine.tree();
    let host = rustix::system::uname().nodename().to_bytes().to_vec();
    let device = |config: &GpuConfig| {
        let bdf = tree.by_name(&config.name)?;
        let uuid = uuid(&[&host, config.name.as_bytes(), bdf.to_string().as_bytes()]);
        let (name, config, tree) = (config.name.clone(), config.clone(), Arc::clone(tree));
        Some(Device { name, config, bdf, uuid, tree, gpu: OnceLock::new() })
    };
    let mut devices: Vec<_> = machine.gpus().iter().filter_map(device).collect();
    devices.sort_by_key(|device| device.bdf);
    Some(devices)
}

impl Device {
    /// The GPU, opened when it is first needed.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    pub fn gpu(&self) -> Result<&Gpu> {
        let open = || {
            Gpu::open_in(&self.config, Arc::clone(&self.tree)).map_err(|error| {
                tracing::warn!(target: LOG, "{}: {error}", self.name);
                Refusal::new(Kind::Unavailable, format!("{}: {error}", self.name))
            })
        };
        self.gpu.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    /// The name that programs see.
    pub fn title(&self) -> String {
        format!("peerdma {}", self.name)
    }

    /// The serial number: the same for as long as its UUID is.
    pub fn serial(&self) -> String {
        let number = self.uuid[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        format!("{:013}", number % 10_u64.pow(13))
    }

    /// How far it is from another.
    pub fn nearness(&self, other: &Self) -> Nearness {
        let [own, others] =
            [self.bdf, other.bdf].map(|bdf| self.tree.chain(bdf).collect::<Vec<_>>());
        let steps = own.iter().enumerate().find_map(|(up, bridge)| {
            let down = others.iter().position(|other| other.bdf == bridge.bdf)?;
            Some(up + down)
        });
        let root = |chain: &[&pci::Function]| chain.last().map(|function| function.root);
        match steps {
            Some(0) => Nearness::Same,
            Some(..=4) => Nearness::OneSwitch,
            Some(_) => Nearness::Switches,
            None if root(&own) == root(&others) => Nearness::HostBridge,
            None => Nearness::System,
        }
    }

    /// Whether it reaches the memory of another.
    pub fn reaches(&self, other: &Self) -> bool {
        self.bdf == other.bdf
            || self.tree.path(self.bdf, other.bdf).map_type != pci::MapType::NotSupported
    }
}

/// A UUID of version 8 (RFC 9562) from names: twice FNV-1a.
fn uuid(names: &[&[u8]]) -> [u8; 16] {
    let half = |seed: u64| {
        let bytes = names.iter().flat_map(|name| name.iter().chain(&[0]));
        bytes.fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    };
    let (high, low) = (half(0), half(0x9e37_79b9_7f4a_7c15));
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&high.to_be_bytes());
    uuid[8..].copy_from_slice(&low.to_be_bytes());
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_differ_by_name_and_stay_the_same() {
        let of = |name: &str| uuid(&[b"host", name.as_bytes()]);
        assert_eq!(of("gpu0"), of("gpu0"));
        assert_ne!(of("gpu0"), of("gpu1"));
        assert_eq!((of("gpu0")[6] >> 4, of("gpu0")[8] >> 6), (8, 2));
    }
}
