//! Completion counters and dma-bufs of device memory, of which most libraries have neither.
//! `crates/peerdma` runs this file with both providers.

mod chosen;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use verbs::{
    Access, CompCntr, CompCntrEntry, CompCntrOps, CompCntrType, Context, Cq, HostBuf, Kind, Mr, Pd,
    Qp, QpSpec, SendRequest,
};

const GIVE_UP: Duration = Duration::from_secs(20);
const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

/// A QP with memory.
struct Side {
    cq: Cq,
    qp: Qp,
    buffer: HostBuf,
    mr: Mr,
}

impl Side {
    fn new(context: &Context, pd: &Pd) -> Self {
        let cq = context.create_cq(16).unwrap();
        let qp = pd.create_qp(&QpSpec::rc(&cq)).unwrap();
        let buffer = HostBuf::anonymous(4096).unwrap();
        let mr = pd.reg_mr(&buffer, ALL).unwrap();
        Self { cq, qp, buffer, mr }
    }
}

fn open() -> (Context, Pd) {
    let context = chosen::device_for("counted").open().unwrap();
    let pd = context.alloc_pd().unwrap();
    (context, pd)
}

/// A counter, where the provider has them: Debian's library has none.
fn counter(context: &Context, kind: CompCntrType) -> Option<CompCntr> {
    let made = context.create_comp_cntr(kind);
    if chosen::is_rxe() {
        let refusal = made.unwrap_err();
        assert_eq!(refusal.kind(), Kind::NotSupported, "{refusal}");
        assert!(refusal.what().contains("ibv_create_comp_cntr"), "{refusal}");
        return None;
    }
    Some(made.unwrap())
}

/// Waits until a value is there.
#[track_caller]
fn reaches(cntr: &CompCntr, entry: CompCntrEntry, value: u64) {
    let give_up = Instant::now() + GIVE_UP;
    loop {
        let now = cntr.read(entry).unwrap();
        if now == value {
            return;
        }
        assert!(now < value && Instant::now() < give_up, "{entry:?}: {now}, not {value}");
    }
}

fn connect(a: &Side, b: &Side) {
    a.qp.connect(&b.qp.endpoint().unwrap()).unwrap();
    b.qp.connect(&a.qp.endpoint().unwrap()).unwrap();
}

#[test]
fn both_sides_count_requests_or_bytes_without_completions() {
    let (context, pd) = open();
    let Some(sent) = counter(&context, CompCntrType::Wrs) else { return };
    let [read, received, written] =
        [(); 3].map(|()| counter(&context, CompCntrType::Bytes).unwrap());
    let (a, b) = (Side::new(&context, &pd), Side::new(&context, &pd));
    a.qp.attach_comp_cntr(&sent, CompCntrOps::SEND | CompCntrOps::RDMA_WRITE).unwrap();
    a.qp.attach_comp_cntr(&read, CompCntrOps::RDMA_READ).unwrap();
    b.qp.attach_comp_cntr(&received, CompCntrOps::RECV).unwrap();
    b.qp.attach_comp_cntr(&written, CompCntrOps::REMOTE_RDMA_WRITE).unwrap();
    connect(&a, &b);
    b.qp.post_recv(1, &[b.mr.slice(0, 100)]).unwrap();
    for request in [
        SendRequest::write(1, &[a.mr.slice(0, 70)], b.mr.remote(0)),
        SendRequest::send(2, &[a.mr.slice(0, 30)]),
        SendRequest::read(3, &[a.mr.slice(0, 500)], b.mr.remote(0)),
    ] {
        a.qp.post_send(&request).unwrap();
    }
    reaches(&sent, CompCntrEntry::Comp, 2);
    reaches(&read, CompCntrEntry::Comp, 500);
    reaches(&received, CompCntrEntry::Comp, 30);
    reaches(&written, CompCntrEntry::Comp, 70);
    assert!(a.cq.poll().is_none(), "nothing was signaled");
    // Beyond the end of the region.
    let beyond = b.mr.remote(b.buffer.len() as u64 - 1);
    a.qp.post_send(&SendRequest::write(4, &[a.mr.slice(0, 8)], beyond)).unwrap();
    reaches(&sent, CompCntrEntry::Err, 1);
    reaches(&written, CompCntrEntry::Err, 1);
    reaches(&sent, CompCntrEntry::Comp, 2);
}

