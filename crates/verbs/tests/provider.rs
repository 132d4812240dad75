//! What differs between the software device and a NIC of a library. `crates/peerdma` runs this file
//! with both.

mod chosen;

use std::thread;
use std::time::Duration;

use verbs::soft::NicConfig;
use verbs::{
    Access, AckTimeout, AttrMask, ConnectOptions, Context, Device, Ece, Endpoint, HostBuf, Kind,
    MrAdvice, Mtu, Pd, PostError, QpAttr, QpSpec, QpState, RnrTimer, SendRequest, WcStatus, soft,
};

fn open() -> (Context, Pd) {
    let context = verbs::devices().unwrap()[0].open().unwrap();
    let pd = context.alloc_pd().unwrap();
    (context, pd)
}

#[test]
fn the_device_is_of_the_provider_that_was_chosen() {
    let device = &verbs::devices().unwrap()[0];
    assert_eq!(device.is_soft(), !chosen::is_library());
    assert!(!device.name().is_empty());
}

#[test]
fn a_device_says_what_it_is() {
    let (context, _pd) = open();
    let (device, port) = (context.device_attr(), context.port_attr());
    assert!(device.max_qp > 0 && device.max_mr > 0 && device.node_guid.0 != 0);
    assert!(!device.fw_ver.is_empty());
    assert!(port.active && port.active_mtu.bytes() >= 256 && port.max_msg_sz > 0);
    assert!(!port.netdev.is_empty());
    let gids = context.gids();
    assert!(!gids.is_empty() && gids.iter().all(|gid| gid.ifindex > 0));
}

/// What only the software device has is refused in words, before anything is called.
#[test]
fn what_a_library_does_not_have_is_refused_in_words() {
    let (context, _pd) = open();
    let refused = [
        soft::counters(&context).err(),
        soft::resources(&context).err(),
        soft::open_another(&verbs::devices().unwrap()[0]).err(),
    ];
    for refusal in refused {
        let Some(refusal) = refusal else {
            assert!(!chosen::is_library());
            continue;
        };
        assert!(chosen::is_library(), "{refusal}");
        assert_eq!(refusal.kind(), Kind::NotSupported);
        assert!(refusal.what().contains("only the software device has this"), "{refusal}");
    }
}

/// Objects of one open device are not those of another, whichever provider made them.
#[test]
fn objects_of_another_device_are_refused() {
    let (here, pd) = open();
    let device = verbs::devices().unwrap().remove(0);
    let there = chosen::another(&device);
    let (ours, theirs) = (here.create_cq(8).unwrap(), there.create_cq(8).unwrap());
    let spec = QpSpec { recv_cq: theirs, ..QpSpec::rc(&ours) };
    let refusal = pd.create_qp(&spec).unwrap_err();
    assert_eq!(refusal.kind(), Kind::Invalid);
    assert!(refusal.what().contains("of another device"), "{refusal}");

    let qp = pd.create_qp(&QpSpec::ud(&ours)).unwrap();
    qp.to_rts().unwrap();
    let av = there.av_to(there.default_gid().unwrap().gid);
    let ah = there.alloc_pd().unwrap().create_ah(av).unwrap();
    let request = SendRequest::send(1, &[]).to(&ah, qp.qpn(), verbs::DEFAULT_QKEY);
    assert_eq!(qp.post_send(&request), Err(PostError::OtherDevice));
}

