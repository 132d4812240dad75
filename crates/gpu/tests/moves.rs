//! Buffers that move: eviction, pins, limits, fences, the BAR.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{MB, Miss, Mr, Nic, Refused, config, fill, open, pattern};
use dmabuf::ImporterClass::{Dynamic, Pinned, PinnedRevocable};
use dmabuf::gate::GateState;
use dmabuf::{ExporterErrorKind, FenceStatus, Reach, Timeline, Usage};
use gpu::{CopyMode, Domain, GpuConfig, Place, Preset};

#[test]
fn a_dynamic_importer_follows_a_move_and_the_bytes_go_along() {
    let (gpu, tree) = open(&config(Preset::Xe));
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let nic = Nic::new(Dynamic, &tree);
    let mr = Mr::register(&nic, &bo.export().expect("exported")).expect("served");
    let data = pattern(1, MB as usize);
    mr.write(0, &data).expect("mapped");
    let before = mr.addr();

    gpu.evict(&bo).expect("not pinned");
    assert_eq!(mr.read(0, &mut [0]), Err(Miss::NotMapped), "it let go before evict returned");
    let _full = fill(&gpu);
    mr.map().expect("mapped again");
    assert_eq!((mr.map_type(), bo.domain()), (Reach::System, Ok(Domain::Gtt)));
    assert_ne!(mr.addr(), before);
    let mut seen = vec![0; MB as usize];
    mr.read(0, &mut seen).expect("mapped");
    assert!(seen == data, "the same bytes at another place");
    let stats = gpu.stats();
    assert_eq!((stats.moves, stats.evictions, stats.faults), (1, 1, 1));
    assert_eq!((stats.bus_address_bytes, stats.system_bytes), (MB, MB));
    let told = gpu.window().describe(before).expect("it was retired");
    assert!(told.to_string().contains("evicted: from VRAM to GTT"), "{told}");
}

#[test]
fn pressure_evicts_the_least_recently_used() {
    let (gpu, _) = open(&config(Preset::Xe));
    let bos: Vec<_> = (0..4).map(|_| gpu.alloc(MB, Place::VRAM).expect("room")).collect();
    for (n, bo) in bos.iter().enumerate() {
        bo.write(0, &pattern(n as u64, 4096)).expect("inside");
    }
    bos[0].read(0, &mut [0]).expect("inside");
    let more = gpu.alloc(MB, Place::VRAM).expect("by eviction");
    let domains: Vec<_> = bos.iter().map(|bo| bo.domain().expect("alive")).collect();
    assert_eq!(domains, [Domain::Vram, Domain::Gtt, Domain::Vram, Domain::Vram]);
    assert_eq!(more.domain(), Ok(Domain::Vram));
    for (n, bo) in bos.iter().enumerate() {
        let mut seen = vec![0; 4096];
        bo.read(0, &mut seen).expect("inside");
        assert!(seen == pattern(n as u64, 4096));
    }
    drop((bos, more));
    assert_eq!((gpu.used(Domain::Vram), gpu.used(Domain::Gtt)), (0, 0));
}

#[test]
fn pinned_buffers_stay_and_can_fill_vram() {
    let (gpu, tree) = open(&config(Preset::Xe));
    let bo = gpu.alloc(4 * MB, Place::VRAM).expect("room");
    let mr = Mr::register(&Nic::new(Pinned, &tree), &bo.export().expect("exported")).expect("VRAM");
    assert_eq!(mr.map_type(), Reach::BusAddress);
    assert_eq!(gpu.evict(&bo).unwrap_err().kind, ExporterErrorKind::Busy);
    let refusal = gpu.alloc(4096, Place::ONLY_VRAM).unwrap_err();
    assert_eq!(refusal.kind, ExporterErrorKind::NoMemory, "{refusal}");
    // Buffers that may be elsewhere are put there.
    assert_eq!(gpu.alloc(4096, Place::VRAM).expect("GTT").domain(), Ok(Domain::Gtt));
    mr.unmap();
    assert_eq!(gpu.alloc(4096, Place::ONLY_VRAM).expect("room").domain(), Ok(Domain::Vram));
    assert_eq!(bo.domain(), Ok(Domain::Gtt));
}

