//! PeerDirect, the older interface: memory of a GPU registered by its CPU mapping.

mod common;

use std::sync::{Arc, Mutex};

use dmabuf::peer::{self, PeerClient, PeerMemory, PeerRange};
use gpu::{Bo, Domain, Gpu, GpuConfig, Machine, Place};
use verbs::soft::{self, ImporterConfig, NicConfig};
use verbs::{Access, HostBuf, Kind, Mapping, SendRequest, WcStatus};

use common::{ALL, MIB, completion, gpu, nic_of, pair, pattern, run};

fn peermem(importer: ImporterConfig) -> NicConfig {
    NicConfig { peermem: true, importer: Some(importer), ..NicConfig::default() }
}

/// The buffer's CPU mapping, not at the start of its domain.
fn mapped(gpu: &Gpu, place: Place) -> (Bo, Mapping) {
    let _first = gpu.alloc(4 << 12, place).unwrap();
    let bo = gpu.alloc(MIB, place).unwrap();
    let mapping = bo.export().unwrap().map(0, MIB).unwrap();
    (bo, mapping)
}

#[test]
fn by_default_it_is_refused_with_the_mapping_its_owner_and_the_alternatives() {
    let (_context, pd) = nic_of(NicConfig::default());
    let gpu = gpu();
    let (bo, mapping) = mapped(&gpu, Place::VISIBLE_VRAM);
    let refusal = soft::reg_mapping(&pd, &mapping, ALL).unwrap_err();
    assert_eq!(refusal.kind(), Kind::BadAddress);
    for word in ["vram", &bo.name(), "xe", "ibv_reg_dmabuf_mr", "peermem = true"] {
        let what = refusal.what().to_lowercase();
        assert!(what.contains(&word.to_lowercase()), "{word:?} is not in: {what}");
    }
    // Checks that come before the memory is examined.
    let refusal = soft::reg_mapping(&pd, &mapping, Access::REMOTE_WRITE).unwrap_err();
    assert_eq!(refusal.kind(), Kind::Invalid);
}

#[test]
fn a_peer_writes_into_a_mapped_buffer_and_reads_it_back() {
    for importer in [ImporterConfig::Dynamic, ImporterConfig::Revocable] {
        for (place, domain) in [(Place::VISIBLE_VRAM, Domain::Vram), (Place::GTT, Domain::Gtt)] {
            let (context, pd) = nic_of(peermem(importer));
            let gpu = gpu();
            let (bo, mapping) = mapped(&gpu, place);
            let target = soft::reg_mapping(&pd, &mapping, ALL).unwrap();
            let host = HostBuf::anonymous(2 * MIB as usize).unwrap();
            let source = pd.reg_mr(&host, ALL).unwrap();
            let (a, _b) = pair(&context, &pd);
            let sent = pattern(MIB - 77, 3);
            host.write(0, &sent).unwrap();
            let from = [source.slice(0, sent.len() as u32)];
            let write = SendRequest::write(1, &from, target.remote(77));
            assert_eq!(run(&a, write), WcStatus::Success);
            let mut there = vec![0; sent.len()];
            bo.read(77, &mut there).unwrap();
            assert!(there == sent, "{importer:?} {domain}");
            let into = [source.slice(MIB, sent.len() as u32)];
            assert_eq!(run(&a, SendRequest::read(2, &into, target.remote(77))), WcStatus::Success);
            host.read(MIB as usize, &mut there).unwrap();
            assert!(there == sent, "{importer:?} {domain}");
            // Also as the source of a request.
            let into = source.remote(MIB);
            let write = SendRequest::write(3, &[target.slice(77, 4096)], into);
            assert_eq!(run(&a, write), WcStatus::Success);
            assert_eq!((bo.domain().unwrap(), gpu.stats().stale_accesses), (domain, 0));
        }
    }
}

