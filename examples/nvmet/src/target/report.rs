//! What moved, by which way.

use std::fmt;

use umem::ways::{WayBytes, bytes_by_way};

/// Bytes by map type, read and written together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report(pub WayBytes);

impl Report {
    /// Of all devices of this process, since it began.
    pub fn now() -> Self {
        Self(bytes_by_way())
    }

    /// What came since then.
    #[must_use]
    pub fn since(&self, then: &Self) -> Self {
        let (now, then) = (self.0, then.0);
        Self(WayBytes {
            bus_address: now.bus_address - then.bus_address,
            through_host_bridge: now.through_host_bridge - then.through_host_bridge,
            system: now.system - then.system,
            cpu: now.cpu - then.cpu,
            bounced: now.bounced - then.bounced,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WayBytes { bus_address, through_host_bridge, system, cpu, bounced } = self.0;
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
