//! GPU memory as the target and the source of RDMA, with a GPU that moves or revokes it.

mod common;

use common::{ALL, MIB, completion, gpu, nic_of, pair, pattern, run};

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use gpu::{Bo, Domain, Gpu, GpuConfig, Place};
use verbs::soft::{self, ImporterConfig, NicConfig};
use verbs::{Access, Context, HostBuf, Kind, Mr, Pd, SendRequest, WcStatus};

/// A NIC of its own for each test: what one test does to its GPU must not affect another.
fn nic(importer: ImporterConfig) -> (Context, Pd) {
    nic_of(NicConfig { importer: Some(importer), ..NicConfig::default() })
}

/// Moves a buffer back and forth until it is dropped.
struct Mover<'scope> {
    done: &'scope AtomicBool,
}

impl<'scope> Mover<'scope> {
    fn start<'env>(
        scope: &'scope std::thread::Scope<'scope, 'env>,
        done: &'scope AtomicBool,
        gpu: &'scope Gpu,
        bo: &'scope Bo,
    ) -> Self {
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                for domain in [Domain::Gtt, Domain::Vram] {
                    gpu.move_to(bo, domain).unwrap();
                }
            }
        });
        Self { done }
    }
}

impl Drop for Mover<'_> {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
    }
}

fn register(pd: &Pd, bo: &Bo) -> Mr {
    pd.reg_whole_dmabuf(&bo.export().unwrap(), ALL).unwrap()
}

fn bytes_of(bo: &Bo) -> Vec<u8> {
    let mut bytes = vec![0; bo.size() as usize];
    bo.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_peer_writes_into_vram_and_reads_it_back() {
    for importer in [ImporterConfig::Dynamic, ImporterConfig::Revocable, ImporterConfig::Pinned] {
        let (context, pd) = nic(importer);
        let gpu = gpu();
        let bo = gpu.alloc(MIB, Place::VISIBLE_VRAM).unwrap();
        // The region outlives the descriptor it was registered with.
        let target = register(&pd, &bo);
        let before = soft::counters(&context).unwrap().dmabuf_bus_address_bytes;
        let host = HostBuf::anonymous(MIB as usize).unwrap();
        let source = pd.reg_mr(&host, ALL).unwrap();
        let (a, _b) = pair(&context, &pd);
        let sent = pattern(MIB, 1);
        host.write(0, &sent).unwrap();
        let all = [source.slice(0, MIB as u32)];
        assert_eq!(run(&a, SendRequest::write(1, &all, target.remote(0))), WcStatus::Success);
        assert!(bytes_of(&bo) == sent, "{importer:?}");

        host.fill(0, 0, MIB as usize).unwrap();
        assert_eq!(run(&a, SendRequest::read(2, &all, target.remote(0))), WcStatus::Success);
        let mut got = vec![0; MIB as usize];
        host.read(0, &mut got).unwrap();
        assert!(got == sent, "{importer:?}");
        assert_eq!(bo.domain().unwrap(), Domain::Vram, "{importer:?}");
        // The NIC and the GPU reach each other: in both directions the bytes went by bus address.
        let counters = soft::counters(&context).unwrap();
        assert!(counters.dmabuf_bus_address_bytes - before >= 2 * MIB, "{counters:?}");
    }
}

#[test]
fn gpu_memory_is_a_source_and_a_receive_buffer_too() {
    let (context, pd) = nic(ImporterConfig::Dynamic);
    let gpu = gpu();
    let (from, to) = (gpu.alloc(MIB, Place::VRAM).unwrap(), gpu.alloc(MIB, Place::GTT).unwrap());
    let (from_mr, to_mr) = (register(&pd, &from), register(&pd, &to));
    let (a, b) = pair(&context, &pd);
    for round in 0..4 {
        let sent = pattern(MIB, round);
        from.write(0, &sent).unwrap();
        b.qp.post_recv(round, &[to_mr.slice(0, MIB as u32)]).unwrap();
        assert_eq!(
            run(&a, SendRequest::send(round, &[from_mr.slice(0, MIB as u32)])),
            WcStatus::Success
        );
        assert_eq!(completion(&b.cq).status, WcStatus::Success);
        assert!(bytes_of(&to) == sent);
        // Both are somewhere else for the next round.
        gpu.move_to(&from, if round % 2 == 0 { Domain::Gtt } else { Domain::Vram }).unwrap();
    }
    let counters = soft::counters(&context).unwrap();
    assert!(counters.dmabuf_system_bytes >= 4 * MIB, "{counters:?}");
    assert!(counters.page_faults >= 3, "{counters:?}");
    assert!(counters.page_invalidations >= 4, "{counters:?}");
}

/// The GPU moves the buffer back and forth all the time. Every WRITE arrives whole, wherever the
/// buffer was, and no access goes to an old place.
#[test]
fn traffic_goes_on_while_the_gpu_moves_the_buffer() {
    const WORDS: u64 = 8192;
    let (context, pd) = nic(ImporterConfig::Dynamic);
    let gpu = gpu();
    let bo = gpu.alloc(WORDS * 8, Place::VISIBLE_VRAM).unwrap();
    let target = register(&pd, &bo);
    let host = HostBuf::anonymous(2 * WORDS as usize * 8).unwrap();
    let local = pd.reg_mr(&host, ALL).unwrap();
    let (a, _b) = pair(&context, &pd);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _mover = Mover::start(scope, &done, &gpu, &bo);
        let length = (WORDS * 8) as u32;
        // However the two threads are scheduled, some moves and faults were seen.
        let is_enough =
            || gpu.stats().moves > 10 && soft::counters(&context).unwrap().page_faults > 0;
        for round in (0u64..).take_while(|round| *round < 300 || !is_enough()) {
            let sent = pattern(WORDS * 8, round);
            host.write(0, &sent).unwrap();
            let write = SendRequest::write(1, &[local.slice(0, length)], target.remote(0));
            assert_eq!(run(&a, write), WcStatus::Success, "round {round}");
            let read = SendRequest::read(2, &[local.slice(WORDS * 8, length)], target.remote(0));
            assert_eq!(run(&a, read), WcStatus::Success, "round {round}");
            let mut got = vec![0; length as usize];
            host.read(length as usize, &mut got).unwrap();
            assert!(got == sent, "round {round}: a byte is wrong");
        }
    });
    assert_eq!(gpu.stats().stale_accesses, 0);
}

