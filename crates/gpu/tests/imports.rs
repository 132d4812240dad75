//! Buffers of others, and copies between buffers.

mod common;

use std::os::fd::AsFd;
use std::sync::Arc;

use common::{MB, config, open, pattern};
use dmabuf::{DmaBuf, ExporterErrorKind, Memory};
use gpu::{Bo, Domain, Gpu, GpuConfig, Place, Preset, copy};
use pci::{DeviceConfig, HostBridgeConfig, PciConfig, PciTree};
use umem::{HostBuf, Umem};

/// Two GPUs that do or do not reach each other.
fn two(preset: Preset, reachable: bool) -> [Gpu; 2] {
    let bridge = |name: &str| HostBridgeConfig { name: name.to_owned(), ..Default::default() };
    let device = |name: &str, under: &str| DeviceConfig {
        name: name.to_owned(),
        under: Some(under.to_owned()),
        ..DeviceConfig::default()
    };
    let far = PciConfig {
        host_bridges: vec![bridge("a"), bridge("b")],
        devices: vec![device("left", "a"), device("right", "b")],
        ..PciConfig::default()
    };
    let tree = if reachable { PciConfig::default() } else { far };
    let tree: Arc<PciTree> = Arc::new(tree.build(&["left", "right"]).expect("sound"));
    ["left", "right"].map(|name| {
        let config = GpuConfig { name: name.to_owned(), ..config(preset) };
        Gpu::open_in(&config, Arc::clone(&tree)).expect("a GPU")
    })
}

fn bytes(bo: &Bo, offset: u64, len: usize) -> Vec<u8> {
    let mut seen = vec![0; len];
    bo.read(offset, &mut seen).expect("inside");
    seen
}

#[test]
fn a_buffer_of_this_gpu_and_process_is_itself_again() {
    let (gpu, _) = open(&config(Preset::Xe));
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let again = gpu.import(bo.export().expect("exported").fd()).expect("ours");
    assert!(!again.is_imported() && again.name() == bo.name());
    gpu.evict(&again).expect("it is ours to move");
    assert_eq!(bo.domain(), Ok(Domain::Gtt));
    // A part of it is a separate buffer, which only follows.
    bo.write(4096, &pattern(1, 4096)).expect("inside");
    let window = bo.export_range(4096, 4096).expect("whole pages");
    let part = gpu.import(window.fd()).expect("a buffer");
    assert!(part.is_imported() && part.size() == 4096);
    assert!(bytes(&part, 0, 4096) == pattern(1, 4096));
    assert_eq!(gpu.evict(&part).unwrap_err().kind, ExporterErrorKind::NotSupported);
    gpu.move_to(&bo, Domain::Vram).expect("room");
    part.write(0, &pattern(2, 4096)).expect("inside");
    assert!(bytes(&bo, 4096, 4096) == pattern(2, 4096));
}

#[test]
fn files_that_are_not_buffers_are_refused() {
    let (gpu, _) = open(&config(Preset::Xe));
    let file = std::fs::File::open("/dev/null").expect("always there");
    assert_eq!(gpu.import(&file).unwrap_err().kind, ExporterErrorKind::Invalid);
    let path = DmaBuf::export_from(&Memory::Memfd, 4096, "short").expect("memory");
    let imported = gpu.import(path.fd()).expect("a buffer");
    for (offset, len) in [(0, 4097), (4096, 1), (u64::MAX, 2)] {
        let refusal = imported.read(offset, &mut vec![0; len]).unwrap_err();
        assert_eq!(refusal.kind, ExporterErrorKind::Invalid, "{refusal}");
    }
    assert!(imported.export_range(0, 4096).is_err() && imported.domain().is_err());
    gpu.remove();
    assert_eq!(gpu.import(path.fd()).unwrap_err().kind, ExporterErrorKind::NoDevice);
    assert_eq!(imported.read(0, &mut [0]).unwrap_err().kind, ExporterErrorKind::NoDevice);
}

