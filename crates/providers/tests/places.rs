//! Providers of each kind, and the clients that use their memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dmabuf::DeviceAddr;
use gpu::{Gpu, GpuConfig};
use orchestrator::{
    Client, Cmb, HoldError, MemoryProvider, Orchestrator, PlaceError, PublishError, Published,
};
use pci::{Bdf, MapType, PciConfig, PciTree};
use providers::{GpuMemory, NicMemory};
use storage::{ClientConfig, Error, File, OpenOptions};
use verbs::soft::{self, NicConfig};
use verbs::{Access, Context, HostBuf, QpSpec, SendRequest};

const MB: u64 = 1 << 20;

/// Two switches below a host bridge that is not on the allowlist, and a NIC below another bridge.
const MACHINE: &str = r#"
[[host_bridge]]
name = "root0"
id = "1234:5678"
[[host_bridge]]
name = "root1"
id = "1234:5678"
[[switch]]
name = "outer"
under = "root0"
[[switch]]
name = "left"
under = "outer"
[[switch]]
name = "right"
under = "outer"
[[device]]
name = "nic0"
under = "left"
[[device]]
name = "gpu0"
under = "left"
bars = ["16M"]
[[device]]
name = "nvme0"
under = "left"
bars = ["1M"]
[[device]]
name = "nvme1"
under = "right"
bars = ["1M"]
[[device]]
name = "nvme2"
under = "right"
bars = ["1M"]
[[device]]
name = "nic1"
under = "right"
[[device]]
name = "nic2"
under = "root1"
"#;

fn machine() -> Arc<PciTree> {
    let config: PciConfig = toml::from_str(MACHINE).expect("the test's own text");
    let names = ["nic0", "gpu0", "nvme0", "nvme1", "nvme2", "nic1", "nic2"];
    Arc::new(config.build(&names).expect("sound"))
}

fn at(tree: &PciTree, name: &str) -> Bdf {
    tree.by_name(name).expect("in the machine")
}

fn clients(tree: &PciTree, names: &[&str]) -> Vec<Client> {
    let client = |name: &&str| Client { name: (*name).to_owned(), bdf: at(tree, name) };
    names.iter().map(client).collect()
}

fn publish_cmb(p2p: &Orchestrator, name: &str) -> Published {
    let bdf = at(p2p.p2pdma().tree(), name);
    let cmb = Cmb::new(p2p.p2pdma(), name, bdf, 0, MB).expect("a BAR");
    p2p.publish(Arc::new(cmb)).expect("a device")
}

fn gpu(tree: &Arc<PciTree>) -> Gpu {
    let config = GpuConfig { vram: 8 * MB, gtt: 8 * MB, shared: false, ..GpuConfig::default() };
    Gpu::open_in(&config, Arc::clone(tree)).expect("a GPU")
}

fn nic(tree: &Arc<PciTree>, name: &str) -> Context {
    let config = NicConfig {
        name: format!("{name}-{}", std::process::id()),
        address: Some(DeviceAddr(at(tree, name).to_bits())),
        tree: Some(Arc::clone(tree)),
        max_dm_size: 4 * MB,
        ..NicConfig::default()
    };
    soft::device(config).expect("a NIC").open().expect("it opens")
}

fn nic_memory(tree: &Arc<PciTree>, name: &str) -> NicMemory {
    let addr = DeviceAddr(at(tree, name).to_bits());
    NicMemory::new(&nic(tree, name), name, addr).expect("in the machine")
}

fn disk(tree: &PciTree, name: &str) -> storage::Client {
    let addr = Some(DeviceAddr(at(tree, name).to_bits()));
    let config = ClientConfig { name: name.to_owned(), addr, ..ClientConfig::default() };
    storage::Client::new(&config).expect("a client")
}

