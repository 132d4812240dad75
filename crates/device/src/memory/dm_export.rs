//! Device memory as a dma-buf: the NIC as exporter (`docs/semantics.md` 2.8).
//!
//! As with the kernel's uverbs exporter: the memory is reached peer-to-peer or not at all, by the
//! rules of the PCI tree; it is never pinned, so that only importers that can lose it may have it,
//! and freeing the device memory takes it away from all of them first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use descriptors::Known;
use dmabuf::{
    AttachmentInfo, BusWindow, Direction, DmaBuf, Exporter, ExporterError, ExporterErrorKind, Gate,
    Pinning, Placement, Provider, Resv, ResvGuard, SgBacking, SgEntry, SgTable, Sharing,
};
use pci::{Bdf, PciTree};
use umem::HostBuf;

use crate::config::NicConfig;
use crate::refusal::{Kind, Refusal, Result};

const PAGE: u64 = 4096;

/// How long freeing waits for importers that do not release it. The memory is out of their reach in
/// any case.
const PATIENCE: Duration = Duration::from_secs(10);

/// A block of device memory that was exported.
#[derive(Debug)]
pub(crate) struct DmExport {
    pub(crate) buffer: DmaBuf,
    exporter: Arc<DmExporter>,
}

struct DmExporter {
    nic: String,
    /// Where the NIC is.
    tree: Arc<PciTree>,
    bdf: Option<Bdf>,
    gate: Gate,
    backing: SgBacking,
    length: u64,
    is_revoked: AtomicBool,
    /// Where devices of this process find it, until it is revoked.
    place: Mutex<Option<Placement>>,
}

impl DmExport {
    pub(crate) fn new(config: &NicConfig, memory: &HostBuf) -> Result<Self> {
        let nic = config.name.as_str();
        let failed = |error: &dyn std::error::Error| {
            Refusal::new(Kind::NoMemory, format!("dm_export_dmabuf_fd: {error}"))
        };
        let file = memory.fd().ok_or_else(|| {
            Refusal::new(Kind::NotSupported, "dm_export_dmabuf_fd: the memory is in no file")
        })?;
        let length = (memory.len() as u64).next_multiple_of(PAGE);
        let window = BusWindow::of_process().map_err(|error| failed(&error))?;
        let place = window
            .place(file, 0, length, &format!("device memory of {nic}"))
            .map_err(|error| failed(&error))?;
        let file = Known::from(file.try_clone_to_owned().map_err(|error| failed(&error))?);
        let file = Arc::new(file);
        let exporter = Arc::new(DmExporter {
            nic: nic.to_owned(),
            tree: config.tree.clone().unwrap_or_default(),
            bdf: config.address.and_then(|address| Bdf::from_bits(address.0)),
            gate: Gate::new(nic).map_err(|error| failed(&error))?,
            backing: SgBacking { file, offset: 0 },
            length,
            is_revoked: AtomicBool::new(false),
            place: Mutex::new(Some(place)),
        });
        let buffer = DmaBuf::export_with(Arc::clone(&exporter) as _, length, "dm", Resv::new())
            .map_err(|error| failed(&error))?;
        Ok(Self { buffer, exporter })
    }

    /// Takes the memory away from every importer, and waits until they have released it.
    pub(crate) fn end(self) {
        let exporter = &self.exporter;
        let ended = self.buffer.revoke(|_| exporter.revoke(), Some(PATIENCE));
        if let Err(error) = ended {
            tracing::warn!(
                target: "peerdma::peer-memory",
                nic = %exporter.nic, "device memory was freed under its importers: {error}"
            );
        }
    }
}

impl Drop for DmExport {
    fn drop(&mut self) {
        self.exporter.revoke();
    }
}

impl DmExporter {
    fn revoke(&self) {
        if self.is_revoked.swap(true, Ordering::AcqRel) {
            return;
        }
        // The gate stops every access, in every process.
        if let Err(error) = self.gate.revoke() {
            tracing::error!(target: "peerdma::peer-memory", nic = %self.nic, "{error}");
        }
        let place = self.place.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(place) = place {
            place.retire("the device memory was freed");
        }
    }

    fn refuse<T>(
        &self,
        kind: ExporterErrorKind,
        why: &str,
    ) -> std::result::Result<T, ExporterError> {
        Err(ExporterError::new(kind, format!("device memory of {}: {why}", self.nic)))
    }
}

impl Exporter for DmExporter {
    fn name(&self) -> &str {
        &self.nic
    }

    fn attach(&self, attachment: &mut AttachmentInfo) -> std::result::Result<(), ExporterError> {
        if attachment.peer2peer() {
            return Ok(());
        }
        self.refuse(ExporterErrorKind::NotSupported, "it is reached peer-to-peer or not at all")
    }

    fn pinning(&self) -> Option<&dyn Pinning> {
        Some(self)
    }

    fn map_dma_buf(
        &self,
        _resv: &ResvGuard<'_>,
        attachment: &AttachmentInfo,
        _direction: Direction,
    ) -> std::result::Result<SgTable, ExporterError> {
        let place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(place) = place.as_ref() else {
            return self.refuse(ExporterErrorKind::NoDevice, "it was freed");
        };
        // The kernel's dma_buf_phys_vec_to_sgt: after the check whether the memory is there.
        let provider = Provider { tree: &self.tree, name: &self.nic, bdf: self.bdf };
        let map_type = match provider.reach(attachment.device()) {
            Ok(map_type) => map_type,
            Err(why) => return self.refuse(ExporterErrorKind::Invalid, &why),
        };
        let (addr, len) = (place.addr(), self.length);
        let entry = SgEntry { addr, len, backing: Some(self.backing.clone()) };
        let epoch = Some(self.gate.epoch());
        Ok(SgTable { entries: vec![entry], epoch, map_type })
    }

    fn unmap_dma_buf(
        &self,
        _resv: &ResvGuard<'_>,
        _attachment: &AttachmentInfo,
        _table: SgTable,
        _direction: Direction,
    ) {
    }

    fn gate(&self) -> Option<&Gate> {
        Some(&self.gate)
    }

    fn sharing(&self) -> Sharing {
        Sharing::HostRevoked
    }
}

impl Pinning for DmExporter {
    fn pin(
        &self,
        _resv: &ResvGuard<'_>,
        _attachment: &AttachmentInfo,
    ) -> std::result::Result<(), ExporterError> {
        self.refuse(ExporterErrorKind::NotSupported, "it cannot be pinned")
    }

    fn unpin(&self, _resv: &ResvGuard<'_>, _attachment: &AttachmentInfo) {}
}

impl std::fmt::Debug for DmExporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DmExporter({}, {:#x} bytes)", self.nic, self.length)
    }
}
