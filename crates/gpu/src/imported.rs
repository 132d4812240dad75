//! A buffer of another owner: the GPU as an importer.
//!
//! The GPU is a dynamic importer. After the owner moves the buffer, the next access maps it again;
//! accesses pass the owner's gate piece by piece, so that a move waits for one piece at most.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dmabuf::{
    AttachError, Attachment, DeviceAddr, Direction, DmaBuf, ExporterError, ExporterErrorKind,
    GateSlot, ImportError, Importer, ImporterClass, MapError, MapGuard, Reach, ResvGuard, Usage,
};
use rustix::io::Errno;
use umem::{Fault, Umem};

use crate::device::Device;
use crate::error::{Result, busy, invalid, no_device};

/// How long an access retries while the owner moves the buffer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A buffer that a GPU imported.
pub(crate) struct Imported {
    pub(crate) device: Arc<Device>,
    attachment: Attachment,
    importer: Arc<GpuImporter>,
    gate: Option<GateSlot>,
    view: Mutex<Option<View>>,
    buffer: DmaBuf,
}

/// Where the buffer is, until it moves.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) umem: Umem,
    pub(crate) map_type: Reach,
}

/// The callbacks for the dma-buf framework.
struct GpuImporter {
    name: String,
    addr: Option<DeviceAddr>,
    map: Mutex<Option<MapGuard>>,
}

impl GpuImporter {
    fn map(&self) -> MutexGuard<'_, Option<MapGuard>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Importer for GpuImporter {
    fn name(&self) -> &str {
        &self.name
    }

    fn class(&self) -> ImporterClass {
        ImporterClass::Dynamic
    }

    fn device(&self) -> Option<DeviceAddr> {
        self.addr
    }

    fn invalidate_mappings(&self, resv: &ResvGuard<'_>, _attachment: &Attachment) {
        if let Some(map) = self.map().take() {
            map.unmap(resv);
        }
    }
}

impl Imported {
    pub(crate) fn new(device: &Arc<Device>, buffer: DmaBuf) -> Result<Self> {
        let gate = buffer.gate_slot().map_err(|error| busy(format!("{buffer:?}: {error}")))?;
        let name = device.config.name.clone();
        let importer = GpuImporter { name, addr: device.addr(), map: Mutex::default() };
        let importer = Arc::new(importer);
        let shared: Arc<dyn Importer> = Arc::clone(&importer) as _;
        let attachment = buffer.attach(&shared).map_err(of_attach)?;
        let (device, view) = (Arc::clone(device), Mutex::default());
        let imported = Self { device, attachment, importer, gate, view, buffer };
        // A buffer that cannot be mapped is refused now, not at the first copy.
        imported.view()?;
        Ok(imported)
    }

    pub(crate) fn buffer(&self) -> &DmaBuf {
        &self.buffer
    }

    pub(crate) fn name(&self) -> String {
        let info = self.buffer.info();
        format!("{} of {}", info.name, info.exporter)
    }

    /// Whether it belongs to a device other than this GPU, as far as the exporter's name tells.
    pub(crate) fn is_of_another(&self) -> bool {
        let own = format!("{}.bo", self.device.config.name);
        !self.buffer.info().name.starts_with(&own)
    }

    /// Where it is; maps it if needed. Takes no lock.
    pub(crate) fn view(&self) -> Result<View> {
        self.device.check_present()?;
        if let Some(view) = self.known().clone().filter(|view| is_current(&view.umem)) {
            return Ok(view);
        }
        let view = self.map()?;
        *self.known() = Some(view.clone());
        Ok(view)
    }

    /// Runs a function on its bytes, and repeats that whenever they move meanwhile.
    pub(crate) fn access<T>(
        &self,
        mut act: impl FnMut(&View) -> std::result::Result<T, Fault>,
    ) -> Result<T> {
        self.access_with(|view| Ok(act(view)))
    }

    /// As [`access`](Self::access), for accesses that can be refused for other reasons as well.
    pub(crate) fn access_with<T>(
        &self,
        mut act: impl FnMut(&View) -> Result<std::result::Result<T, Fault>>,
    ) -> Result<T> {
        let start = Instant::now();
        loop {
            let stale = match act(&self.view()?)? {
                Ok(done) => return Ok(done),
                Err(fault @ Fault::Stale { .. }) => fault,
                Err(fault) => return Err(invalid(format!("{}: {fault}", self.name()))),
            };
            if start.elapsed() > PATIENCE {
                return Err(busy(format!("{}: {stale}", self.name())));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn map(&self) -> Result<View> {
        let resv = self.attachment.resv().lock();
        let map = self.attachment.map(&resv, Direction::Bidirectional).map_err(of_map)?;
        let table = map.table().clone();
        let on_bus = |entry: &dmabuf::SgEntry| dmabuf::window::of(entry.addr, entry.len).is_some();
        let is_on_bus = table.entries.iter().all(on_bus);
        if let Some(old) = self.importer.map().replace(map) {
            old.unmap(&resv);
        }
        let waited = self.attachment.resv().wait(Usage::Kernel, Some(PATIENCE));
        waited.map_err(|_| busy(format!("the move of {} does not end", self.name())))?;
        drop(resv);
        let size = self.buffer.size();
        let umem = if is_on_bus {
            Umem::bus(&table, 0, size, self.gate.clone())
        } else {
            // The addresses of a kernel buffer are on no bus of ours, so it is accessed through the
            // CPU's mapping.
            let mapping = self.buffer.map(0, size).map_err(|error| invalid(error.to_string()))?;
            Umem::dmabuf(mapping, 0, size)
        };
        let umem =
            umem.map_err(|fault| invalid(format!("the table of {}: {fault}", self.name())))?;
        Ok(View { umem, map_type: table.map_type })
    }

    fn known(&self) -> MutexGuard<'_, Option<View>> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_current(umem: &Umem) -> bool {
    umem.gate().is_none_or(|(slot, epoch)| slot.is_current(epoch))
}

/// Why a descriptor is not a buffer.
pub(crate) fn of_import(error: &ImportError) -> ExporterError {
    let what = error.to_string();
    match error {
        ImportError::NotOpen { .. } => {
            ExporterError::new(ExporterErrorKind::Kernel(Errno::BADF), what)
        }
        ImportError::NoExporter { .. } => no_device(what),
        _ => invalid(what),
    }
}

fn of_attach(error: AttachError) -> ExporterError {
    match error {
        AttachError::Exporter { reason, .. } => reason,
        error => invalid(error.to_string()),
    }
}

fn of_map(error: MapError) -> ExporterError {
    match error {
        MapError::Exporter { reason, .. } => reason,
        error @ MapError::Revoked { .. } => no_device(error.to_string()),
        error => invalid(error.to_string()),
    }
}
