//! Many requests in one call, and many completions.

mod chosen;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use verbs::{
    Access, AttrMask, Clock, Context, Cq, DEFAULT_QKEY, HostBuf, Kind, Mr, Pd, PostError, Qp,
    QpAttr, QpCap, QpSpec, QpState, SendRequest, Wc, WcOpcode, WcStatus,
};

/// More than a list of the library's has, and no multiple of it.
const COUNT: u32 = 40;

fn open() -> (Context, Pd) {
    let context = verbs::devices().unwrap()[0].open().unwrap();
    let pd = context.alloc_pd().unwrap();
    (context, pd)
}

fn memory(pd: &Pd) -> (HostBuf, Mr) {
    let memory = HostBuf::anonymous(4096).unwrap();
    let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE | Access::REMOTE).unwrap();
    (memory, mr)
}

fn connected(pd: &Pd, spec: &QpSpec) -> [Qp; 2] {
    let [a, b] = [(); 2].map(|()| pd.create_qp(spec).unwrap());
    a.connect(&b.endpoint().unwrap()).unwrap();
    b.connect(&a.endpoint().unwrap()).unwrap();
    [a, b]
}

/// The next `count` completions, at most `most` at a time.
#[track_caller]
fn completions(cq: &Cq, count: usize, most: usize) -> Vec<Wc> {
    let (began, mut all) = (Instant::now(), Vec::new());
    while all.len() < count {
        let before = all.len();
        let taken = cq.poll_many(most.min(count - before), &mut all);
        assert!(taken <= most && all.len() == before + taken);
        assert!(began.elapsed() < Duration::from_secs(30), "{} of {count} came", all.len());
    }
    assert!(all.iter().all(Wc::is_success), "{all:?}");
    all
}

fn numbers(wcs: &[Wc]) -> Vec<u64> {
    wcs.iter().map(|wc| wc.wr_id).collect()
}

#[test]
fn a_list_arrives_in_its_order_whatever_its_requests_are() {
    let (context, pd) = open();
    let [sent, received] = [(); 2].map(|()| context.create_cq(256).unwrap());
    let spec = QpSpec { recv_cq: received.clone(), ..QpSpec::rc(&sent) };
    let [a, b] = connected(&pd, &spec);
    let (memory, mr) = memory(&pd);
    memory.write(0, &(0..=255).collect::<Vec<u8>>()).unwrap();

    let places: Vec<_> = (0..COUNT).map(|n| [mr.slice(u64::from(2048 + 16 * n), 16)]).collect();
    let receives: Vec<_> = (0..).zip(&places).map(|(n, place)| (n, &place[..])).collect();
    b.post_recvs(&receives).unwrap();
    // Every fifth has its bytes inline, and every seventh writes: no receive is its.
    let requests: Vec<_> = (0..COUNT)
        .map(|n| match n {
            n if n % 7 == 3 => {
                let to = mr.remote(1024 + u64::from(n));
                SendRequest::write(n.into(), &[mr.slice(n.into(), 1)], to).signaled()
            }
            n if n % 5 == 0 => SendRequest::send(n.into(), &[]).inline(&[n as u8]).signaled(),
            n => SendRequest::send(n.into(), &[mr.slice(n.into(), 1)]).signaled(),
        })
        .collect();
    a.post_sends(&requests).unwrap();

    let done = completions(&sent, COUNT as usize, 9);
    assert_eq!(numbers(&done), (0..u64::from(COUNT)).collect::<Vec<_>>());
    let is_write = |n: &u32| n % 7 == 3;
    let sends: Vec<u32> = (0..COUNT).filter(|n| !is_write(n)).collect();
    let got = completions(&received, sends.len(), 100);
    assert_eq!(numbers(&got), (0..sends.len() as u64).collect::<Vec<_>>());
    assert!(got.iter().all(|wc| (wc.opcode, wc.byte_len) == (WcOpcode::Recv, 1)), "{got:?}");
    let mut bytes = vec![0; 4096];
    memory.read(0, &mut bytes).unwrap();
    let arrived: Vec<_> = (0..sends.len()).map(|n| u32::from(bytes[2048 + 16 * n])).collect();
    assert_eq!(arrived, sends);
    let written: Vec<_> = (0..COUNT).filter(is_write).collect();
    assert!(written.iter().all(|n| u32::from(bytes[1024 + *n as usize]) == *n));
    assert!(sent.poll().is_none() && received.poll().is_none());
}

/// A queue may have more room than it was asked for, but not for ever.
#[test]
fn a_list_ends_where_the_queue_is_full() {
    let (context, pd) = open();
    let cq = context.create_cq(64).unwrap();
    let spec = QpSpec::rc(&cq);
    let cap = QpCap { max_recv_wr: 8, ..spec.cap };
    let [a, b] = connected(&pd, &QpSpec { cap, ..spec });
    let (_memory, mr) = memory(&pd);
    let place = [mr.slice(0, 8)];
    let receives: Vec<_> = (0..3000).map(|n| (n, &place[..])).collect();
    let bad = b.post_recvs(&receives).unwrap_err();
    assert!(matches!(bad.error, PostError::Full(_)) && bad.index >= 8, "{bad}");
    assert_eq!(bad.to_string(), format!("request {} of the list: {}", bad.index, bad.error));
    // Those before it are posted, and no other.
    assert_eq!(b.post_recv(9999, &place), Err(bad.error));
    for n in 0..bad.index as u64 {
        a.post_send(&SendRequest::send(n, &place).signaled()).unwrap();
        let done = completions(&cq, 2, 2);
        assert!(done.iter().all(|wc| wc.wr_id == n), "{done:?}");
    }
    b.post_recvs(&receives[..8]).unwrap();

    let srq = pd.create_srq(8, 1).unwrap();
    let bad = srq.post_recvs(&receives).unwrap_err();
    assert!(matches!(bad.error, PostError::Full(_)) && bad.index >= 8, "{bad}");
    assert_eq!(srq.post_recv(9999, &place), Err(bad.error));
}

