//! An exporter and importers in one process, by the rules of `docs/semantics.md` 1.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, Weak};
use std::time::Duration;

use dmabuf::{
    Attachment, AttachmentInfo, Direction, DmaBuf, Exporter, ExporterError, ExporterErrorKind,
    Importer, ImporterClass, IosysMap, MapError, MapGuard, PinError, PinGuard, Pinning, Resv,
    ResvGuard, SgEntry, SgTable, StillInUse,
};

const SIZE: u64 = 8192;

#[test]
fn a_static_importer_is_pinned_for_each_map_and_never_peer_to_peer() {
    let (buf, exporter) = vram(Rules::default());
    let device = device("gadget", ImporterClass::Static);
    let attachment = buf.attach(&as_importer(&device)).expect("anybody may attach");
    assert!(!attachment.peer2peer());
    let resv = buf.resv().lock();
    assert!(matches!(attachment.pin(&resv), Err(PinError::Static { .. })));
    let map = attachment.map(&resv, Direction::Bidirectional).expect("mapped");
    assert_eq!(map.table().len(), SIZE);
    assert_eq!(exporter.log(), ["attach", "pin", "map"]);
    map.unmap(&resv);
    drop(resv);
    drop(attachment);
    assert_eq!(exporter.log(), ["attach", "pin", "map", "unmap", "unpin", "detach"]);
}

#[test]
fn a_pinned_importer_pins_before_it_maps_and_the_pin_outlives_the_map() {
    let (buf, exporter) = vram(Rules::default());
    let device = device("efa_0", ImporterClass::Pinned);
    let attachment = buf.attach(&as_importer(&device)).expect("anybody may attach");
    let resv = buf.resv().lock();
    let refusal = attachment.map(&resv, Direction::Bidirectional).unwrap_err();
    assert_eq!(refusal.to_string(), "efa_0 is a pinned importer and must pin before it maps");
    let pin = attachment.pin(&resv).expect("room");
    let map = attachment.map(&resv, Direction::Bidirectional).expect("pinned");
    // The wrong order of dropping does not unpin memory that is still mapped.
    pin.unpin(&resv);
    assert_eq!(exporter.log(), ["attach", "pin", "map"]);
    map.unmap(&resv);
    drop(resv);
    assert_eq!(exporter.log(), ["attach", "pin", "map", "unmap", "unpin"]);
}

#[test]
fn guards_dropped_under_the_lock_are_undone_by_its_holder_and_detach_runs_without_it() {
    let (buf, exporter) = vram(Rules::default());
    let device = device("mlx5_0", ImporterClass::Dynamic);
    let attachment = buf.attach(&as_importer(&device)).expect("anybody may attach");
    let resv = buf.resv().lock();
    let map = attachment.map(&resv, Direction::FromDevice).expect("mapped");
    drop(map);
    drop(attachment);
    assert_eq!(exporter.log(), ["attach", "map"]);
    drop(resv);
    assert_eq!(exporter.log(), ["attach", "map", "unmap", "detach"]);
    assert!(!exporter.detached_locked.load(Ordering::Relaxed));
}

#[test]
fn a_dynamic_importer_follows_a_move() {
    let (buf, exporter) = vram(Rules::default());
    let device = device("mlx5_0", ImporterClass::Dynamic);
    let attachment = buf.attach(&as_importer(&device)).expect("anybody may attach");
    device.hold(&attachment, None);
    let before = device.address().expect("mapped");

    let resv = buf.resv().lock();
    buf.invalidate_mappings(&resv);
    assert_eq!(device.address(), None, "it stopped before the call returned");
    exporter.place.fetch_add(0x10_0000, Ordering::Relaxed);
    drop(resv);

    device.hold(&attachment, None);
    assert_eq!(device.address(), Some(before + 0x10_0000));
    assert_eq!(device.invalidated.load(Ordering::Relaxed), 1);
}