#[test]
fn atomics_happen_once_however_often_the_buffer_moves() {
    let (context, pd) = nic(ImporterConfig::Dynamic);
    let gpu = gpu();
    let bo = gpu.alloc(4096, Place::VISIBLE_VRAM).unwrap();
    let target = register(&pd, &bo);
    let host = HostBuf::anonymous(4096).unwrap();
    let local = pd.reg_mr(&host, ALL).unwrap();
    let (a, _b) = pair(&context, &pd);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _mover = Mover::start(scope, &done, &gpu, &bo);
        for round in 0..500u64 {
            let add = SendRequest::fetch_add(1, local.slice(0, 8), target.remote(8), 3);
            assert_eq!(run(&a, add), WcStatus::Success);
            assert_eq!(host.load_u64(0, Ordering::Relaxed).unwrap(), 3 * round);
        }
    });
}

/// A NIC that does not reach VRAM is served from system memory: its own map moves the buffer, and
/// it must not write before the bytes have arrived, or they would overwrite what it wrote.
#[test]
fn a_map_that_moves_the_buffer_waits_for_its_bytes() {
    let elsewhere = Some(dmabuf::DeviceAddr(0xff00));
    let (context, pd) = nic_of(NicConfig {
        importer: Some(ImporterConfig::Dynamic),
        address: elsewhere,
        ..NicConfig::default()
    });
    let gpu = gpu();
    let bo = gpu.alloc(4 * MIB, Place::VISIBLE_VRAM).unwrap();
    bo.write(0, &pattern(4 * MIB, 0)).unwrap();
    let target = register(&pd, &bo);
    assert_eq!(bo.domain().unwrap(), Domain::Gtt);
    let host = HostBuf::anonymous(4096).unwrap();
    let local = pd.reg_mr(&host, ALL).unwrap();
    let (a, _b) = pair(&context, &pd);
    for round in 1..20u64 {
        let mut expected = bytes_of(&bo);
        let sent = pattern(4096, round);
        host.write(0, &sent).unwrap();
        let at = round * 0x2_0000 % (4 * MIB - 4096);
        expected[at as usize..][..4096].copy_from_slice(&sent);
        let write = SendRequest::write(1, &[local.slice(0, 4096)], target.remote(at));
        assert_eq!(run(&a, write), WcStatus::Success);
        assert!(bytes_of(&bo) == expected, "round {round}");
        gpu.move_to(&bo, Domain::Vram).unwrap();
    }
}