#[test]
fn plain_memory_is_read_and_written_as_any_buffer() {
    let (gpu, _) = open(&config(Preset::Nvidia));
    let frame = DmaBuf::export_from(&Memory::Memfd, 3 * MB, "frame").expect("memory");
    let imported = gpu.import(frame.fd()).expect("a buffer");
    imported.write(MB - 5, &pattern(3, 2 * MB as usize)).expect("inside");
    let bo = gpu.alloc(3 * MB, Place::ONLY_VRAM).expect("room");
    copy((&imported, MB - 5), (&bo, 7), 2 * MB).expect("inside both");
    assert!(bytes(&bo, 7, 2 * MB as usize) == pattern(3, 2 * MB as usize));
    let same = imported.export().expect("the one it came as");
    assert!(same.is_same(&frame));
}

#[test]
fn two_gpus_copy_straight_where_the_bus_lets_them_and_through_the_host_where_not() {
    for preset in [Preset::Amdgpu, Preset::Xe, Preset::Nvidia] {
        for reachable in [true, false] {
            let [left, right] = two(preset, reachable);
            assert_eq!(left.reaches(&right).is_ok(), reachable);
            let size = 2 * MB;
            let (from, to) = (left.alloc(size, Place::VRAM), right.alloc(size, Place::VRAM));
            let (from, to) = (from.expect("room"), to.expect("room"));
            from.write(3, &pattern(4, MB as usize)).expect("inside");
            copy((&from, 3), (&to, 100), MB).expect("inside both");
            assert!(bytes(&to, 100, MB as usize) == pattern(4, MB as usize), "{preset:?}");
            let stats = right.stats();
            let expected = if reachable { (MB, 0) } else { (0, MB) };
            assert_eq!((stats.peer_bytes, stats.staged_bytes), expected, "{preset:?}");
            // Back, within one GPU.
            copy((&to, 100), (&to, 100 + MB - 200), 100).expect("inside");
            assert_eq!(right.stats().peer_bytes + right.stats().staged_bytes, MB);
        }
    }
}

#[test]
fn a_gpu_imports_anothers_buffer_by_the_rules_for_importers() {
    let [left, right] = two(Preset::Nvidia, true);
    let bo = left.alloc(MB, Place::ONLY_VRAM).expect("room");
    bo.write(0, &pattern(5, 8192)).expect("inside");
    let imported = right.import(bo.export().expect("exported").fd()).expect("in reach");
    assert!(bytes(&imported, 4096, 4096) == pattern(5, 8192)[4096..]);
    let own = right.alloc(MB, Place::ONLY_VRAM).expect("room");
    copy((&imported, 0), (&own, 0), 8192).expect("inside both");
    assert!(bytes(&own, 0, 8192) == pattern(5, 8192));
    assert_eq!(right.stats().peer_bytes, 8192);

    let [left, right] = two(Preset::Nvidia, false);
    let bo = left.alloc(MB, Place::ONLY_VRAM).expect("room");
    let refusal = right.import(bo.export().expect("exported").fd()).unwrap_err();
    assert_eq!(refusal.kind, ExporterErrorKind::Unsupported, "{refusal}");

    // The owner can move it, and does.
    let [left, right] = two(Preset::Xe, false);
    let bo = left.alloc(MB, Place::VRAM).expect("room");
    let imported = right.import(bo.export().expect("exported").fd()).expect("in system memory");
    assert_eq!(bo.domain(), Ok(Domain::Gtt));
    imported.write(0, b"there").expect("inside");
    assert_eq!(bytes(&bo, 0, 5), b"there");
}

#[test]
fn an_imported_buffer_is_found_again_after_each_move_and_not_after_its_end() {
    let [left, right] = two(Preset::Xe, true);
    let bo = left.alloc(MB, Place::VRAM).expect("room");
    let imported = right.import(bo.export().expect("exported").fd()).expect("in reach");
    for (round, domain) in [Domain::Gtt, Domain::Vram, Domain::Gtt].into_iter().enumerate() {
        left.move_to(&bo, domain).expect("room");
        imported.write(0, &pattern(round as u64, 4096)).expect("mapped again");
        assert!(bytes(&bo, 0, 4096) == pattern(round as u64, 4096));
    }
    left.remove();
    let refusal = imported.read(0, &mut [0; 8]).unwrap_err();
    assert_eq!(refusal.kind, ExporterErrorKind::NoDevice, "{refusal}");
}

