//! One dma-buf of several buffers.

mod common;

use common::{CLASSES, Miss, Mr, Nic, Refused, config, open, pattern};
use dmabuf::ExporterErrorKind;
use dmabuf::ImporterClass::{Dynamic, Pinned, PinnedRevocable};
use gpu::{Bo, Domain, Gpu, Place, Preset, export_joined};

/// Three buffers, and a dma-buf that shows the end of one, all of the next, and the beginning of
/// the last.
fn three(gpu: &Gpu) -> ([Bo; 3], dmabuf::DmaBuf) {
    let bos = [(); 3].map(|()| gpu.alloc(8192, Place::VISIBLE_VRAM).expect("room"));
    let [one, two, three] = &bos;
    let buf = export_joined(&[(one, 4096, 4096), (two, 0, 8192), (three, 0, 4096)]);
    let buf = buf.expect("of one GPU");
    (bos, buf)
}

#[test]
fn every_importer_sees_the_parts_one_after_the_other() {
    for preset in [Preset::Nvidia, Preset::Amdgpu, Preset::Xe] {
        for class in CLASSES {
            let (gpu, tree) = open(&config(preset));
            let ([one, two, three], buf) = three(&gpu);
            assert_eq!(buf.size(), 16384);
            let nic = Nic::new(class, &tree);
            let Ok(mr) = Mr::register(&nic, &buf) else {
                assert!(preset != Preset::Nvidia, "{class:?}: a part cannot leave VRAM for it");
                continue;
            };
            mr.write(0, &pattern(7, 16384)).expect("mapped");
            let mut seen = vec![0; 24576];
            one.read(0, &mut seen[..8192]).expect("inside");
            two.read(0, &mut seen[8192..16384]).expect("inside");
            three.read(0, &mut seen[16384..]).expect("inside");
            let around = [&seen[..4096], &seen[20480..]].concat();
            assert!(around.iter().all(|byte| *byte == 0), "{preset:?} {class:?}: nothing else");
            assert!(seen[4096..20480] == pattern(7, 16384), "{preset:?} {class:?}");
        }
    }
}

#[test]
fn the_parts_stay_where_they_are_and_keep_their_memory() {
    let (gpu, tree) = open(&config(Preset::Xe));
    let (bos, buf) = three(&gpu);
    assert_eq!(gpu.evict(&bos[1]).unwrap_err().kind, ExporterErrorKind::Busy);
    let mr = Mr::register(&Nic::new(Dynamic, &tree), &buf).expect("served");
    mr.write(0, &pattern(1, 16384)).expect("mapped");
    drop(bos);
    assert_eq!(gpu.used(Domain::Vram), 3 * 8192, "an importer has it");
    let mut seen = vec![0; 16384];
    mr.read(0, &mut seen).expect("mapped");
    assert!(seen == pattern(1, 16384));
    drop((mr, buf));
    assert_eq!(gpu.used(Domain::Vram), 0);
}

#[test]
fn revoking_one_part_revokes_the_whole() {
    let (gpu, tree) = open(&config(Preset::Nvidia));
    let (bos, buf) = three(&gpu);
    let dynamic = Mr::register(&Nic::new(Dynamic, &tree), &buf).expect("served");
    let revocable = Mr::register(&Nic::new(PinnedRevocable, &tree), &buf).expect("served");
    bos[2].write(0, b"lost").expect("inside");
    let resetting = gpu.begin_reset();
    assert!(resetting.kept().is_empty());
    assert!(!dynamic.is_mapped() && !revocable.is_mapped());
    assert!(matches!(dynamic.map(), Err(Refused::Map(_))), "not while it is reset");
    drop(resetting);
    dynamic.map().expect("it comes back by itself");
    let mut bytes = [1; 4];
    dynamic.read(12288, &mut bytes).expect("mapped");
    assert_eq!(bytes, [0; 4]);
    assert_eq!(revocable.map(), Err(Refused::Revoked));

    gpu.remove();
    assert_eq!(dynamic.read(0, &mut bytes), Err(Miss::NotMapped));
    assert!(buf.why_gone().is_some_and(|why| why.contains("was revoked")));
    let slot = buf.gate_slot().expect("a slot").expect("a gate");
    assert_eq!(slot.state(), dmabuf::gate::GateState::Revoked);
    drop(buf);
    drop((dynamic, revocable));
    assert_eq!(gpu.used(Domain::Vram), 0);
}

#[test]
fn an_importer_that_cannot_be_revoked_keeps_all_parts() {
    let (gpu, tree) = open(&config(Preset::Nvidia));
    let (bos, buf) = three(&gpu);
    let mr = Mr::register(&Nic::new(Pinned, &tree), &buf).expect("served");
    let names: Vec<_> = bos.iter().map(Bo::name).collect();
    assert_eq!(gpu.reset(), names);
    mr.write(8000, b"still its right").expect("mapped");
    drop(mr);
}

#[test]
fn neighbours_in_vram_are_mapped_by_the_cpu_as_one() {
    let (gpu, _) = open(&config(Preset::Nvidia));
    let bos = [(); 2].map(|()| gpu.alloc(8192, Place::VISIBLE_VRAM).expect("room"));
    let buf = export_joined(&[(&bos[0], 0, 8192), (&bos[1], 0, 8192)]).expect("of one GPU");
    let mapping = buf.map(4096, 8192).expect("one stretch");
    common::dma_write(mapping.addr() as u64 + 4094, b"over").expect("mapped");
    let mut bytes = [0; 2];
    bos[1].read(0, &mut bytes).expect("inside");
    assert_eq!(&bytes, b"er");
    assert!(gpu.remove().is_empty());
    let addr = mapping.addr() as u64;
    assert_eq!(common::dma_read(addr, &mut bytes), Err(Miss::Fault { at: addr }));
    drop(mapping);

    let (gpu, _) = open(&config(Preset::Nvidia));
    let bos = [(); 2].map(|()| gpu.alloc(8192, Place::VISIBLE_VRAM).expect("room"));
    let buf = export_joined(&[(&bos[1], 0, 8192), (&bos[0], 0, 8192)]).expect("of one GPU");
    assert!(buf.map(4096, 8192).is_err(), "two stretches");
}

#[test]
fn only_whole_pages_of_one_gpu_are_joined() {
    let (gpu, _) = open(&config(Preset::Nvidia));
    let bo = gpu.alloc(8192, Place::VRAM).expect("room");
    let invalid = |ranges: &[(&Bo, u64, u64)]| {
        assert_eq!(export_joined(ranges).unwrap_err().kind, ExporterErrorKind::Invalid);
    };
    invalid(&[]);
    invalid(&[(&bo, 0, 0)]);
    invalid(&[(&bo, 0, 100)]);
    invalid(&[(&bo, 4096, 8192)]);
    let (other, _) = open(&config(Preset::Nvidia));
    let far = other.alloc(8192, Place::VRAM).expect("room");
    invalid(&[(&bo, 0, 4096), (&far, 0, 4096)]);
}
