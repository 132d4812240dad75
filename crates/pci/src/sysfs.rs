//! The tree from `/sys`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Bdf;
use crate::host_bridge::Cpu;
use crate::resource::{self, Resource};
use crate::tree::{Acs, Bar, BarKind, Function, FunctionKind, Ids, PciTree, RootBus, TreeError};

/// Why the tree could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SysfsError {
    /// A file could not be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        error: std::io::Error,
    },
    /// A file has unexpected content.
    #[error("{} does not hold {expected}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The expected content.
        expected: &'static str,
    },
    /// The functions do not form a tree.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

impl PciTree {
    /// Reads `root/bus/pci/devices`, where `root` is the mount point of sysfs, or a copy of it.
    ///
    /// Only root may read configuration space beyond its first 64 bytes, and ACS lies beyond.
    /// Without that permission, a bridge in an IOMMU group is assumed to redirect, since Linux
    /// enables ACS when there is an IOMMU. If that is wrong it costs speed; the opposite error
    /// would claim a path that does not exist.
    ///
    /// # Errors
    ///
    /// [`SysfsError`].
    pub fn from_sysfs(root: &Path, cpu: Cpu) -> Result<Self, SysfsError> {
        let devices = root.join("bus/pci/devices");
        let io = |path: &Path| {
            let path = path.to_owned();
            move |error| SysfsError::Io { path, error }
        };
        let mut functions = vec![];
        for entry in fs::read_dir(&devices).map_err(io(&devices))? {
            let path = entry.map_err(io(&devices))?.path();
            let place = fs::canonicalize(&path).map_err(io(&path))?;
            functions.push(read_function(&place)?);
        }
        Ok(Self::new(cpu, functions)?)
    }
}

/// The bytes of configuration space that a user without privilege may read.
pub(crate) const HIDDEN: usize = 64;

/// One function; `place` is its directory among those of the bridges above it.
fn read_function(place: &Path) -> Result<Function, SysfsError> {
    let text = |name: &str| {
        let path = place.join(name);
        fs::read_to_string(&path).map_err(|error| SysfsError::Io { path, error })
    };
    let malformed =
        |name: &str, expected| SysfsError::Malformed { path: place.join(name), expected };
    let hex = |name: &str| {
        let text = text(name)?;
        let digits = text.trim().trim_start_matches("0x");
        u32::from_str_radix(digits, 16).map_err(|_| malformed(name, "a hexadecimal number"))
    };
    let names: Vec<_> = place.iter().filter_map(|name| name.to_str()).collect();
    let bdf_of = |name: &&str| name.parse::<Bdf>().ok();
    let bdf = names.last().and_then(bdf_of).ok_or_else(|| malformed("", "a PCI address"))?;
    let upstream = names.iter().rev().nth(1).and_then(bdf_of);
    let root = names.iter().rev().find_map(|name| root_bus(name));
    let root = root.ok_or_else(|| malformed("..", "a host bridge's name, pciDDDD:BB"))?;
    let class = hex("class")? >> 8;
    // A file of 64 bytes, or a missing one, is treated like one without read permission.
    let config = fs::read(place.join("config")).unwrap_or_default();
    let kind = match (port_type(&config), class) {
        (Some(4), _) => FunctionKind::RootPort,
        (Some(5), _) => FunctionKind::UpstreamPort,
        (Some(6), _) => FunctionKind::DownstreamPort,
        // Only functions of PCI Express have this file, and no bridge to conventional PCI is seen
        // on a root bus that has it.
        (None, 0x0604)
            if upstream.is_none()
                && config.len() <= HIDDEN
                && place.join("max_link_speed").exists() =>
        {
            FunctionKind::RootPort
        }
        (_, 0x0604) => FunctionKind::Bridge,
        (_, 0x0600) => FunctionKind::HostBridge,
        _ => FunctionKind::Endpoint,
    };
    // All of it is 256 bytes for conventional PCI, and 4,096 for PCI Express.
    let hidden = config.len() <= HIDDEN;
    let acs = match acs_control(&config) {
        Some(acs) => acs,
        None if hidden && class == 0x0604 && place.join("iommu_group").exists() => Acs::REDIRECT,
        None => Acs::empty(),
    };
    // CAST: the kernel prints 16 bits.
    let ids = Ids { vendor: hex("vendor")? as u16, device: hex("device")? as u16 };
    let bars =
        bars(&text("resource")?).ok_or_else(|| malformed("resource", "start, end, flags"))?;
    Ok(Function { bdf, kind, upstream, root, ids, acs, bars })
}

/// `pci0000:3a`.
fn root_bus(name: &str) -> Option<RootBus> {
    let (domain, bus) = name.strip_prefix("pci")?.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    Some(RootBus { domain, bus: u8::from_str_radix(bus, 16).ok()? })
}

/// The BARs that have an address. The file has no bus addresses, so they are assumed to equal the
/// CPU's, as on all PCs.
fn bars(text: &str) -> Option<Vec<Bar>> {
    let placed = resource::parse(text)?.into_iter().filter(|resource| resource.is_placed());
    let bar = |resource: Resource| {
        let kind = if resource.is_memory() { BarKind::Memory } else { BarKind::Io };
        let Resource { index, addr, size, .. } = resource;
        Bar { index, addr, size, bus_offset: 0, kind }
    };
    Some(placed.map(bar).collect())
}

/// The port type in the PCI Express capability.
fn port_type(config: &[u8]) -> Option<u8> {
    const CAP_EXPRESS: u8 = 0x10;
    let mut at = usize::from(*config.get(0x34)?);
    // Each capability is at least four bytes long, so at most 48 fit; the limit ends a loop in the
    // list.
    for _ in 0..48 {
        if at < 0x40 {
            return None;
        }
        if *config.get(at)? == CAP_EXPRESS {
            return Some(config.get(at + 2)? >> 4);
        }
        at = usize::from(*config.get(at + 1)?);
    }
    None
}

/// The ACS control register.
fn acs_control(config: &[u8]) -> Option<Acs> {
    const EXT_CAP_ACS: u32 = 0x0d;
    let word = |at: usize| Some(u32::from_le_bytes(config.get(at..at + 4)?.try_into().ok()?));
    let mut at = 0x100;
    for _ in 0..480 {
        let header = word(at)?;
        if header & 0xffff == EXT_CAP_ACS {
            // CAST: the upper half of the second word.
            return Some(Acs::from_bits_truncate((word(at + 4)? >> 16) as u16));
        }
        // CAST: twelve bits.
        at = (header >> 20) as usize;
        if at < 0x100 {
            return None;
        }
    }
    None
}
