//! The configuration file: which NICs there are and how each behaves.
//!
//! Without a file there is one NIC, `peerdma0`, over the netdev of the default route. The file is
//! named by `PEERDMA_CONFIG`; every key is optional:
//!
//! ```toml
//! [[nic]]
//! name = "peerdma0"
//! preset = "mlx5"          # mlx5 | irdma | efa | rxe
//! netdev = "eth0"          # default: the default route's
//! udp_port = 4791
//! ports = 1                # up to 1024, all over the netdev; libibverbs reaches the first 255
//! ecn = true               # congestion control of RC over UDP, by the marks of switches
//! force_udp = false        # true: RoCEv2 even between processes of one host
//! direct = true            # false: never touch a peer's memory without its engine
//! max_dm_size = "256K"
//! importer = "dynamic"     # dynamic | revocable | pinned | none; default: the preset's
//! odp = true               # on-demand paging; default: the preset's
//! fault_us = 0             # how long a page fault takes
//! pin_limit = false        # true: registered memory is charged against RLIMIT_MEMLOCK
//! cgroup_root = "/"        # where proc/self/cgroup and sys/fs/cgroup are, with their rdma.max
//! pcap = "nic.pcapng"      # every packet of every carrier goes into this file, too
//! pcap_bytes = 128         # ... but no more than so many bytes of each
//! trace = "nic.pftrace"    # what happens to each work request goes into this file, too
//! fault = "plan.toml"      # what is to go wrong (docs/FAULT_PLANS.md)
//! peermem = false          # true: ibv_reg_mr of a peer device's memory asks its driver (PeerDirect)
//! ```
//!
//! The sections `[[gpu]]`, `[[storage]]` and `[pci]` of the same file are about the software GPU,
//! NVMe controllers and the PCI tree.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dmabuf::{DeviceAddr, ImporterClass};
use environment::NamedFile;
use link::shm::MAX_CAPACITY;
use serde::Deserialize;

use crate::refusal::{Kind, Refusal, Result};

/// A ring has room for twice the longest record of small messages.
const MIN_RING: u64 = 16 << 10;
/// More ports than any NIC shows; each has its files in `/sys`.
const MAX_PORTS: u32 = 1024;

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// The NICs, in the order programs see them.
    #[serde(default, rename = "nic")]
    pub nics: Vec<NicConfig>,
    /// The GPUs. A NIC needs their names, as they are in the same PCI tree.
    #[serde(default, rename = "gpu")]
    gpus: Vec<Named>,
    /// The NVMe controllers, which are in the same tree.
    #[serde(default)]
    storage: Vec<pci::StorageConfig>,
    /// The PCI tree that contains all of them.
    #[serde(default)]
    pci: pci::PciConfig,
}

/// What a NIC must know about a GPU.
#[derive(Clone, Debug, Deserialize)]
struct Named {
    #[serde(default = "first_gpu")]
    name: String,
}

fn first_gpu() -> String {
    "gpu0".to_owned()
}