#[test]
fn a_value_can_be_set_and_raised_and_wraps() {
    let (context, _pd) = open();
    let count = context.device_attr().max_comp_cntr;
    assert_eq!(count == 0, chosen::is_rxe(), "{count}");
    let Some(cntr) = counter(&context, CompCntrType::Wrs) else { return };
    cntr.set(CompCntrEntry::Comp, u64::MAX).unwrap();
    cntr.inc(CompCntrEntry::Comp, 3).unwrap();
    cntr.set(CompCntrEntry::Err, 5).unwrap();
    cntr.inc(CompCntrEntry::Err, 6).unwrap();
    assert_eq!(cntr.read(CompCntrEntry::Comp).unwrap(), 2);
    assert_eq!(cntr.read(CompCntrEntry::Err).unwrap(), 11);
}

#[test]
fn what_cannot_be_attached_is_refused() {
    let (context, pd) = open();
    let Some(one) = counter(&context, CompCntrType::Wrs) else { return };
    let other = counter(&context, CompCntrType::Wrs).unwrap();
    let (elsewhere, _pd) = open();
    let of_another = counter(&elsewhere, CompCntrType::Wrs).unwrap();
    let (a, b) = (Side::new(&context, &pd), Side::new(&context, &pd));
    let attach = |cntr, ops| a.qp.attach_comp_cntr(cntr, ops).map_err(|refusal| refusal.kind());
    attach(&one, CompCntrOps::SEND).unwrap();
    assert_eq!(attach(&other, CompCntrOps::SEND), Err(Kind::Busy));
    assert_eq!(attach(&other, CompCntrOps::empty()), Err(Kind::Invalid));
    assert_eq!(attach(&of_another, CompCntrOps::RECV), Err(Kind::Invalid));
    connect(&a, &b);
    assert_eq!(attach(&other, CompCntrOps::RECV), Err(Kind::Invalid));
}

/// It lives as long as the QP counts: the last handle may be gone before.
#[test]
fn a_counter_lives_as_long_as_its_qp() {
    let (context, pd) = open();
    let Some(cntr) = counter(&context, CompCntrType::Wrs) else { return };
    let (a, b) = (Side::new(&context, &pd), Side::new(&context, &pd));
    a.qp.attach_comp_cntr(&cntr, CompCntrOps::RDMA_WRITE).unwrap();
    drop(cntr);
    connect(&a, &b);
    let write = SendRequest::write(1, &[a.mr.slice(0, 8)], b.mr.remote(0)).signaled();
    a.qp.post_send(&write).unwrap();
    assert!(a.cq.wait_timeout(GIVE_UP).unwrap().expect("a completion").is_success());
}

#[test]
fn device_memory_is_a_dma_buf_for_any_nic() {
    let (context, pd) = open();
    if chosen::is_rxe() {
        // It has no device memory.
        assert_eq!(context.alloc_dm(4096).unwrap_err().kind(), Kind::NotSupported);
        return;
    }
    let dm = context.alloc_dm(4096).unwrap();
    dm.write(0, b"in the device").unwrap_err();
    dm.write(0, b"in the device!!!").unwrap();
    let fd = dm.export_fd().unwrap();
    let (a, b) = (Side::new(&context, &pd), Side::new(&context, &pd));
    connect(&a, &b);
    let region = pd.reg_dmabuf_mr(fd.as_fd(), 0, 4096, 0, ALL).unwrap();
    let read = SendRequest::read(1, &[a.mr.slice(0, 16)], region.remote(0)).signaled();
    a.qp.post_send(&read).unwrap();
    assert!(a.cq.wait_timeout(GIVE_UP).unwrap().expect("a completion").is_success());
    let mut found = [0; 16];
    a.buffer.read(0, &mut found).unwrap();
    assert_eq!(&found, b"in the device!!!");
}
