//! Completion counters: what each counts, on every carrier, and what is refused.

#[path = "../../device/src/rig/port.rs"]
mod port;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use verbs::soft::{self, NicConfig};
use verbs::{
    Access, CompCntr, CompCntrEntry, CompCntrOps, CompCntrType, Context, Cq, DEFAULT_QKEY, HostBuf,
    Kind, Mr, Pd, Qp, QpSpec, SendRequest,
};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

const EACH: [CompCntrOps; 6] = [
    CompCntrOps::SEND,
    CompCntrOps::RECV,
    CompCntrOps::RDMA_READ,
    CompCntrOps::REMOTE_RDMA_READ,
    CompCntrOps::RDMA_WRITE,
    CompCntrOps::REMOTE_RDMA_WRITE,
];

const GIVE_UP: Duration = Duration::from_secs(30);

/// How packets, or their equivalent, travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Loopback,
    Ring,
    Direct,
    Udp,
}

const CARRIERS: [Carrier; 4] = [Carrier::Loopback, Carrier::Ring, Carrier::Direct, Carrier::Udp];

/// Two openings of a NIC of its own.
fn contexts(carrier: Carrier) -> [Context; 2] {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("cntr{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let device = soft::device(NicConfig {
        name,
        direct: carrier == Carrier::Direct,
        force_udp: carrier == Carrier::Udp,
        udp_port: if carrier == Carrier::Udp { port::lease() } else { 4791 },
        ..NicConfig::default()
    })
    .unwrap();
    let first = device.open().unwrap();
    let second = match carrier {
        Carrier::Loopback | Carrier::Udp => first.clone(),
        Carrier::Ring | Carrier::Direct => soft::open_another(&device).unwrap(),
    };
    [first, second]
}

/// A QP, with the counters that it is attached to.
struct Side {
    pd: Pd,
    cq: Cq,
    qp: Qp,
    buffer: HostBuf,
    mr: Mr,
    cntrs: Vec<CompCntr>,
}

fn plain(context: &Context, spec: impl Fn(&Cq) -> QpSpec) -> Side {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64).unwrap();
    let qp = pd.create_qp(&spec(&cq)).unwrap();
    let buffer = HostBuf::anonymous(1 << 16).unwrap();
    let mr = pd.reg_mr(&buffer, ALL).unwrap();
    Side { pd, cq, qp, buffer, mr, cntrs: Vec::new() }
}

/// A QP with a counter for each operation.
fn counted(context: &Context, spec: impl Fn(&Cq) -> QpSpec, kind: CompCntrType) -> Side {
    let mut side = plain(context, spec);
    for op in EACH {
        let cntr = context.create_comp_cntr(kind).unwrap();
        side.qp.attach_comp_cntr(&cntr, op).unwrap();
        side.cntrs.push(cntr);
    }
    side
}

fn connect(a: &Side, b: &Side) {
    a.qp.connect(&b.qp.endpoint().unwrap()).unwrap();
    b.qp.connect(&a.qp.endpoint().unwrap()).unwrap();
}

/// Two connected QPs, on each carrier in turn.
fn on_each_carrier(
    spec: impl Fn(&Cq) -> QpSpec + Copy,
    kind: CompCntrType,
    test: impl Fn(&Side, &Side),
) {
    for carrier in CARRIERS {
        println!("{carrier:?}");
        let [a, b] = contexts(carrier).map(|context| counted(&context, spec, kind));
        connect(&a, &b);
        test(&a, &b);
    }
}

impl Side {
    fn values(&self, entry: CompCntrEntry) -> Vec<u64> {
        self.cntrs.iter().map(|cntr| cntr.read(entry).unwrap()).collect()
    }

    fn post(&self, request: &SendRequest<'_>) {
        self.qp.post_send(request).unwrap();
    }

    /// An address from which the last bytes of a request are outside the region.
    fn outside(&self) -> verbs::Remote {
        self.mr.remote(self.buffer.len() as u64 - 1)
    }
}

/// Reads counters, and nothing else, until they are as expected.
#[track_caller]
fn expect(a: &Side, b: &Side, entry: CompCntrEntry, wanted: [[u64; 6]; 2]) {
    let give_up = Instant::now() + GIVE_UP;
    loop {
        let found = [a.values(entry), b.values(entry)];
        if found == wanted.map(Vec::from) {
            return;
        }
        assert!(Instant::now() < give_up, "{entry:?} are {found:?}, but should be {wanted:?}");
    }
}

