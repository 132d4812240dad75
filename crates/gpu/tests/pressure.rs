//! Who gives way when VRAM is short: soft pins, the buffers of one process before those of others,
//! and the limits of control groups.

mod common;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use common::{MB, Miss, Mr, Nic, Refused, config, machine, open, pattern};
use dmabuf::ExporterErrorKind;
use dmabuf::ImporterClass::{Dynamic, Pinned, PinnedRevocable, Static};
use gpu::{Domain, EvictOrder, Gpu, GpuConfig, Place, Preset};

/// A GPU of 4 MiB on which a pin is soft if its importer can lose the memory.
fn soft() -> GpuConfig {
    GpuConfig { soft_pins: true, ..config(Preset::Xe) }
}

#[test]
fn a_buffer_with_soft_pins_alone_is_evicted_after_its_importers_were_told() {
    let (gpu, tree) = open(&soft());
    let bo = gpu.alloc(4 * MB, Place::VRAM).expect("room");
    let (nic, other) = (Nic::new(PinnedRevocable, &tree), Nic::new(Dynamic, &tree));
    let mr = Mr::register(&nic, &bo.export().expect("exported")).expect("in VRAM");
    let dynamic = Mr::register(&other, &bo.export().expect("exported")).expect("in VRAM");
    let data = pattern(3, 4096);
    mr.write(0, &data).expect("mapped");
    let _new = gpu.alloc(MB, Place::ONLY_VRAM).expect("the pinned one goes");
    assert_eq!(nic.invalidated.load(Ordering::Relaxed), 1, "told once");
    assert_eq!(mr.read(0, &mut [0]), Err(Miss::NotMapped), "it let go");
    assert_eq!(bo.domain(), Ok(Domain::Gtt));
    // The bytes are not lost: an importer that can follow does.
    dynamic.map().expect("mapped again");
    let mut seen = vec![0; 4096];
    dynamic.read(0, &mut seen).expect("in system memory");
    assert_eq!(seen, data);
}

#[test]
fn a_hard_pin_keeps_the_buffer_even_beside_soft_ones() {
    for (class, config) in [(Pinned, soft()), (PinnedRevocable, config(Preset::Xe))] {
        let (gpu, tree) = open(&config);
        let bo = gpu.alloc(4 * MB, Place::VRAM).expect("room");
        let nics = [Nic::new(PinnedRevocable, &tree), Nic::new(class, &tree)];
        let buf = bo.export().expect("exported");
        let mrs = nics.each_ref().map(|nic| Mr::register(nic, &buf).expect("in VRAM"));
        let refusal = gpu.alloc(MB, Place::ONLY_VRAM).unwrap_err();
        assert_eq!(refusal.kind, ExporterErrorKind::NoMemory, "{refusal}");
        assert_eq!(bo.domain(), Ok(Domain::Vram));
        assert!(mrs.iter().all(Mr::is_mapped));
        assert!(nics.iter().all(|nic| nic.invalidated.load(Ordering::Relaxed) == 0));
        if class == Pinned {
            // Without it, the soft one alone does not keep the buffer.
            mrs[1].unmap();
            gpu.alloc(MB, Place::ONLY_VRAM).expect("room");
        }
    }
}

