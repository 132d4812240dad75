//! Memory of the NIC as a dma-buf, and at odd addresses. What it is for: `examples/dm_*.rs`.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use dmabuf::{
    Attachment, Direction, ExporterErrorKind, Importer, ImporterClass, MapError, ResvGuard,
};
use verbs::{Context, HostBuf, ImporterConfig, Kind, NicConfig, Pd, SendRequest, WcStatus};

use common::{ALL, nic_of, pair, run};

fn nic(importer: ImporterConfig) -> (Context, Pd) {
    nic_of(NicConfig { importer: Some(importer), ..NicConfig::default() })
}

/// Another NIC writes into this one's memory through its dma-buf, until it is freed.
#[test]
fn as_a_dma_buf_it_is_for_those_who_can_lose_it() {
    let (exporting, _pd) = nic(ImporterConfig::Dynamic);
    let dm = exporting.alloc_dm(8192).unwrap();
    let buffer = dm.export().unwrap();
    assert!(dm.export().unwrap().is_same(&buffer));
    for importer in [ImporterConfig::Pinned, ImporterConfig::Revocable] {
        let (_context, pd) = nic(importer);
        let refused = pd.reg_whole_dmabuf(&buffer, ALL).unwrap_err();
        assert_eq!(refused.kind(), Kind::NotSupported, "{importer:?}: {refused}");
    }
    let (context, pd) = nic(ImporterConfig::Dynamic);
    let region = pd.reg_whole_dmabuf(&buffer, ALL).unwrap();
    let (a, _b) = pair(&context, &pd);
    let host = HostBuf::anonymous(4096).unwrap();
    let mr = pd.reg_mr(&host, ALL).unwrap();
    host.fill(0, 0x3c, 4096).unwrap();
    let write = || SendRequest::write(1, &[mr.slice(0, 4096)], region.remote(4096));
    assert_eq!(run(&a, write()), WcStatus::Success);
    let mut bytes = vec![0; 4096];
    dm.read(4096, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0x3c));
    drop(dm);
    assert_eq!(run(&a, write()), WcStatus::RemAccessErr, "it was freed");
}

/// An importer that hears of an invalidation and lets go some time later.
struct Slow {
    told: Mutex<mpsc::Sender<()>>,
}

impl Importer for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn class(&self) -> ImporterClass {
        ImporterClass::Dynamic
    }

    fn invalidate_mappings(&self, _resv: &ResvGuard<'_>, _attachment: &Attachment) {
        self.told.lock().unwrap().send(()).unwrap();
    }
}

#[test]
fn freeing_waits_until_importers_have_let_go() {
    let (context, _pd) = nic(ImporterConfig::Dynamic);
    let dm = context.alloc_dm(4096).unwrap();
    let buffer = dm.export().unwrap();
    let (told, hears) = mpsc::channel();
    let slow: Arc<dyn Importer> = Arc::new(Slow { told: Mutex::new(told) });
    let attachment = buffer.attach(&slow).unwrap();
    let map = attachment.map_unlocked(Direction::Bidirectional).unwrap();
    let has_let_go = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            hears.recv().unwrap();
            // Time for a call that does not wait to come back.
            std::thread::sleep(Duration::from_millis(50));
            has_let_go.store(true, Ordering::SeqCst);
            drop(map);
        });
        drop(dm);
        assert!(has_let_go.load(Ordering::SeqCst));
    });
    let refused = attachment.map_unlocked(Direction::Bidirectional).unwrap_err();
    assert!(
        matches!(&refused, MapError::Exporter { reason, .. } if reason.kind == ExporterErrorKind::NoDevice),
        "{refused}"
    );
}

/// A zero-based region may begin anywhere, so that an aligned address of it is not aligned memory.
#[test]
fn an_atomic_on_memory_that_is_not_aligned_is_an_invalid_request() {
    let (context, pd) = nic(ImporterConfig::Dynamic);
    let dm = context.alloc_dm(64).unwrap();
    let odd = pd.reg_dm_mr(&dm, 4, 32, ALL).unwrap();
    let (a, _b) = pair(&context, &pd);
    let host = HostBuf::anonymous(4096).unwrap();
    let mr = pd.reg_mr(&host, ALL).unwrap();
    let add = SendRequest::fetch_add(1, mr.slice(0, 8), odd.remote(8), 1);
    assert_eq!(run(&a, add), WcStatus::RemInvReqErr);
}
