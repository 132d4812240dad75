//! Buffers that were evicted from VRAM and come back.

mod common;

use common::{MB, Mr, Nic, config, fill, machine, open, pattern};
use dmabuf::ImporterClass::{Dynamic, Pinned, Static};
use dmabuf::Reach;
use gpu::{Domain, Gpu, GpuConfig, Place, Preset, copy};

#[test]
fn an_evicted_buffer_comes_back_when_the_gpu_uses_it() {
    for preset in [Preset::Amdgpu, Preset::Xe, Preset::I915] {
        let (gpu, _) = open(&config(preset));
        let [bo, other] = [(); 2].map(|()| gpu.alloc(MB, Place::VRAM).expect("room"));
        bo.write(0, &pattern(1, 4096)).expect("inside");
        type Use<'a> = &'a dyn Fn();
        let uses: [Use<'_>; 5] = [
            &|| bo.read(0, &mut [0]).expect("inside"),
            &|| bo.write(8192, &[0]).expect("inside"),
            &|| bo.fill(8192, &[0], 4096).expect("inside"),
            &|| copy((&bo, 0), (&other, 0), 4096).expect("inside"),
            &|| copy((&other, 0), (&bo, 8192), 4096).expect("inside"),
        ];
        for act in uses {
            gpu.evict(&bo).expect("not pinned");
            assert_eq!(bo.domain(), Ok(Domain::Gtt));
            act();
            assert_eq!(bo.domain(), Ok(Domain::Vram));
        }
        let mut seen = vec![0; 4096];
        other.read(0, &mut seen).expect("inside");
        assert!(seen == pattern(1, 4096), "the bytes went along");
    }
}

#[test]
fn an_importer_that_reaches_vram_brings_the_buffer_back_by_mapping_it() {
    let (gpu, tree) = open(&config(Preset::Amdgpu));
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let nic = Nic::new(Dynamic, &tree);
    let mr = Mr::register(&nic, &bo.export().expect("exported")).expect("served");
    mr.write(0, &pattern(2, 4096)).expect("mapped");
    gpu.evict(&bo).expect("not pinned");
    assert_eq!(bo.domain(), Ok(Domain::Gtt), "nobody used it yet");
    mr.map().expect("mapped again");
    assert_eq!((mr.map_type(), bo.domain()), (Reach::BusAddress, Ok(Domain::Vram)));
    let mut seen = vec![0; 4096];
    mr.read(0, &mut seen).expect("mapped");
    assert!(seen == pattern(2, 4096));
}

#[test]
fn a_buffer_that_comes_back_evicts_no_other() {
    let (gpu, tree) = open(&config(Preset::Xe));
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let mr = Mr::register(&Nic::new(Dynamic, &tree), &bo.export().expect("exported"));
    let mr = mr.expect("served");
    gpu.evict(&bo).expect("not pinned");
    gpu.wait_idle();
    // That buffer could be evicted, too.
    let other = gpu.alloc(4 * MB, Place::VRAM).expect("room");
    bo.read(0, &mut [0]).expect("where it is");
    mr.map().expect("where it is");
    assert_eq!((bo.domain(), other.domain()), (Ok(Domain::Gtt), Ok(Domain::Vram)));
    drop(other);
    bo.read(0, &mut [0]).expect("inside");
    assert_eq!(bo.domain(), Ok(Domain::Vram), "now there is room");

    let tight = GpuConfig { max_vram_client: Some(MB), ..config(Preset::Xe) };
    let (gpu, _) = open(&tight);
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    gpu.evict(&bo).expect("not pinned");
    let _limit = gpu.alloc(MB, Place::ONLY_VRAM).expect("room");
    bo.read(0, &mut [0]).expect("where it is");
    assert_eq!(bo.domain(), Ok(Domain::Gtt), "room that this process may not have is none");
}

#[test]
fn a_buffer_that_prefers_vram_moves_there_when_there_is_room() {
    let (gpu, _) = open(&config(Preset::Xe));
    let full = fill(&gpu);
    let bo = gpu.alloc(MB, Place::VRAM).expect("in GTT");
    assert_eq!(bo.domain(), Ok(Domain::Gtt));
    let gtt = gpu.alloc(MB, Place::GTT).expect("in GTT");
    drop(full);
    for bo in [&bo, &gtt] {
        bo.read(0, &mut [0]).expect("inside");
    }
    assert_eq!((bo.domain(), gtt.domain()), (Ok(Domain::Vram), Ok(Domain::Gtt)));
}

#[test]
fn a_buffer_that_was_moved_on_demand_or_is_pinned_stays() {
    let (gpu, tree) = open(&config(Preset::Xe));
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    gpu.move_to(&bo, Domain::Gtt).expect("not pinned");
    bo.read(0, &mut [0]).expect("inside");
    assert_eq!(bo.domain(), Ok(Domain::Gtt), "somebody wants it there");
    gpu.move_to(&bo, Domain::Vram).expect("room");
    gpu.evict(&bo).expect("not pinned");
    bo.read(0, &mut [0]).expect("inside");
    assert_eq!(bo.domain(), Ok(Domain::Vram), "that was an eviction");

    gpu.evict(&bo).expect("not pinned");
    let mapped = bo.cpu_pages().expect("where it is");
    bo.read(0, &mut [0]).expect("inside");
    assert_eq!(bo.domain(), Ok(Domain::Gtt), "the CPU has it mapped");
    drop(mapped);
    let pinned = Mr::register(&Nic::new(Pinned, &tree), &bo.export().expect("exported"));
    drop(pinned.expect("served"));
    assert_eq!(bo.domain(), Ok(Domain::Vram), "a pin brings it back at any price");
}

/// Otherwise it would go back and forth: the importer's map is in system memory.
#[test]
fn while_somebody_has_it_attached_that_does_not_reach_vram_it_stays_in_gtt() {
    let (gpu, tree) = open(&config(Preset::Amdgpu));
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let buf = bo.export().expect("exported");
    let fixed = Mr::register(&Nic::new(Static, &tree), &buf).expect("in system memory");
    fixed.unmap();
    bo.read(0, &mut [0]).expect("inside");
    let near = Mr::register(&Nic::new(Dynamic, &tree), &buf).expect("served");
    assert_eq!((bo.domain(), near.map_type()), (Ok(Domain::Gtt), Reach::System));
    drop(fixed);
    bo.read(0, &mut [0]).expect("inside");
    assert_eq!((bo.domain(), near.is_mapped()), (Ok(Domain::Vram), false));

    let gpu = Gpu::open_in(&config(Preset::Amdgpu), machine(false)).expect("a GPU");
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let far = Nic::new(Dynamic, &machine(false));
    let mr = Mr::register(&far, &bo.export().expect("exported")).expect("in system memory");
    bo.read(0, &mut [0]).expect("inside");
    assert_eq!((bo.domain(), mr.is_mapped()), (Ok(Domain::Gtt), true));
}

/// Its exporter does not move buffers: nothing is evicted, and nothing comes back.
#[test]
fn memory_that_never_moves_is_not_evicted() {
    let (gpu, _) = open(&config(Preset::Nvidia));
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    assert!(gpu.evict(&bo).is_err());
    let _rest = gpu.alloc(3 * MB, Place::VRAM).expect("room");
    let refusal = gpu.alloc(MB, Place::ONLY_VRAM).expect_err("nobody goes");
    assert!(refusal.what.contains("cannot move"), "{refusal}");
}
