//! Memory of the NIC: what the proposal of 2018 wanted it for, and as a dma-buf.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use verbs::{
    Access, Context, Cq, Device, Dm, HostBuf, ImporterConfig, Kind, Mr, NicConfig, Pd, Qp, QpSpec,
    SendRequest, WcStatus,
};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

fn nic(importer: ImporterConfig) -> (Context, Pd) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("dm{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let config = NicConfig { name, importer: Some(importer), ..NicConfig::default() };
    let context = Device::from_config(config).unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    (context, pd)
}

struct Side {
    cq: Cq,
    qp: Qp,
    host: HostBuf,
    mr: Mr,
}

fn side(context: &Context, pd: &Pd) -> Side {
    let cq = context.create_cq(64).unwrap();
    let qp = pd.create_qp(&QpSpec::rc(&cq)).unwrap();
    let host = HostBuf::anonymous(1 << 16).unwrap();
    let mr = pd.reg_mr(&host, ALL).unwrap();
    Side { cq, qp, host, mr }
}

fn pair(context: &Context, pd: &Pd) -> (Side, Side) {
    let (a, b) = (side(context, pd), side(context, pd));
    a.qp.connect(&b.qp.endpoint().unwrap()).unwrap();
    b.qp.connect(&a.qp.endpoint().unwrap()).unwrap();
    (a, b)
}

#[track_caller]
fn run(side: &Side, request: SendRequest) -> WcStatus {
    side.qp.post_send(&request.signaled()).unwrap();
    let done = side.cq.wait_timeout(Duration::from_secs(20)).unwrap();
    done.expect("a completion within twenty seconds").status
}

fn device_memory(context: &Context, pd: &Pd, length: u64) -> (Dm, Mr) {
    let dm = context.alloc_dm(length).unwrap();
    let mr = pd.reg_dm_mr(&dm, 0, length, ALL).unwrap();
    (dm, mr)
}

/// Clients take a lock in the NIC's memory by CMP_SWAP, change what it guards with a READ and a WRITE, and release it:
/// no change is lost.
#[test]
fn a_distributed_lock() {
    const CLIENTS: u64 = 4;
    const ROUNDS: u64 = 50;
    let (context, pd) = nic(ImporterConfig::Dynamic);
    let (dm, lock) = device_memory(&context, &pd, 64);
    let shared = HostBuf::anonymous(4096).unwrap();
    let guarded = pd.reg_mr(&shared, ALL).unwrap();
    std::thread::scope(|scope| {
        for client in 1..=CLIENTS {
            let (context, pd, lock, guarded) = (&context, &pd, &lock, &guarded);
            scope.spawn(move || {
                let (a, _b) = pair(context, pd);
                let word = |at: usize| a.host.load_u64(at, Ordering::Relaxed).unwrap();
                for _ in 0..ROUNDS {
                    loop {
                        let take = SendRequest::compare_swap(
                            1,
                            a.mr.slice(0, 8),
                            lock.remote(0),
                            0,
                            client,
                        );
                        assert_eq!(run(&a, take), WcStatus::Success);
                        if word(0) == 0 {
                            break;
                        }
                    }
                    let read = SendRequest::read(2, &[a.mr.slice(8, 8)], guarded.remote(0));
                    assert_eq!(run(&a, read), WcStatus::Success);
                    a.host.store_u64(8, word(8) + 1, Ordering::Relaxed).unwrap();
                    let write = SendRequest::write(3, &[a.mr.slice(8, 8)], guarded.remote(0));
                    assert_eq!(run(&a, write), WcStatus::Success);
                    let free =
                        SendRequest::compare_swap(4, a.mr.slice(0, 8), lock.remote(0), client, 0);
                    assert_eq!(run(&a, free), WcStatus::Success);
                    assert_eq!(word(0), client, "nobody else released it");
                }
            });
        }
    });
    assert_eq!(shared.load_u64(0, Ordering::Relaxed).unwrap(), CLIENTS * ROUNDS);
    let mut free = [1; 8];
    dm.read(0, &mut free).unwrap();
    assert_eq!(free, [0; 8]);
}