/// A provider may not look at these, and would read or write what it should not.
#[test]
fn what_a_qp_was_not_created_for_is_refused() {
    let (context, pd) = open();
    let cq = context.create_cq(8).unwrap();
    let spec = QpSpec::rc(&cq);
    let cap = verbs::QpCap { max_send_sge: 1, max_inline_data: 16, ..spec.cap };
    let [a, b] = [(); 2].map(|()| pd.create_qp(&QpSpec { cap, ..spec.clone() }).unwrap());
    a.connect(&b.endpoint().unwrap()).unwrap();
    b.connect(&a.endpoint().unwrap()).unwrap();
    let memory = HostBuf::anonymous(4096).unwrap();
    let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE).unwrap();

    let many = vec![mr.slice(0, 8); 64];
    let error = a.post_send(&SendRequest::send(1, &many)).unwrap_err();
    assert!(matches!(error, PostError::Sges { count: 64, .. }), "{error}");
    let long = vec![7; 70_000];
    let error = a.post_send(&SendRequest::send(1, &[]).inline(&long)).unwrap_err();
    assert!(matches!(error, PostError::Inline { length: 70_000, .. }), "{error}");

    let datagram = pd.create_qp(&QpSpec::ud(&cq)).unwrap();
    datagram.to_rts().unwrap();
    let write = SendRequest::write(1, &[mr.slice(0, 8)], mr.remote(0));
    let error = datagram.post_send(&write).unwrap_err();
    assert!(matches!(error, PostError::Opcode { .. }), "{error}");
    let error = datagram.post_send(&SendRequest::send(1, &[mr.slice(0, 8)])).unwrap_err();
    assert_eq!(error, PostError::NoDestination);
}

/// A full queue is said to be full, and takes requests again when some have completed.
#[test]
fn a_full_queue_is_full() {
    let (context, pd) = open();
    let cq = context.create_cq(64).unwrap();
    let spec = QpSpec::rc(&cq);
    let cap = verbs::QpCap { max_recv_wr: 4, ..spec.cap };
    let qp = pd.create_qp(&QpSpec { cap, ..spec }).unwrap();
    let memory = HostBuf::anonymous(4096).unwrap();
    let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE).unwrap();
    let mut posted = 0;
    let error = loop {
        match qp.post_recv(posted, &[mr.slice(0, 8)]) {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
        assert!(posted < 100_000, "a queue of four takes everything");
    };
    assert!(posted >= 4 && matches!(error, PostError::Full(_)), "{posted}: {error}");

    let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE).unwrap();
    for _ in 0..posted {
        let wc = cq.wait_timeout(Duration::from_secs(10)).unwrap().expect("each is flushed");
        assert_eq!(wc.status, WcStatus::WrFlushErr);
    }
}

/// One event may announce several completions: whoever takes it wakes the next.
#[test]
fn each_of_several_waiters_gets_a_completion() {
    const WAITERS: usize = 4;
    let (context, pd) = open();
    let cq = context.create_cq(64).unwrap();
    let qp = pd.create_qp(&QpSpec::rc(&cq)).unwrap();
    for id in 0..WAITERS as u64 {
        qp.post_recv(id, &[]).unwrap();
    }
    let mut ids: Vec<u64> = thread::scope(|scope| {
        let wait = || cq.wait_timeout(Duration::from_secs(20)).unwrap().expect("one each").wr_id;
        let waiters: Vec<_> = (0..WAITERS).map(|_| scope.spawn(wait)).collect();
        thread::sleep(Duration::from_millis(20));
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        qp.modify(&attr, AttrMask::STATE).unwrap();
        waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect()
    });
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 3]);
}

/// An address handle may be dropped as soon as the request is posted.
#[test]
fn a_datagram_outlives_its_address_handle() {
    let (context, pd) = open();
    let cq = context.create_cq(64).unwrap();
    let qp = pd.create_qp(&QpSpec::ud(&cq)).unwrap();
    qp.to_rts().unwrap();
    let memory = HostBuf::anonymous(4096).unwrap();
    let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE).unwrap();
    memory.write(0, b"datagram").unwrap();
    let av = context.av_to(context.default_gid().unwrap().gid);
    for round in 0..200 {
        qp.post_recv(1, &[mr.slice(1024, 128)]).unwrap();
        let ah = pd.create_ah(av).unwrap();
        let request = SendRequest::send(2, &[mr.slice(0, 8)]).signaled();
        qp.post_send(&request.to(&ah, qp.qpn(), verbs::DEFAULT_QKEY)).unwrap();
        drop(ah);
        for _ in 0..2 {
            let wc = cq.wait_timeout(Duration::from_secs(10)).unwrap();
            let wc = wc.unwrap_or_else(|| panic!("no completion in round {round}"));
            assert!(wc.is_success(), "{wc:?}");
        }
    }
    let mut got = [0; 8];
    memory.read(1024 + 40, &mut got).unwrap();
    assert_eq!(&got, b"datagram");
}

