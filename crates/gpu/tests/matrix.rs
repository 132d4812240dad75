//! The table of `docs/semantics.md` 2.6: every importer class against every exporter, with
//! peer-to-peer and without.

mod common;

use std::sync::Arc;

use common::{CLASSES, MB, Mr, Nic, Refused, config, machine};
use dmabuf::ExporterErrorKind::{Invalid, NotPermitted, NotSupported, Unsupported};
use dmabuf::Reach::{BusAddress, System};
use dmabuf::{ExporterErrorKind, Reach};
use gpu::{Domains, Gpu, GpuConfig, PinPolicy, Place, Preset, WithoutP2p};
use pci::{DeviceConfig, HostBridgeConfig, Ids, PciConfig};

type Outcome = Result<Reach, Refused>;

fn outcomes(config: &GpuConfig, reachable: bool, place: Place) -> [Outcome; 4] {
    CLASSES.map(|class| {
        let tree = machine(reachable);
        let gpu = Gpu::open_in(config, tree.clone()).expect("a GPU");
        let bo = gpu.alloc(MB, place).expect("room");
        bo.write(0, b"here").expect("inside");
        let mr = Mr::register(&Nic::new(class, &tree), &bo.export().expect("exported"))?;
        let mut bytes = [0; 4];
        mr.read(0, &mut bytes).expect("mapped");
        assert_eq!(&bytes, b"here", "{class:?}");
        Ok(mr.map_type())
    })
}

const BUS: Outcome = Ok(BusAddress);
const SYSTEM: Outcome = Ok(System);

const fn attach(kind: ExporterErrorKind) -> Outcome {
    Err(Refused::Attach(kind))
}

const fn map(kind: ExporterErrorKind) -> Outcome {
    Err(Refused::Map(kind))
}

#[test]
fn importer_class_against_exporter() {
    // dynamic, pinned and revocable, pinned, static
    let table = [
        (Preset::Amdgpu, true, [BUS, BUS, BUS, SYSTEM]),
        (Preset::Amdgpu, false, [SYSTEM; 4]),
        (Preset::Xe, true, [BUS, BUS, BUS, SYSTEM]),
        (Preset::Xe, false, [SYSTEM; 4]),
        (Preset::I915, true, [SYSTEM; 4]),
        (Preset::I915, false, [SYSTEM; 4]),
        (Preset::Habanalabs, true, [BUS, BUS, BUS, map(NotPermitted)]),
        (Preset::Habanalabs, false, [map(NotPermitted); 4]),
        (Preset::Vfio, true, [BUS, BUS, attach(NotSupported), attach(NotSupported)]),
        (
            Preset::Vfio,
            false,
            [map(Invalid), map(Invalid), attach(NotSupported), attach(NotSupported)],
        ),
        (Preset::Nvidia, true, [BUS; 4]),
        (Preset::Nvidia, false, [attach(Unsupported); 4]),
    ];
    for (preset, reachable, expected) in table {
        let outcomes = outcomes(&config(preset), reachable, Place::VRAM);
        assert_eq!(outcomes, expected, "{preset:?}, reachable: {reachable}");
    }
}

#[test]
fn two_ports_of_a_listed_root_reach_each_other_through_the_host_bridge() {
    let bridge = |name: &str, id| HostBridgeConfig {
        name: name.to_owned(),
        id: Some(id),
        ..HostBridgeConfig::default()
    };
    let device = |name: &str, under: &str| DeviceConfig {
        name: name.to_owned(),
        under: Some(under.to_owned()),
        ..DeviceConfig::default()
    };
    let listed = Ids { vendor: 0x8086, device: 0x2020 };
    // Not on the list.
    let other = Ids { vendor: 0x1af4, device: 0x1000 };
    for (id, expected) in [(listed, Ok(Reach::ThroughHostBridge)), (other, SYSTEM)] {
        let config_of_tree = PciConfig {
            host_bridges: vec![bridge("root", id)],
            devices: vec![device("gpu0", "root"), device("nic0", "root")],
            ..PciConfig::default()
        };
        let tree = Arc::new(config_of_tree.build(&[]).expect("a tree"));
        let gpu = Gpu::open_in(&config(Preset::Amdgpu), tree.clone()).expect("a GPU");
        let bo = gpu.alloc(MB, Place::VRAM).expect("room");
        let nic = Nic::new(dmabuf::ImporterClass::Dynamic, &tree);
        let mr = Mr::register(&nic, &bo.export().expect("exported"));
        assert_eq!(mr.map(|mr| mr.map_type()), expected);
    }
}

#[test]
fn a_buffer_that_may_only_be_in_vram() {
    let table = [
        (Preset::Amdgpu, true, [BUS, BUS, BUS, Err(Refused::Map(Invalid))]),
        (
            Preset::Amdgpu,
            false,
            [map(Invalid), Err(Refused::Pin(Invalid)), Err(Refused::Pin(Invalid)), map(Invalid)],
        ),
        (Preset::Xe, true, [BUS, BUS, BUS, attach(NotSupported)]),
        (Preset::Xe, false, [attach(NotSupported); 4]),
    ];
    for (preset, reachable, expected) in table {
        let outcomes = outcomes(&config(preset), reachable, Place::ONLY_VRAM);
        assert_eq!(outcomes, expected, "{preset:?}, reachable: {reachable}");
    }
}