#[test]
fn limits_answer_again_and_name_the_pool() {
    let tight = GpuConfig { max_pinned_client: Some(MB), ..config(Preset::Xe) };
    let (gpu, tree) = open(&tight);
    let bos = [(); 2].map(|()| gpu.alloc(MB, Place::ONLY_VRAM).expect("room"));
    let [one, two] = [0, 1].map(|n| bos[n].export().expect("exported"));
    let first = Mr::register(&Nic::new(Pinned, &tree), &one).expect("within the limit");
    // Pinning a pinned buffer again costs nothing.
    let again = Mr::register(&Nic::new(Pinned, &tree), &one).expect("the same bytes");
    let mr = Mr::attach(&Nic::new(Pinned, &tree), &two).expect("attached");
    assert_eq!(mr.map(), Err(Refused::Pin(ExporterErrorKind::Again)));
    first.unmap();
    assert_eq!(mr.map(), Err(Refused::Pin(ExporterErrorKind::Again)), "one pin is left");
    again.unmap();
    assert_eq!(mr.map(), Ok(()));

    let small = GpuConfig { max_vram_client: Some(2 * MB), ..config(Preset::Amdgpu) };
    let (gpu, _) = open(&small);
    let old = gpu.alloc(MB, Place::VRAM).expect("room");
    let _fixed = gpu.alloc(MB, Place::ONLY_VRAM).expect("room");
    let _new = gpu.alloc(MB, Place::ONLY_VRAM).expect("the old one goes, though VRAM has room");
    assert_eq!(old.domain(), Ok(Domain::Gtt));
    let refusal = gpu.alloc(MB, Place::ONLY_VRAM).unwrap_err();
    assert_eq!(refusal.kind, ExporterErrorKind::Again);
    assert!(refusal.what.contains("pool VRAM of gpu0"), "{refusal}");
}

#[test]
fn peers_reach_only_the_bar() {
    let config = GpuConfig { bar: Some(MB), ..config(Preset::Xe) };
    let (gpu, tree) = open(&config);
    let hidden = gpu.alloc(MB, Place::VRAM).expect("room");
    assert!(
        hidden.offset().expect("alive") >= MB,
        "what the CPU need not reach stays out of the BAR"
    );
    hidden.write(5, b"along").expect("copied");
    assert_eq!((gpu.stats().bar_bytes, gpu.stats().copied_bytes), (0, 5));
    let mr =
        Mr::register(&Nic::new(Dynamic, &tree), &hidden.export().expect("exported")).expect("in");
    assert_eq!((hidden.offset(), mr.map_type()), (Ok(0), Reach::BusAddress));
    let mut bytes = [0; 5];
    mr.read(5, &mut bytes).expect("mapped");
    assert_eq!(&bytes, b"along");

    // The next one needs the BAR too: the first leaves it, but not VRAM.
    let other = gpu.alloc(MB, Place::VRAM).expect("room");
    let second =
        Mr::register(&Nic::new(Pinned, &tree), &other.export().expect("exported")).expect("in");
    assert_eq!((other.offset(), second.map_type()), (Ok(0), Reach::BusAddress));
    assert_eq!((hidden.domain(), mr.is_mapped()), (Ok(Domain::Vram), false));
    assert!(hidden.offset().expect("alive") >= MB);
    // And now the BAR is pinned.
    mr.map().expect("in system memory");
    assert_eq!((mr.map_type(), hidden.domain()), (Reach::System, Ok(Domain::Gtt)));
}

#[test]
fn a_move_is_a_kernel_fence_that_users_of_the_bytes_wait_for() {
    let config = GpuConfig { copy_engine: CopyMode::Manual, ..config(Preset::Xe) };
    let (gpu, _) = open(&config);
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    bo.write(0, b"bytes").expect("inside");
    let fence = gpu.evict(&bo).expect("not pinned");
    assert_eq!(fence.status(), FenceStatus::Active);
    assert_eq!(bo.resv().fences(Usage::Kernel).len(), 1);
    assert_eq!((gpu.used(Domain::Vram), gpu.used(Domain::Gtt)), (MB, MB), "both, until it is done");
    assert!(gpu.step() && !gpu.step());
    assert_eq!(fence.status(), FenceStatus::Signaled);
    assert_eq!(gpu.used(Domain::Vram), 0);

    gpu.move_to(&bo, Domain::Vram).expect("room");
    let mut bytes = [0; 5];
    // The GPU itself does the work that it waits for.
    bo.read(0, &mut bytes).expect("inside");
    assert_eq!((&bytes, bo.moving().is_signaled()), (b"bytes", true));
}

