//! CPU access to a dma-buf is bracketed: per access, or once per message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dmabuf::{
    AttachmentInfo, Direction, DmaBuf, Exporter, ExporterError, ExporterErrorKind, Resv, ResvGuard,
    SgTable,
};
use umem::{Backing, Fault, HostBuf, Umem};

#[test]
fn each_access_is_bracketed_and_a_message_once() {
    let (umem, exporter) = memory();
    let host = HostBuf::anonymous(4096).expect("memory exists");
    umem.write(0, &[1; 16]).expect("mapped");
    umem.read(0, &mut [0; 16]).expect("mapped");
    umem.read_to(0, host.foreign()).expect("mapped");
    umem.write_from(0, host.foreign()).expect("mapped");
    umem.fetch_add(0, 1).expect("mapped");
    umem.compare_swap(0, 1, 2).expect("mapped");
    umem.fill(0, 0, 8).expect("mapped");
    Umem::copy(&Umem::host(&host), 0, &umem, 0, 8).expect("mapped");
    Umem::copy(&umem, 0, &Umem::host(&host), 0, 8).expect("mapped");
    assert_eq!(exporter.count(), (9, 9));

    let message = umem.cpu_access(Direction::ToDevice).expect("permitted");
    message.write(0, &[1; 16]).expect("mapped");
    message.write(16, &[2; 16]).expect("mapped");
    assert_eq!(exporter.count(), (10, 9), "still open");
    let clone = Umem::clone(&message);
    drop(message);
    assert_eq!(exporter.count(), (10, 10));
    clone.read(0, &mut [0; 16]).expect("mapped");
    assert_eq!(exporter.count(), (11, 11), "a clone does not inherit the bracket");
}

#[test]
fn a_refused_bracket_is_a_fault_in_words() {
    let (umem, exporter) = memory();
    exporter.refuse.store(1, Ordering::Relaxed);
    let fault = umem.write(0, &[1]).unwrap_err();
    assert!(matches!(fault, Fault::Sync { .. }));
    assert_eq!(fault.to_string(), "CPU access to the dma-buf was refused: asleep");
}

#[test]
fn memory_that_needs_brackets_is_not_offered_as_plain_pages() {
    let (umem, _) = memory();
    assert!(matches!(umem.backing(), Backing::DmaBuf { offset: 0, .. }));
}

fn memory() -> (Umem, Arc<Incoherent>) {
    let exporter = Arc::new(Incoherent::default());
    let as_exporter: Arc<dyn Exporter> = Arc::clone(&exporter) as _;
    let buf = DmaBuf::export_with(as_exporter, 4096, "umem-test", Resv::new()).expect("memory");
    let mapping = buf.map(0, 4096).expect("offered");
    (Umem::dmabuf(mapping, 0, 4096).expect("inside"), exporter)
}

/// An exporter that counts brackets.
#[derive(Default)]
struct Incoherent {
    begun: AtomicU32,
    ended: AtomicU32,
    refuse: AtomicU32,
}

impl Incoherent {
    fn count(&self) -> (u32, u32) {
        (self.begun.load(Ordering::Relaxed), self.ended.load(Ordering::Relaxed))
    }
}

impl Exporter for Incoherent {
    fn name(&self) -> &str {
        "incoherent"
    }

    fn map_dma_buf(
        &self,
        _resv: &ResvGuard<'_>,
        _attachment: &AttachmentInfo,
        _direction: Direction,
    ) -> Result<SgTable, ExporterError> {
        Ok(SgTable::default())
    }

    fn unmap_dma_buf(
        &self,
        _resv: &ResvGuard<'_>,
        _attachment: &AttachmentInfo,
        _table: SgTable,
        _direction: Direction,
    ) {
    }

    fn begin_cpu_access(&self, _direction: Direction) -> Result<(), ExporterError> {
        if self.refuse.load(Ordering::Relaxed) > 0 {
            return Err(ExporterError::new(ExporterErrorKind::Busy, "asleep"));
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn end_cpu_access(&self, _direction: Direction) -> Result<(), ExporterError> {
        self.ended.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn is_in_file(&self) -> bool {
        true
    }

    fn mmap(&self, _offset: u64, _len: u64) -> Result<(), ExporterError> {
        Ok(())
    }
}
