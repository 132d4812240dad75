//! How the memory of dma-bufs was reached: bytes for each path that exporters gave, since the
//! process started.
//!
//! A path is a policy label: the path that a device's access would have to take by the rules of the
//! PCI tree, as the exporter reports it. It does not say what the bytes travelled over, which is
//! always the CPU's memory bus. Each copy that touches such memory is counted in the process that
//! makes it, whatever carried the message.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use dmabuf::Reach;

static BYTES: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
static BOUNCED: AtomicU64 = AtomicU64::new(0);

/// The path of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are no other ways")]
pub enum Way {
    /// By addresses that an exporter gave for the device.
    Mapped(Reach),
    /// Through the CPU's mapping of the buffer, since its addresses are on no bus of this process
    /// and the location of its bytes is unknown: a dma-buf of some kernel driver.
    Cpu,
}

/// Bytes that were read and bytes that were written, together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "one for each way")]
pub struct WayBytes {
    /// From device to device, by the address on the bus that both share
    /// (`PCI_P2PDMA_MAP_BUS_ADDR`).
    pub bus_address: u64,
    /// From device to device, through the host bridge (`PCI_P2PDMA_MAP_THRU_HOST_BRIDGE`).
    pub through_host_bridge: u64,
    /// In buffers that were in host memory.
    pub system: u64,
    /// Through the CPU's mapping.
    pub cpu: u64,
    /// Of all these, the bytes that were also stored in host memory, except in the packets of a
    /// carrier.
    pub bounced: u64,
}

impl WayBytes {
    /// What came since `then`, an earlier count.
    #[must_use]
    pub const fn since(self, then: &Self) -> Self {
        Self {
            bus_address: self.bus_address - then.bus_address,
            through_host_bridge: self.through_host_bridge - then.through_host_bridge,
            system: self.system - then.system,
            cpu: self.cpu - then.cpu,
            bounced: self.bounced - then.bounced,
        }
    }
}

/// A table, a line for each way.
impl fmt::Display for WayBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bus_address, through_host_bridge, system, cpu, bounced } = self;
        writeln!(f, "{:<20} {:>16}", "map type", "bytes")?;
        for (way, bytes) in [
            ("bus address", bus_address),
            ("through host bridge", through_host_bridge),
            ("system memory", system),
            ("CPU mapping", cpu),
            ("of these, bounced", bounced),
        ] {
            writeln!(f, "{way:<20} {bytes:>16}")?;
        }
        Ok(())
    }
}

impl Way {
    /// The number that encodes it: not 0.
    pub const fn code(self) -> u8 {
        match self {
            Self::Mapped(Reach::BusAddress) => 1,
            Self::Mapped(Reach::ThroughHostBridge) => 2,
            Self::Mapped(Reach::System) => 3,
            Self::Cpu => 4,
        }
    }

    /// The path that a number encodes.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Mapped(Reach::BusAddress)),
            2 => Some(Self::Mapped(Reach::ThroughHostBridge)),
            3 => Some(Self::Mapped(Reach::System)),
            4 => Some(Self::Cpu),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn count(self, bytes: u64) {
        // ORDERING: a counter that only grows and is only reported.
        BYTES[usize::from(self.code()) - 1].fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The counts so far, of all devices of this process together.
pub fn bytes_by_way() -> WayBytes {
    let [bus_address, through_host_bridge, system, cpu] =
        BYTES.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
    let bounced = BOUNCED.load(Ordering::Relaxed);
    WayBytes { bus_address, through_host_bridge, system, cpu, bounced }
}

/// Adds bytes that were stored in host memory.
pub(crate) fn count_bounced(bytes: u64) {
    BOUNCED.fetch_add(bytes, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Umem;

    #[test]
    fn every_way_has_a_number_of_its_own() {
        for code in 1..=4 {
            assert_eq!(Way::from_code(code).map(Way::code), Some(code));
        }
        assert_eq!((Way::from_code(0), Way::from_code(5)), (None, None));
    }

    #[test]
    fn plain_memory_is_reached_in_system_memory() {
        let buffer =
            dmabuf::DmaBuf::export_from(&dmabuf::Memory::Memfd, 4096, "plain").expect("memory");
        assert!(buffer.is_host_memory());
        let mapping = buffer.map(0, 4096).expect("offered");
        let umem = Umem::dmabuf(mapping, 0, 4096).expect("inside");
        assert_eq!(umem.way(), Some(Way::Mapped(Reach::System)));
    }

    /// The counts are per process, and other tests count too, so this uses a path that none of them
    /// takes.
    #[test]
    fn bytes_of_a_dma_buf_bounce_and_others_do_not() {
        let host = Umem::host(&crate::HostBuf::anonymous(4096).expect("memory exists"));
        let before = bytes_by_way().bounced;
        host.bounced(100);
        assert_eq!(bytes_by_way().bounced, before);
        host.reached(Some(Way::Mapped(Reach::BusAddress))).bounced(100);
        assert_eq!(bytes_by_way().bounced, before + 100);
    }
}