#[test]
fn a_move_and_a_reset_wait_for_all_work_on_the_bytes() {
    for resets in [false, true] {
        let (gpu, tree) = open(&config(Preset::Xe));
        let bo = gpu.alloc(MB, Place::VRAM).expect("room");
        let mr = Mr::register(&Nic::new(Dynamic, &tree), &bo.export().expect("exported"));
        let _mr = mr.expect("served");
        // The weakest usage class: what an importer could not stop at once.
        let engine = Timeline::new("nic", "flush");
        let resv = bo.resv().lock();
        resv.reserve_fences(1).expect("memory");
        resv.add_fence(&engine.point(), Usage::Bookkeep).expect("reserved");
        drop(resv);
        let is_done = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // Time for a call to return if it does not wait.
                std::thread::sleep(Duration::from_millis(50));
                is_done.store(true, Ordering::SeqCst);
                engine.signal(1);
            });
            match resets {
                false => drop(gpu.evict(&bo).expect("not pinned")),
                true => drop(gpu.begin_reset()),
            }
            assert!(is_done.load(Ordering::SeqCst), "reset: {resets}");
        });
    }
}

#[test]
fn a_reset_revokes_and_loses_what_vram_held() {
    let (gpu, tree) = open(&config(Preset::Vfio));
    let bo = gpu.alloc(MB, Place::ONLY_VRAM).expect("room");
    bo.write(0, b"gone").expect("inside");
    let buf = bo.export().expect("exported");
    let dynamic = Mr::register(&Nic::new(Dynamic, &tree), &buf).expect("served");
    let pinned = Mr::register(&Nic::new(PinnedRevocable, &tree), &buf).expect("served");
    let addr = dynamic.addr();
    let resetting = gpu.begin_reset();
    assert!(resetting.kept().is_empty());
    assert_eq!(dynamic.map(), Err(Refused::Map(ExporterErrorKind::NoDevice)));
    assert_eq!(pinned.map(), Err(Refused::Revoked));
    let late = Mr::attach(&Nic::new(Dynamic, &tree), &buf).map(drop);
    assert_eq!(late, Err(Refused::Attach(ExporterErrorKind::NoDevice)));
    assert_eq!(common::dma_read(addr, &mut [0]), Err(Miss::Fault { at: addr }));
    assert!(gpu.report_fault(addr).expect("retired").why.contains("reset"));
    drop(resetting);

    dynamic.map().expect("it comes back by itself");
    let mut bytes = [1; 4];
    dynamic.read(0, &mut bytes).expect("mapped");
    assert_eq!(bytes, [0; 4]);
    assert_eq!(pinned.map(), Err(Refused::Revoked), "it does not");
    assert_eq!((gpu.stats().revoked, gpu.stats().stale_accesses), (1, 1));
}

/// A refused access asks again when the gate has changed, so no access may be refused any more once
/// the gate opens.
#[test]
fn a_refusal_of_a_reset_is_older_than_the_gate_that_opens() {
    let (gpu, tree) = open(&config(Preset::Xe));
    let bos = [(); 2].map(|()| gpu.alloc(4096, Place::VRAM).expect("room"));
    let [first, second] = bos.each_ref().map(|bo| bo.export().expect("exported"));
    let mr = Mr::register(&Nic::new(Dynamic, &tree), &first).expect("served");
    let gate = first.gate_slot().expect("a free slot").expect("it moves");
    let resetting = gpu.begin_reset();
    assert_eq!(mr.map(), Err(Refused::Map(ExporterErrorKind::NoDevice)));
    // The end of the reset blocks at the second buffer, which is in use.
    let used = second.resv().lock();
    std::thread::scope(|scope| {
        let end = scope.spawn(|| drop(resetting));
        while !matches!(gate.state(), GateState::Open { .. }) {
            std::thread::yield_now();
        }
        // In another thread, as a thread that holds one buffer may not wait for another.
        let again = scope.spawn(|| mr.map()).join().expect("no panic");
        drop(used);
        assert_eq!(again, Ok(()));
        end.join().expect("it ends");
    });
}

#[test]
fn an_importer_that_cannot_be_revoked_keeps_its_access_through_a_reset() {
    let (gpu, tree) = open(&config(Preset::Xe));
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let mr = Mr::register(&Nic::new(Pinned, &tree), &bo.export().expect("exported")).expect("VRAM");
    assert_eq!(gpu.reset(), [bo.name()]);
    mr.write(0, b"still").expect("its right");
    let mut bytes = [0; 5];
    bo.read(0, &mut bytes).expect("the same memory");
    assert_eq!(&bytes, b"still");
}