/// Copies two buffers both ways at once while both move, with bytes that would show a torn copy.
#[test]
fn copies_both_ways_and_moves_do_not_wait_for_each_other_in_a_circle() {
    let [left, right] = two(Preset::Amdgpu, true);
    let a = left.alloc(MB, Place::VRAM).expect("room");
    let b = right.alloc(MB, Place::VRAM).expect("room");
    let there = left.import(b.export().expect("exported").fd()).expect("in reach");
    a.fill(0, &[1], MB).expect("inside");
    b.fill(0, &[1], MB).expect("inside");
    std::thread::scope(|scope| {
        scope.spawn(|| (0..200).for_each(|_| copy((&a, 0), (&b, 0), MB).expect("inside")));
        scope.spawn(|| (0..200).for_each(|_| copy((&b, 0), (&a, 0), MB).expect("inside")));
        scope.spawn(|| (0..200).for_each(|_| copy((&there, 0), (&a, 0), MB).expect("inside")));
        scope.spawn(|| {
            for round in 0..100 {
                let domain = if round % 2 == 0 { Domain::Gtt } else { Domain::Vram };
                left.move_to(&a, domain).expect("room");
                right.move_to(&b, domain).expect("room");
            }
        });
    });
    assert!(bytes(&a, 0, MB as usize).iter().all(|byte| *byte == 1));
}

#[test]
fn patterns_of_any_width_fill_memory_and_nothing_beside_it() {
    let (gpu, _) = open(&config(Preset::Nvidia));
    let bo = gpu.alloc(MB, Place::ONLY_VRAM).expect("room");
    bo.fill(10, &[1, 2, 3, 4], 200_000).expect("inside");
    bo.fill(10 + 200_000, &[9], 3).expect("inside");
    let seen = bytes(&bo, 0, 200_020);
    assert_eq!((&seen[..10], &seen[200_013..]), (&[0; 10][..], &[0; 7][..]));
    assert!(seen[10..200_010].chunks(4).all(|word| word == [1, 2, 3, 4]));
    assert_eq!(seen[200_010..200_013], [9; 3]);
    assert!(bo.fill(MB - 1, &[1, 2], 2).is_err() && bo.fill(0, &[], 1).is_err());
}

#[test]
fn memory_of_a_program_is_copied_without_a_stop() {
    let (gpu, _) = open(&config(Preset::Nvidia));
    let bo = gpu.alloc(MB, Place::ONLY_VRAM).expect("room");
    let host = HostBuf::anonymous(MB as usize).expect("memory");
    host.write(100, &pattern(6, 5000)).expect("inside");
    bo.write_from(7, &Umem::host(&host), 100, 5000).expect("inside both");
    bo.read_into(7, &Umem::host(&host), 300_000, 5000).expect("inside both");
    let mut seen = vec![0; 5000];
    host.read(300_000, &mut seen).expect("inside");
    assert!(seen == pattern(6, 5000));
    assert!(bo.write_from(0, &Umem::host(&host), MB, 1).is_err(), "beyond the program's");
}

#[test]
fn the_gpu_of_a_buffer_reaches_it_outside_the_bar() {
    let config = GpuConfig { bar: Some(MB), ..config(Preset::Xe) };
    let (gpu, _) = open(&config);
    let _visible = gpu.alloc(MB, Place { visible: true, ..Place::ONLY_VRAM }).expect("room");
    let bo = gpu.alloc(2 * MB, Place::ONLY_VRAM).expect("room");
    let window = bo.export_range(0, 4096).expect("whole pages");
    let part = gpu.import(window.fd().as_fd()).expect("its own GPU");
    part.write(0, b"no BAR").expect("inside");
    assert_eq!((bytes(&bo, 0, 6), bo.domain()), (b"no BAR".to_vec(), Ok(Domain::Vram)));
}
