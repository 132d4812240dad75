//! Helpers for tests with a GPU.
#![allow(dead_code, reason = "each test program uses its part")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gpu::{Gpu, GpuConfig};
use verbs::soft::{self, NicConfig};
use verbs::{Access, Context, Cq, Pd, Qp, QpSpec, SendRequest, Wc, WcStatus};

pub(crate) const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn nic_of(config: NicConfig) -> (Context, Pd) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("test{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let context = soft::device(NicConfig { name, ..config }).unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    (context, pd)
}

pub(crate) fn gpu() -> Gpu {
    let config = GpuConfig { vram: 64 * MIB, gtt: 64 * MIB, shared: false, ..GpuConfig::default() };
    Gpu::open(&config).unwrap()
}

pub(crate) struct Side {
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
}

pub(crate) fn pair(context: &Context, pd: &Pd) -> (Side, Side) {
    let side = || {
        let cq = context.create_cq(64).unwrap();
        let qp = pd.create_qp(&QpSpec::rc(&cq)).unwrap();
        Side { cq, qp }
    };
    let (a, b) = (side(), side());
    a.qp.connect(&b.qp.endpoint().unwrap()).unwrap();
    b.qp.connect(&a.qp.endpoint().unwrap()).unwrap();
    (a, b)
}

#[track_caller]
pub(crate) fn completion(cq: &Cq) -> Wc {
    cq.wait_timeout(Duration::from_secs(20)).unwrap().expect("a completion within twenty seconds")
}

#[track_caller]
pub(crate) fn run(side: &Side, request: SendRequest<'_>) -> WcStatus {
    side.qp.post_send(&request.signaled()).unwrap();
    completion(&side.cq).status
}

pub(crate) fn pattern(length: u64, seed: u64) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}
