//! A NIC of each importer class, as far as a GPU can tell.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use dmabuf::{
    AttachError, Attachment, DeviceAddr, Direction, DmaBuf, ExporterErrorKind, GateSlot, Importer,
    ImporterClass, MapError, MapGuard, PinError, PinGuard, Reach, ResvGuard, Usage,
};
use gpu::{Bo, Domain, Gpu, GpuConfig, Place, Preset};
use pci::{PciConfig, PciTree};
use umem::{HostBuf, LocalPart, RemoteFault, RemoteProcess, Umem};

pub const MB: u64 = 1 << 20;
pub const CLASSES: [ImporterClass; 4] = [
    ImporterClass::Dynamic,
    ImporterClass::PinnedRevocable,
    ImporterClass::Pinned,
    ImporterClass::Static,
];

/// A device that imports.
pub struct Nic {
    class: ImporterClass,
    addr: Option<DeviceAddr>,
    /// A mutant ignores its exporter.
    is_mutant: bool,
    pub invalidated: AtomicUsize,
    held: Mutex<Option<Held>>,
}

struct Held {
    map: MapGuard,
    pin: Option<PinGuard>,
}

/// A region: an attachment of a NIC, and what it needs to access the bytes.
pub struct Mr {
    pub nic: Arc<Nic>,
    pub attachment: Attachment,
    slot: Option<GateSlot>,
}

/// Why a region was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    Attach(ExporterErrorKind),
    Pin(ExporterErrorKind),
    Map(ExporterErrorKind),
    /// The framework reports that the memory is gone.
    Revoked,
}

/// Why an access did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// There is no mapping.
    NotMapped,
    /// The gate reports that the mapping is stale.
    Stale,
    /// The memory reports a fault.
    Fault { at: u64 },
}

impl Nic {
    pub fn new(class: ImporterClass, tree: &PciTree) -> Arc<Self> {
        let addr = tree.by_name("nic0").map(|bdf| DeviceAddr(bdf.to_bits()));
        Self::make(class, addr, false)
    }

    pub fn mutant(class: ImporterClass, tree: &PciTree) -> Arc<Self> {
        let addr = tree.by_name("nic0").map(|bdf| DeviceAddr(bdf.to_bits()));
        Self::make(class, addr, true)
    }

    pub fn on_no_bus(class: ImporterClass) -> Arc<Self> {
        Self::make(class, None, false)
    }

    fn make(class: ImporterClass, addr: Option<DeviceAddr>, is_mutant: bool) -> Arc<Self> {
        let (invalidated, held) = (AtomicUsize::new(0), Mutex::new(None));
        Arc::new(Self { class, addr, is_mutant, invalidated, held })
    }
}

impl Importer for Nic {
    fn name(&self) -> &str {
        "nic0"
    }

    fn class(&self) -> ImporterClass {
        self.class
    }

    fn device(&self) -> Option<DeviceAddr> {
        self.addr
    }

    fn invalidate_mappings(&self, resv: &ResvGuard<'_>, _attachment: &Attachment) {
        self.invalidated.fetch_add(1, Ordering::Relaxed);
        if self.is_mutant {
            return;
        }
        if let Some(Held { map, pin }) = self.held.lock().expect("no panic").take() {
            map.unmap(resv);
            if let Some(pin) = pin {
                pin.unpin(resv);
            }
        }
    }
}

impl Mr {
    /// Registers: attaches, pins if the class does so, maps.
    pub fn register(nic: &Arc<Nic>, buf: &DmaBuf) -> Result<Self, Refused> {
        let mr = Self::attach(nic, buf)?;
        mr.map()?;
        Ok(mr)
    }

    pub fn attach(nic: &Arc<Nic>, buf: &DmaBuf) -> Result<Self, Refused> {
        let importer: Arc<dyn Importer> = Arc::clone(nic) as Arc<dyn Importer>;
        let attachment = buf.attach(&importer).map_err(|error| match error {
            AttachError::Exporter { reason, .. } => Refused::Attach(reason.kind),
            other => panic!("{other}"),
        })?;
        let slot = buf.gate_slot().expect("a gate with room").filter(|_| !nic.is_mutant);
        Ok(Self { nic: Arc::clone(nic), attachment, slot })
    }

    pub fn map(&self) -> Result<(), Refused> {
        let resv = self.attachment.resv().lock();
        let pin = match self.nic.class.pins() {
            true => Some(self.attachment.pin(&resv).map_err(|error| match error {
                PinError::Exporter { reason, .. } => Refused::Pin(reason.kind),
                PinError::Revoked { .. } => Refused::Revoked,
                other => panic!("{other}"),
            })?),
            false => None,
        };
        let map = self.attachment.map(&resv, Direction::Bidirectional);
        let map = map.map_err(|error| match error {
            MapError::Exporter { reason, .. } => Refused::Map(reason.kind),
            MapError::Revoked { .. } => Refused::Revoked,
            other => panic!("{other}"),
        })?;
        *self.nic.held.lock().expect("no panic") = Some(Held { map, pin });
        Ok(())
    }

