//! The configuration space of a PCI function, as programs read it from `config`: header, BARs, bus
//! numbers and windows of bridges, PCI Express, ACS, sizes of a BAR.

use std::ops::RangeInclusive;

use ::pci::{Acs, FunctionKind};

/// What a function says of itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Identity {
    pub(super) vendor: u16,
    pub(super) device: u16,
    pub(super) subsystem_vendor: u16,
    pub(super) subsystem_device: u16,
    /// 24 bits: base class, subclass, programming interface.
    pub(super) class: u32,
    pub(super) revision: u8,
}

/// A BAR: 64 bits wide, prefetchable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// Its first register. It takes the next one, too.
    pub(super) register: u8,
    pub(super) addr: u64,
    pub(super) size: u64,
}

/// The buses and the memory below a bridge.
#[derive(Clone, Debug)]
pub(super) struct Below {
    pub(super) primary: u8,
    pub(super) buses: RangeInclusive<u8>,
    /// The first byte of the BARs below, and the one behind the last; none without a BAR.
    pub(super) memory: Option<(u64, u64)>,
}

/// All that the space shows.
#[derive(Debug)]
pub(super) struct Space<'a> {
    pub(super) kind: FunctionKind,
    pub(super) identity: Identity,
    /// Whether the device has further functions.
    pub(super) is_multifunction: bool,
    pub(super) windows: &'a [Window],
    /// Of a bridge.
    pub(super) below: Option<Below>,
    pub(super) acs: Acs,
    /// Sizes that the first BAR can have, a bit for each power of two from 1 MiB.
    pub(super) sizes: u64,
}

/// The link of every function: 32 GT/s, 16 lanes.
const LINK_SPEED: u32 = 5;
const LINK_WIDTH: u32 = 16;

const EXPRESS: usize = 0x40;
const EXTENDED: usize = 0x100;
/// Where the capability for sizes of a BAR is. ACS is at the first place, or a place of no
/// capability that leads here.
const RESIZABLE: usize = 0x140;

/// The unit of a bridge's windows.
const MIB: u64 = 1 << 20;
/// Bytes of the space of a PCI Express function.
const LENGTH: usize = 4096;

impl Space<'_> {
    /// The bytes.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut space = Bytes(vec![0; LENGTH]);
        let id = self.identity;
        space.u16(0x00, id.vendor);
        space.u16(0x02, id.device);
        // Memory and bus master on, INTx off.
        space.u16(0x04, 0x0406);
        space.u32(0x08, id.class << 8 | u32::from(id.revision));
        let multifunction = if self.is_multifunction { 0x80 } else { 0 };
        space.0[0x0e] = u8::from(self.below.is_some()) | multifunction;
        match &self.below {
            Some(below) => bridge(&mut space, below),
            None => self.device(&mut space),
        }
        if self.kind != FunctionKind::HostBridge {
            // There is a list of capabilities.
            space.u16(0x06, 0x0010);
            space.0[0x34] = EXPRESS as u8;
            self.express(&mut space);
            self.extended(&mut space);
        }
        space.0
    }

    fn device(&self, space: &mut Bytes) {
        for window in self.windows {
            let at = 0x10 + 4 * usize::from(window.register);
            // 64 bits, prefetchable.
            space.u64(at, window.addr & !0xf | 0xc);
        }
        space.u16(0x2c, self.identity.subsystem_vendor);
        space.u16(0x2e, self.identity.subsystem_device);
    }

    fn express(&self, space: &mut Bytes) {
        let (kind, is_downstream) = match self.kind {
            FunctionKind::RootPort => (4, true),
            FunctionKind::UpstreamPort => (5, false),
            FunctionKind::DownstreamPort => (6, true),
            _ => (0, false),
        };
        let slot = if is_downstream { 0x100 } else { 0 };
        space.u16(EXPRESS, 0x10);
        space.u16(EXPRESS + 0x02, 2 | kind << 4 | slot);
        // Payloads up to 256 bytes, errors by role.
        space.u32(EXPRESS + 0x04, 0x8001);
        let link = LINK_SPEED | LINK_WIDTH << 4;
        space.u32(EXPRESS + 0x0c, link);
        // CAST: the status has the same fields in 16 bits, and whether the link is up.
        space.u16(EXPRESS + 0x12, link as u16 | if is_downstream { 1 << 13 } else { 0 });
        // Each speed up to that of the link.
        space.u32(EXPRESS + 0x2c, ((1 << LINK_SPEED) - 1) << 1);
        // CAST: four bits.
        space.u16(EXPRESS + 0x30, LINK_SPEED as u16);
    }

    fn extended(&self, space: &mut Bytes) {
        let next = if self.sizes == 0 { 0 } else { RESIZABLE as u32 };
        let header = |id: u32, next: u32| id | 1 << 16 | next << 20;
        if !self.acs.is_empty() {
            let can = Acs::all().difference(Acs::EC).union(self.acs);
            space.u32(EXTENDED, header(0x0d, next));
            // A vector for egress control has eight bits.
            space.u16(EXTENDED + 4, can.bits() | if can.contains(Acs::EC) { 8 << 8 } else { 0 });
            space.u16(EXTENDED + 6, self.acs.bits());
        } else if next != 0 {
            space.u32(EXTENDED, header(0, next));
        }
        if let Some(window) = self.windows.first().filter(|_| self.sizes != 0) {
            space.u32(RESIZABLE, header(0x15, 0));
            // CAST: sizes from 1 MiB to 128 TiB have 28 bits here.
            space.u32(RESIZABLE + 4, (self.sizes as u32) << 4);
            let size = window.size.ilog2().saturating_sub(20);
            space.u32(RESIZABLE + 8, u32::from(window.register) | 1 << 5 | size << 8);
        }
    }
}