#[test]
fn single_keys_of_a_persona_change_the_table() {
    // The RDMA exporter of device memory: peer-to-peer, no pinning.
    let uverbs = GpuConfig {
        has_pin: Some(true),
        pin_policy: Some(PinPolicy::Refuse),
        needs_p2p: Some(true),
        ..config(Preset::Amdgpu)
    };
    let pin = Err(Refused::Pin(NotSupported));
    let expected = [BUS, pin, pin, attach(NotSupported)];
    assert_eq!(outcomes(&uverbs, true, Place::VRAM), expected);

    let strict = GpuConfig { without_p2p: Some(WithoutP2p::Refuse), ..config(Preset::Xe) };
    assert_eq!(outcomes(&strict, false, Place::VRAM), [attach(NotSupported); 4]);
    let place = Place { allowed: Domains::all(), ..Place::GTT };
    assert_eq!(outcomes(&config(Preset::Xe), true, place), [SYSTEM; 4]);
}

#[test]
fn an_importer_on_no_bus_is_served_from_system_memory() {
    let tree = machine(true);
    let gpu = Gpu::open_in(&config(Preset::Xe), tree).expect("a GPU");
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let nic = Nic::on_no_bus(dmabuf::ImporterClass::Dynamic);
    let mr = Mr::register(&nic, &bo.export().expect("exported")).expect("served");
    assert_eq!(mr.map_type(), System);
    assert!(!mr.attachment.peer2peer());
}

#[test]
fn one_importer_without_peer_to_peer_brings_a_pin_to_system_memory_in_any_order() {
    for static_first in [true, false] {
        let tree = machine(true);
        let gpu = Gpu::open_in(&config(Preset::Amdgpu), tree.clone()).expect("a GPU");
        let bo = gpu.alloc(MB, Place::VRAM).expect("room");
        let buf = bo.export().expect("exported");
        let plain = Nic::new(dmabuf::ImporterClass::Static, &tree);
        let pinned = Nic::new(dmabuf::ImporterClass::Pinned, &tree);
        let order = if static_first { [&plain, &pinned] } else { [&pinned, &plain] };
        let attached = order.map(|nic| Mr::attach(nic, &buf).expect("attached"));
        for mr in &attached {
            mr.map().expect("in system memory");
            assert_eq!(mr.map_type(), System, "static first: {static_first}");
        }
    }
}

#[test]
fn a_buffer_pinned_in_one_domain_cannot_be_pinned_in_another() {
    let tree = machine(true);
    let gpu = Gpu::open_in(&config(Preset::Xe), tree.clone()).expect("a GPU");
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let buf = bo.export().expect("exported");
    let first = Mr::register(&Nic::new(dmabuf::ImporterClass::Pinned, &tree), &buf).expect("VRAM");
    assert_eq!(first.map_type(), BusAddress);
    let late = Mr::attach(&Nic::on_no_bus(dmabuf::ImporterClass::Pinned), &buf).expect("attached");
    assert_eq!(late.map(), Err(Refused::Pin(Invalid)));
    // Mapping by an importer that does not pin does not move it under the first importer either.
    let dynamic =
        Mr::attach(&Nic::on_no_bus(dmabuf::ImporterClass::Dynamic), &buf).expect("attached");
    assert_eq!(dynamic.map(), Err(Refused::Map(ExporterErrorKind::Busy)));
    first.unmap();
    drop(first);
    late.map().expect("nothing is pinned any more");
    assert_eq!(late.map_type(), System);
}

/// In a table, a length has 32 bits and an entry has whole pages.
#[test]
fn a_large_buffer_is_split_into_entries_of_32_bit_length() {
    const LONGEST: u64 = 0xffff_f000;
    let tree = machine(true);
    let config = GpuConfig { vram: 16 << 30, ..config(Preset::Xe) };
    let gpu = Gpu::open_in(&config, tree.clone()).expect("a GPU");
    let bo = gpu.alloc(2 * LONGEST + 8192, Place::VRAM).expect("room");
    let nic = Nic::new(dmabuf::ImporterClass::Dynamic, &tree);
    let mr = Mr::attach(&nic, &bo.export().expect("exported")).expect("attached");
    let resv = mr.attachment.resv().lock();
    let map = mr.attachment.map(&resv, dmabuf::Direction::Bidirectional).expect("mapped");
    let entries = &map.table().entries;
    assert_eq!(entries.iter().map(|entry| entry.len).collect::<Vec<_>>(), [LONGEST, LONGEST, 8192]);
    assert!(entries.windows(2).all(|pair| pair[0].addr + pair[0].len == pair[1].addr));
    map.unmap(&resv);
}