#[test]
fn the_client_pins_while_the_region_lives() {
    let (_context, pd) = nic_of(peermem(ImporterConfig::Dynamic));
    let gpu = gpu();
    let (bo, mapping) = mapped(&gpu, Place::VISIBLE_VRAM);
    let region = soft::reg_mapping(&pd, &mapping, ALL).unwrap();
    let other = soft::reg_mapping(&pd, &mapping, ALL).unwrap();
    drop(mapping);
    assert!(gpu.evict(&bo).is_err(), "two regions hold it");
    drop(region);
    assert!(gpu.evict(&bo).is_err(), "one region holds it");
    drop(other);
    gpu.evict(&bo).unwrap();
}

#[test]
fn a_reset_takes_the_memory_back_and_the_key_stays_dead() {
    for importer in [ImporterConfig::Dynamic, ImporterConfig::Revocable] {
        let (context, pd) = nic_of(peermem(importer));
        let gpu = gpu();
        let (_bo, mapping) = mapped(&gpu, Place::VISIBLE_VRAM);
        let target = soft::reg_mapping(&pd, &mapping, ALL).unwrap();
        let host = HostBuf::anonymous(4096).unwrap();
        let source = pd.reg_mr(&host, ALL).unwrap();
        let (a, b) = pair(&context, &pd);
        let all = [source.slice(0, 4096)];
        assert_eq!(run(&a, SendRequest::write(1, &all, target.remote(0))), WcStatus::Success);
        gpu.reset();
        let status = run(&a, SendRequest::write(2, &all, target.remote(0)));
        assert_eq!(status, WcStatus::RemAccessErr, "{importer:?}");
        drop(b);
        let (a, _b) = pair(&context, &pd);
        let own = SendRequest::write(3, &[target.slice(0, 4096)], source.remote(0));
        assert_eq!(run(&a, own), WcStatus::LocProtErr, "{importer:?}");
        // The key is not given to other regions until the region is deregistered.
        let keys: Vec<_> = (0..300).map(|_| pd.reg_mr(&host, ALL).unwrap().rkey()).collect();
        assert!(!keys.contains(&target.rkey()));
        // After the reset, the memory can be registered again.
        let (c, _d) = pair(&context, &pd);
        let again = soft::reg_mapping(&pd, &mapping, ALL).unwrap();
        assert_eq!(run(&c, SendRequest::write(4, &all, again.remote(0))), WcStatus::Success);
    }
}

#[test]
fn freeing_the_buffer_under_a_region_takes_it_back() {
    let (context, pd) = nic_of(peermem(ImporterConfig::Dynamic));
    let gpu = gpu();
    let (bo, mapping) = mapped(&gpu, Place::VISIBLE_VRAM);
    let target = soft::reg_mapping(&pd, &mapping, ALL).unwrap();
    drop(mapping);
    drop(bo);
    gpu.wait_idle();
    let host = HostBuf::anonymous(4096).unwrap();
    let source = pd.reg_mr(&host, ALL).unwrap();
    let (a, _b) = pair(&context, &pd);
    let write = SendRequest::write(1, &[source.slice(0, 4096)], target.remote(0));
    assert_eq!(run(&a, write), WcStatus::RemAccessErr);
    // Its pages are free for others.
    let bo = gpu.alloc(60 * MIB, Place::VRAM).unwrap();
    assert_eq!(bo.domain().unwrap(), Domain::Vram);
}

