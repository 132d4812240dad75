//! What safe code can do with objects: in any order, from any thread, and with those of other
//! devices.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{completion, nic_of, pair};
use verbs::soft::NicConfig;
use verbs::{
    Access, Av, Context, EventType, HostBuf, Kind, PostError, QpSpec, SendRequest, Wc, WcStatus,
    WrOpcode,
};

fn nic() -> (Context, verbs::Pd) {
    nic_of(NicConfig::default())
}

#[test]
fn objects_of_another_device_are_refused() {
    let ((here, pd), (there, other_pd)) = (nic(), nic());
    let (ours, theirs) = (here.create_cq(8).unwrap(), there.create_cq(8).unwrap());
    let srq = other_pd.create_srq(8, 1).unwrap();
    let dm = there.alloc_dm(4096).unwrap();
    let spec = QpSpec::rc(&ours);
    let refused = [
        pd.create_qp(&QpSpec { send_cq: theirs.clone(), ..spec.clone() }).err(),
        pd.create_qp(&QpSpec { recv_cq: theirs, ..spec.clone() }).err(),
        pd.create_qp(&QpSpec { srq: Some(srq), ..spec }).err(),
        pd.reg_dm_mr(&dm, 0, 4096, Access::LOCAL_WRITE).err(),
    ];
    for refusal in refused.map(|refusal| refusal.expect("it is of another device")) {
        assert_eq!(refusal.kind(), Kind::Invalid);
        assert!(refusal.to_string().contains("of another device"), "{refusal}");
    }

    let qp = pd.create_qp(&QpSpec::ud(&ours)).unwrap();
    qp.to_rts().unwrap();
    let gid = there.default_gid().unwrap().gid;
    let av = Av { dgid: gid, is_global: true, port_num: 1, hop_limit: 64, ..Av::default() };
    let ah = other_pd.create_ah(av).unwrap();
    let request = SendRequest::send(1, &[]).to(&ah, qp.qpn(), verbs::DEFAULT_QKEY);
    assert_eq!(qp.post_send(&request), Err(PostError::OtherDevice));
}

/// In whatever way it is set, the number reaches the peer.
#[test]
fn immediate_data_of_a_write_arrives_however_it_was_set() {
    let (context, pd) = nic();
    let (a, b) = pair(&context, &pd);
    let memory = HostBuf::memfd("imm", 4096).unwrap();
    let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE | Access::REMOTE).unwrap();
    let (from, to) = (mr.slice(0, 8), mr.remote(64));
    for request in [
        SendRequest::write(1, &[from], to).with_imm(77),
        SendRequest::write_with_imm(1, &[from], to, 77),
        SendRequest::send(1, &[from]).with_imm(77),
    ] {
        b.qp.post_recv(2, &[mr.slice(128, 64)]).unwrap();
        a.qp.post_send(&request.signaled()).unwrap();
        assert_eq!(completion(&a.cq).status, WcStatus::Success);
        assert_eq!(completion(&b.cq).imm, Some(77));
    }
    let read = SendRequest::read(1, &[from], to).with_imm(77);
    assert_eq!(a.qp.post_send(&read), Err(PostError::Immediate(WrOpcode::RdmaRead)));
}

/// Each completion goes to one thread, and no thread sleeps while one is available.
#[test]
fn threads_that_wait_for_one_queue_get_its_completions() {
    const THREADS: usize = 4;
    const ROUNDS: u64 = 500;
    let (context, pd) = nic();
    let (a, b) = pair(&context, &pd);
    let memory = HostBuf::memfd("waiters", 4096).unwrap();
    let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE).unwrap();
    let total = ROUNDS as usize * THREADS;
    let taken = AtomicUsize::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while taken.load(Ordering::Relaxed) < total {
                    if b.cq.wait_timeout(Duration::from_secs(30)).unwrap().is_none() {
                        assert!(taken.load(Ordering::Relaxed) >= total, "a thread was forgotten");
                        return;
                    }
                    taken.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..ROUNDS {
            for _ in 0..THREADS {
                b.qp.post_recv(round, &[mr.slice(0, 8)]).unwrap();
            }
            for _ in 0..THREADS {
                a.qp.post_send(&SendRequest::send(round, &[]).signaled()).unwrap();
            }
            for _ in 0..THREADS {
                assert!(completion(&a.cq).is_success());
            }
            // Often the queue is empty and all sleep when the next ones come.
            while taken.load(Ordering::Relaxed) < (round as usize + 1) * THREADS {
                assert!(began.elapsed() < Duration::from_secs(120), "a thread sleeps forever");
                std::thread::sleep(Duration::from_micros(300));
            }
        }
        // A completion each wakes those that sleep by now.
        for _ in 0..THREADS {
            b.qp.post_recv(ROUNDS, &[mr.slice(0, 8)]).unwrap();
            a.qp.post_send(&SendRequest::send(ROUNDS, &[])).unwrap();
        }
    });
}

/// If several threads wait for one event, one gets it, and the others do not wait beyond their
/// timeout.
#[test]
fn one_event_goes_to_one_thread() {
    let (context, pd) = nic();
    let (a, b) = pair(&context, &pd);
    let memory = HostBuf::memfd("event", 4096).unwrap();
    let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE).unwrap();
    for _ in 0..20 {
        b.qp.post_recv(1, &[mr.slice(0, 8)]).unwrap();
        b.cq.req_notify(false).unwrap();
        let got = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    if b.cq.event(Duration::from_millis(100)).unwrap() {
                        got.fetch_add(1, Ordering::Relaxed);
                    }
                    assert_eq!(context.async_event(Duration::ZERO).unwrap(), None);
                });
            }
            a.qp.post_send(&SendRequest::send(1, &[])).unwrap();
        });
        assert_eq!(got.into_inner(), 1);
        assert!(b.cq.poll().is_some_and(|wc: Wc| wc.is_success()));
    }
}

/// Lost completions never come: a thread that waits for them gets an error.
#[test]
fn waiting_on_a_queue_that_overran_ends() {
    let (context, pd) = nic();
    let (cq, other) = (context.create_cq(1).unwrap(), context.create_cq(8).unwrap());
    let full = pd.create_qp(&QpSpec::rc(&cq)).unwrap();
    let peer = pd.create_qp(&QpSpec::rc(&other)).unwrap();
    full.connect(&peer.endpoint().unwrap()).unwrap();
    peer.connect(&full.endpoint().unwrap()).unwrap();
    let memory = HostBuf::memfd("overrun", 4096).unwrap();
    let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE).unwrap();
    for wr_id in 0..2 {
        full.post_recv(wr_id, &[mr.slice(0, 8)]).unwrap();
    }
    for wr_id in 0..2 {
        peer.post_send(&SendRequest::send(wr_id, &[]).signaled()).unwrap();
    }
    let event = context.async_event(Duration::from_secs(20)).unwrap();
    assert_eq!(event.map(|event| event.event), Some(EventType::CqErr));
    assert_eq!(cq.wait().unwrap().wr_id, 0, "what it held can be taken");
    let refusal = cq.wait().expect_err("nothing more comes");
    assert!(refusal.to_string().contains("overran"), "{refusal}");
}