fn bridge(space: &mut Bytes, below: &Below) {
    space.0[0x18] = below.primary;
    space.0[0x19] = *below.buses.start();
    space.0[0x1a] = *below.buses.end();
    // No ports and no memory of 32 bits: the base is above the limit.
    space.0[0x1c] = 0xf0;
    space.u16(0x20, 0xfff0);
    let (base, limit) = match below.memory {
        Some((from, to)) => (from / MIB, to.div_ceil(MIB) - 1),
        None => (0xfff, 0),
    };
    // CAST: twelve bits of the address in MiB here, and the rest in the registers behind.
    let low = |mib: u64| ((mib & 0xfff) as u16) << 4 | 1;
    let high = |mib: u64| (mib >> 12) as u32;
    space.u16(0x24, low(base));
    space.u16(0x26, low(limit));
    space.u32(0x28, high(base));
    space.u32(0x2c, high(limit));
}

struct Bytes(Vec<u8>);

impl Bytes {
    fn u16(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(kind: FunctionKind, acs: Acs) -> Space<'static> {
        let identity = Identity { vendor: 0x1b36, class: 0x06_0400, ..Identity::default() };
        Space { kind, identity, is_multifunction: false, windows: &[], below: None, acs, sizes: 0 }
    }

    #[test]
    fn a_bridge_has_its_buses_and_the_window_of_what_is_below() {
        let memory = Some((0x100_0000_0000, 0x100_1000_0000));
        let below = Some(Below { primary: 2, buses: 3..=5, memory });
        let bytes = Space { below, ..space(FunctionKind::DownstreamPort, Acs::empty()) }.bytes();
        assert_eq!((bytes[0x0e], &bytes[0x18..0x1b]), (1, &[2, 3, 5][..]));
        assert_eq!(&bytes[0x24..0x30], [0x01, 0x00, 0xf1, 0x0f, 0, 1, 0, 0, 0, 1, 0, 0]);
        assert_eq!((bytes[EXPRESS], bytes[EXPRESS + 2] >> 4), (0x10, 6));
        assert_eq!(&bytes[EXTENDED..EXTENDED + 4], [0; 4]);
    }

    #[test]
    fn acs_is_a_capability_where_there_is_some() {
        let bytes = space(FunctionKind::RootPort, Acs::RR | Acs::CR).bytes();
        assert_eq!(&bytes[EXTENDED..EXTENDED + 4], [0x0d, 0, 1, 0]);
        assert_eq!(&bytes[EXTENDED + 4..EXTENDED + 8], [0x5f, 0, 0x0c, 0]);
    }

    #[test]
    fn a_device_has_its_bars_and_their_sizes() {
        let windows = [Window { register: 0, addr: 1 << 40, size: 256 << 20 }];
        let sizes = 1 << 8 | 1 << 10;
        let bytes =
            Space { windows: &windows, sizes, ..space(FunctionKind::Endpoint, Acs::empty()) };
        let bytes = bytes.bytes();
        assert_eq!(&bytes[0x10..0x18], [0x0c, 0, 0, 0, 0, 1, 0, 0]);
        let at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        assert_eq!((at(EXTENDED) >> 20) as usize, RESIZABLE);
        assert_eq!((at(RESIZABLE + 4) >> 4, at(RESIZABLE + 8) >> 8), (sizes as u32, 8));
    }
}
