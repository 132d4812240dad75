//! Memory of the NIC as a dma-buf, and at odd addresses. For its uses, see `examples/dm_*.rs`.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use dmabuf::{
    Attachment, DeviceAddr, Direction, ExporterErrorKind, Importer, ImporterClass, MapError, Reach,
    ResvGuard,
};
use gpu::Machine;
use verbs::soft::{ImporterConfig, NicConfig};
use verbs::{Context, HostBuf, Kind, Pd, SendRequest, WcStatus};

use common::{ALL, nic_of, pair, run};

fn nic(importer: ImporterConfig) -> (Context, Pd) {
    nic_of(NicConfig { importer: Some(importer), ..NicConfig::default() })
}

/// Another NIC writes into this one's memory through its dma-buf, until the memory is freed.
#[test]
fn as_a_dma_buf_it_is_for_importers_that_support_revocation() {
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

/// An importer that is told of an invalidation and releases the memory some time later.
struct Slow {
    told: Mutex<mpsc::Sender<()>>,
    address: Option<DeviceAddr>,
}

impl Importer for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn class(&self) -> ImporterClass {
        ImporterClass::Dynamic
    }

    fn device(&self) -> Option<DeviceAddr> {
        self.address
    }

    fn invalidate_mappings(&self, _resv: &ResvGuard<'_>, _attachment: &Attachment) {
        self.told.lock().unwrap().send(()).unwrap();
    }
}

fn address(machine: &Machine, name: &str) -> Option<DeviceAddr> {
    machine.tree().by_name(name).map(|bdf| DeviceAddr(bdf.to_bits()))
}

/// A NIC at a root of its own, and an importer at another one: the properties of the roots decide,
/// not a constant.
#[test]
fn the_pci_tree_decides_which_devices_reach_device_memory() {
    let machine = |owner: &str, user: &str, above: &str| {
        let text = format!(
            "[[nic]]\nname = \"owner\"\n[[nic]]\nname = \"user\"\n\
             [[pci.host_bridge]]\nname = \"a\"\n{owner}\n\
             [[pci.host_bridge]]\nname = \"b\"\n{user}\n\
             [[pci.device]]\nname = \"owner\"\nunder = \"a\"\n\
             [[pci.device]]\nname = \"user\"\nunder = \"{above}\"\n\
             [[pci.device]]\nname = \"gpu0\"\nunder = \"a\"\n"
        );
        Machine::parse(&text).unwrap()
    };
    let listed = "id = \"8086:2020\"";
    let through = Some(Reach::ThroughHostBridge);
    let cases = [
        // These roots are not on the allowlist.
        (machine("", "", "b"), None),
        (machine(listed, "", "b"), None),
        // Two ports of one listed root.
        (machine(listed, listed, "a"), through),
        (machine("", "", "a"), None),
    ];
    for (n, (machine, expected)) in cases.into_iter().enumerate() {
        let config = NicConfig {
            name: format!("tree{n}-{}", std::process::id()),
            address: address(&machine, "owner"),
            tree: Some(Arc::clone(machine.tree())),
            ..NicConfig::default()
        };
        let (owner, _pd) = nic_of(config);
        let dm = owner.alloc_dm(4096).unwrap();
        let buffer = dm.export().unwrap();
        let (told, _hears) = mpsc::channel();
        let address = address(&machine, "user");
        let user: Arc<dyn Importer> = Arc::new(Slow { told: Mutex::new(told), address });
        let attachment = buffer.attach(&user).unwrap();
        let resv = attachment.resv().lock();
        let found = match attachment.map(&resv, Direction::Bidirectional) {
            Ok(map) => {
                let found = map.table().map_type;
                map.unmap(&resv);
                Some(found)
            }
            Err(MapError::Exporter { reason, .. }) => {
                assert_eq!(reason.kind, ExporterErrorKind::Invalid, "{reason}");
                None
            }
            Err(other) => panic!("{other}"),
        };
        assert_eq!(found, expected, "case {n}");
    }
}

#[test]
fn device_memory_is_allocated_in_granules_of_64_bytes() {
    let config = NicConfig { max_dm_size: 256, ..NicConfig::default() };
    let (context, pd) = nic_of(config);
    let blocks = [65, 65].map(|length| context.alloc_dm(length).unwrap());
    assert_eq!(context.alloc_dm(1).unwrap_err().kind(), Kind::NoMemory, "two take all four");
    for dm in &blocks {
        let region = pd.reg_dm_mr(dm, 0, 65, ALL).unwrap();
        assert!(
            pd.reg_dm_mr(dm, 0, 66, ALL).is_err(),
            "bytes that were not requested are not there"
        );
        drop(region);
    }
    drop(blocks);
    context.alloc_dm(256).unwrap();
}

#[test]
fn freeing_waits_until_importers_have_released_it() {
    let (context, _pd) = nic(ImporterConfig::Dynamic);
    let dm = context.alloc_dm(4096).unwrap();
    let buffer = dm.export().unwrap();
    let (told, hears) = mpsc::channel();
    let address = address(&Machine::parse("").unwrap(), "gpu0");
    let slow: Arc<dyn Importer> = Arc::new(Slow { told: Mutex::new(told), address });
    let attachment = buffer.attach(&slow).unwrap();
    let map = attachment.map_unlocked(Direction::Bidirectional).unwrap();
    let has_let_go = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            hears.recv().unwrap();
            // Time for a call that does not wait to return.
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
