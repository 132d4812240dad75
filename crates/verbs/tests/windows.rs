//! Keys that a message invalidates.

mod common;

use common::{completion, nic_of, pair};
use verbs::soft::{self, NicConfig};
use verbs::{Access, HostBuf, SendRequest, WcStatus};

#[test]
fn a_window_gives_the_peer_access_until_its_message_invalidates_the_key() {
    let (context, pd) = nic_of(NicConfig::default());
    let (a, b) = pair(&context, &pd);
    let memory = HostBuf::anonymous(8192).unwrap();
    let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
    let window = mr.window().unwrap();
    let write = |rkey| {
        let to = verbs::Remote { rkey, ..mr.remote(4096) };
        SendRequest::write(3, &[mr.slice(0, 8)], to).signaled()
    };
    let bind = || SendRequest::bind(1, &window, 4096, 4096, Access::REMOTE_WRITE).signaled();
    let mut keys = Vec::new();
    for _ in 0..2 {
        a.qp.post_send(&bind()).unwrap();
        assert_eq!(completion(&a.cq).status, WcStatus::Success);
        keys.push(window.rkey());
        b.qp.post_send(&write(window.rkey())).unwrap();
        assert_eq!(completion(&b.cq).status, WcStatus::Success);
        a.qp.post_recv(2, &[mr.slice(0, 64)]).unwrap();
        let done = SendRequest::send_with_inv(4, &[mr.slice(0, 8)], window.rkey());
        b.qp.post_send(&done.signaled()).unwrap();
        assert_eq!(completion(&b.cq).status, WcStatus::Success);
        let received = completion(&a.cq);
        assert_eq!((received.invalidated, received.imm), (Some(window.rkey()), None));
    }
    assert_ne!(keys[0], keys[1], "an old key reaches nothing");
    a.qp.post_send(&bind()).unwrap();
    assert_eq!(completion(&a.cq).status, WcStatus::Success);
    a.qp.post_send(&SendRequest::local_inv(5, window.rkey()).signaled()).unwrap();
    assert_eq!(completion(&a.cq).status, WcStatus::Success);
    b.qp.post_send(&write(window.rkey())).unwrap();
    assert_eq!(completion(&b.cq).status, WcStatus::RemAccessErr);
    // The region outlives its window, however they are dropped.
    drop(mr);
    drop(window);
    assert_eq!(soft::resources(&context).unwrap().mr, 0);
}
