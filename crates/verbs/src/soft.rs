//! What only the software device has: no library could answer these calls, so they are functions
//! here and not of the types that both providers share.
//!
//! ```no_run
//! use verbs::soft::{self, NicConfig, Preset};
//!
//! # fn main() -> verbs::Result<()> {
//! let config = NicConfig { preset: Preset::Rxe, ..NicConfig::default() };
//! let nic = soft::device(config)?;
//! let (here, there) = (nic.open()?, soft::open_another(&nic)?); // as two processes
//! # let _ = there;
//! println!("{} went straight into memory", soft::counters(&here)?.direct_operations);
//! # Ok(()) }
//! ```
//!
//! What the others do with an object of a library's NIC is said of each; [`Device::is_soft`] tells
//! before.

pub use device::config::{ImporterConfig, NicConfig, Preset};
pub use device::{Counters, Resources};
use dmabuf::Mapping;
use iba::Access;

use crate::{Context, Cq, Device, Mr, Pd, Result, Wc};

/// A software NIC that the program itself configures, rather than the file that `PEERDMA_CONFIG`
/// names.
///
/// # Errors
///
/// [`Kind::Invalid`](crate::Kind::Invalid) for a configuration that is wrong, or the name of another
/// NIC of the process.
pub fn device(config: NicConfig) -> Result<Device> {
    Device::soft(config)
}

/// Opens a device as another process would, as a virtual function of its own: packets between two
/// such contexts travel as between two processes of one host, not within this one. For programs
/// that have several roles, and for tests.
///
/// # Errors
///
/// As [`Device::open`]: no number is free among the NIC's 1023, or the system has no descriptors or
/// threads left. [`Kind::NotSupported`](crate::Kind::NotSupported) for a NIC of a library, of which
/// [`Device::open`] makes another context.
pub fn open_another(device: &Device) -> Result<Context> {
    device.open_another()
}

/// The counters since this process opened the device, of all its ports.
///
/// # Errors
///
/// [`Kind::NotSupported`](crate::Kind::NotSupported) for a NIC of a library.
pub fn counters(context: &Context) -> Result<Counters> {
    Ok(context.arm().soft("counters")?.lock().counters())
}

/// The same of each port that queue pairs reach, from the first on. The first also has what belongs
/// to no queue pair, such as page faults.
///
/// # Errors
///
/// [`Kind::NotSupported`](crate::Kind::NotSupported) for a NIC of a library.
pub fn port_counters(context: &Context) -> Result<Vec<Counters>> {
    Ok(context.arm().soft("port_counters")?.lock().port_counters())
}

/// How many objects this process has on the NIC, in all contexts.
///
/// # Errors
///
/// [`Kind::NotSupported`](crate::Kind::NotSupported) for a NIC of a library.
pub fn resources(context: &Context) -> Result<Resources> {
    Ok(context.arm().soft("resources")?.lock().resources())
}

/// Why a work request of this queue failed, in one sentence: what it was, where it went, what the
/// peer answered, what was tried. For a flushed request: why the QP was in error, if a work request
/// of the QP failed or its connection ended. `None` for success, for failures long ago (the device
/// keeps the last few hundred), and for a NIC of a library, which gives no reasons.
pub fn explain(cq: &Cq, wc: &Wc) -> Option<String> {
    cq.explain(wc)
}

/// Registers memory of a peer device by its CPU mapping, as `ibv_reg_mr` of the address does:
/// PeerDirect, the older interface. Its addresses are those of the mapping, which need not outlive
/// the call.
///
/// # Errors
///
/// [`Kind::BadAddress`](crate::Kind::BadAddress) unless the NIC has
/// [`peermem`](NicConfig::peermem) and the driver of the memory claims all of it; otherwise the
/// driver's refusal. [`Kind::NotSupported`](crate::Kind::NotSupported) for a NIC of a library, for
/// which [`Pd::reg_raw_mr`] registers an address.
pub fn reg_mapping(pd: &Pd, mapping: &Mapping, access: Access) -> Result<Mr> {
    reg_peer_address(pd, mapping.addr() as u64, mapping.len(), access)
}

/// The same for an address alone, which may be one that a peer memory client assigned to its memory
/// ([`claim_arena`](dmabuf::peer::claim_arena)), mapped or not, or the address of a mapping.
///
/// # Errors
///
/// As [`reg_mapping`].
pub fn reg_peer_address(pd: &Pd, addr: u64, length: u64, access: Access) -> Result<Mr> {
    Mr::peer(pd, addr, length, access)
}
