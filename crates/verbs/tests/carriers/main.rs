//! GPU memory on every carrier: loopback, the ring between two processes of a host, the direct
//! path, UDP.

#[path = "../../../device/src/rig/port.rs"]
mod port;
mod refused;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gpu::{Bo, Gpu, GpuConfig};
use verbs::soft::{self, ImporterConfig, NicConfig};
use verbs::{Access, Context, Cq, Mr, Pd, Qp, QpSpec, SendRequest, Wc, WcStatus};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
const MIB: u64 = 1 << 20;

/// How packets, or their equivalent, travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Loopback,
    /// Within the process, without packets.
    Within,
    Ring,
    Direct,
    Udp,
}

const CARRIERS: [Carrier; 5] =
    [Carrier::Loopback, Carrier::Within, Carrier::Ring, Carrier::Direct, Carrier::Udp];

/// One end of a conversation.
struct End {
    context: Context,
    pd: Pd,
    cq: Cq,
}

/// Two ends on one NIC, a different one for each test.
fn ends(carrier: Carrier, importer: ImporterConfig) -> (End, End) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("car{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let device = soft::device(NicConfig {
        name,
        importer: Some(importer),
        direct: matches!(carrier, Carrier::Within | Carrier::Direct),
        force_udp: carrier == Carrier::Udp,
        udp_port: if carrier == Carrier::Udp { port::lease() } else { 4791 },
        ..NicConfig::default()
    })
    .unwrap();
    let first = device.open().unwrap();
    let second = match carrier {
        Carrier::Loopback | Carrier::Within | Carrier::Udp => first.clone(),
        Carrier::Ring | Carrier::Direct => soft::open_another(&device).unwrap(),
    };
    let end = |context: Context| {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
        End { context, pd, cq }
    };
    (end(first), end(second))
}

/// A connection between the two ends.
fn connect(a: &End, b: &End) -> (Qp, Qp) {
    let qps = [a, b].map(|end| end.pd.create_qp(&QpSpec::rc(&end.cq)).unwrap());
    let [first, second] = qps;
    first.connect(&second.endpoint().unwrap()).unwrap();
    second.connect(&first.endpoint().unwrap()).unwrap();
    (first, second)
}

fn gpu() -> Gpu {
    let config = GpuConfig { vram: 64 * MIB, gtt: 64 * MIB, shared: false, ..GpuConfig::default() };
    Gpu::open(&config).unwrap()
}

fn register(end: &End, bo: &Bo) -> Mr {
    end.pd.reg_whole_dmabuf(&bo.export().unwrap(), ALL).unwrap()
}

#[track_caller]
fn completion(cq: &Cq) -> Wc {
    cq.wait_timeout(Duration::from_secs(20)).unwrap().expect("a completion within twenty seconds")
}

#[track_caller]
fn run(end: &End, qp: &Qp, request: SendRequest<'_>) -> WcStatus {
    qp.post_send(&request.signaled()).unwrap();
    completion(&end.cq).status
}

fn pattern(length: u64, seed: u64) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

/// Checks that the operations used this carrier.
#[track_caller]
fn assert_used(carrier: Carrier, end: &End) {
    let counters = soft::counters(&end.context).unwrap();
    let used = match carrier {
        Carrier::Loopback => counters.loopback_packets,
        Carrier::Ring => counters.tx_shm_packets,
        Carrier::Within | Carrier::Direct => counters.direct_operations,
        Carrier::Udp => counters.tx_udp_packets,
    };
    assert!(used > 0, "{carrier:?}: {counters:?}");
}
