//! The devices of a topology.

use std::fmt;

use crate::bdf::Bdf;
use crate::tree::Ids;

/// What a device is to its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A display controller (class 0x03) or an accelerator (class 0x12).
    Gpu,
    /// A network controller (class 0x02).
    Nic,
    /// An NVMe controller (class 0x0108).
    Nvme,
}

impl DeviceKind {
    /// The kind of a PCI class, base class and subclass.
    pub fn of_class(class: u16) -> Option<Self> {
        match (class >> 8, class & 0xff) {
            (0x03 | 0x12, _) => Some(Self::Gpu),
            (0x02, _) => Some(Self::Nic),
            (0x01, 0x08) => Some(Self::Nvme),
            _ => None,
        }
    }

    /// What a label begins with.
    pub fn label(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::Nic => "NIC",
            Self::Nvme => "NVME",
        }
    }
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Device {
    /// `GPU0`, `NIC0`, `NVME0`: kind, and number among those of its kind.
    pub label: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Its address.
    pub bdf: Bdf,
    /// Vendor and device.
    pub ids: Ids,
    /// What other programs call it: `mlx5_0` and `ens3f0`, `nvme0`, a name of the configuration.
    pub names: Vec<String>,
    /// The kernel's driver for it.
    pub driver: Option<String>,
    /// The NUMA node that it is next to.
    pub numa: Option<u32>,
    /// The processors that it is next to, `0-15,32-47`.
    pub cpus: Option<String>,
    /// What it has for others.
    pub memory: Memory,
}

/// The memory that a device has for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Memory {
    /// A device of this kind has none, unless its driver says otherwise.
    None,
    /// Its memory is behind no BAR.
    NoBar,
    /// The BAR has no address: the bridges above it have no room for it.
    NoAddress {
        /// The BAR.
        bar: u8,
        /// Its size.
        size: u64,
    },
    /// The BAR has less than a page.
    TooSmall {
        /// The BAR.
        bar: u8,
        /// Its size.
        size: u64,
    },
    /// Memory that others reach.
    Reachable {
        /// Bytes that others reach; `None` if nobody tells.
        size: Option<u64>,
        /// All bytes of the device, if known.
        of: Option<u64>,
        /// The size that the BAR can be given, if it is larger.
        resizable_to: Option<u64>,
    },
}

impl Device {
    /// A device of which no more is known. Its number is [`Topology`](super::Topology)'s affair.
    pub fn new(kind: DeviceKind, bdf: Bdf) -> Self {
        let memory = Memory::Reachable { size: None, of: None, resizable_to: None };
        Self {
            label: String::new(),
            kind,
            bdf,
            ids: Ids::default(),
            names: vec![],
            driver: None,
            numa: None,
            cpus: None,
            memory,
        }
    }
}

impl Memory {
    /// Whether others reach any of it.
    pub fn is_reachable(self) -> bool {
        matches!(self, Self::Reachable { .. })
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::None => write!(f, "its driver has no memory for other devices"),
            Self::NoBar => write!(f, "no BAR leads to its memory"),
            Self::NoAddress { bar, size } => write!(
                f,
                "BAR {bar} ({}) has no address: the bridges above have no room for it (firmware: \
                 Above 4G Decoding)",
                Size(size)
            ),
            Self::TooSmall { bar, size } => {
                write!(f, "BAR {bar} is too small: {}, less than a page", Size(size))
            }
            Self::Reachable { size, of, resizable_to } => {
                match size {
                    None => write!(f, "reachable")?,
                    Some(size) => write!(f, "{} reachable", Size(size))?,
                }
                if let Some(of) = of.filter(|of| Some(*of) != size) {
                    write!(f, " of {}", Size(of))?;
                }
                match resizable_to {
                    Some(larger) => write!(f, ", BAR resizable to {}", Size(larger)),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Bytes, in the largest unit that leaves a whole number.
pub(super) struct Size(pub(super) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let bytes = self.0;
        let whole = |shift: u32| bytes > 0 && bytes.trailing_zeros() >= shift;
        match units.into_iter().find(|(shift, _)| whole(*shift)) {
            Some((shift, unit)) => write!(f, "{} {unit}", bytes >> shift),
            None => write!(f, "{bytes} bytes"),
        }
    }
}
