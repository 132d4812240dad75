//! The kernel: its version, options and modules.

use crate::fact::{Fact, fact, row};
use crate::files::Files;

/// A kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) release: String,
    /// The file with its options, and the text of it.
    config: Option<(String, String)>,
    /// Whether the options exist only compressed.
    compressed: bool,
    /// Symbols that show an option without its file; `None` if symbols are not shown.
    symbols: Option<Vec<&'static str>>,
    modules: Vec<String>,
}

/// An option of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    On,
    Off,
    Unknown,
}

/// Options, and a function that exists if and only if the option is on.
const SHOWN_BY: [(&str, &str); 5] = [
    ("PCI_P2PDMA", "pci_p2pdma_distance_many"),
    ("CROSS_MEMORY_ATTACH", "sys_process_vm_readv"),
    ("DMA_SHARED_BUFFER", "dma_buf_export"),
    ("IO_URING", "sys_io_uring_setup"),
    ("USERFAULTFD", "sys_userfaultfd"),
];

/// Modules that matter for a use.
const MODULES: [&str; 21] = [
    "ib_core",
    "ib_uverbs",
    "rdma_ucm",
    "rdma_cm",
    "mlx5_ib",
    "mlx4_ib",
    "irdma",
    "bnxt_re",
    "efa",
    "mana_ib",
    "ionic_rdma",
    "rdma_rxe",
    "siw",
    "nvidia",
    "nvidia_peermem",
    "nv_peer_mem",
    "amdgpu",
    "xe",
    "i915",
    "gdrdrv",
    "nvme",
];

impl Kernel {
    pub(super) fn read(files: &Files) -> Self {
        let release = files.text("/proc/sys/kernel/osrelease").unwrap_or_default();
        let places = [
            format!("/boot/config-{release}"),
            format!("/lib/modules/{release}/config"),
            format!("/usr/lib/modules/{release}/config"),
            format!("/lib/modules/{release}/build/.config"),
        ];
        let config = places.into_iter().find_map(|place| {
            let text = files.text(&place)?;
            Some((place, text))
        });
        let modules =
            MODULES.into_iter().filter(|name| files.exists(&format!("/sys/module/{name}")));
        Self {
            symbols: if config.is_none() { symbols(files) } else { None },
            compressed: config.is_none() && files.exists("/proc/config.gz"),
            modules: modules.map(str::to_owned).collect(),
            release,
            config,
        }
    }

    /// Whether it is this version or a newer one.
    pub(crate) fn is_at_least(&self, major: u32, minor: u32) -> bool {
        let mut numbers = self.release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
        let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
        (next(), next()) >= (major, minor)
    }

    /// An option, named without `CONFIG_`.
    pub(crate) fn option(&self, name: &str) -> Setting {
        if let Some((_, text)) = &self.config {
            let key = format!("CONFIG_{name}=");
            let value = text.lines().find_map(|line| line.strip_prefix(key.as_str()));
            return if matches!(value, Some("y" | "m")) { Setting::On } else { Setting::Off };
        }
        let symbol = SHOWN_BY.iter().find(|(option, _)| *option == name).map(|(_, symbol)| symbol);
        match (symbol, &self.symbols) {
            (Some(symbol), Some(symbols)) if symbols.contains(symbol) => Setting::On,
            (Some(_), Some(_)) => Setting::Off,
            _ => Setting::Unknown,
        }
    }

    pub(crate) fn has_module(&self, name: &str) -> bool {
        self.modules.iter().any(|module| module == name)
    }

    pub(super) fn facts(&self) -> Vec<Fact> {
        let options = match &self.config {
            Some((place, _)) => Some(place.clone()),
            None if self.symbols.is_some() => Some("by symbols in /proc/kallsyms".to_owned()),
            None if self.compressed => Some("unknown: only in /proc/config.gz".to_owned()),
            None => None,
        };
        vec![
            fact("kernel", "kernel", Some(self.release.clone())),
            fact("kernel_options", "kernel options", options),
            fact("modules", "modules (or built in)", Some(row(&self.modules))),
        ]
    }
}

/// Which of the symbols that show an option there are. Anybody may read the names.
fn symbols(files: &Files) -> Option<Vec<&'static str>> {
    let text = files.text("/proc/kallsyms")?;
    let mut there = vec![];
    for line in text.lines() {
        let mut words = line.split_whitespace().skip(1);
        // A weak system call is one that the kernel does not have.
        let (Some("T" | "t"), Some(name)) = (words.next(), words.next()) else { continue };
        let shown = SHOWN_BY.iter().map(|(_, symbol)| *symbol);
        there.extend(shown.filter(|symbol| name.ends_with(symbol)));
    }
    (!text.is_empty()).then_some(there)
}