#[test]
fn a_pinned_buffer_stays_where_it_is() {
    let (_context, pd) = nic(ImporterConfig::Pinned);
    let gpu = gpu();
    let bo = gpu.alloc(MIB, Place::VISIBLE_VRAM).unwrap();
    let region = register(&pd, &bo);
    assert!(gpu.evict(&bo).is_err());
    drop(region);
    gpu.evict(&bo).unwrap();
    assert_eq!(bo.domain().unwrap(), Domain::Gtt);
}

#[test]
fn a_region_holds_its_buffer_and_releases_it() {
    let (_context, pd) = nic(ImporterConfig::Dynamic);
    let buffer = verbs::DmaBuf::export(MIB, "counted").unwrap();
    let before = buffer.info().count;
    let region = pd.reg_whole_dmabuf(&buffer, ALL).unwrap();
    assert!(buffer.info().count > before && buffer.info().attached.len() == 1);
    drop(region);
    assert_eq!((buffer.info().count, buffer.info().attached.len()), (before, 0));
}

/// A key whose memory was revoked is dead, for peers and for the NIC's own requests. It is not
/// assigned again until the region is deregistered.
#[test]
fn a_reset_kills_the_key_of_a_revocable_importer() {
    let (context, pd) = nic(ImporterConfig::Revocable);
    let gpu = gpu();
    let bo = gpu.alloc(MIB, Place::VISIBLE_VRAM).unwrap();
    let region = register(&pd, &bo);
    let host = HostBuf::anonymous(4096).unwrap();
    let local = pd.reg_mr(&host, ALL).unwrap();
    let (a, _b) = pair(&context, &pd);
    let write = || SendRequest::write(1, &[local.slice(0, 64)], region.remote(0));
    assert_eq!(run(&a, write()), WcStatus::Success);
    assert!(gpu.reset().is_empty(), "nobody keeps access");
    assert_eq!(run(&a, write()), WcStatus::RemAccessErr);

    let (c, _d) = pair(&context, &pd);
    let from_it = SendRequest::write(2, &[region.slice(0, 64)], local.remote(0));
    assert_eq!(run(&c, from_it), WcStatus::LocProtErr);

    let dead = region.rkey();
    let others: Vec<Mr> = (0..300).map(|_| pd.reg_mr(&host, ALL).unwrap()).collect();
    assert!(others.iter().all(|other| other.rkey() != dead));
}

/// A GPU with soft pins, short of memory: a NIC that can lose a buffer does, one that cannot keeps
/// it, and a dynamic one follows it.
#[test]
fn under_pressure_a_revocable_nic_loses_its_key_and_a_pinned_one_keeps_it() {
    for importer in [ImporterConfig::Revocable, ImporterConfig::Pinned, ImporterConfig::Dynamic] {
        let (context, pd) = nic(importer);
        let name = format!("soft{}-{importer:?}", std::process::id());
        let config = GpuConfig { name, vram: 4 * MIB, soft_pins: true, ..GpuConfig::default() };
        let gpu = Gpu::open(&GpuConfig { shared: false, ..config }).unwrap();
        let bo = gpu.alloc(4 * MIB, Place::VISIBLE_VRAM).unwrap();
        let region = register(&pd, &bo);
        let host = HostBuf::anonymous(4096).unwrap();
        let local = pd.reg_mr(&host, ALL).unwrap();
        let (a, _b) = pair(&context, &pd);
        let write = || SendRequest::write(1, &[local.slice(0, 64)], region.remote(0));
        assert_eq!(run(&a, write()), WcStatus::Success, "{importer:?}");
        let new = gpu.alloc(MIB, Place::ONLY_VRAM);
        let expected = match importer {
            ImporterConfig::Revocable => WcStatus::RemAccessErr,
            _ => WcStatus::Success,
        };
        assert_eq!(new.is_err(), importer == ImporterConfig::Pinned, "{importer:?}");
        assert_eq!(run(&a, write()), expected, "{importer:?}");
    }
}

