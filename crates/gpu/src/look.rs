//! What this process reports about its GPU and buffers.

use crate::bo::BoInner;
use crate::device::Device;
use crate::place::Domain;
use crate::view::{BufferView, GpuView, IMPORTERS, short};

/// Once an answer is this long, further buffers go into the next answer.
const ENOUGH: usize = 48 << 10;

impl Device {
    /// This process's buffers with numbers above `after`, as many as one answer holds.
    pub(crate) fn look(&self, after: u64) -> GpuView {
        let config = &self.config;
        let mut view = GpuView {
            name: config.name.clone(),
            preset: config.preset.name().to_owned(),
            pci: self.bdf.map(|bdf| bdf.to_string()).unwrap_or_default(),
            vram: config.vram,
            bar: config.visible(),
            gtt: config.gtt,
            vram_used: self.used(Domain::Vram),
            gtt_used: self.used(Domain::Gtt),
            memory: self.peers.memory(),
            is_removed: self.is_removed(),
            next: 0,
            buffers: vec![],
        };
        let mut len = 1024;
        for bo in self.all().iter().filter(|bo| bo.id > after) {
            if len > ENOUGH {
                view.next = view.buffers.last().map_or(0, |last| last.number);
                break;
            }
            let buffer = bo.look();
            len += 192 + buffer.importers.iter().map(|name| name.len() + 8).sum::<usize>();
            view.buffers.push(buffer);
        }
        view
    }
}

impl BoInner {
    fn look(&self) -> BufferView {
        let (place, offset) = match self.resource() {
            Ok(at) => (at.domain.to_string(), at.offset),
            Err(_) => ("revoked".to_owned(), 0),
        };
        let attachments = self.attachments();
        let mut importers: Vec<String> = attachments
            .iter()
            .take(IMPORTERS)
            .map(|info| {
                let of = info.process().filter(|pid| *pid != 0);
                let of = of.map(|pid| format!(", pid {pid}")).unwrap_or_default();
                let class = class(info.class());
                short(&format!("{} ({class}{of})", info.importer()))
            })
            .collect();
        if let Some(more) = attachments.len().checked_sub(IMPORTERS + 1) {
            importers.push(format!("and {} more", more + 1));
        }
        BufferView {
            number: self.id,
            size: self.size,
            place,
            offset,
            pins: self.pins() as u64,
            moves: self.moves(),
            dma_bufs: (self.dma_bufs().len() + self.wholes().len()) as u64,
            by_address: self.peer_count() as u64,
            importers,
        }
    }
}

fn class(class: dmabuf::ImporterClass) -> &'static str {
    use dmabuf::ImporterClass::{Dynamic, Pinned, PinnedRevocable, Static};
    match class {
        Static => "static",
        Pinned => "pinned",
        PinnedRevocable => "pinned, revocable",
        Dynamic => "dynamic",
    }
}