/// What a QP is connected with is what the device has, and a peer's bytes lead to it.
#[test]
fn a_qp_is_connected_as_its_options_say() {
    let (context, pd) = open();
    let cq = context.create_cq(16).unwrap();
    let [a, b] = [(); 2].map(|()| pd.create_qp(&QpSpec::rc(&cq)).unwrap());
    let gid = context.gids().pop().unwrap();
    let index = u8::try_from(gid.index).unwrap();
    let options = ConnectOptions {
        gid_index: Some(index),
        mtu: Some(Mtu::Mtu512),
        timeout: AckTimeout::from_code(16).unwrap(),
        retry_count: 3,
        rnr_retry_count: 2,
        min_rnr_timer: RnrTimer::from_code(14).unwrap(),
        responder_resources: 2,
        initiator_depth: 1,
        traffic_class: 32,
        service_level: 1,
        hop_limit: 9,
    };
    for (from, to) in [(&a, &b), (&b, &a)] {
        let peer = Endpoint::from_bytes(&to.endpoint_at(index).unwrap().to_bytes()).unwrap();
        assert_eq!(peer.gid, gid.gid);
        from.connect_with(&peer, &options).unwrap();
    }
    let attr = a.query().unwrap();
    let av = &attr.av;
    assert_eq!((attr.state, attr.dest_qpn), (QpState::Rts, b.qpn()));
    // rxe keeps no service level, and takes the hops of the route (`rxe_av_to_attr`).
    let (level, hops) = if chosen::is_rxe() { (0, 64) } else { (1, 9) };
    assert_eq!((av.sl, av.hop_limit), (level, hops));
    assert_eq!((av.sgid_index, av.traffic_class), (index, 32));
    assert_eq!((attr.path_mtu, attr.timeout.code()), (Mtu::Mtu512, 16));
    assert_eq!((attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer.code()), (3, 2, 14));
    assert_eq!((attr.max_dest_rd_atomic, attr.max_rd_atomic), (2, 1));
    let refusal = a.endpoint_at(u8::MAX).expect_err("no such GID");
    assert_eq!(refusal.kind(), Kind::NotFound);
}

/// A NIC that pages on demand has the pages before it uses them, if it is told which.
#[test]
fn pages_are_faulted_in_on_advice() {
    use MrAdvice as A;
    const LENGTH: u32 = 16 << 12;
    let (_context, pd) = open();
    let memory = HostBuf::anonymous(LENGTH as usize).unwrap();
    let refusal = pd.advise(A::Prefetch, true, &[]).unwrap_err();
    assert_eq!(refusal.kind(), Kind::Invalid);
    let paged = match pd.reg_mr(&memory, Access::LOCAL_WRITE | Access::ON_DEMAND) {
        Ok(paged) => paged,
        // The rxe of a kernel before 6.15.
        Err(_) if chosen::is_rxe() => return,
        Err(refusal) => panic!("{refusal}"),
    };
    let advised = pd.advise(A::PrefetchWrite, true, &[paged.slice(0, LENGTH)]);
    // The rxe of an older kernel, or of an older rdma-core on any: Debian's.
    if chosen::is_rxe() && advised.as_ref().is_err_and(|why| why.kind() == Kind::NotSupported) {
        return;
    }
    advised.unwrap();
    for (advice, flush) in [(A::Prefetch, false), (A::Prefetch, true), (A::PrefetchNoFault, false)]
    {
        pd.advise(advice, flush, &[paged.slice(0, 64), paged.slice(4096, 4096)]).unwrap();
    }

    let refusal = pd.advise(A::Prefetch, true, &[paged.slice(LENGTH.into(), 1)]).unwrap_err();
    assert_eq!(refusal.kind(), Kind::BadAddress, "{refusal}");
    let read_only = pd.reg_mr(&memory, Access::ON_DEMAND).unwrap();
    let slice = read_only.slice(0, LENGTH);
    let refusal = pd.advise(A::PrefetchWrite, true, &[slice]).unwrap_err();
    assert_eq!(refusal.kind(), Kind::NotPermitted, "{refusal}");
    pd.advise(A::Prefetch, true, &[slice]).unwrap();
    let pinned = pd.reg_mr(&memory, Access::LOCAL_WRITE).unwrap();
    let refusal = pd.advise(A::Prefetch, true, &[pinned.slice(0, 64)]).unwrap_err();
    assert!(matches!(refusal.kind(), Kind::NotFound | Kind::Invalid), "{refusal}");
}