#[test]
fn a_revoked_importer_is_told_once_and_never_maps_again() {
    let (buf, exporter) = vram(Rules::default());
    let device = device("irdma0", ImporterClass::PinnedRevocable);
    let attachment = buf.attach(&as_importer(&device)).expect("anybody may attach");
    let pin = attachment.pin(&buf.resv().lock()).expect("room");
    device.hold(&attachment, Some(pin));

    let gone = buf.revoke(|_| exporter.revoked.store(true, Ordering::Relaxed), None);
    assert_eq!(gone, Ok(()), "the importer let go inside the callback");
    assert_eq!(exporter.log(), ["attach", "pin", "map", "unmap", "unpin"]);
    assert!(attachment.is_revoked());

    // The memory comes back (a device was reset): new attachments may map, this one may not.
    exporter.revoked.store(false, Ordering::Relaxed);
    assert!(matches!(
        attachment.map_unlocked(Direction::Bidirectional),
        Err(MapError::Revoked { .. })
    ));
    let resv = buf.resv().lock();
    assert!(matches!(attachment.pin(&resv), Err(PinError::Revoked { .. })));
    buf.invalidate_mappings(&resv);
    assert_eq!(device.invalidated.load(Ordering::Relaxed), 1, "at most once");
}

/// Whichever comes first, the memory is given back once: by the callback, or by the importer that
/// releases it by itself.
#[test]
fn a_revocation_concurrent_with_a_release_is_reported_at_most_once() {
    let (mut told, rounds) = (0, 500);
    for round in 0..rounds {
        let (buf, exporter) = vram(Rules::default());
        let device = device("irdma0", ImporterClass::PinnedRevocable);
        let attachment = buf.attach(&as_importer(&device)).expect("anybody may attach");
        let pin = attachment.pin(&buf.resv().lock()).expect("room");
        device.hold(&attachment, Some(pin));
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                lag(round % 8 * 40);
                device.let_go();
                drop(attachment);
            });
            start.wait();
            lag((7 - round % 8) * 40);
            let gone = buf.revoke(|_| exporter.revoked.store(true, Ordering::Relaxed), None);
            assert_eq!(gone, Ok(()));
        });
        let times = device.invalidated.load(Ordering::Relaxed);
        assert!(times <= 1, "told {times} times in round {round}");
        told += times;
        let log = exporter.log();
        for step in ["unmap", "unpin", "detach"] {
            assert_eq!(log.iter().filter(|heard| **heard == step).count(), 1, "{step}: {log:?}");
        }
    }
    println!("the revocation came first in {told} of {rounds} rounds");
}

/// A short, arbitrary delay, without a clock.
fn lag(spins: usize) {
    for _ in 0..spins {
        std::hint::spin_loop();
    }
}

#[test]
fn a_pinned_importer_without_the_callback_keeps_its_access() {
    let (buf, exporter) = vram(Rules::default());
    let device = device("bnxt_re0", ImporterClass::Pinned);
    let attachment = buf.attach(&as_importer(&device)).expect("anybody may attach");
    let pin = attachment.pin(&buf.resv().lock()).expect("room");
    device.hold(&attachment, Some(pin));
    let gone =
        buf.revoke(|_| exporter.revoked.store(true, Ordering::Relaxed), Some(Duration::ZERO));
    assert_eq!(gone, Err(StillInUse::Mapped { count: 1 }), "nobody could take the memory away");
    assert!(device.address().is_some());
    device.let_go();
    assert_eq!(buf.wait_unmapped(Some(Duration::ZERO)), Ok(()));
    // The exporter must refuse a map that begins after the revocation.
    let pin = attachment.pin(&buf.resv().lock()).expect("this exporter still pins");
    let refusal = attachment.map_unlocked(Direction::Bidirectional).unwrap_err();
    assert_eq!(refusal.to_string(), "vram refuses to map for bnxt_re0: the memory was revoked");
    drop(pin);
}