/// Two threads of a program, one of which resets the GPU while the other deregisters, under a
/// peer's WRITEs: the NIC is notified at most once, everything ends, and nothing is left of the
/// region.
#[test]
fn a_reset_during_a_deregistration_notifies_at_most_once() {
    let (context, pd) = nic(ImporterConfig::Revocable);
    let gpu = gpu();
    let host = HostBuf::anonymous(4096).unwrap();
    let local = pd.reg_mr(&host, ALL).unwrap();
    for round in 0..200 {
        let bo = gpu.alloc(64 << 10, Place::VISIBLE_VRAM).unwrap();
        let region = register(&pd, &bo);
        let (a, _b) = pair(&context, &pd);
        let there = region.remote(0);
        let before = soft::counters(&context).unwrap().page_invalidations;
        let start = Barrier::new(3);
        std::thread::scope(|scope| {
            let (start, gpu) = (&start, &gpu);
            scope.spawn(move || {
                start.wait();
                lag(round % 8 * 200);
                drop(region);
            });
            scope.spawn(move || {
                start.wait();
                lag((7 - round % 8) * 200);
                assert!(gpu.reset().is_empty(), "nobody keeps access");
            });
            start.wait();
            let write = || SendRequest::write(1, &[local.slice(0, 4096)], there);
            let end = std::iter::repeat_with(|| run(&a, write()))
                .find(|status| *status != WcStatus::Success);
            assert_eq!(end, Some(WcStatus::RemAccessErr));
        });
        let told = soft::counters(&context).unwrap().page_invalidations - before;
        assert!(told <= 1, "notified {told} times in round {round}");
        drop(bo);
        assert_eq!(gpu.used(Domain::Vram), 0);
    }
}

/// A short, arbitrary delay, without a clock.
fn lag(spins: usize) {
    for _ in 0..spins {
        std::hint::spin_loop();
    }
}

#[test]
fn a_dynamic_importer_comes_back_after_a_reset() {
    let (context, pd) = nic(ImporterConfig::Dynamic);
    let gpu = gpu();
    let bo = gpu.alloc(MIB, Place::VISIBLE_VRAM).unwrap();
    let region = register(&pd, &bo);
    let host = HostBuf::anonymous(4096).unwrap();
    let local = pd.reg_mr(&host, ALL).unwrap();
    let (a, _b) = pair(&context, &pd);
    assert!(gpu.reset().is_empty());
    let write = SendRequest::write(1, &[local.slice(0, 64)], region.remote(0));
    assert_eq!(run(&a, write), WcStatus::Success);
}

#[test]
fn several_regions_and_several_nics_share_one_buffer() {
    let gpu = gpu();
    let bo = gpu.alloc(MIB, Place::VISIBLE_VRAM).unwrap();
    let buffer = bo.export().unwrap();
    let nics: Vec<_> = (0..2).map(|_| nic(ImporterConfig::Dynamic)).collect();
    let mut regions = Vec::new();
    for (context, pd) in &nics {
        for part in 0..4u64 {
            // Congruent with the offset, but not page aligned.
            let offset = part * MIB / 4 + 100;
            let region =
                pd.reg_dmabuf_mr(buffer.fd(), offset, 1000, 0x7000_0000 + 100, ALL).unwrap();
            regions.push((context, pd, region, offset));
        }
    }
    drop(buffer);
    for (n, (context, pd, region, offset)) in regions.iter().enumerate() {
        gpu.move_to(&bo, if n % 2 == 0 { Domain::Gtt } else { Domain::Vram }).unwrap();
        let host = HostBuf::anonymous(4096).unwrap();
        let local = pd.reg_mr(&host, ALL).unwrap();
        let (a, _b) = pair(context, pd);
        let sent = pattern(1000, n as u64);
        host.write(0, &sent).unwrap();
        let write = SendRequest::write(1, &[local.slice(0, 1000)], region.remote(0));
        assert_eq!(run(&a, write), WcStatus::Success);
        let mut got = vec![0; 1000];
        bo.read(*offset, &mut got).unwrap();
        assert!(got == sent, "region {n}");
    }
}