#[test]
fn memory_that_a_client_does_not_claim_or_refuses_is_refused() {
    let gpu = gpu();
    let (_bo, mapping) = mapped(&gpu, Place::VISIBLE_VRAM);
    // A NIC that cannot stop its accesses is refused.
    for importer in [ImporterConfig::Pinned, ImporterConfig::None] {
        let (_context, pd) = nic_of(peermem(importer));
        let refusal = soft::reg_mapping(&pd, &mapping, ALL).unwrap_err();
        assert_eq!(refusal.kind(), Kind::BadAddress);
        assert!(refusal.what().contains("cannot stop"), "{refusal}");
    }
    // A dma-buf of no client.
    let (_context, pd) = nic_of(peermem(ImporterConfig::Dynamic));
    let plain = verbs::DmaBuf::export(8192, "plain").unwrap().map(0, 8192).unwrap();
    let refusal = soft::reg_mapping(&pd, &plain, ALL).unwrap_err();
    assert_eq!(refusal.kind(), Kind::BadAddress);
    assert!(refusal.what().contains("no peer memory client claims"), "{refusal}");
    // A GPU that the NIC does not reach: the client's errno, EINVAL.
    let config =
        GpuConfig { vram: 64 * MIB, shared: false, name: "far".to_owned(), ..GpuConfig::default() };
    let tree = Machine::parse("").unwrap().tree().clone();
    let far = Gpu::open_in(&config, tree).unwrap();
    let (_there, there) = mapped(&far, Place::VISIBLE_VRAM);
    let refusal = soft::reg_mapping(&pd, &there, ALL).unwrap_err();
    assert_eq!(refusal.kind(), Kind::Invalid);
    assert!(refusal.what().contains("far") && refusal.what().contains("dma_map"), "{refusal}");
    // Gone for good.
    gpu.remove();
    assert_eq!(soft::reg_mapping(&pd, &mapping, ALL).unwrap_err().kind(), Kind::BadAddress);
}

/// Assigns buffers of a GPU addresses at which nothing is mapped, like CUDA's device pointers.
struct Runtime {
    bo: Bo,
    base: u64,
}

impl PeerClient for Runtime {
    fn name(&self) -> &str {
        "runtime"
    }

    fn needs_invalidation(&self) -> bool {
        true
    }

    fn owner(&self, _mapping: &PeerRange) -> Option<String> {
        None
    }

    fn owner_at(&self, addr: u64, _len: u64) -> String {
        format!("{} of the runtime, from {:#x} on", self.bo.name(), addr - self.base)
    }

    fn acquire(&self, addr: u64, len: u64) -> Option<Box<dyn PeerMemory>> {
        self.bo.peer_memory(addr.checked_sub(self.base)?, len, 64 << 10).ok()
    }
}

#[test]
fn memory_that_nothing_is_mapped_at_is_registered_by_its_address() {
    // No program on this machine maps anything there.
    const BASE: u64 = 1 << 52;
    let (context, pd) = nic_of(peermem(ImporterConfig::Dynamic));
    let (_, strict) = nic_of(NicConfig { name: "strict".to_owned(), ..NicConfig::default() });
    let gpu = gpu();
    let bo = gpu.alloc(MIB, Place::VISIBLE_VRAM).unwrap();
    let client: Arc<dyn PeerClient> = Arc::new(Runtime { bo: bo.clone(), base: BASE });
    peer::register_client(&client);
    let arena = peer::claim_arena(&client, BASE, 2 * MIB);

    let refusal = soft::reg_peer_address(&strict, BASE + 100, 4096, ALL).unwrap_err();
    assert_eq!(refusal.kind(), Kind::BadAddress);
    for word in [&*bo.name(), "of the runtime", "ibv_reg_dmabuf_mr", "peermem = true"] {
        assert!(refusal.what().contains(word), "{word:?} is not in: {refusal}");
    }
    let beyond = soft::reg_peer_address(&pd, BASE + MIB - 1, 2, ALL).unwrap_err();
    assert_eq!(beyond.kind(), Kind::BadAddress, "half of it is not a buffer: {beyond}");

    // In the middle of a page of the client's.
    let target = soft::reg_peer_address(&pd, BASE + 70_000, 100_000, ALL).unwrap();
    let host = HostBuf::anonymous(4096).unwrap();
    let source = pd.reg_mr(&host, ALL).unwrap();
    let (a, b) = pair(&context, &pd);
    let sent = pattern(4096, 9);
    host.write(0, &sent).unwrap();
    let all = [source.slice(0, 4096)];
    assert_eq!(run(&a, SendRequest::write(1, &all, target.remote(50_000))), WcStatus::Success);
    let mut there = vec![0; 4096];
    bo.read(120_000, &mut there).unwrap();
    assert!(there == sent);

    // Its neighbour is freed first, and then the buffer itself.
    let neighbour = soft::reg_peer_address(&pd, BASE, 4096, ALL).unwrap();
    assert_eq!(bo.revoke_peers(0, 65_536), 1);
    assert_eq!(run(&a, SendRequest::write(2, &all, target.remote(0))), WcStatus::Success);
    assert_eq!(bo.revoke_peers(169_000, 1000), 1);
    assert_eq!(run(&a, SendRequest::write(3, &all, target.remote(0))), WcStatus::RemAccessErr);
    drop((a, b, neighbour));
    gpu.evict(&bo).expect("nothing pins it any more");
    drop(arena);
    let gone = soft::reg_peer_address(&pd, BASE, 4096, ALL).unwrap_err();
    assert!(gone.what().contains("is unknown"), "{gone}");
}