    pub fn unmap(&self) {
        let held = self.nic.held.lock().expect("no panic").take();
        drop(held);
    }

    pub fn is_mapped(&self) -> bool {
        self.nic.held.lock().expect("no panic").is_some()
    }

    pub fn map_type(&self) -> Reach {
        self.nic.held.lock().expect("no panic").as_ref().expect("mapped").map.table().map_type
    }

    pub fn epoch(&self) -> Option<u64> {
        self.nic.held.lock().expect("no panic").as_ref().expect("mapped").map.table().epoch
    }

    pub fn addr(&self) -> u64 {
        self.nic.held.lock().expect("no panic").as_ref().expect("mapped").map.table().entries[0]
            .addr
    }

    /// An access as a correct device does it: maps if needed, waits for moves, enters the gate.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Miss> {
        self.access(offset, bytes.len(), |addr, range| dma_write(addr, &bytes[range]))
    }

    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Miss> {
        let len = out.len();
        self.access(offset, len, |addr, range| dma_read(addr, &mut out[range]))
    }

    fn access(
        &self,
        offset: u64,
        len: usize,
        mut copy: impl FnMut(u64, std::ops::Range<usize>) -> Result<(), Miss>,
    ) -> Result<(), Miss> {
        let (entries, epoch) = {
            let held = self.nic.held.lock().expect("no panic");
            let table = held.as_ref().ok_or(Miss::NotMapped)?.map.table();
            assert!(offset + len as u64 <= table.len());
            (table.entries.clone(), table.epoch)
        };
        self.attachment.resv().wait(Usage::Kernel, None).expect("no limit");
        let _inside = match (&self.slot, epoch) {
            (Some(slot), Some(epoch)) => Some(slot.enter(epoch).map_err(|_| Miss::Stale)?),
            _ => None,
        };
        let (end, mut start) = (offset + len as u64, 0);
        for entry in entries {
            let (from, to) = (offset.max(start), end.min(start + entry.len));
            if from < to {
                let range = (from - offset) as usize..(to - offset) as usize;
                copy(entry.addr + (from - start), range)?;
            }
            start += entry.len;
        }
        Ok(())
    }
}

/// A raw bus access, without any checks.
pub fn dma_write(addr: u64, bytes: &[u8]) -> Result<(), Miss> {
    let local = HostBuf::anonymous(bytes.len()).expect("memory exists");
    local.write(0, bytes).expect("inside");
    let umem = Umem::host(&local);
    let part = LocalPart { umem: &umem, offset: 0, len: bytes.len() as u64 };
    this_process().write(&[part], addr, &mut || true).map_err(miss)
}

pub fn dma_read(addr: u64, out: &mut [u8]) -> Result<(), Miss> {
    let local = HostBuf::anonymous(out.len()).expect("memory exists");
    let umem = Umem::host(&local);
    let part = LocalPart { umem: &umem, offset: 0, len: out.len() as u64 };
    this_process().read(&[part], addr, &mut || true).map_err(miss)?;
    local.read(0, out).expect("inside");
    Ok(())
}

fn miss(fault: RemoteFault) -> Miss {
    match fault {
        RemoteFault::Remote { at, .. } => Miss::Fault { at },
        other => panic!("{other}"),
    }
}

fn this_process() -> RemoteProcess {
    let word = Box::new(0x1234_5678_9abc_def0_u64);
    let addr = &raw const *word as u64;
    let pid = i32::try_from(std::process::id()).expect("a pid");
    RemoteProcess::probe(pid, addr, *word).expect("a process may copy its own memory")
}

/// A machine with a GPU, and a NIC that does or does not reach it.
pub fn machine(reachable: bool) -> Arc<PciTree> {
    let text = if reachable {
        String::new()
    } else {
        "[[host_bridge]]\nname = \"a\"\nid = \"1234:5678\"\n[[device]]\nname = \"nic0\"\n[[device]]\nname = \"gpu0\"".to_owned()
    };
    let config: PciConfig = toml::from_str(&text).expect("the test's own text");
    Arc::new(config.build(&["nic0", "gpu0"]).expect("sound"))
}

/// Takes all free VRAM, so that nothing comes back to it.
pub fn fill(gpu: &Gpu) -> Bo {
    gpu.wait_idle();
    let free = gpu.config().vram - gpu.used(Domain::Vram);
    gpu.alloc(free, Place::ONLY_VRAM).expect("what is free")
}

/// A small GPU of the test's own.
pub fn config(preset: Preset) -> GpuConfig {
    GpuConfig { preset, vram: 4 * MB, gtt: 64 * MB, shared: false, ..GpuConfig::default() }
}

pub fn open(config: &GpuConfig) -> (Gpu, Arc<PciTree>) {
    let tree = machine(true);
    (Gpu::open_in(config, Arc::clone(&tree)).expect("a GPU"), tree)
}

/// Bytes that no wrong offset can produce.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| ((n ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}
