//! Which operations of an exporter are called, and under which lock, by the rules of
//! `docs/semantics.md` 1.2 to 1.5.

use std::sync::{Arc, Mutex};

use crate::actors::{SIZE, importer, memory};
use dmabuf::{
    AttachError, AttachmentInfo, Direction, DmaBuf, Exporter, ExporterError, ExporterErrorKind,
    Importer, ImporterClass, IosysMap, MapError, MmapError, PinError, Pinning, Resv, ResvGuard,
    SgEntry, SgTable,
};

/// The errnos that an exporter can return.
const KINDS: [ExporterErrorKind; 7] = [
    ExporterErrorKind::Invalid,
    ExporterErrorKind::Busy,
    ExporterErrorKind::NotSupported,
    ExporterErrorKind::NoDevice,
    ExporterErrorKind::NotPermitted,
    ExporterErrorKind::NoMemory,
    ExporterErrorKind::Again,
];

#[test]
fn each_operation_is_called_with_the_lock_or_without_as_the_rule_says() {
    let resv = Resv::new();
    let watcher = Arc::new(Watcher { resv: resv.clone(), ..Watcher::default() });
    let buf = DmaBuf::export_with(Arc::clone(&watcher) as _, SIZE, "watched", resv).unwrap();
    let nic = importer("efa_0", ImporterClass::Pinned);
    let attachment = buf.attach(&nic).expect("anybody may attach");
    let resv = buf.resv().lock();
    let pin = attachment.pin(&resv).expect("room");
    let map = attachment.map(&resv, Direction::Bidirectional).expect("pinned");
    drop(resv);
    drop((map, pin));
    drop(buf.vmap_unlocked().expect("offered"));
    let mapping = buf.map(0, 4096).expect("offered");
    drop(mapping.begin_cpu_access(Direction::Bidirectional).expect("permitted"));
    drop((mapping, attachment, buf));
    let expected = [
        ("attach", false),
        ("pin", true),
        ("map", true),
        ("unmap", true),
        ("unpin", true),
        ("vmap", true),
        ("vunmap", true),
        ("mmap", false),
        ("begin_cpu_access", false),
        ("end_cpu_access", false),
        ("detach", false),
        ("release", false),
    ];
    assert_eq!(*watcher.seen.lock().unwrap(), expected);
}

#[test]
fn missing_operations_are_invalid_and_memory_that_never_moves_is_always_pinned() {
    let buf = DmaBuf::export_with(Arc::new(Bare), SIZE, "bare", Resv::new()).unwrap();
    let refused = buf.map(0, 4096).unwrap_err();
    assert!(
        matches!(&refused, MmapError::Exporter { reason, .. } if reason.kind == ExporterErrorKind::Invalid),
        "{refused}"
    );
    assert_eq!(buf.vmap_unlocked().unwrap_err().kind, ExporterErrorKind::Invalid);
    assert!(!buf.is_dynamic() && memory().0.is_dynamic());
    let attachment = buf.attach(&importer("efa_0", ImporterClass::Pinned)).expect("anybody may");
    let resv = buf.resv().lock();
    let pin = attachment.pin(&resv).expect("there is nothing to do");
    drop(attachment.map(&resv, Direction::Bidirectional).expect("pinned"));
    drop((resv, pin));
}

#[test]
fn peer_to_peer_is_for_importers_that_allow_it_and_are_not_static() {
    let (buf, _) = memory();
    for class in [
        ImporterClass::Static,
        ImporterClass::Pinned,
        ImporterClass::PinnedRevocable,
        ImporterClass::Dynamic,
    ] {
        for allows in [true, false] {
            let nic: Arc<dyn Importer> = Arc::new(Near { class, allows });
            let attachment = buf.attach(&nic).expect("anybody may attach");
            let expected = allows && class != ImporterClass::Static;
            assert_eq!(attachment.peer2peer(), expected, "{class:?}");
            let told = matches!(class, ImporterClass::Dynamic | ImporterClass::PinnedRevocable);
            assert_eq!(attachment.is_revocable(), told, "{class:?}");
        }
    }
}

#[test]
fn an_exporters_refusal_is_passed_on_as_it_is() {
    for kind in KINDS {
        for at in ["attach", "pin", "map"] {
            let exporter = Arc::new(Refusing { kind, at });
            let buf = DmaBuf::export_with(exporter, SIZE, "refusing", Resv::new()).unwrap();
            let nic = importer("efa_0", ImporterClass::Pinned);
            let found = match buf.attach(&nic) {
                Err(AttachError::Exporter { reason, .. }) => ("attach", reason),
                Err(other) => panic!("{other}"),
                Ok(attachment) => {
                    let resv = buf.resv().lock();
                    match attachment.pin(&resv) {
                        Err(PinError::Exporter { reason, .. }) => ("pin", reason),
                        Err(other) => panic!("{other}"),
                        Ok(pin) => {
                            let map = attachment.map(&resv, Direction::Bidirectional);
                            drop(pin);
                            match map.expect_err("one of them refuses") {
                                MapError::Exporter { reason, .. } => ("map", reason),
                                other => panic!("{other}"),
                            }
                        }
                    }
                }
            };
            assert_eq!((found.0, found.1.kind), (at, kind));
        }
    }
}