/// One NIC.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::exhaustive_structs, reason = "programs also build it without a file")]
pub struct NicConfig {
    /// The device name programs see.
    pub name: String,
    /// The real NIC whose behaviour it follows where real NICs differ.
    pub preset: Preset,
    /// The netdev whose addresses are its GIDs; the default route's if none is named.
    pub netdev: Option<String>,
    /// The UDP port of RoCEv2.
    pub udp_port: u16,
    /// How many ports it has, up to 1024. All are over the netdev, with its state and addresses, as
    /// a NIC shows the ports of its virtual functions.
    #[doc(alias = "phys_port_cnt_ex")]
    pub ports: u32,
    /// Whether to use UDP even between processes of one host.
    pub force_udp: bool,
    /// Whether connections over UDP take part in congestion control: their packets are marked as
    /// ECN-capable (ECT), marks are answered with notifications (CNP), and notifications are
    /// obeyed.
    pub ecn: bool,
    /// Whether one-sided operations on one host may run without the target's engine.
    pub direct: bool,
    /// How it imports dma-bufs; as its preset does by default.
    pub importer: Option<ImporterConfig>,
    /// Whether regions may be registered for on-demand paging; as with the preset by default.
    pub odp: Option<bool>,
    /// How long a page fault takes, in microseconds: the access is put off for this long.
    pub fault_us: u64,
    /// Whether registered memory is charged against the limit of locked memory (`RLIMIT_MEMLOCK`),
    /// as for pinned pages.
    pub pin_limit: bool,
    /// The directory in which `proc/self/cgroup` and `sys/fs/cgroup` are. The groups of the process
    /// limit its contexts and objects by `rdma.max`.
    pub cgroup_root: PathBuf,
    /// The file that every packet is recorded in. `PEERDMA_PCAP` names one for all NICs. While
    /// packets are recorded, one-sided operations are packets too: the direct path is not used.
    pub pcap: Option<PathBuf>,
    /// How many bytes of each packet are recorded, starting with its IP header; all of them by
    /// default. `PEERDMA_PCAP_BYTES` sets it for all NICs.
    pub pcap_bytes: Option<NonZeroU32>,
    /// The file to which what happens to each work request is written, as a Perfetto trace.
    /// `PEERDMA_TRACE` names one for all NICs. As for a capture, the direct path is not used.
    pub trace: Option<PathBuf>,
    /// The fault plan that this NIC follows ([`fault::Plan`]). `PEERDMA_FAULT` names one for all
    /// NICs. The direct path is also not used under a plan.
    pub fault: Option<PathBuf>,
    /// The file to which the report of the rules that fired is appended; standard error by default.
    /// `PEERDMA_FAULT_REPORT` names one for all NICs.
    pub fault_report: Option<PathBuf>,
    /// The file to which each failed work request appends a sentence. `PEERDMA_EXPLAIN` names one
    /// for all NICs.
    pub explain: Option<PathBuf>,
    /// Whether a plain registration of memory that belongs to a peer device asks the peer memory
    /// clients for it (PeerDirect; `docs/semantics.md` 2.11). Without it, as in mainline Linux,
    /// that is EFAULT.
    pub peermem: bool,
    /// The NIC's place in the PCI tree, which exporters are told. Found from the file's `[pci]`,
    /// unless a program sets it.
    #[serde(skip)]
    pub address: Option<DeviceAddr>,
    /// That tree, which determines which devices reach its device memory. As `address`.
    #[serde(skip)]
    pub tree: Option<Arc<pci::PciTree>>,
    /// Bytes of device memory, shared by all processes of a user.
    #[serde(deserialize_with = "size")]
    pub max_dm_size: u64,
    /// Bytes of each ring between two processes; a power of two from 16K to 16M.
    #[serde(deserialize_with = "size")]
    pub ring_size: u64,
}

/// A real NIC, for where real NICs differ in their behaviour (`docs/semantics.md` 2.6).
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Preset {
    /// Imports dma-bufs dynamically.
    #[default]
    Mlx5,
    /// Pins dma-bufs, and lets exporters revoke them.
    Irdma,
    /// Pins dma-bufs.
    Efa,
    /// Imports no dma-buf.
    Rxe,
}

/// How a NIC imports dma-bufs (`docs/semantics.md` 1.3 and 2.6).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ImporterConfig {
    /// The memory may move: it is mapped again when it is next used.
    Dynamic,
    /// Pinned, and lost for good when the exporter revokes it.
    Revocable,
    /// Pinned until it is deregistered.
    Pinned,
    /// Not at all.
    None,
}

impl Default for NicConfig {
    fn default() -> Self {
        Self {
            name: "peerdma0".to_owned(),
            preset: Preset::default(),
            netdev: None,
            udp_port: 4791,
            ports: 1,
            force_udp: false,
            ecn: true,
            direct: true,
            importer: None,
            odp: None,
            fault_us: 0,
            pin_limit: false,
            cgroup_root: PathBuf::from("/"),
            pcap: None,
            pcap_bytes: None,
            trace: None,
            fault: None,
            fault_report: None,
            explain: None,
            peermem: false,
            address: None,
            tree: None,
            max_dm_size: 256 << 10,
            ring_size: 256 << 10,
        }
    }
}

/// The value of `PEERDMA_PCAP_BYTES`.
fn pcap_bytes() -> Result<Option<NonZeroU32>> {
    const NAME: &str = "PEERDMA_PCAP_BYTES";
    let Some(said) = environment::var_os(NAME) else { return Ok(None) };
    let number = said.to_str().and_then(|said| said.parse().ok());
    number.map(Some).ok_or_else(|| {
        Refusal::new(Kind::Invalid, format!("{NAME}: {} is not a number of bytes", said.display()))
    })
}