/// A soft pin gives way to pressure, and not to another importer that needs the buffer elsewhere.
#[test]
fn a_static_importer_is_served_beside_a_soft_pin_as_beside_a_hard_one() {
    for (soft_pins, class) in [(true, PinnedRevocable), (true, Pinned), (false, PinnedRevocable)] {
        for preset in [Preset::Amdgpu, Preset::Xe, Preset::Nvidia] {
            let (gpu, tree) = open(&GpuConfig { soft_pins, ..config(preset) });
            let bo = gpu.alloc(MB, Place::VRAM).expect("room");
            let buf = bo.export().expect("exported");
            let pinned = Mr::register(&Nic::new(class, &tree), &buf).expect("in VRAM");
            let fixed = Mr::register(&Nic::new(Static, &tree), &buf);
            // It takes no peer-to-peer addresses, so it would have to be in system memory. NVIDIA's
            // driver moves nothing, and serves it in VRAM if there is a path.
            let expected = match preset {
                Preset::Nvidia => None,
                _ => Some(Refused::Map(ExporterErrorKind::Invalid)),
            };
            assert_eq!(fixed.as_ref().err(), expected.as_ref(), "{preset:?} {class:?}");
            assert_eq!((bo.domain(), pinned.is_mapped()), (Ok(Domain::Vram), true));
        }
    }
    // Once the soft pin has gone, it has the buffer in GTT, and its own pin is hard.
    let (gpu, tree) = open(&soft());
    let bo = gpu.alloc(4 * MB, Place::VRAM).expect("room");
    let buf = bo.export().expect("exported");
    let pinned = Mr::register(&Nic::new(PinnedRevocable, &tree), &buf).expect("in VRAM");
    drop(gpu.alloc(MB, Place::ONLY_VRAM).expect("the pinned one goes"));
    assert_eq!((bo.domain(), pinned.is_mapped()), (Ok(Domain::Gtt), false));
    let fixed = Mr::register(&Nic::new(Static, &tree), &buf).expect("in system memory");
    assert!(gpu.move_to(&bo, Domain::Vram).is_err(), "pinned");
    drop(fixed);
    drop(gpu.move_to(&bo, Domain::Vram).expect("not pinned"));
}

#[test]
fn a_mapping_of_the_cpu_is_hard() {
    let (gpu, tree) = open(&soft());
    let bo = gpu.alloc(4 * MB, Place::VISIBLE_VRAM).expect("room");
    let buf = bo.export().expect("exported");
    let mr = Mr::register(&Nic::new(PinnedRevocable, &tree), &buf).expect("in VRAM");
    let mapping = buf.map(0, 4096).expect("by the CPU");
    assert!(gpu.alloc(MB, Place::ONLY_VRAM).is_err(), "mapped by the CPU");
    drop(mapping);
    gpu.alloc(MB, Place::ONLY_VRAM).expect("the soft pin alone does not keep it");
    assert!(!mr.is_mapped());
}

#[test]
fn buffers_that_nobody_pinned_go_before_those_with_soft_pins() {
    let (gpu, tree) = open(&soft());
    let pinned = gpu.alloc(2 * MB, Place::VRAM).expect("room");
    let mr = Mr::register(&Nic::new(PinnedRevocable, &tree), &pinned.export().expect("exported"));
    let mr = mr.expect("in VRAM");
    // Used later, and still the first to go.
    let plain = gpu.alloc(2 * MB, Place::VRAM).expect("room");
    let first = gpu.alloc(2 * MB, Place::ONLY_VRAM).expect("the plain one goes");
    assert_eq!((plain.domain(), mr.is_mapped()), (Ok(Domain::Gtt), true));
    let _second = gpu.alloc(2 * MB, Place::ONLY_VRAM).expect("the pinned one goes");
    assert_eq!((first.domain(), pinned.domain()), (Ok(Domain::Vram), Ok(Domain::Gtt)));
    assert!(!mr.is_mapped());
}

#[test]
fn own_buffers_go_before_those_of_others_if_the_configuration_says_so() {
    for (evict, goes_first) in [(EvictOrder::Lru, 0), (EvictOrder::OwnFirst, 1)] {
        let name = format!("own-{goes_first}-{}", std::process::id());
        let config = GpuConfig { name, shared: true, evict, ..config(Preset::Xe) };
        // Two users of the GPU, as two processes are.
        let gpus = [(); 2].map(|()| Gpu::open_in(&config, machine(true)).expect("a GPU"));
        let bos = gpus.each_ref().map(|gpu| gpu.alloc(2 * MB, Place::VRAM).expect("room"));
        let _new = gpus[1].alloc(2 * MB, Place::ONLY_VRAM).expect("one of them goes");
        let domains = bos.each_ref().map(|bo| bo.domain().expect("alive"));
        let mut expected = [Domain::Vram; 2];
        expected[goes_first] = Domain::Gtt;
        assert_eq!(domains, expected, "{evict:?}");
        // What others have goes when nothing of one's own is left.
        let _more = gpus[1].alloc(2 * MB, Place::ONLY_VRAM).expect("and the other");
        assert!(bos.iter().all(|bo| bo.domain() == Ok(Domain::Gtt)));
    }
}