/// A file that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(bytes: &[u8]) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("orchestrator-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, bytes).expect("room on the disk");
        Self(path)
    }

    fn open(&self) -> File {
        File::open(&self.0, &OpenOptions::default()).expect("just made")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn pattern(seed: u64) -> Vec<u8> {
    (0..MB).map(|n| ((n ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

#[test]
fn memory_comes_from_the_provider_nearest_to_all_clients() {
    let tree = machine();
    let p2p = Orchestrator::new(Arc::clone(&tree));
    assert_eq!(
        p2p.place(&clients(&tree, &["nic0"]), 4096).expect_err("nobody lends"),
        PlaceError::NoProvider
    );
    let _left = publish_cmb(&p2p, "nvme0");
    let right = publish_cmb(&p2p, "nvme1");
    assert_eq!(p2p.place(&[], 4096).expect_err("for nobody"), PlaceError::NoClients);
    for (names, expected, distances) in [
        (&["nic0", "nvme0"][..], "nvme0", &[4, 0][..]),
        (&["nic1", "nvme1"], "nvme1", &[4, 0]),
        (&["gpu0", "nic0"], "nvme0", &[4, 4]),
    ] {
        let placed = p2p.place(&clients(&tree, names), 4096).expect("reached");
        assert_eq!(placed.provider(), expected, "{names:?}");
        let seen: Vec<_> = placed.ways().iter().map(|way| way.distance).collect();
        assert_eq!(seen, distances, "{names:?}");
        assert!(placed.ways().iter().all(|way| way.map_type == MapType::BusAddr));
    }
    right.remove("the test is over");
    let placed = p2p.place(&clients(&tree, &["nic1"]), 4096).expect("reached");
    assert_eq!(placed.provider(), "nvme0", "farther away, and the only one left");
}

#[test]
fn of_several_equally_near_any_may_be_taken() {
    let tree = machine();
    let p2p = Orchestrator::new(Arc::clone(&tree));
    let _one = publish_cmb(&p2p, "nvme1");
    let _two = publish_cmb(&p2p, "nvme2");
    let users = clients(&tree, &["nic1"]);
    let all: std::collections::BTreeSet<_> =
        (0..64).map(|_| p2p.place(&users, 4096).expect("reached").provider().to_owned()).collect();
    assert_eq!(all.len(), 2, "one alone has a chance of two to the minus 63");
}

#[test]
fn memory_that_a_client_cannot_reach_is_refused_with_the_rule_for_each_provider() {
    let tree = machine();
    let p2p = Orchestrator::new(Arc::clone(&tree));
    let _left = publish_cmb(&p2p, "nvme0");
    let _right = publish_cmb(&p2p, "nvme1");
    let refusal = p2p.place(&clients(&tree, &["nic0", "nic2"]), 4096).expect_err("apart");
    let PlaceError::Unreachable { reasons } = &refusal else { panic!("{refusal}") };
    assert_eq!(reasons.len(), 2);
    let text = refusal.to_string();
    assert!(text.contains("nvme0 for nic2") && text.contains("host bridge"), "{text}");
    // The exporter refuses a client that was not named but attaches anyway.
    let placed = p2p.place(&clients(&tree, &["nic0"]), 4096).expect("reached");
    let pd = nic(&tree, "nic2").alloc_pd().expect("a domain");
    let refusal = pd.reg_whole_dmabuf(placed.buffer(), Access::LOCAL_WRITE).expect_err("apart");
    assert!(refusal.to_string().contains("host bridge"), "{refusal}");
}

#[test]
fn a_pool_gives_out_pages_and_says_when_it_is_empty() {
    let tree = machine();
    let p2p = Orchestrator::new(Arc::clone(&tree));
    let _published = publish_cmb(&p2p, "nvme0");
    let (bdf, users) = (at(&tree, "nvme0"), clients(&tree, &["nic0"]));
    let free = || p2p.p2pdma().view(bdf).expect("a provider").available;
    let (one, two) = (p2p.place(&users, 5000), p2p.place(&users, MB - 16384));
    assert_eq!(free(), 8192);
    assert_eq!(one.as_ref().expect("room").buffer().size(), 8192);
    let refusal = p2p.place(&users, 12288).expect_err("it is nearly empty");
    assert!(matches!(refusal, PlaceError::Refused { .. }), "{refusal}");
    assert!(refusal.to_string().contains("0x2000 are free"), "{refusal}");
    drop((one, two));
    assert_eq!(free(), MB);
    // The memory of a second provider at its address would never be revoked.
    let there = DeviceAddr(bdf.to_bits());
    let again = NicMemory::new(&nic(&tree, "nic0"), "nic0", there).expect("an address");
    let refusal = p2p.publish(Arc::new(again)).expect_err("it is there");
    assert!(matches!(refusal, PublishError::Taken { .. }), "{refusal}");
    assert_eq!(free(), MB, "the first one is as it was");
    // A pool is at most as long as the BAR.
    assert!(Cmb::new(p2p.p2pdma(), "nvme1", at(&tree, "nvme1"), 0, 2 * MB).is_err());
}

/// From a disk into memory of a GPU, a NIC and a controller, and from there by RDMA to a peer.
#[test]
fn a_disk_fills_and_a_nic_sends_memory_of_a_gpu_a_nic_and_a_controller() {
    let tree = machine();
    let bytes = pattern(1);
    let scratch = Scratch::new(&bytes);
    let (file, context) = (scratch.open(), nic(&tree, "nic0"));
    let pd = context.alloc_pd().expect("a domain");
    let side = || {
        let cq = context.create_cq(16).expect("a queue");
        let qp = pd.create_qp(&QpSpec::rc(&cq)).expect("a QP");
        (cq, qp)
    };
    let ((cq, qp), (_other_cq, other)) = (side(), side());
    qp.connect(&other.endpoint().expect("an address")).expect("it connects");
    other.connect(&qp.endpoint().expect("an address")).expect("it connects");
    let disk = disk(&tree, "nvme1");
    let target = HostBuf::anonymous(MB as usize).expect("memory");
    let there = pd.reg_mr(&target, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("plain");
    let providers: [&dyn Fn(&Orchestrator) -> Published; 3] = [
        &|p2p| {
            p2p.publish(Arc::new(GpuMemory::new(gpu(&tree)).expect("in the machine")))
                .expect("a device")
        },
        &|p2p| {
            let provider = nic_memory(&tree, "nic1");
            p2p.publish(Arc::new(provider)).expect("a device")
        },
        &|p2p| publish_cmb(p2p, "nvme0"),
    ];
    for provider in providers {
        let p2p = Orchestrator::new(Arc::clone(&tree));
        let published = provider(&p2p);
        let placed = p2p.place(&clients(&tree, &["nvme1", "nic0"]), MB).expect("reached");
        let buffer = disk.attach(placed.buffer()).expect("a client");
        let mr = pd.reg_whole_dmabuf(placed.buffer(), Access::LOCAL_WRITE).expect("a client");
        let before = umem::ways::bytes_by_way();
        assert_eq!(disk.read(&file, 0, &buffer, 0, MB), Ok(MB), "{}", placed.provider());
        target.fill(0, 0, MB as usize).expect("inside");
        let write = SendRequest::write(1, &[mr.slice(0, MB as u32)], there.remote(0));
        qp.post_send(&write.signaled()).expect("room");
        let done = cq.wait_timeout(Duration::from_secs(20)).expect("alive").expect("in time");
        assert!(done.is_success(), "{}: {done:?}", placed.provider());
        let mut seen = vec![0; MB as usize];
        target.read(0, &mut seen).expect("inside");
        assert!(seen == bytes, "{}", placed.provider());
        let after = umem::ways::bytes_by_way();
        // Written once by the disk, read once by the NIC, and copied nowhere in between.
        assert!(after.bus_address - before.bus_address >= 2 * MB, "{}", placed.provider());
        assert_eq!(after.bounced, before.bounced, "{}", placed.provider());
        drop((mr, buffer, placed));
        published.remove("the test is over");
    }
}

#[test]
fn a_provider_that_leaves_under_load_revokes_its_memory_first() {
    let tree = machine();
    let scratch = Scratch::new(&pattern(2));
    let (file, disk) = (scratch.open(), disk(&tree, "nvme1"));
    for is_gpu in [true, false] {
        let p2p = Orchestrator::new(Arc::clone(&tree));
        let (published, bdf) = match is_gpu {
            true => {
                let provider = Arc::new(GpuMemory::new(gpu(&tree)).expect("in the machine"));
                (p2p.publish(provider).expect("a device"), at(&tree, "gpu0"))
            }
            false => (publish_cmb(&p2p, "nvme0"), at(&tree, "nvme0")),
        };
        let users = clients(&tree, &["nvme1"]);
        let placed = p2p.place(&users, MB).expect("reached");
        let buffer = disk.attach(placed.buffer()).expect("a client");
        let (first, began) = std::sync::mpsc::channel();
        let error = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                loop {
                    match disk.read(&file, 0, &buffer, 0, MB) {
                        Ok(_) => drop(first.send(())),
                        Err(error) => return error,
                    }
                }
            });
            began.recv().expect("it reads");
            published.remove("the controller was unplugged");
            // From here on nobody finds the provider, and nobody reaches its memory.
            assert_eq!(p2p.p2pdma().view(bdf), None);
            reader.join().expect("no panic")
        });
        assert!(matches!(error, Error::Gone { .. }), "{error:?}");
        if !is_gpu {
            assert!(error.to_string().contains("unplugged"), "{error}");
        }
        assert_eq!(p2p.place(&users, MB).expect_err("it left"), PlaceError::NoProvider);
        assert!(disk.attach(placed.buffer()).is_err(), "nor does a new client");
    }
}

/// What the kernel's percpu_ref of a provider's pages is for.
#[test]
fn a_provider_that_leaves_waits_for_requests_that_hold_its_memory_and_takes_no_more() {
    let tree = machine();
    type Make = fn(&Arc<PciTree>, &Orchestrator) -> Arc<dyn MemoryProvider>;
    let kinds: [Make; 3] = [
        |tree, p2p| {
            let bdf = at(tree, "nvme0");
            Arc::new(Cmb::new(p2p.p2pdma(), "nvme0", bdf, 0, MB).expect("a BAR"))
        },
        |tree, _| Arc::new(GpuMemory::new(gpu(tree)).expect("in the machine")),
        |tree, _| Arc::new(nic_memory(tree, "nic0")),
    ];
    for make in kinds {
        let p2p = Orchestrator::new(Arc::clone(&tree));
        let published = p2p.publish(make(&tree, &p2p)).expect("a device");
        let placed = p2p.place(&clients(&tree, &["nic0"]), 4096).expect("there is room");
        let disk = disk(&tree, "nvme0");
        let buffer = disk.attach(placed.buffer()).expect("within reach");
        let (first, second) = (placed.hold().expect("held"), placed.hold().expect("held"));
        assert!(!first.is_overdue());
        drop(second);
        std::thread::scope(|scope| {
            let leaves = scope.spawn(move || published.remove("it was unplugged"));
            // From now on it waits for the first one.
            while placed.hold().is_ok() {
                std::thread::yield_now();
            }
            let refused = placed.hold().expect_err("it leaves");
            assert!(
                matches!(refused, HoldError::Busy { .. } | HoldError::Gone { .. }),
                "{refused}"
            );
            assert!(buffer.is_mapped() && buffer.map_type().is_ok(), "{refused}");
            assert!(!leaves.is_finished());
            drop(first);
            leaves.join().expect("it is gone");
        });
        assert!(!buffer.is_mapped());
        let refused = placed.hold().expect_err("it left");
        assert!(matches!(refused, HoldError::Gone { .. }), "{refused}");
    }
}