/// Records whether the lock was held at each call.
#[derive(Default)]
struct Watcher {
    resv: Resv,
    seen: Mutex<Vec<(&'static str, bool)>>,
}

impl Watcher {
    fn note(&self, what: &'static str) {
        let is_held = self.resv.try_lock().is_none();
        self.seen.lock().unwrap().push((what, is_held));
    }
}

impl Exporter for Watcher {
    fn name(&self) -> &str {
        "watcher"
    }

    fn attach(&self, _attachment: &mut AttachmentInfo) -> Result<(), ExporterError> {
        self.note("attach");
        Ok(())
    }

    fn detach(&self, _attachment: &AttachmentInfo) {
        self.note("detach");
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

    fn release(&self) {
        self.note("release");
    }

    fn begin_cpu_access(&self, _direction: Direction) -> Result<(), ExporterError> {
        self.note("begin_cpu_access");
        Ok(())
    }

    fn end_cpu_access(&self, _direction: Direction) -> Result<(), ExporterError> {
        self.note("end_cpu_access");
        Ok(())
    }

    fn is_in_file(&self) -> bool {
        true
    }

    fn mmap(&self, _offset: u64, _len: u64) -> Result<(), ExporterError> {
        self.note("mmap");
        Ok(())
    }

    fn vmap(&self, _resv: &ResvGuard<'_>) -> Result<IosysMap, ExporterError> {
        self.note("vmap");
        Ok(IosysMap::Io(0xf000_0000))
    }

    fn vunmap(&self, _resv: &ResvGuard<'_>, _map: IosysMap) {
        self.note("vunmap");
    }
}

impl Pinning for Watcher {
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

/// Only the mandatory operations.
struct Bare;

impl Exporter for Bare {
    fn name(&self) -> &str {
        "bare"
    }

    fn map_dma_buf(
        &self,
        _resv: &ResvGuard<'_>,
        _attachment: &AttachmentInfo,
        _direction: Direction,
    ) -> Result<SgTable, ExporterError> {
        Ok(SgTable::of_system(vec![SgEntry::new(0x4000_0000, SIZE)]))
    }

    fn unmap_dma_buf(
        &self,
        _resv: &ResvGuard<'_>,
        _attachment: &AttachmentInfo,
        _table: SgTable,
        _direction: Direction,
    ) {
    }
}

/// Refuses at one of the three places.
struct Refusing {
    kind: ExporterErrorKind,
    at: &'static str,
}

impl Refusing {
    fn answer(&self, at: &str) -> Result<(), ExporterError> {
        match self.at == at {
            true => Err(ExporterError::new(self.kind, "no")),
            false => Ok(()),
        }
    }
}

impl Exporter for Refusing {
    fn name(&self) -> &str {
        "refusing"
    }

    fn attach(&self, _attachment: &mut AttachmentInfo) -> Result<(), ExporterError> {
        self.answer("attach")
    }

    fn pinning(&self) -> Option<&dyn Pinning> {
        Some(self)
    }

    fn map_dma_buf(
        &self,
        resv: &ResvGuard<'_>,
        attachment: &AttachmentInfo,
        direction: Direction,
    ) -> Result<SgTable, ExporterError> {
        self.answer("map")?;
        Bare.map_dma_buf(resv, attachment, direction)
    }

    fn unmap_dma_buf(
        &self,
        _resv: &ResvGuard<'_>,
        _attachment: &AttachmentInfo,
        _table: SgTable,
        _direction: Direction,
    ) {
    }
}

impl Pinning for Refusing {
    fn pin(
        &self,
        _resv: &ResvGuard<'_>,
        _attachment: &AttachmentInfo,
    ) -> Result<(), ExporterError> {
        self.answer("pin")
    }

    fn unpin(&self, _resv: &ResvGuard<'_>, _attachment: &AttachmentInfo) {}
}

struct Near {
    class: ImporterClass,
    allows: bool,
}

impl Importer for Near {
    fn name(&self) -> &str {
        "near"
    }

    fn class(&self) -> ImporterClass {
        self.class
    }

    fn allow_peer2peer(&self) -> bool {
        self.allows
    }
}