/// Root directories of users in `/job/a` and `/job/b`, removed at the end.
struct Groups(PathBuf);

impl Groups {
    fn new(test: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("dmem-{test}-{}", std::process::id()));
        for user in ["a", "b"] {
            let root = directory.join(user);
            fs::create_dir_all(root.join("proc/self")).expect("made");
            fs::write(root.join("proc/self/cgroup"), format!("0::/job/{user}\n")).expect("written");
            fs::create_dir_all(root.join("sys/fs")).expect("made");
            fs::create_dir_all(directory.join("groups/job").join(user)).expect("made");
            let link = root.join("sys/fs/cgroup");
            std::os::unix::fs::symlink(directory.join("groups"), link).expect("made");
        }
        Self(directory)
    }

    fn set(&self, group: &str, line: &str) {
        let file = self.0.join("groups").join(group).join("dmem.max");
        fs::write(file, format!("{line}\n")).expect("written");
    }

    fn gpu(&self, user: &str, preset: Preset) -> Gpu {
        let name = format!("dmem-{}", std::process::id());
        let cgroup_root = self.0.join(user);
        let config = GpuConfig { name, shared: true, cgroup_root, ..config(preset) };
        let tree = pci::PciConfig::default().build(&["nic0", config.name.as_str()]).expect("sound");
        Gpu::open_in(&config, tree.into()).expect("a GPU")
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The region of the GPU in these tests, by its driver's name for its VRAM.
fn region(gpu: &Gpu, vram: &str) -> String {
    format!("drm/{}/{vram}", gpu.bdf().expect("on the bus"))
}

#[test]
fn dmem_max_limits_a_group_and_its_own_buffers_go_for_it() {
    let groups = Groups::new("max");
    let [a, b] = ["a", "b"].map(|user| groups.gpu(user, Preset::Xe));
    let name = region(&a, "vram0");
    groups.set("job", &format!("{name} {}", 3 * MB));
    groups.set("job/b", &format!("{name} max"));
    // As though it were another device's.
    groups.set("job/a", "drm/0000:ff:00.0/vram0 0");
    let old = a.alloc(MB, Place::VRAM).expect("1 of 3");
    let keep = b.alloc(2 * MB, Place::ONLY_VRAM).expect("3 of 3, both groups together");
    let new =
        b.alloc(MB, Place::ONLY_VRAM).expect("what can be evicted goes, though VRAM has room");
    assert_eq!((old.domain(), new.domain()), (Ok(Domain::Gtt), Ok(Domain::Vram)));
    let refusal = b.alloc(MB, Place::ONLY_VRAM).unwrap_err();
    assert_eq!(refusal.kind, ExporterErrorKind::NoMemory);
    assert!(refusal.what.contains("dmem.max of cgroup /job, 0x300000"), "{refusal}");
    // A buffer that may be elsewhere is put there.
    assert_eq!(b.alloc(MB, Place::VRAM).expect("room").domain(), Ok(Domain::Gtt));
    // The limit is looked at with each allocation.
    groups.set("job", &format!("{name} max"));
    b.alloc(MB, Place::ONLY_VRAM).expect("room in VRAM");
    groups.set("job/b", &format!("{name} {}", 2 * MB));
    drop(new);
    assert!(b.alloc(MB, Place::ONLY_VRAM).is_err(), "2 of 2 by its own group");
    a.alloc(MB, Place::ONLY_VRAM).expect("the other group is not limited");
    drop(keep);
}

#[test]
fn drivers_that_charge_no_group_are_not_limited() {
    let groups = Groups::new("none");
    for (preset, vram, is_limited) in
        [(Preset::Amdgpu, "vram", true), (Preset::Nvidia, "vram0", false)]
    {
        let gpu = groups.gpu("a", preset);
        groups.set("job", &format!("{} 0", region(&gpu, vram)));
        assert_eq!(gpu.alloc(MB, Place::ONLY_VRAM).is_err(), is_limited, "{preset:?}");
    }
}
