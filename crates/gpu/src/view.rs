//! What a process reports about its GPU and buffers: for `peerdma gpu`.

use serde::{Deserialize, Serialize};

/// The longest answer, in bytes.
pub(crate) const LONGEST: usize = 64 << 10;
/// How many importers of a buffer are named; the last entry tells how many more there are.
pub(crate) const IMPORTERS: usize = 8;
/// The longest text that is taken from another process.
const LONGEST_TEXT: usize = 160;

/// A GPU that a process has open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GpuView {
    /// Its name.
    pub name: String,
    /// The driver whose rules it follows.
    pub preset: String,
    /// Its PCI address; empty if it has none.
    pub pci: String,
    /// Bytes of VRAM.
    pub vram: u64,
    /// Bytes of VRAM that CPU and peers reach.
    pub bar: u64,
    /// Bytes of system memory that it may use.
    pub gtt: u64,
    /// Bytes of VRAM in use, by all processes.
    pub vram_used: u64,
    /// Bytes of GTT in use, by all processes.
    pub gtt_used: u64,
    /// Which memory it is: the same number in all processes that share it.
    pub memory: u64,
    /// Whether it was removed.
    pub is_removed: bool,
    /// The number after which the next answer begins; 0 if this answer is the last.
    pub(crate) next: u64,
    /// The process's buffers.
    #[serde(default)]
    pub buffers: Vec<BufferView>,
}

/// A buffer of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BufferView {
    /// Its number, in the order in which the process made its buffers of this GPU, from 1.
    pub number: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Where it is: `VRAM` or `GTT`, or that it was revoked.
    pub place: String,
    /// Where it begins there.
    pub offset: u64,
    /// Its number of pins.
    pub pins: u64,
    /// How often it moved.
    pub moves: u64,
    /// Its dma-bufs.
    pub dma_bufs: u64,
    /// Registrations by address.
    pub by_address: u64,
    /// The devices that have it attached, and their importer classes.
    pub importers: Vec<String>,
}

impl GpuView {
    /// Encodes the answer.
    pub(crate) fn encode(&self) -> Vec<u8> {
        toml::to_string(self).unwrap_or_default().into_bytes()
    }

    /// Decodes what was received, if it is a valid answer, and returns after which number the next
    /// one begins. The sender may be any process: text is truncated, and has no control characters.
    pub(crate) fn decode(said: &[u8], after: u64) -> Option<(Self, Option<u64>)> {
        let mut view: Self = toml::from_str(std::str::from_utf8(said).ok()?).ok()?;
        for text in [&mut view.name, &mut view.preset, &mut view.pci] {
            *text = short(text);
        }
        for buffer in &mut view.buffers {
            buffer.place = short(&buffer.place);
            buffer.importers.truncate(IMPORTERS + 1);
            buffer.importers.iter_mut().for_each(|name| *name = short(name));
        }
        // A sender that makes no progress would be asked forever.
        let next = Some(view.next).filter(|next| *next > after);
        Some((view, next))
    }
}

/// Text of another process, made safe to print.
pub(crate) fn short(text: &str) -> String {
    let plain = |c: char| if c.is_control() { '?' } else { c };
    text.chars().take(LONGEST_TEXT).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> GpuView {
        let buffer = BufferView {
            number: 7,
            size: 4096,
            place: "VRAM".to_owned(),
            offset: 1 << 40,
            pins: 1,
            moves: 2,
            dma_bufs: 1,
            by_address: 0,
            importers: vec!["peerdma0 (dynamic, pid 12)".to_owned()],
        };
        GpuView {
            name: "gpu0".to_owned(),
            preset: "xe".to_owned(),
            pci: String::new(),
            vram: 1 << 44,
            bar: 1,
            gtt: 2,
            vram_used: 3,
            gtt_used: 4,
            memory: 5,
            is_removed: false,
            next: 7,
            buffers: vec![buffer],
        }
    }

    #[test]
    fn answers_survive_a_round_trip_and_only_go_forwards() {
        let said = view().encode();
        assert_eq!(GpuView::decode(&said, 0), Some((view(), Some(7))));
        assert_eq!(GpuView::decode(&said, 7), Some((view(), None)), "no circle");
    }

    #[test]
    fn text_of_another_process_cannot_drive_the_terminal() {
        let mut evil = view();
        evil.name = "\u{1b}[2J".to_owned();
        evil.buffers[0].importers = vec!["x\n".repeat(999); 99];
        let (seen, _) = GpuView::decode(&evil.encode(), 0).expect("still an answer");
        assert_eq!(seen.name, "?[2J");
        let importers = &seen.buffers[0].importers;
        assert!(importers.len() <= IMPORTERS + 1);
        assert!(importers.iter().all(|name| name.chars().count() <= LONGEST_TEXT));
        assert!(!importers.iter().any(|name| name.contains('\n')));
    }

    /// Every wrong byte and every truncation: an answer or none, and never a panic.
    #[test]
    fn nonsense_is_no_answer() {
        let said = view().encode();
        for cut in 0..said.len() {
            let _ = GpuView::decode(&said[..cut], 0);
            for byte in [0, b'"', b'[', b'-', b'9', 0xff] {
                let mut wrong = said.clone();
                wrong[cut] = byte;
                let _ = GpuView::decode(&wrong, 0);
            }
        }
        assert_eq!(GpuView::decode(&vec![b'['; LONGEST], 0), None);
        assert_eq!(GpuView::decode(b"", 0), None);
    }
}