#[test]
fn success_is_counted_on_both_sides_signaled_or_not() {
    on_each_carrier(QpSpec::rc, CompCntrType::Wrs, |a, b| {
        for wr_id in 0..3 {
            b.qp.post_recv(wr_id, &[b.mr.slice(0, 4096)]).unwrap();
        }
        let part = |length| [a.mr.slice(0, length)];
        let there = b.mr.remote(0);
        a.post(&SendRequest::send(1, &part(100)));
        a.post(&SendRequest::send(2, &part(100)).with_imm(7));
        a.post(&SendRequest::write(3, &part(20_000), there));
        // Takes a receive, too.
        a.post(&SendRequest::write_with_imm(4, &part(10), there, 7));
        a.post(&SendRequest::read(5, &part(30_000), there));
        a.post(&SendRequest::read(6, &part(0), there));
        a.post(&SendRequest::fetch_add(7, a.mr.slice(0, 8), there, 1).signaled());
        let wanted = [[2, 0, 2, 0, 2, 0], [0, 3, 0, 2, 0, 2]];
        expect(a, b, CompCntrEntry::Comp, wanted);
        // No counter counts an atomic, and it ends after the requests posted before it.
        assert!(a.cq.wait_timeout(GIVE_UP).unwrap().expect("a completion").is_success());
        expect(a, b, CompCntrEntry::Comp, wanted);
        expect(a, b, CompCntrEntry::Err, [[0; 6], [0; 6]]);
    });
}

#[test]
fn a_counter_of_bytes_adds_up_lengths() {
    on_each_carrier(QpSpec::rc, CompCntrType::Bytes, |a, b| {
        b.qp.post_recv(0, &[b.mr.slice(0, 4096)]).unwrap();
        let part = |length| [a.mr.slice(0, length)];
        a.post(&SendRequest::send(1, &part(100)));
        a.post(&SendRequest::write(2, &part(20_000), b.mr.remote(0)));
        a.post(&SendRequest::write(3, &part(5), b.mr.remote(0)));
        a.post(&SendRequest::read(4, &part(30_000), b.mr.remote(0)));
        let wanted = [[100, 0, 30_000, 0, 20_005, 0], [0, 100, 0, 30_000, 0, 20_005]];
        expect(a, b, CompCntrEntry::Comp, wanted);
    });
}

/// The first failure flushes the requests after it, and both sides' receives. Errors have no bytes.
#[test]
fn errors_are_counted_separately() {
    for kind in [CompCntrType::Wrs, CompCntrType::Bytes] {
        on_each_carrier(QpSpec::rc, kind, |a, b| {
            a.qp.post_recv(0, &[a.mr.slice(0, 4096)]).unwrap();
            b.qp.post_recv(0, &[b.mr.slice(0, 4096)]).unwrap();
            let part = [a.mr.slice(0, 100)];
            a.post(&SendRequest::write(1, &part, b.outside()));
            a.post(&SendRequest::send(2, &part));
            a.post(&SendRequest::read(3, &part, b.mr.remote(0)));
            expect(a, b, CompCntrEntry::Err, [[1, 1, 1, 0, 1, 0], [0, 1, 0, 0, 0, 1]]);
            expect(a, b, CompCntrEntry::Comp, [[0; 6], [0; 6]]);
        });
        on_each_carrier(QpSpec::rc, kind, |a, b| {
            a.post(&SendRequest::read(1, &[a.mr.slice(0, 100)], b.outside()));
            expect(a, b, CompCntrEntry::Err, [[0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0]]);
        });
    }
}

/// A UC sender does not learn that its WRITE was refused; its peer's counter shows it.
#[test]
fn unreliable_services_count_what_each_side_sees() {
    on_each_carrier(QpSpec::uc, CompCntrType::Wrs, |a, b| {
        let part = [a.mr.slice(0, 100)];
        a.post(&SendRequest::write(1, &part, b.outside()));
        a.post(&SendRequest::write(2, &part, b.mr.remote(0)));
        expect(a, b, CompCntrEntry::Comp, [[0, 0, 0, 0, 2, 0], [0, 0, 0, 0, 0, 1]]);
        expect(a, b, CompCntrEntry::Err, [[0; 6], [0, 0, 0, 0, 0, 1]]);
    });
    for carrier in CARRIERS {
        let [a, b] =
            contexts(carrier).map(|context| counted(&context, QpSpec::ud, CompCntrType::Bytes));
        a.qp.to_rts().unwrap();
        b.qp.to_rts().unwrap();
        b.qp.post_recv(1, &[b.mr.slice(0, 4096)]).unwrap();
        let gid = b.qp.endpoint().unwrap().gid;
        let av = verbs::Av { dgid: gid, is_global: true, port_num: 1, ..verbs::Av::default() };
        let ah = a.pd.create_ah(av).unwrap();
        let request = SendRequest::send(1, &[a.mr.slice(0, 100)]);
        a.post(&request.to(&ah, b.qp.qpn(), DEFAULT_QKEY));
        // A receive of a datagram includes its GRH.
        expect(&a, &b, CompCntrEntry::Comp, [[100, 0, 0, 0, 0, 0], [0, 140, 0, 0, 0, 0]]);
    }
}

/// A request of the first side to the second one.
type Requested = for<'mr> fn(&'mr Side, &Side) -> SendRequest<'mr>;