#[test]
fn an_exporter_may_refuse_a_class_and_take_peer_to_peer_away() {
    let (buf, _) = vram(Rules { needs_revocable: true, ..Rules::default() });
    let pinned = device("efa_0", ImporterClass::Pinned);
    let refusal = buf.attach(&as_importer(&pinned)).unwrap_err();
    assert_eq!(refusal.to_string(), "vram refuses to attach efa_0: importers must be revocable");
    assert!(buf.attach(&as_importer(&device("mlx5_0", ImporterClass::Dynamic))).is_ok());

    let (buf, _) = vram(Rules { unreachable: true, ..Rules::default() });
    let far = device("mlx5_1", ImporterClass::Dynamic);
    assert!(!buf.attach(&as_importer(&far)).expect("through system memory").peer2peer());
}

#[test]
fn the_lock_of_another_buffer_is_no_lock() {
    let (buf, _) = vram(Rules::default());
    let device = device("mlx5_0", ImporterClass::Dynamic);
    let attachment = buf.attach(&as_importer(&device)).expect("anybody may attach");
    let other = Resv::new();
    let refusal = attachment.map(&other.lock(), Direction::Bidirectional).unwrap_err();
    assert_eq!(refusal, MapError::WrongLock);
}

#[test]
fn buffers_may_share_one_lock() {
    let resv = Resv::new();
    let (one, _) = vram_with(Rules::default(), resv.clone());
    let (two, _) = vram_with(Rules::default(), resv.clone());
    let device = device("mlx5_0", ImporterClass::Dynamic);
    let attachments =
        [&one, &two].map(|buf| buf.attach(&as_importer(&device)).expect("anybody may attach"));
    let guard = resv.lock();
    for attachment in &attachments {
        drop(attachment.map(&guard, Direction::ToDevice).expect("one lock serves both"));
    }
}

#[test]
fn the_cpu_side_map_is_made_once_for_all_users() {
    let (buf, exporter) = vram(Rules::default());
    let resv = buf.resv().lock();
    let one = buf.vmap(&resv).expect("offered");
    let two = buf.vmap(&resv).expect("offered");
    assert_eq!(one.map(), two.map());
    drop(resv);
    drop(one);
    assert_eq!(exporter.log(), ["vmap"]);
    drop(two);
    assert_eq!(exporter.log(), ["vmap", "vunmap"]);
}

#[test]
fn the_exporter_is_released_after_everybody_left() {
    let (buf, exporter) = vram(Rules::default());
    let device = device("mlx5_0", ImporterClass::Dynamic);
    let attachment = buf.attach(&as_importer(&device)).expect("anybody may attach");
    let again = DmaBuf::import(buf.fd()).expect("our own fd");
    assert!(again.is_same(&buf), "one buffer, however it is reached");
    drop((buf, again));
    assert_eq!(exporter.log(), ["attach"]);
    drop(attachment);
    assert_eq!(exporter.log(), ["attach", "detach", "release"]);
}

// The actors.

fn vram(rules: Rules) -> (DmaBuf, Arc<Vram>) {
    vram_with(rules, Resv::new())
}

fn vram_with(rules: Rules, resv: Resv) -> (DmaBuf, Arc<Vram>) {
    let exporter = Arc::new(Vram {
        rules,
        resv: resv.clone(),
        place: AtomicUsize::new(0x4000_0000),
        revoked: AtomicBool::new(false),
        detached_locked: AtomicBool::new(false),
        log: Mutex::default(),
    });
    let as_exporter: Arc<dyn Exporter> = Arc::clone(&exporter) as _;
    let buf = DmaBuf::export_with(as_exporter, SIZE, "test", resv).expect("memory exists");
    (buf, exporter)
}

#[derive(Default)]
struct Rules {
    needs_revocable: bool,
    unreachable: bool,
}

