//! An exporter that refuses a fault: the access fails, and the region stays valid
//! (`docs/semantics.md` 2.5, 5).

use gpu::Place;
use verbs::soft::ImporterConfig;
use verbs::{HostBuf, SendRequest, WcStatus};

use super::{
    ALL, CARRIERS, MIB, assert_used, completion, connect, ends, gpu, pattern, register, run,
};

/// While the GPU is being reset, every map fails with ENODEV.
#[test]
fn an_access_during_a_reset_fails_and_the_region_stays() {
    for carrier in CARRIERS {
        let (a, b) = ends(carrier, ImporterConfig::Dynamic);
        let gpu = gpu();
        let bo = gpu.alloc(MIB, Place::VISIBLE_VRAM).unwrap();
        // The same buffer is the target at one end and the source at the other.
        let (near, far) = (register(&a, &bo), register(&b, &bo));
        let host = HostBuf::anonymous(8192).unwrap();
        let (here, there) = (a.pd.reg_mr(&host, ALL).unwrap(), b.pd.reg_mr(&host, ALL).unwrap());
        let own = [here.slice(0, 64)];
        let gpus = [near.slice(0, 64)];
        let to_target = || {
            [
                SendRequest::write(1, &own, far.remote(0)),
                SendRequest::read(2, &own, far.remote(0)),
                SendRequest::fetch_add(3, here.slice(0, 8), far.remote(0), 1),
                SendRequest::compare_swap(4, here.slice(0, 8), far.remote(0), 0, 1),
            ]
        };
        let from_requester = || {
            [
                SendRequest::write(5, &gpus, there.remote(0)),
                SendRequest::read(6, &gpus, there.remote(0)),
                SendRequest::send(7, &gpus),
            ]
        };

        let resetting = gpu.begin_reset();
        for request in to_target() {
            let (qp, _peer) = connect(&a, &b);
            let status = run(&a, &qp, request);
            assert_eq!(status, WcStatus::RemAccessErr, "{carrier:?}");
        }
        for request in from_requester() {
            let (qp, _peer) = connect(&a, &b);
            assert_eq!(run(&a, &qp, request), WcStatus::LocQpOpErr, "{carrier:?}");
        }
        // As a receive buffer.
        let (qp, peer) = connect(&a, &b);
        peer.post_recv(8, &[far.slice(0, 64)]).unwrap();
        qp.post_send(&SendRequest::send(9, &own).signaled()).unwrap();
        assert_eq!(completion(&a.cq).status, WcStatus::RemOpErr, "{carrier:?}");
        assert_eq!(completion(&b.cq).status, WcStatus::LocAccessErr, "{carrier:?}");
        drop((qp, peer));
        drop(resetting);

        // The keys are the same as before.
        let (qp, peer) = connect(&a, &b);
        let sent = pattern(64, 5);
        host.write(0, &sent).unwrap();
        for request in to_target() {
            assert_eq!(run(&a, &qp, request), WcStatus::Success, "{carrier:?}");
        }
        let mut got = [0; 64];
        bo.read(8, &mut got[8..]).unwrap();
        assert_eq!(got[8..], sent[8..], "{carrier:?}");
        peer.post_recv(10, &[there.slice(4096, 64)]).unwrap();
        for request in from_requester() {
            assert_eq!(run(&a, &qp, request), WcStatus::Success, "{carrier:?}");
        }
        assert_used(carrier, &a);
    }
}
