//! The topology as text: devices, letters, peer-to-peer DMA.

use std::fmt::{self, Write as _};

use crate::path::MapType;
use crate::topo::Topology;
use crate::topo::device::Device;
use crate::topo::link::Link;
use crate::topo::verdict::{PeerToPeer, Redirect};

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_links(f)?;
        writeln!(f, "\nLegend:\n")?;
        for link in Link::ALL {
            writeln!(f, "  {:<4} = {}", link.letters(), link.legend())?;
        }
        writeln!(f, "\nDevices:\n")?;
        self.write_devices(f)?;
        self.write_peers(f)?;
        if !self.remarks().is_empty() {
            writeln!(f)?;
        }
        self.remarks().iter().try_for_each(|remark| writeln!(f, "{remark}"))
    }
}

impl Topology {
    fn write_links(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.devices();
        let has_cpus = devices.iter().any(|device| device.cpus.is_some());
        let has_nodes = devices.iter().any(|device| device.numa.is_some());
        let mut head = vec![String::new()];
        head.extend(devices.iter().map(|device| device.label.clone()));
        head.extend(has_cpus.then(|| "CPU Affinity".to_owned()));
        head.extend(has_nodes.then(|| "NUMA Affinity".to_owned()));
        let mut rows = vec![head];
        for one in devices {
            let mut row = vec![one.label.clone()];
            row.extend(devices.iter().map(|other| self.link(one, other).letters().to_owned()));
            let unknown = || "N/A".to_owned();
            row.extend(has_cpus.then(|| one.cpus.clone().unwrap_or_else(unknown)));
            row.extend(
                has_nodes.then(|| one.numa.map_or_else(unknown, |node: u32| node.to_string())),
            );
            rows.push(row);
        }
        write_table(f, &rows)
    }

    fn write_devices(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |device: &Device| {
            let driver = device.driver.as_deref().unwrap_or("-");
            let names = match device.names.as_slice() {
                [] => "-".to_owned(),
                names => names.join(" "),
            };
            let address = device.bdf.to_string();
            let memory = device.memory.to_string();
            let label = format!("  {}", device.label);
            vec![label, address, device.ids.to_string(), driver.to_owned(), names, memory]
        };
        write_table(f, &self.devices().iter().map(row).collect::<Vec<_>>())
    }

    fn write_peers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.devices();
        let mut notes = Notes::default();
        let mut rows = vec![vec![String::new()]];
        rows[0].extend(devices.iter().map(|device| device.label.clone()));
        for provider in devices.iter().filter(|device| device.memory.is_reachable()) {
            let mut row = vec![provider.label.clone()];
            for client in devices {
                row.push(cell(&self.peer_to_peer(provider, client), provider, client, &mut notes));
            }
            rows.push(row);
        }
        writeln!(
            f,
            "\nPeer-to-peer DMA, from the memory of a device (rows) to others (columns):\n"
        )?;
        if rows.len() == 1 {
            return writeln!(f, "  No device has memory that others reach.");
        }
        write_table(f, &rows)?;
        writeln!(
            f,
            "\n  bus N  = possible by bus address, through switches alone; N is the distance"
        )?;
        writeln!(f, "  host N = possible through the host bridge")?;
        writeln!(f, "  no N   = not possible")?;
        if !notes.0.is_empty() {
            writeln!(f, "\nReasons:\n")?;
        }
        for (number, Note { why, pairs }) in (1..).zip(&notes.0) {
            writeln!(f, "  [{number}] {why}")?;
            for (provider, clients) in pairs {
                writeln!(f, "      {provider} -> {}", clients.join(" "))?;
            }
        }
        Ok(())
    }
}

/// Reasons, in the order of their numbers.
#[derive(Default)]
struct Notes(Vec<Note>);

struct Note {
    why: String,
    /// The pairs that it is true of: a provider, and its clients.
    pairs: Vec<(String, Vec<String>)>,
}

impl Notes {
    /// The number of the reason.
    fn add(&mut self, why: String, provider: &Device, client: &Device) -> usize {
        let known = self.0.iter().position(|note| note.why == why);
        let at = known.unwrap_or_else(|| {
            self.0.push(Note { why, pairs: vec![] });
            self.0.len() - 1
        });
        let pairs = &mut self.0[at].pairs;
        match pairs.last_mut().filter(|(label, _)| *label == provider.label) {
            Some((_, clients)) => clients.push(client.label.clone()),
            None => pairs.push((provider.label.clone(), vec![client.label.clone()])),
        }
        at + 1
    }
}

fn cell(peers: &PeerToPeer, provider: &Device, client: &Device, notes: &mut Notes) -> String {
    if provider.bdf == client.bdf {
        return Link::Same.letters().to_owned();
    }
    let word = match peers.map_type() {
        MapType::BusAddr => "bus",
        MapType::ThruHostBridge => "host",
        MapType::None | MapType::NotSupported => "no",
    };
    let mut text = format!("{word} {}", peers.path.distance);
    let why = match (&peers.refusal, peers.redirected_by()) {
        (Some(refusal), _) => Some(refusal.to_string()),
        (None, []) => None,
        (None, by) => Some(Redirect(by).to_string()),
    };
    if let Some(why) = why {
        let number = notes.add(why, provider, client);
        // A string takes whatever is written.
        let _ = write!(text, " [{number}]");
    }
    text
}

/// Columns as wide as their widest cell.
fn write_table(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>]) -> fmt::Result {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| Some(row.get(column)?.len())).max();
    let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}