impl Config {
    /// Reads the file that `PEERDMA_CONFIG` names, or returns the default.
    pub fn load() -> Result<Self> {
        match environment::configuration() {
            Ok(Some(file)) => Self::of_file(&file),
            Ok(None) => Self::parse(""),
            Err(what) => Err(Refusal::new(Kind::NoDevice, what)),
        }
        .and_then(Self::with_environment)
    }

    /// Applies the settings of the environment to every NIC.
    fn with_environment(mut self) -> Result<Self> {
        let named = |variable| environment::var_os(variable).map(PathBuf::from);
        let variables = [
            "PEERDMA_PCAP",
            "PEERDMA_TRACE",
            "PEERDMA_FAULT",
            "PEERDMA_FAULT_REPORT",
            "PEERDMA_EXPLAIN",
        ];
        let files = variables.map(named);
        let bytes = pcap_bytes()?;
        for nic in &mut self.nics {
            let [pcap, trace, fault, report, explain] = files.clone();
            nic.pcap = pcap.or(nic.pcap.take());
            nic.trace = trace.or(nic.trace.take());
            nic.fault = fault.or(nic.fault.take());
            nic.fault_report = report.or(nic.fault_report.take());
            nic.explain = explain.or(nic.explain.take());
            nic.pcap_bytes = bytes.or(nic.pcap_bytes);
        }
        Ok(self)
    }

    /// Reads one file.
    pub fn read(path: &Path) -> Result<Self> {
        let file = NamedFile::read(path).map_err(|error| {
            Refusal::new(Kind::NoDevice, format!("PEERDMA_CONFIG: {}: {error}", path.display()))
        })?;
        Self::of_file(&file)
    }

    fn of_file(file: &NamedFile) -> Result<Self> {
        Self::understand(file.text())
            .map_err(|what| invalid(format!("PEERDMA_CONFIG: {}", file.blame(&what))))
    }

    /// The configuration of a single NIC.
    pub(crate) fn of(nic: NicConfig) -> Result<Self> {
        let mut config = Self { nics: vec![nic], ..Self::default() };
        config.complete().map_err(invalid)?;
        Ok(config)
    }

    /// Reads the text of a file. A file that names no NIC has the default one.
    pub fn parse(text: &str) -> Result<Self> {
        Self::understand(text).map_err(invalid)
    }

    /// The same, with an error that is not in the log yet: it may quote the file.
    fn understand(text: &str) -> std::result::Result<Self, String> {
        let mut config: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        if config.nics.is_empty() {
            config.nics.push(NicConfig::default());
        }
        config.complete()?;
        Ok(config)
    }

    /// Checks each NIC, and finds its place in the PCI tree.
    fn complete(&mut self) -> std::result::Result<(), String> {
        for nic in &self.nics {
            nic.check()?;
        }
        self.find_addresses()
    }

    /// NICs come before GPUs, in the order of the file, and a file that names no GPU has `gpu0`:
    /// code that rebuilds the tree for another purpose (`gpu::Machine`) gets the same addresses.
    fn find_addresses(&mut self) -> std::result::Result<(), String> {
        if self.gpus.is_empty() {
            self.gpus.push(Named { name: first_gpu() });
        }
        let nics = self.nics.iter().map(|nic| nic.name.as_str());
        let names: Vec<&str> = nics.chain(self.gpus.iter().map(|gpu| gpu.name.as_str())).collect();
        let tree = self.pci.build_with(&names, &self.storage).map_err(|error| error.to_string())?;
        let tree = Arc::new(tree);
        for nic in self.nics.iter_mut().filter(|nic| nic.address.is_none()) {
            nic.address = tree.by_name(&nic.name).map(|bdf| DeviceAddr(bdf.to_bits()));
        }
        for nic in self.nics.iter_mut().filter(|nic| nic.tree.is_none()) {
            nic.tree = Some(Arc::clone(&tree));
        }
        Ok(())
    }
}