/// The region's owner reads and writes while the memory goes: nothing but success before, and the
/// error after that. The client claims nothing, and records the addresses that it was asked about.
#[derive(Default)]
struct Witness(Mutex<Vec<u64>>);

impl PeerClient for Witness {
    fn name(&self) -> &str {
        "witness"
    }

    fn needs_invalidation(&self) -> bool {
        false
    }

    fn owner(&self, _mapping: &PeerRange) -> Option<String> {
        None
    }

    fn acquire(&self, addr: u64, _len: u64) -> Option<Box<dyn PeerMemory>> {
        self.0.lock().unwrap().push(addr);
        None
    }
}

#[test]
fn no_client_is_asked_about_plain_memory() {
    let witness = Arc::new(Witness::default());
    let client: Arc<dyn PeerClient> = witness.clone();
    peer::register_client(&client);
    let (_context, pd) = nic_of(peermem(ImporterConfig::Dynamic));
    let host = HostBuf::anonymous(8192).unwrap();
    // Tests that run at the same time ask it as well, and memory of theirs that is gone may have
    // had this address.
    witness.0.lock().unwrap().clear();
    let _plain = pd.reg_mr(&host, ALL).unwrap();
    let gpu = gpu();
    let (_bo, mapping) = mapped(&gpu, Place::VISIBLE_VRAM);
    let _peers = soft::reg_mapping(&pd, &mapping, ALL).unwrap();
    let asked = witness.0.lock().unwrap().clone();
    assert!(asked.contains(&(mapping.addr() as u64)), "it is asked about a device's memory");
    assert!(!asked.contains(&(host.as_ptr().addr() as u64)));
}

#[test]
fn the_memory_goes_away_under_traffic() {
    let (context, pd) = nic_of(peermem(ImporterConfig::Dynamic));
    let gpu = gpu();
    let (_bo, mapping) = mapped(&gpu, Place::VISIBLE_VRAM);
    let target = soft::reg_mapping(&pd, &mapping, ALL).unwrap();
    let host = HostBuf::anonymous(MIB as usize).unwrap();
    let source = pd.reg_mr(&host, ALL).unwrap();
    let (a, _b) = pair(&context, &pd);
    std::thread::scope(|scope| {
        let (started, starts) = std::sync::mpsc::channel();
        scope.spawn(move || {
            let mut done = 0;
            loop {
                let all = [source.slice(0, MIB as u32)];
                let write = SendRequest::write(done, &all, target.remote(0)).signaled();
                a.qp.post_send(&write).unwrap();
                match completion(&a.cq).status {
                    WcStatus::Success => done += 1,
                    status => {
                        assert_eq!(status, WcStatus::RemAccessErr);
                        return;
                    }
                }
                if done == 8 {
                    started.send(()).unwrap();
                }
            }
        });
        starts.recv().unwrap();
        gpu.reset();
    });
    assert_eq!(gpu.stats().stale_accesses, 0);
}