/// A peer carries out only those operations by itself that no counter counts here.
#[test]
fn counted_operations_do_not_take_the_direct_path() {
    let [here, there] = contexts(Carrier::Direct);
    let run = |ops: CompCntrOps, request: Requested, is_direct: bool| {
        let (a, b) = (plain(&here, QpSpec::rc), plain(&there, QpSpec::rc));
        let cntr = there.create_comp_cntr(CompCntrType::Wrs).unwrap();
        if !ops.is_empty() {
            b.qp.attach_comp_cntr(&cntr, ops).unwrap();
        }
        connect(&a, &b);
        let before = soft::counters(&here).unwrap().direct_operations;
        let give_up = Instant::now() + GIVE_UP;
        for done in 0.. {
            let was_direct = soft::counters(&here).unwrap().direct_operations > before;
            if !is_direct {
                assert!(!was_direct, "{ops:?}: the peer carried it out without the counting side");
                if done == 20 {
                    break;
                }
            } else if was_direct {
                return;
            }
            assert!(Instant::now() < give_up, "{ops:?}: never took the direct path");
            a.post(&request(&a, &b).signaled());
            let wc = a.cq.wait_timeout(GIVE_UP).unwrap().expect("a completion");
            assert!(wc.is_success(), "{wc:?}");
        }
        assert_eq!(cntr.read(CompCntrEntry::Comp).unwrap(), 20);
    };
    let write: Requested = |a, b| SendRequest::write(1, &[a.mr.slice(0, 8)], b.mr.remote(0));
    let read: Requested = |a, b| SendRequest::read(1, &[a.mr.slice(0, 8)], b.mr.remote(0));
    run(CompCntrOps::empty(), write, true);
    run(CompCntrOps::REMOTE_RDMA_WRITE, write, false);
    run(CompCntrOps::REMOTE_RDMA_WRITE, read, true);
    run(CompCntrOps::REMOTE_RDMA_READ, read, false);
    run(CompCntrOps::REMOTE_RDMA_READ | CompCntrOps::RECV, write, true);
}

#[test]
fn one_counter_adds_up_several_queue_pairs_and_wraps() {
    let [context, _] = contexts(Carrier::Loopback);
    let sides = [(); 4].map(|()| plain(&context, QpSpec::rc));
    let cntr = context.create_comp_cntr(CompCntrType::Wrs).unwrap();
    for side in &sides {
        let ops = CompCntrOps::RDMA_WRITE | CompCntrOps::REMOTE_RDMA_WRITE;
        side.qp.attach_comp_cntr(&cntr, ops).unwrap();
    }
    cntr.set(CompCntrEntry::Comp, u64::MAX - 1).unwrap();
    cntr.set(CompCntrEntry::Err, u64::MAX).unwrap();
    cntr.inc(CompCntrEntry::Err, 5).unwrap();
    for pair in sides.chunks(2) {
        connect(&pair[0], &pair[1]);
        let write = SendRequest::write(1, &[pair[0].mr.slice(0, 8)], pair[1].mr.remote(0));
        pair[0].post(&write);
    }
    let give_up = Instant::now() + GIVE_UP;
    while cntr.read(CompCntrEntry::Comp).unwrap() != 2 {
        assert!(Instant::now() < give_up, "{:?}", cntr.read(CompCntrEntry::Comp));
    }
    assert_eq!(cntr.read(CompCntrEntry::Err).unwrap(), 4);
}

#[test]
fn what_cannot_be_attached_is_refused() {
    let [context, _] = contexts(Carrier::Loopback);
    let [device, _] = contexts(Carrier::Loopback);
    let (a, b) = (plain(&context, QpSpec::rc), plain(&context, QpSpec::rc));
    let make = |context: &Context| context.create_comp_cntr(CompCntrType::Wrs).unwrap();
    let [one, other, elsewhere] = [&context, &context, &device].map(make);
    let attach = |cntr, ops| a.qp.attach_comp_cntr(cntr, ops).map_err(|refusal| refusal.kind());
    attach(&one, CompCntrOps::SEND | CompCntrOps::RECV).unwrap();
    assert_eq!(attach(&one, CompCntrOps::SEND), Err(Kind::Busy));
    assert_eq!(attach(&other, CompCntrOps::RECV | CompCntrOps::RDMA_READ), Err(Kind::Busy));
    assert_eq!(attach(&other, CompCntrOps::empty()), Err(Kind::Invalid));
    let unknown = CompCntrOps::from_bits_retain(1 << 6);
    assert_eq!(attach(&other, unknown | CompCntrOps::RDMA_READ), Err(Kind::NotSupported));
    assert_eq!(attach(&elsewhere, CompCntrOps::RDMA_READ), Err(Kind::Invalid));
    connect(&a, &b);
    assert_eq!(attach(&other, CompCntrOps::RDMA_READ), Err(Kind::Invalid));
}