/// A movable exporter that records its calls.
struct Vram {
    rules: Rules,
    resv: Resv,
    place: AtomicUsize,
    revoked: AtomicBool,
    detached_locked: AtomicBool,
    log: Mutex<Vec<&'static str>>,
}

impl Vram {
    fn note(&self, what: &'static str) {
        self.log.lock().expect("no panic").push(what);
    }

    fn log(&self) -> Vec<&'static str> {
        self.log.lock().expect("no panic").clone()
    }
}

impl Exporter for Vram {
    fn name(&self) -> &str {
        "vram"
    }

    fn attach(&self, attachment: &mut AttachmentInfo) -> Result<(), ExporterError> {
        if self.rules.needs_revocable && !attachment.class().is_revocable() {
            let what = "importers must be revocable";
            return Err(ExporterError::new(ExporterErrorKind::NotSupported, what));
        }
        if self.rules.unreachable {
            attachment.clear_peer2peer();
        }
        self.note("attach");
        Ok(())
    }

    fn detach(&self, _attachment: &AttachmentInfo) {
        if self.resv.try_lock().is_none() {
            self.detached_locked.store(true, Ordering::Relaxed);
        }
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
        if self.revoked.load(Ordering::Relaxed) {
            let what = "the memory was revoked";
            return Err(ExporterError::new(ExporterErrorKind::NoDevice, what));
        }
        self.note("map");
        let addr = self.place.load(Ordering::Relaxed) as u64;
        Ok(SgTable::of_system(vec![SgEntry::new(addr, SIZE)]))
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

    fn vmap(&self, _resv: &ResvGuard<'_>) -> Result<IosysMap, ExporterError> {
        self.note("vmap");
        Ok(IosysMap::Io(0xf000_0000))
    }

    fn vunmap(&self, _resv: &ResvGuard<'_>, _map: IosysMap) {
        self.note("vunmap");
    }
}

impl Pinning for Vram {
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

fn device(name: &'static str, class: ImporterClass) -> Arc<Device> {
    Arc::new(Device { name, class, held: Mutex::default(), invalidated: AtomicUsize::new(0) })
}

fn as_importer(device: &Arc<Device>) -> Arc<dyn Importer> {
    Arc::clone(device) as _
}

/// An importer with one region.
struct Device {
    name: &'static str,
    class: ImporterClass,
    held: Mutex<Option<(MapGuard, Option<PinGuard>)>>,
    invalidated: AtomicUsize,
}

impl Device {
    fn hold(&self, attachment: &Attachment, pin: Option<PinGuard>) {
        let map = attachment.map_unlocked(Direction::Bidirectional).expect("not revoked");
        *self.held.lock().expect("no panic") = Some((map, pin));
    }

    fn let_go(&self) {
        self.held.lock().expect("no panic").take();
    }

    fn address(&self) -> Option<u64> {
        let held = self.held.lock().expect("no panic");
        held.as_ref().map(|(map, _)| map.table().entries[0].addr)
    }
}

impl Importer for Device {
    fn name(&self) -> &str {
        self.name
    }

    fn class(&self) -> ImporterClass {
        self.class
    }

    fn invalidate_mappings(&self, resv: &ResvGuard<'_>, _attachment: &Attachment) {
        self.invalidated.fetch_add(1, Ordering::Relaxed);
        let Some((map, pin)) = self.held.lock().expect("no panic").take() else { return };
        map.unmap(resv);
        if let Some(pin) = pin {
            pin.unpin(resv);
        }
    }
}

#[test]
fn an_importer_that_is_gone_is_not_called() {
    let (buf, _) = vram(Rules::default());
    let device = device("mlx5_0", ImporterClass::Dynamic);
    let weak: Weak<Device> = Arc::downgrade(&device);
    let attachment = buf.attach(&as_importer(&device)).expect("anybody may attach");
    drop(device);
    assert!(weak.upgrade().is_none(), "the attachment does not keep its importer");
    buf.invalidate_mappings(&buf.resv().lock());
    drop(attachment);
}
