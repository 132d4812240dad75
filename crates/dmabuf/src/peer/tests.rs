use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::exporter::SgEntry;

/// What a client was asked.
type Log = Arc<Mutex<Vec<&'static str>>>;
/// The handle by which it takes its memory back.
type Core = Arc<Mutex<Option<PeerCore>>>;

/// A client that claims one range, and records the calls.
#[derive(Default)]
struct Driver {
    name: String,
    range: (u64, u64),
    needs_invalidation: bool,
    refuses: Option<&'static str>,
    log: Log,
    core: Core,
}

struct Claimed {
    refuses: Option<&'static str>,
    log: Log,
    core: Core,
}

impl PeerClient for Driver {
    fn name(&self) -> &str {
        &self.name
    }

    fn needs_invalidation(&self) -> bool {
        self.needs_invalidation
    }

    fn owner(&self, _mapping: &PeerRange) -> Option<String> {
        None
    }

    fn acquire(&self, addr: u64, len: u64) -> Option<Box<dyn PeerMemory>> {
        lock(&self.log).push("acquire");
        let is_mine = addr >= self.range.0 && addr + len <= self.range.1;
        let (log, core) = (Arc::clone(&self.log), Arc::clone(&self.core));
        is_mine.then(|| Box::new(Claimed { refuses: self.refuses, log, core }) as _)
    }
}

impl Claimed {
    fn step(&self, step: &'static str) -> Result<(), ExporterError> {
        lock(&self.log).push(step);
        match self.refuses {
            Some(refused) if refused == step => {
                Err(ExporterError::new(ExporterErrorKind::Again, "the pool is full"))
            }
            _ => Ok(()),
        }
    }
}

impl PeerMemory for Claimed {
    fn get_pages(&self, _write: bool, core: &PeerCore) -> Result<(), ExporterError> {
        *lock(&self.core) = Some(core.clone());
        self.step("get_pages")?;
        if self.refuses == Some("race") {
            core.invalidate();
        }
        Ok(())
    }

    fn dma_map(&self, _device: Option<DeviceAddr>) -> Result<SgTable, ExporterError> {
        self.step("dma_map")?;
        Ok(SgTable::of_system(vec![SgEntry::new(0x10_0000, 0x10000)]))
    }

    fn dma_unmap(&self) {
        lock(&self.log).push("dma_unmap");
    }

    fn put_pages(&self) {
        lock(&self.log).push("put_pages");
    }

    fn page_size(&self) -> u64 {
        0x10000
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        lock(&self.log).push("release");
    }
}

/// Ranges that no other test uses, and where no memory is.
fn range(n: u64) -> (u64, u64) {
    (n << 40, (n << 40) + 0x20000)
}

fn register(driver: Driver) -> (Arc<dyn PeerClient>, Log, Core) {
    let (log, core) = (Arc::clone(&driver.log), Arc::clone(&driver.core));
    let client: Arc<dyn PeerClient> = Arc::new(driver);
    register_client(&client);
    (client, log, core)
}

#[test]
fn clients_are_asked_in_order_until_one_claims() {
    let driver =
        |n, name: &str| Driver { name: name.to_owned(), range: range(n), ..Driver::default() };
    let (_first, first, _) = register(driver(1 << 20, "first"));
    let (_second, second, _) = register(driver((1 << 20) + 1, "second"));
    let (_third, third, _) = register(driver((1 << 20) + 2, "third"));
    let (addr, _) = range((1 << 20) + 1);
    let pages = get(addr + 0x10123, 0x100, true, None, None).expect("the second claims it");
    assert_eq!((pages.client(), pages.offset(), pages.table().len()), ("second", 0x123, 0x10000));
    assert_eq!(*lock(&first), ["acquire"]);
    assert!(lock(&third).is_empty());
    drop(pages);
    let all = ["acquire", "get_pages", "dma_map", "dma_unmap", "put_pages", "release"];
    assert_eq!(*lock(&second), all);
    let refused = get(addr + 0x1ff00, 0x200, true, None, None).expect_err("it leaves the range");
    assert!(matches!(&refused, PeerError::Unclaimed { asked } if asked.contains("second")));
}

