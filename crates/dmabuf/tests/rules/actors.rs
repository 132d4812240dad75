//! An exporter that records its calls, and importers of every class.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use dmabuf::{
    AttachmentInfo, Direction, DmaBuf, Exporter, ExporterError, ExporterErrorKind, Fence, Importer,
    ImporterClass, IosysMap, Pinning, Resv, ResvGuard, SgEntry, SgTable, Usage,
};

pub(crate) const SIZE: u64 = 8192;

/// Memory that can be pinned and mapped in every way.
#[derive(Default)]
pub(crate) struct Memory {
    log: Mutex<Vec<&'static str>>,
    /// Called for each operation as it happens.
    pub(crate) heard: Mutex<Option<Sender<&'static str>>>,
    pub(crate) refuses_map: AtomicBool,
}

pub(crate) fn memory() -> (DmaBuf, Arc<Memory>) {
    memory_with(Resv::new())
}

pub(crate) fn memory_with(resv: Resv) -> (DmaBuf, Arc<Memory>) {
    let exporter = Arc::new(Memory::default());
    let as_exporter: Arc<dyn Exporter> = Arc::clone(&exporter) as _;
    (DmaBuf::export_with(as_exporter, SIZE, "test", resv).expect("memory exists"), exporter)
}

pub(crate) fn importer(name: &'static str, class: ImporterClass) -> Arc<dyn Importer> {
    Arc::new(Gadget { name, class })
}

/// Adds a fence as a user of the buffer does.
pub(crate) fn add(buf: &DmaBuf, fence: &Fence, usage: Usage) {
    let resv = buf.resv().lock();
    resv.reserve_fences(1).expect("memory");
    resv.add_fence(fence, usage).expect("reserved");
}

/// The message of a panic.
pub(crate) fn words(body: impl FnOnce()) -> String {
    let thrown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_err();
    match thrown.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => (*other.downcast::<&str>().expect("words")).to_owned(),
    }
}

impl Memory {
    pub(crate) fn log(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.log.lock().expect("no panic"))
    }

    fn note(&self, what: &'static str) {
        self.log.lock().expect("no panic").push(what);
        if let Some(heard) = &*self.heard.lock().expect("no panic") {
            heard.send(what).expect("somebody listens");
        }
    }
}

impl Exporter for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn pinning(&self) -> Option<&dyn Pinning> {
        Some(self)
    }

    fn map_dma_buf(
        &self,
        _resv: &ResvGuard<'_>,
        _attachment: &AttachmentInfo,
        _direction: Direction,
    ) -> Result<SgTable, ExporterError> {
        if self.refuses_map.load(Ordering::Relaxed) {
            return Err(ExporterError::new(ExporterErrorKind::NoDevice, "the memory was revoked"));
        }
        self.note("map");
        Ok(SgTable::of_system(vec![SgEntry::new(0x4000_0000, SIZE)]))
    }

    fn unmap_dma_buf(
        &self,
        _resv: &ResvGuard<'_>,
        _attachment: &AttachmentInfo,
        _table: SgTable,
        _direction: Direction,
    ) {
        self.note("unmap");
    }

    fn begin_cpu_access(&self, _direction: Direction) -> Result<(), ExporterError> {
        self.note("begin");
        Ok(())
    }

    fn end_cpu_access(&self, _direction: Direction) -> Result<(), ExporterError> {
        self.note("end");
        Ok(())
    }

    fn is_in_file(&self) -> bool {
        true
    }

    fn mmap(&self, _offset: u64, _len: u64) -> Result<(), ExporterError> {
        Ok(())
    }

    fn vmap(&self, _resv: &ResvGuard<'_>) -> Result<IosysMap, ExporterError> {
        Ok(IosysMap::Io(0xf000_0000))
    }
}

impl Pinning for Memory {
    fn pin(
        &self,
        _resv: &ResvGuard<'_>,
        _attachment: &AttachmentInfo,
    ) -> Result<(), ExporterError> {
        self.note("pin");
        Ok(())
    }

    fn unpin(&self, _resv: &ResvGuard<'_>, _attachment: &AttachmentInfo) {
        self.note("unpin");
    }
}

struct Gadget {
    name: &'static str,
    class: ImporterClass,
}

impl Importer for Gadget {
    fn name(&self) -> &str {
        self.name
    }

    fn class(&self) -> ImporterClass {
        self.class
    }
}