/// Several ports, where this test may say how many.
fn device_with_ports(test: &str) -> Device {
    if chosen::is_library() {
        return verbs::devices().unwrap().remove(0);
    }
    let name = format!("{test}-{}", std::process::id());
    soft::device(NicConfig { name, ports: 3, ..NicConfig::default() }).unwrap()
}

#[test]
fn a_context_is_of_the_port_it_was_opened_for() {
    let device = device_with_ports("ports");
    let count = device.open().unwrap().device_attr().phys_port_cnt;
    for port in 1..=u8::try_from(count).unwrap() {
        let context = device.open_port(port).unwrap();
        assert_eq!(context.port(), port);
        assert!(context.port_attr().active && !context.gids().is_empty());
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(16).unwrap();
        let [a, b] = [(); 2].map(|()| pd.create_qp(&QpSpec::rc(&cq)).unwrap());
        a.connect(&b.endpoint().unwrap()).unwrap();
        b.connect(&a.endpoint().unwrap()).unwrap();
        let attr = a.query().unwrap();
        assert_eq!((attr.port_num, attr.av.port_num), (port, port));
        b.post_recv(1, &[]).unwrap();
        a.post_send(&SendRequest::send(2, &[]).signaled()).unwrap();
        for _ in 0..2 {
            let wc = cq.wait_timeout(Duration::from_secs(10)).unwrap().expect("it arrives");
            assert!(wc.is_success(), "{wc:?}");
        }
    }
}

#[test]
fn a_port_that_the_device_does_not_have_is_refused() {
    let device = device_with_ports("no-port");
    let count = device.open().unwrap().device_attr().phys_port_cnt;
    for port in [0, u8::try_from(count).unwrap() + 1] {
        let refusal = device.open_port(port).unwrap_err();
        assert_eq!(refusal.kind(), Kind::Invalid);
        assert!(refusal.what().contains(&format!("there is no port {port}")), "{refusal}");
    }
}

/// Neither the software device nor rxe has options of a vendor, in whichever way they are asked.
#[test]
fn what_vendors_may_agree_on_is_nothing_here() {
    let (context, pd) = open();
    let cq = context.create_cq(8).unwrap();
    let qp = pd.create_qp(&QpSpec::rc(&cq)).unwrap();
    let ece = Ece { vendor_id: 0x15b3, options: 1, comp_mask: 0 };
    let refused = [qp.query_ece().err(), qp.set_ece(ece).err(), qp.set_ece(Ece::default()).err()];
    for refusal in refused.map(|refusal| refusal.expect("nobody has any")) {
        assert_eq!(refusal.kind(), Kind::NotSupported, "{refusal}");
    }
    qp.connect(&qp.endpoint().unwrap()).unwrap();
}