#[test]
fn the_device_is_stopped_once_and_before_the_pages_go() {
    let driver =
        Driver { name: "takes back".to_owned(), range: range(2 << 20), ..Driver::default() };
    let (_client, log, core) = register(Driver { needs_invalidation: true, ..driver });
    let (addr, _) = range(2 << 20);
    assert!(get(addr, 4096, true, None, None).is_err(), "a device that cannot stop");
    let stopped = Arc::new(AtomicUsize::new(0));
    let (count, seen) = (Arc::clone(&stopped), Arc::clone(&log));
    let stop = Box::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
        lock(&seen).push("stop");
    });
    let pages = get(addr, 4096, true, None, Some(stop)).expect("claimed");
    let core = lock(&core).take().expect("get_pages had it");
    core.invalidate();
    core.invalidate();
    drop(pages);
    core.invalidate();
    assert_eq!(stopped.load(Ordering::Relaxed), 1);
    let all = ["acquire", "get_pages", "dma_map", "stop", "dma_unmap", "put_pages", "release"];
    assert_eq!(*lock(&log), all);
}

#[test]
fn a_refusal_undoes_what_was_done() {
    let cases: [(&str, u64, &[&str]); 3] = [
        ("get_pages", 3 << 20, &["acquire", "get_pages", "release"]),
        ("dma_map", 4 << 20, &["acquire", "get_pages", "dma_map", "put_pages", "release"]),
        (
            "race",
            5 << 20,
            &["acquire", "get_pages", "dma_map", "dma_unmap", "put_pages", "release"],
        ),
    ];
    for (step, n, expected) in cases {
        let driver = Driver { name: step.to_owned(), range: range(n), ..Driver::default() };
        let (_client, log, _) = register(Driver { refuses: Some(step), ..driver });
        let refused = get(range(n).0, 4096, false, None, None).expect_err("refused");
        assert!(matches!(refused, PeerError::Client { client, .. } if client == step));
        assert_eq!(*lock(&log), expected);
    }
}

#[test]
fn an_arena_is_its_clients_whether_mapped_or_not() {
    let (addr, end) = range(6 << 20);
    let driver = Driver { name: "arena".to_owned(), range: (addr, end), ..Driver::default() };
    let (client, _, _) = register(driver);
    assert_eq!(owner_of(addr, 1), None, "nobody said so yet");
    let arena = claim_arena(&client, addr, end - addr);
    let found = owner_of(end - 1, 1).expect("the last byte");
    assert!(found.has_client && found.owner.contains("arena"), "{found:?}");
    assert!(is_in_arena(addr - 1, 2) && is_in_arena(0, u64::MAX), "a part of it is enough");
    assert!(!is_in_arena(addr - 1, 1) && !is_in_arena(end, 1), "its neighbours are not in it");
    let (above, _) = range(7 << 20);
    let other = claim_arena(&client, above, 4096);
    assert_eq!(owner_of(end, 1), None, "between two arenas");
    drop(other);
    assert!(!is_in_arena(above, 1) && is_in_arena(addr, 1));
    drop(arena);
    assert_eq!(owner_of(addr, 1), None);
}

#[test]
fn a_dma_buf_of_this_library_is_known_by_its_mapping() {
    let memory = crate::Memory::Memfd;
    let buf = crate::DmaBuf::export_from(&memory, 8192, "mapped").expect("a buffer");
    let mapping = buf.map(0, 8192).expect("mapped");
    let found = owner_of(mapping.addr() as u64 + 4096, 1).expect("found");
    assert!(found.mapping.contains("peerdma:mapped") && !found.has_client, "{found:?}");
    drop(mapping);
    let plain = vec![0_u8; 1 << 20];
    assert_eq!(owner_of(plain.as_ptr().addr() as u64, 4096), None);
}
