//! What the demo prints: a row for each pair of memory kinds, a column for each operation.

use std::fmt;
use std::time::Duration;

use device::Counters;
use umem::ways::WayBytes;
use verbs::{Context, soft};

use super::memory::{Kind, Memory};
use super::peer::Outcome;
use super::side::Side;

/// The operations, in the order of the table.
pub(super) const OPERATIONS: [&str; 6] =
    ["SEND", "WRITE", "WRITE_IMM", "READ", "CMP_SWAP", "FETCH_ADD"];

/// How a message travelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Into the peer's memory, without the peer's engine.
    Direct,
    /// Through the ring that the two processes share.
    Ring,
    /// Over the network.
    Udp,
}

/// One measurement.
pub(crate) struct Cell {
    pub(crate) path: Path,
    /// The time of one message, with up to 16 under way.
    pub(crate) each: Duration,
    /// Its length; `None` for atomics, whose speed is a time.
    pub(crate) bytes: Option<u32>,
}

/// The table.
pub(crate) struct Report {
    header: String,
    rows: Vec<(Kind, Kind, Vec<Cell>)>,
}

/// What the GPU of one side did during the traffic, and what followed from it.
pub(crate) struct PeerMemory {
    moves: u64,
    evictions: u64,
    moved_bytes: u64,
    faults: u64,
    pub(crate) stale: u64,
    ways: WayBytes,
}

impl PeerMemory {
    pub(crate) fn of(side: &Side) -> verbs::Result<Self> {
        let stats = side.gpu.stats();
        Ok(Self {
            moves: stats.moves,
            evictions: stats.evictions,
            moved_bytes: stats.moved_bytes,
            faults: soft::counters(&side.context)?.page_faults,
            stale: stats.stale_accesses,
            ways: umem::ways::bytes_by_way(),
        })
    }

    /// One line for the other side.
    pub(crate) fn to_line(&self) -> String {
        let Self { moves, evictions, moved_bytes, faults, stale, ways } = self;
        let WayBytes { bus_address, through_host_bridge, system, cpu, bounced } = ways;
        format!(
            "{moves} {evictions} {moved_bytes} {faults} {stale} {bus_address} {through_host_bridge} {system} {cpu} {bounced}"
        )
    }

    pub(crate) fn parse(line: &str) -> Outcome<Self> {
        let numbers: Vec<u64> =
            line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let [moves, evictions, moved_bytes, faults, stale, ways @ ..] = &numbers[..] else {
            return Err(format!("ten numbers, not {line:?}").into());
        };
        let &[bus_address, through_host_bridge, system, cpu, bounced] = ways else {
            return Err(format!("ten numbers, not {line:?}").into());
        };
        let (moves, evictions, moved_bytes) = (*moves, *evictions, *moved_bytes);
        let ways = WayBytes { bus_address, through_host_bridge, system, cpu, bounced };
        Ok(Self { moves, evictions, moved_bytes, faults: *faults, stale: *stale, ways })
    }
}

/// What happened to the peer memory of both sides.
pub(crate) struct BothSides {
    pub(crate) here: PeerMemory,
    pub(crate) there: PeerMemory,
}

impl fmt::Display for BothSides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sides = [("here", &self.here), ("there", &self.there)];
        writeln!(
            f,
            "During the traffic, the GPU of each side moved its buffer out of VRAM and back:\n"
        )?;
        let heads = ["moves", "evictions", "MB moved", "page faults", "stale accesses"];
        writeln!(f, "{:<7}{}", "", columns(heads.map(str::to_owned)))?;
        for (side, of) in sides {
            let PeerMemory { moves, evictions, moved_bytes, faults, stale, .. } = of;
            let [moves, evictions, faults, stale] =
                [moves, evictions, faults, stale].map(u64::to_string);
            let numbers = [moves, evictions, mb(*moved_bytes), faults, stale];
            writeln!(f, "{side:<7}{}", columns(numbers))?;
        }
        writeln!(f, "\nHow the NIC of each side reached dma-bufs, in MB:\n")?;
        let heads = ["bus address", "host bridge", "system memory", "CPU mapping", "bounced"];
        writeln!(f, "{:<7}{}", "", columns(heads.map(str::to_owned)))?;
        for (side, of) in sides {
            let WayBytes { bus_address, through_host_bridge, system, cpu, bounced } = of.ways;
            let numbers = [bus_address, through_host_bridge, system, cpu, bounced].map(mb);
            writeln!(f, "{side:<7}{}", columns(numbers))?;
        }
        write!(
            f,
            "\nA page fault is an access that found the buffer moved, and continued at its new place. A stale access would use\n\
             its old place; bounced bytes would be copied through host memory. docs/PEER_MEMORY.md\n"
        )
    }
}

fn mb(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

fn columns(cells: [String; 5]) -> String {
    cells.iter().map(|cell| format!("{cell:>16}")).collect()
}

/// Which path the messages between two readings of the counters took.
pub(crate) fn path(before: &Counters, after: &Counters) -> Path {
    if after.direct_operations > before.direct_operations {
        Path::Direct
    } else if after.tx_udp_packets > before.tx_udp_packets {
        Path::Udp
    } else {
        Path::Ring
    }
}

impl Report {
    pub(crate) fn new(context: &Context, memories: &[Memory], size: u32) -> Self {
        let port = context.port_attr();
        let gid = context.gids().first().map(|entry| entry.gid.to_ip().to_string());
        let header = format!(
            "two processes, RC, {size} bytes a message, port at {} on {}, dma-bufs by {}",
            gid.unwrap_or_default(),
            port.netdev,
            memories.iter().find_map(Memory::exporter).unwrap_or_default()
        );
        Self { header, rows: Vec::new() }
    }

    /// What was measured: from, to, and a cell for each operation.
    pub(crate) fn rows(&self) -> &[(Kind, Kind, Vec<Cell>)] {
        &self.rows
    }

    pub(crate) fn row(&mut self, from: Kind, to: Kind, cells: Vec<Cell>) {
        self.rows.push((from, to, cells));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.header)?;
        write!(f, "{:<8} {:<8}", "here", "there")?;
        for operation in OPERATIONS {
            write!(f, "{operation:>14}")?;
        }
        writeln!(f)?;
        for (from, to, cells) in &self.rows {
            write!(f, "{from:<8} {to:<8}")?;
            for cell in cells {
                write!(f, "{:>14}", cell.to_string())?;
            }
            writeln!(f)?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "GB/s of payload, or time of one atomic; every byte was checked where it arrived. \"here\" is memory of this process,\n\
             which posts the requests, \"there\" of the other. dm: memory of the NIC; gpu: of a GPU that keeps moving it."
        )?;
        writeln!(f, "d  direct: into the other process's memory, which took no part")?;
        writeln!(f, "r  through the ring that the two processes share")?;
        writeln!(f, "u  over UDP, as RoCEv2")
    }
}

impl Cell {
    /// Bytes in a second, if it is about bytes.
    pub(crate) fn rate(&self) -> Option<f64> {
        Some(f64::from(self.bytes?) / self.each.as_secs_f64())
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.each.as_secs_f64();
        let path = match self.path {
            Path::Direct => 'd',
            Path::Ring => 'r',
            Path::Udp => 'u',
        };
        match self.rate() {
            Some(rate) => write!(f, "{:.2} GB/s {path}", rate / 1e9),
            None => write!(f, "{:.2} us {path}", seconds * 1e6),
        }
    }
}