/// EAGAIN, with a message that names the pool that is full, the device's or the client's.
#[test]
fn a_pin_over_the_limit_names_the_pool() {
    let limits = [
        GpuConfig { max_pinned: Some(MIB), ..GpuConfig::default() },
        GpuConfig { max_pinned_client: Some(MIB), ..GpuConfig::default() },
    ];
    for limit in limits {
        let name = "tight".to_owned();
        let config = GpuConfig { name, vram: 8 * MIB, gtt: 8 * MIB, shared: false, ..limit };
        let gpu = Gpu::open(&config).unwrap();
        let bos = [(); 2].map(|()| gpu.alloc(MIB, Place::VISIBLE_VRAM).unwrap());
        let (_context, pd) = nic(ImporterConfig::Pinned);
        let first = register(&pd, &bos[0]);
        let refused = pd.reg_whole_dmabuf(&bos[1].export().unwrap(), ALL).unwrap_err();
        assert_eq!(refused.kind(), Kind::WouldBlock, "{refused}");
        assert!(refused.to_string().contains("pool VRAM of tight"), "{refused}");
        drop(first);
        register(&pd, &bos[1]);
    }
}

#[test]
fn refusals_of_the_exporter_reach_the_caller() {
    let gpu = Gpu::open(&GpuConfig {
        preset: gpu::Preset::Vfio,
        vram: 4 * MIB,
        shared: false,
        ..GpuConfig::default()
    })
    .unwrap();
    let bo = gpu.alloc(MIB, Place::VISIBLE_VRAM).unwrap();
    let (_context, pd) = nic(ImporterConfig::Pinned);
    let refused = pd.reg_whole_dmabuf(&bo.export().unwrap(), ALL).unwrap_err();
    assert_eq!(refused.kind(), Kind::NotSupported, "{refused}");
    let (_context, pd) = nic(ImporterConfig::None);
    let refused = pd.reg_whole_dmabuf(&bo.export().unwrap(), ALL).unwrap_err();
    assert_eq!(refused.kind(), Kind::NotSupported, "{refused}");
    let (_context, pd) = nic(ImporterConfig::Revocable);
    pd.reg_whole_dmabuf(&bo.export().unwrap(), ALL).unwrap();
}

#[test]
fn pages_on_demand_fault_once() {
    let (context, pd) = nic(ImporterConfig::Dynamic);
    let host = HostBuf::anonymous(1 << 16).unwrap();
    let demand = pd.reg_mr(&host, ALL | Access::ON_DEMAND).unwrap();
    let local = pd.reg_mr(&host, ALL).unwrap();
    let (a, _b) = pair(&context, &pd);
    let faults = || soft::counters(&context).unwrap().page_faults;
    assert_eq!(faults(), 0);
    let write = || SendRequest::write(1, &[local.slice(0x8000, 100)], demand.remote(0xfd0));
    assert_eq!(run(&a, write()), WcStatus::Success);
    assert_eq!(faults(), 2, "the range touches two pages");
    assert_eq!(run(&a, write()), WcStatus::Success);
    assert_eq!(faults(), 2, "they are there now");
    let send_from = SendRequest::write(1, &[demand.slice(0x4000, 1)], local.remote(0));
    assert_eq!(run(&a, send_from), WcStatus::Success);
    assert_eq!(faults(), 3, "as a source, too");
}
