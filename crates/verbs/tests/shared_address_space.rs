//! A NIC and pages that live in a GPU for a while: one address, wherever they are.

mod common;

use gpu::Place as GpuPlace;
use hmm::{DevicePages, Mirror, PAGE, Place};
use umem::Umem;
use verbs::soft::NicConfig;
use verbs::{HostBuf, SendRequest, WcStatus};

use common::{ALL, gpu, nic_of, pair, pattern, run};

const PAGES: u64 = 16;
const LEN: u64 = PAGES * PAGE;

/// The NIC reads what the GPU wrote and writes what the GPU reads; it registered the range once,
/// while no page of it was in the GPU.
#[test]
fn a_nic_reaches_pages_that_migrated_to_a_gpu_at_their_addresses() {
    let gpu = gpu();
    let bo = gpu.alloc(LEN, GpuPlace::VISIBLE_VRAM).expect("VRAM");
    let exported = bo.export().expect("a dma-buf");
    let mapping = exported.map(0, exported.size()).expect("visible");
    let vram = DevicePages::new(Umem::dmabuf(mapping, 0, LEN).expect("all of it"));
    let mirror = Mirror::new(LEN, vram).expect("userfaultfd");

    let (context, pd) = nic_of(NicConfig::default());
    let (a, _b) = pair(&context, &pd);
    let shared = pd.reg_mr(mirror.host_buf().expect("its own"), ALL).expect("host memory");
    let other = HostBuf::anonymous(LEN as usize).expect("memory");
    let mr = pd.reg_mr(&other, ALL).expect("host memory");

    mirror.write(0, &pattern(LEN, 1)).expect("mapped");
    let migrated = mirror.migrate_to_device(0, LEN).expect("they go");
    assert_eq!(migrated.pages, PAGES);
    let half = (LEN / 2) as u32;
    let write = SendRequest::write(1, &[shared.slice(0, half)], mr.remote(0));
    assert_eq!(run(&a, write), WcStatus::Success);
    let mut bytes = vec![0; LEN as usize / 2];
    other.read(0, &mut bytes).expect("in range");
    assert_eq!(bytes, pattern(LEN, 1)[..LEN as usize / 2]);
    // The pages that the NIC accessed came back, as for any user of the address. The rest is in the
    // GPU.
    let places = mirror.snapshot(0, LEN).expect("in range");
    assert!(places[..8].iter().all(|place| *place == Place::System), "{places:?}");
    assert!(places[8..].iter().all(|place| *place == Place::Device), "{places:?}");
    assert_eq!(mirror.stats().faulted_back, 8);

    // A remote write to pages in the GPU, which the GPU sees.
    other.write(0, &pattern(LEN, 2)).expect("in range");
    let _ = mirror.migrate_to_device(0, LEN).expect("they go");
    let write = SendRequest::write(2, &[mr.slice(0, LEN as u32)], shared.remote(0));
    assert_eq!(run(&a, write), WcStatus::Success);
    let _ = mirror.migrate_to_device(0, LEN).expect("they go");
    let mut seen = vec![0; LEN as usize];
    mirror.read(0, &mut seen).expect("mapped");
    assert_eq!(seen, pattern(LEN, 2));
    assert_eq!(mirror.stats().faulted_back, 8 + PAGES);
}