#[test]
fn a_list_ends_at_what_the_queue_does_not_take() {
    let (context, pd) = open();
    let device = verbs::devices().unwrap().remove(0);
    let others = chosen::another(&device).alloc_pd().unwrap();
    let cq = context.create_cq(64).unwrap();
    let spec = QpSpec::rc(&cq);
    let cap = QpCap { max_send_sge: 1, max_recv_sge: 1, ..spec.cap };
    let [a, b] = connected(&pd, &QpSpec { cap, ..spec });
    let ((_memory, mr), (_other, foreign)) = (memory(&pd), memory(&others));
    let (ours, theirs) = (mr.slice(0, 8), foreign.slice(0, 8));

    // A number that is another region's here.
    let bad = b.post_recvs(&[(1, &[ours]), (2, &[ours]), (3, &[theirs])]).unwrap_err();
    assert_eq!((bad.index, bad.error), (2, PostError::OtherDevice));
    assert_eq!(b.post_recv(3, &[theirs]), Err(PostError::OtherDevice));
    let srq = pd.create_srq(8, 2).unwrap();
    assert_eq!(srq.post_recv(1, &[ours, theirs]), Err(PostError::OtherDevice));
    let bad = srq.post_recvs(&[(1, &[theirs])]).unwrap_err();
    assert_eq!((bad.index, bad.error), (0, PostError::OtherDevice));

    let send = |n, slices: &[_]| SendRequest::send(n, slices).signaled();
    for (wrong, error) in [
        (vec![theirs], PostError::OtherDevice),
        (vec![ours, theirs], PostError::OtherDevice),
        (vec![ours; 64], PostError::Sges { count: 64, max: 0 }),
    ] {
        b.post_recv(9, &[ours]).unwrap();
        let requests = [send(1, &[ours]), send(2, &wrong), send(3, &[ours])];
        let bad = a.post_sends(&requests).unwrap_err();
        assert_eq!(bad.index, 1);
        match (bad.error, error) {
            // A queue may take more than it was asked for.
            (PostError::Sges { count, .. }, PostError::Sges { .. }) => assert_eq!(count, 64),
            (is, should) => assert_eq!(is, should),
        }
        assert_eq!(completions(&cq, 2, 2).len(), 2);
        assert!(cq.poll().is_none());
    }
}

/// A datagram has a route header, and each completion has a time.
#[test]
fn completions_have_the_time_of_a_clock() {
    let (context, pd) = open();
    let since_1970 = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    for clock in [Clock::Device, Clock::Wall] {
        let created = context.create_timed_cq(64, clock);
        // It has no clock.
        if chosen::is_rxe() {
            assert_eq!(created.unwrap_err().kind(), Kind::NotSupported);
            continue;
        }
        let cq = created.unwrap();
        let qp = pd.create_qp(&QpSpec::ud(&cq)).unwrap();
        qp.to_rts().unwrap();
        let ah = pd.create_ah(context.av_to(context.default_gid().unwrap().gid)).unwrap();
        let (_memory, mr) = memory(&pd);
        let to_itself = || SendRequest::send(1, &[mr.slice(0, 8)]).to(&ah, qp.qpn(), DEFAULT_QKEY);
        let before = since_1970();
        let mut times = Vec::new();
        for _ in 0..20 {
            qp.post_recv(2, &[mr.slice(1024, 48)]).unwrap();
            qp.post_send(&to_itself().signaled()).unwrap();
            let done = completions(&cq, 2, 1);
            assert!(done.iter().all(|wc| wc.has_grh == (wc.opcode == WcOpcode::Recv)), "{done:?}");
            times.extend(done.iter().map(|wc| wc.time.expect("the queue has a clock")));
        }
        assert!(times.is_sorted() && times[0] < times[39], "{times:?}");
        let (first, last) = (times[0], times[39]);
        if clock == Clock::Wall {
            // The two clocks are compared when the device is opened, and one is set now and then.
            const ABOUT: u64 = 1_000_000_000;
            assert!(before <= first + ABOUT && last <= since_1970() + ABOUT, "{before} {times:?}");
        }
        // The time is a successful completion's.
        qp.post_recv(3, &[mr.slice(0, 48)]).unwrap();
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        qp.modify(&attr, AttrMask::STATE).unwrap();
        let flushed = cq.wait_timeout(Duration::from_secs(30)).unwrap().expect("it is flushed");
        assert_eq!((flushed.wr_id, flushed.status), (3, WcStatus::WrFlushErr));
        assert_eq!(flushed.time, None);
    }
    // Others have none.
    let cq = context.create_cq(8).unwrap();
    let [a, b] = connected(&pd, &QpSpec::rc(&cq));
    let (_memory, mr) = memory(&pd);
    b.post_recv(1, &[mr.slice(0, 8)]).unwrap();
    a.post_send(&SendRequest::send(1, &[mr.slice(8, 8)]).signaled()).unwrap();
    let done = completions(&cq, 2, 2);
    assert!(done.iter().all(|wc| wc.time.is_none()), "{done:?}");
    // rxe says that every message has a route header.
    assert!(chosen::is_rxe() || done.iter().all(|wc| !wc.has_grh), "{done:?}");
}