#[test]
fn a_gpu_that_is_removed_takes_everything_along() {
    let (gpu, tree) = open(&config(Preset::Xe));
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let buf = bo.export().expect("exported");
    let mr = Mr::register(&Nic::new(Dynamic, &tree), &buf).expect("served");
    assert!(gpu.remove().is_empty());
    assert!(!mr.is_mapped());
    assert_eq!(mr.map(), Err(Refused::Map(ExporterErrorKind::NoDevice)));
    assert_eq!(gpu.alloc(1, Place::VRAM).unwrap_err().kind, ExporterErrorKind::NoDevice);
    assert_eq!(bo.read(0, &mut [0]).unwrap_err().kind, ExporterErrorKind::NoDevice);
    assert_eq!(gpu.used(Domain::Vram), 0);
}

#[test]
fn the_cpus_pages_go_with_the_gpu_and_not_with_its_reset() {
    let (gpu, _) = open(&config(Preset::Xe));
    let [bo, other] = [(); 2].map(|()| gpu.alloc(MB, Place::VISIBLE_VRAM).expect("room"));
    let mapping = bo.export().expect("exported").map(4096, 4096).expect("mapped");
    let addr = mapping.addr() as u64;
    common::dma_write(addr, b"bytes").expect("mapped");
    assert!(gpu.reset().is_empty(), "the CPU is no importer that keeps its access");
    let mut bytes = [1; 5];
    common::dma_read(addr, &mut bytes).expect("still mapped");
    assert_eq!(bytes, [0; 5], "what VRAM held is lost");
    common::dma_write(addr, b"again").expect("mapped");
    bo.read(4096, &mut bytes).expect("the same memory");
    assert_eq!(&bytes, b"again");

    let late = other.mmap_backing(0, 4096).expect("offered");
    assert!(gpu.remove().is_empty());
    assert_eq!(common::dma_read(addr, &mut bytes), Err(Miss::Fault { at: addr }));
    assert_eq!(gpu.used(Domain::Vram), MB, "what may yet be mapped is nobody else's");
    assert!(late.zap.as_ref().is_some_and(dmabuf::Zap::is_zapped));
    drop(late);
    assert_eq!(gpu.used(Domain::Vram), 0);
    drop(mapping);
}

#[test]
fn the_gate_stops_accesses_before_the_memory_moves() {
    let (gpu, tree) = open(&config(Preset::Xe));
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let buf = bo.export().expect("exported");
    let mr = Mr::register(&Nic::new(Dynamic, &tree), &buf).expect("served");
    let slot = buf.gate_slot().expect("room").expect("a buffer that moves has a gate");
    let epoch = mr.epoch().expect("told with the addresses");
    assert!(slot.enter(epoch).is_ok());
    gpu.evict(&bo).expect("not pinned");
    assert_eq!(slot.enter(epoch).err(), Some(dmabuf::Stale::Moved));
    gpu.remove();
    assert_eq!(slot.enter(epoch).err(), Some(dmabuf::Stale::Revoked));
}

#[test]
fn the_cpu_maps_where_the_buffer_is_and_holds_it_there() {
    let (gpu, _) = open(&GpuConfig { bar: Some(MB), ..config(Preset::Xe) });
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    bo.write(4096, b"seen by all").expect("inside");
    let buf = bo.export().expect("exported");
    let mapping = buf.map(4096, 11).expect("xe lets its memory be mapped");
    assert_eq!((bo.domain(), bo.offset()), (Ok(Domain::Vram), Ok(0)), "in the BAR now");
    let mut bytes = [0; 11];
    common::dma_read(mapping.addr() as u64, &mut bytes).expect("mapped");
    assert_eq!(&bytes, b"seen by all");
    common::dma_write(mapping.addr() as u64, b"by the CPU").expect("mapped");
    bo.read(4096, &mut bytes).expect("inside");
    assert_eq!(&bytes, b"by the CPUl");
    assert_eq!(gpu.evict(&bo).unwrap_err().kind, ExporterErrorKind::Busy);
    drop(mapping);
    gpu.evict(&bo).expect("nobody has it mapped");

    let resv = buf.resv().lock();
    let vmap = buf.vmap(&resv).expect("the exporter's own side maps it, too");
    let dmabuf::IosysMap::System(addr) = vmap.map() else { panic!("it is in GTT") };
    common::dma_read(addr as u64 + 4096, &mut bytes).expect("mapped");
    assert_eq!(&bytes, b"by the CPUl");
    drop(vmap);
    drop(resv);
    gpu.move_to(&bo, Domain::Vram).expect("nobody has it mapped");

    let (gpu, _) = open(&config(Preset::Vfio));
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let refusal = bo.export().expect("exported").map(0, 1).unwrap_err();
    assert!(refusal.to_string().contains("vfio-pci does not allow mapping"), "{refusal}");
}