#[test]
fn counters_that_peers_raise_and_the_host_never_polls_in_its_own_memory() {
    let (context, pd) = nic(ImporterConfig::Dynamic);
    let (dm, counters) = device_memory(&context, &pd, 64 * 8);
    std::thread::scope(|scope| {
        for client in 0..4u64 {
            let (context, pd, counters) = (&context, &pd, &counters);
            scope.spawn(move || {
                let (a, _b) = pair(context, pd);
                for round in 0..100u64 {
                    let at = counters.remote(8 * (round % 64));
                    let add = SendRequest::fetch_add(1, a.mr.slice(0, 8), at, client + 1);
                    assert_eq!(run(&a, add), WcStatus::Success);
                }
            });
        }
    });
    let mut all = vec![0; 64 * 8];
    dm.read(0, &mut all).unwrap();
    let words = all.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
    assert_eq!(words.sum::<u64>(), 100 * (1 + 2 + 3 + 4));
}

/// What is sent is put into the NIC first, so that sending does not read host memory.
#[test]
fn a_staging_buffer() {
    let (context, pd) = nic(ImporterConfig::Dynamic);
    let (dm, staged) = device_memory(&context, &pd, 4096);
    let (a, b) = pair(&context, &pd);
    for round in 0..8u8 {
        dm.write(0, &[round; 1024]).unwrap();
        b.qp.post_recv(0, &[b.mr.slice(0, 4096)]).unwrap();
        assert_eq!(run(&a, SendRequest::send(1, &[staged.slice(0, 1024)])), WcStatus::Success);
        let got = b.cq.wait_timeout(Duration::from_secs(20)).unwrap().unwrap();
        assert_eq!((got.status, got.byte_len), (WcStatus::Success, 1024));
        let mut bytes = vec![0; 1024];
        b.host.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == round));
    }
}

/// One write into the NIC, many sends out of it.
#[test]
fn multicast_of_an_application() {
    const PEERS: usize = 6;
    let (context, pd) = nic(ImporterConfig::Dynamic);
    let (dm, message) = device_memory(&context, &pd, 512);
    let pairs: Vec<_> = (0..PEERS).map(|_| pair(&context, &pd)).collect();
    dm.write(0, &[0xa5; 512]).unwrap();
    for (_, b) in &pairs {
        b.qp.post_recv(0, &[b.mr.slice(0, 512)]).unwrap();
    }
    for (a, b) in &pairs {
        assert_eq!(run(a, SendRequest::send(1, &[message.slice(0, 512)])), WcStatus::Success);
        assert!(b.cq.wait_timeout(Duration::from_secs(20)).unwrap().unwrap().is_success());
        let mut bytes = vec![0; 512];
        b.host.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0xa5));
    }
}

/// Another NIC writes into this one's memory through its dma-buf, until it is freed.
#[test]
fn as_a_dma_buf_it_is_for_those_who_can_lose_it() {
    let (exporting, _pd) = nic(ImporterConfig::Dynamic);
    let dm = exporting.alloc_dm(8192).unwrap();
    let buffer = dm.export().unwrap();
    assert!(dm.export().unwrap().is_same(&buffer));
    for importer in [ImporterConfig::Pinned, ImporterConfig::Revocable] {
        let (_context, pd) = nic(importer);
        let refused = pd.reg_whole_dmabuf(&buffer, ALL).unwrap_err();
        assert_eq!(refused.kind(), Kind::NotSupported, "{importer:?}: {refused}");
    }
    let (context, pd) = nic(ImporterConfig::Dynamic);
    let region = pd.reg_whole_dmabuf(&buffer, ALL).unwrap();
    let (a, _b) = pair(&context, &pd);
    a.host.fill(0, 0x3c, 4096).unwrap();
    let write = || SendRequest::write(1, &[a.mr.slice(0, 4096)], region.remote(4096));
    assert_eq!(run(&a, write()), WcStatus::Success);
    let mut bytes = vec![0; 4096];
    dm.read(4096, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0x3c));
    drop(dm);
    assert_eq!(run(&a, write()), WcStatus::RemAccessErr, "it was freed");
}

/// A zero-based region may begin anywhere, so that an aligned address of it is not aligned memory.
#[test]
fn an_atomic_on_memory_that_is_not_aligned_is_an_invalid_request() {
    let (context, pd) = nic(ImporterConfig::Dynamic);
    let dm = context.alloc_dm(64).unwrap();
    let odd = pd.reg_dm_mr(&dm, 4, 32, ALL).unwrap();
    let (a, _b) = pair(&context, &pd);
    let add = SendRequest::fetch_add(1, a.mr.slice(0, 8), odd.remote(8), 1);
    assert_eq!(run(&a, add), WcStatus::RemInvReqErr);
}
