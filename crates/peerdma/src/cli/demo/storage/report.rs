//! What `peerdma demo --storage` prints: a row for each kind of memory.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use orchestrator::Placed;
use providers::Kind;
use storage::{Client, File};
use umem::ways::WayBytes;

/// One way through the machine.
pub(super) struct Row {
    kind: Kind,
    /// The provider of the memory, and how far it is from each client.
    near: String,
    took: Duration,
    length: u64,
    ways: WayBytes,
}

impl Row {
    pub(super) fn new(
        kind: Kind,
        placed: Option<&Placed>,
        took: Duration,
        length: u64,
        ways: WayBytes,
    ) -> Self {
        let near = placed.map_or_else(
            || "the host".to_owned(),
            |placed| {
                let ways =
                    placed.ways().iter().map(|way| format!("{} {}", way.client, way.distance));
                format!("{}: {}", placed.provider(), ways.collect::<Vec<_>>().join(", "))
            },
        );
        Self { kind, near, took, length, ways }
    }
}

/// The table.
pub(super) struct Report {
    header: String,
    rows: Vec<Row>,
}

impl Report {
    pub(super) fn new(path: &Path, length: u64, file: &File, disk: &Client) -> Self {
        let how = if file.is_direct() { "direct I/O" } else { "the page cache" };
        let by = if disk.has_ring() { "io_uring" } else { "pread" };
        let header = format!(
            "{} ({}) to another process, by {how} and {by}, then RDMA WRITE.\n\
             NIC, disk and GPU are below one switch; each byte was checked.\n",
            path.display(),
            size(length)
        );
        Self { header, rows: Vec::new() }
    }

    pub(super) fn row(&mut self, row: Row) {
        self.rows.push(row);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.header)?;
        writeln!(
            f,
            "{:<8} {:<26} {:>9}   {:>12} {:>12} {:>12} {:>8}",
            "memory",
            "provider, distances",
            "GB/s",
            "bus address",
            "host bridge",
            "system",
            "bounced"
        )?;
        for Row { kind, near, took, length, ways } in &self.rows {
            let speed = *length as f64 / took.as_secs_f64() / 1e9;
            let [bus, bridge, system, bounced] =
                [ways.bus_address, ways.through_host_bridge, ways.system, ways.bounced].map(size);
            writeln!(
                f,
                "{kind:<8} {near:<26} {speed:>9.2}   {bus:>12} {bridge:>12} {system:>12} {bounced:>8}"
            )?;
        }
        writeln!(
            f,
            "\nBytes count where a device reads or writes memory: once for the disk, once for the \
             NIC."
        )
    }
}

fn size(bytes: u64) -> String {
    if bytes < 1_000_000 { format!("{bytes} B") } else { format!("{:.1} MB", bytes as f64 / 1e6) }
}