impl NicConfig {
    /// How it imports dma-bufs; `None` for not at all.
    pub fn importer_class(&self) -> Option<ImporterClass> {
        let importer = self.importer.unwrap_or(match self.preset {
            Preset::Mlx5 => ImporterConfig::Dynamic,
            Preset::Irdma => ImporterConfig::Revocable,
            Preset::Efa => ImporterConfig::Pinned,
            Preset::Rxe => ImporterConfig::None,
        });
        match importer {
            ImporterConfig::Dynamic => Some(ImporterClass::Dynamic),
            ImporterConfig::Revocable => Some(ImporterClass::PinnedRevocable),
            ImporterConfig::Pinned => Some(ImporterClass::Pinned),
            ImporterConfig::None => None,
        }
    }

    /// Whether regions may be registered for on-demand paging. A NIC that imports dma-bufs
    /// dynamically pages on demand.
    pub fn has_odp(&self) -> bool {
        self.odp.unwrap_or(matches!(self.preset, Preset::Mlx5 | Preset::Rxe))
    }

    /// Whether such a region may be the whole address space: rxe has only explicit ones
    /// (`docs/semantics.md` 2.6).
    pub fn has_implicit_odp(&self) -> bool {
        self.has_odp() && self.preset != Preset::Rxe
    }

    fn check(&self) -> std::result::Result<(), String> {
        let name_is_plain =
            self.name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if self.name.is_empty() || self.name.len() > 32 || !name_is_plain {
            return Err(format!(
                "nic name {:?}: it must be 1 to 32 letters, digits, '_' or '-'",
                self.name
            ));
        }
        if !(1..=MAX_PORTS).contains(&self.ports) {
            return Err(format!("ports {}: 1 to {MAX_PORTS}", self.ports));
        }
        let most = MAX_CAPACITY as u64;
        if !self.ring_size.is_power_of_two() || !(MIN_RING..=most).contains(&self.ring_size) {
            let (asked, least, most) = (self.ring_size, MIN_RING >> 10, most >> 20);
            return Err(format!(
                "ring_size {asked}: it must be a power of two from {least}K to {most}M"
            ));
        }
        Ok(())
    }
}

fn invalid(what: String) -> Refusal {
    Refusal::new(Kind::Invalid, what)
}

/// A size: a number of bytes, or a string with K, M or G.
fn size<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Bytes(u64),
        Text(String),
    }
    match Size::deserialize(deserializer)? {
        Size::Bytes(bytes) => Ok(bytes),
        Size::Text(text) => {
            let (digits, shift) = match text.trim().split_at(text.trim().len().saturating_sub(1)) {
                (digits, "K" | "k") => (digits, 10),
                (digits, "M" | "m") => (digits, 20),
                (digits, "G" | "g") => (digits, 30),
                _ => (text.trim(), 0),
            };
            digits
                .parse::<u64>()
                .ok()
                .and_then(|number| number.checked_mul(1 << shift))
                .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not a size")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_default() {
        let config = Config::parse("").unwrap();
        let (address, tree) = (config.nics[0].address, config.nics[0].tree.clone());
        assert!(address.is_some() && tree.is_some());
        assert_eq!(config.nics, [NicConfig { address, tree, ..NicConfig::default() }]);
    }

    #[test]
    fn sizes_take_suffixes() {
        let config = Config::parse("[[nic]]\nmax_dm_size = \"1M\"\nring_size = 65536").unwrap();
        assert_eq!((config.nics[0].max_dm_size, config.nics[0].ring_size), (1 << 20, 1 << 16));
    }

    #[test]
    fn mistakes_are_named() {
        let what = |text| Config::parse(text).unwrap_err().what().to_owned();
        assert!(what("[[nic]]\nnmae = \"x\"").contains("nmae"));
        assert!(what("[[nic]]\nname = \"a/b\"").contains("a/b"));
        assert!(what("[[nic]]\nmax_dm_size = \"1T\"").contains("1T"));
        assert!(what("[[nic]]\nports = 0").contains("1 to 1024"));
        assert!(what("[[nic]]\nring_size = 1000").contains("1000"));
        assert!(what("[[nic]]\nring_size = \"32M\"").contains("from 16K to 16M"));
    }

    #[test]
    fn the_largest_ring_of_a_configuration_can_be_created() {
        let config = Config::parse("[[nic]]\nring_size = \"16M\"").unwrap();
        link::shm::Producer::create(config.nics[0].ring_size as usize).expect("a ring");
    }
}
