//! The pages of Identify (NVMe 1.4, 5.15).

use std::net::SocketAddr;

use crate::target::controller::{ERRORS, EVENTS};
use crate::target::events::NAMESPACE_ATTRIBUTE;
use crate::target::io::{IN_CAPSULE, MDTS};
use crate::target::registers::VERSION;
use crate::target::subsystem::{MAX_NSID, Namespace, Subsystem};
use crate::wire::capsule::{COMMAND_LEN, COMPLETION_LEN};
use crate::wire::cm::MAX_DEPTH;
use crate::wire::{DISCOVERY_NQN, nqn, put, put_text};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Bits of the controller's SGLS: supported; keyed data blocks; offsets into the capsule.
const SGLS: u32 = 1 | 1 << 2 | 1 << 20;
/// Bits of ONCS: Dataset Management, Write Zeroes, reservations.
const ONCS: u16 = 1 << 2 | 1 << 3 | 1 << 5;
/// Bits of LPA: pages may be read from an offset on; there is the page of commands and effects.
const LPA_OFFSETS: u8 = 1 << 2;
const LPA_EFFECTS: u8 = 1 << 1;
/// RESCAP: reservations of each kind; a key may be ignored. They do not last.
const RESCAP: u8 = 0xfe;
/// DLFEAT: blocks that were deallocated read as zeros.
const DLFEAT_ZEROS: u8 = 1;
/// CMIC, and NMIC: several controllers may have the namespace.
const CMIC_MULTI: u8 = 1 << 1;
const NMIC_SHARED: u8 = 1;
/// In units of 100 ms.
const KAS: u16 = 1;

/// Identify Controller.
pub fn controller(cntlid: u16, subsystem: &Subsystem, discovery: Option<SocketAddr>) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    let mut at = |offset: usize, bytes: &[u8]| put(&mut page[offset..], bytes);
    let (kind, name) = match discovery {
        Some(_) => (2, DISCOVERY_NQN),
        None => (1, subsystem.nqn()),
    };
    let mut texts = [b' '; 68];
    put_text(&mut texts[..20], &format!("{:016x}", nguid_of(subsystem)));
    put_text(&mut texts[20..60], "peerdma nvmet");
    put_text(&mut texts[60..], env!("CARGO_PKG_VERSION"));
    at(4, &texts);
    at(76, &[CMIC_MULTI, MDTS]);
    at(78, &cntlid.to_le_bytes());
    at(80, &VERSION.to_le_bytes());
    at(111, &[kind]);
    let pages = if discovery.is_some() { LPA_OFFSETS } else { LPA_OFFSETS | LPA_EFFECTS };
    // CAST: small constants, less one.
    at(258, &[3, EVENTS as u8 - 1, 0x03, pages, ERRORS as u8 - 1]);
    at(320, &KAS.to_le_bytes());
    at(512, &[0x66, 0x44]);
    at(514, &MAX_DEPTH.to_le_bytes());
    let (most, events) = match discovery {
        Some(_) => (0, 0),
        None => (MAX_NSID, NAMESPACE_ATTRIBUTE),
    };
    at(92, &events.to_le_bytes());
    at(516, &most.to_le_bytes());
    at(520, &ONCS.to_le_bytes());
    // A volatile write cache: the page cache, or the disk's.
    at(525, &[1]);
    at(536, &SGLS.to_le_bytes());
    at(768, &nqn(name));
    // CAST: capsules are counted in units of 16 bytes.
    at(1792, &((COMMAND_LEN as u32 + IN_CAPSULE) / 16).to_le_bytes());
    at(1796, &(COMPLETION_LEN as u32 / 16).to_le_bytes());
    // One descriptor in a command.
    at(1803, &[1]);
    page
}

/// A number for the subsystem's serial number.
fn nguid_of(subsystem: &Subsystem) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    subsystem.nqn().hash(&mut hasher);
    hasher.finish()
}

/// Identify Namespace: zeros for one that is not there.
pub fn namespace(namespace: Option<&Namespace>) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    let Some(namespace) = namespace else { return page };
    let mut at = |offset: usize, bytes: &[u8]| put(&mut page[offset..], bytes);
    let blocks = namespace.geometry.blocks.to_le_bytes();
    for offset in [0, 8, 16] {
        at(offset, &blocks);
    }
    at(30, &[NMIC_SHARED]);
    at(31, &[RESCAP]);
    at(33, &[DLFEAT_ZEROS]);
    let is_protected = !namespace.file().is_writable();
    at(99, &[is_protected.into()]);
    at(104, &namespace.nguid);
    // CAST: a power of two below 64.
    at(130, &[namespace.geometry.shift as u8]);
    page
}

/// The numbers of the namespaces above `after`.
pub fn active_list(subsystem: &Subsystem, after: u32) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    let numbers = subsystem.numbers().into_iter().filter(|nsid| *nsid > after);
    for (entry, nsid) in page.chunks_exact_mut(4).zip(numbers) {
        entry.copy_from_slice(&nsid.to_le_bytes());
    }
    page
}

/// The descriptors of a namespace: its NGUID and, of the same bytes, its UUID.
pub fn descriptors(namespace: &Namespace) -> Vec<u8> {
    const NGUID: u8 = 2;
    const UUID: u8 = 3;
    let mut page = vec![0; PAGE];
    for (entry, kind) in page.chunks_exact_mut(20).zip([NGUID, UUID]) {
        (entry[0], entry[1]) = (kind, 16);
        entry[4..].copy_from_slice(&namespace.nguid);
    }
    page
}
