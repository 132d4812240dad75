//! A VF that another process takes over.

use std::time::Duration;

use iba::{QpType, WcStatus};

use crate::rig::{self, Objects, post, run, send, to_rts};

/// Longer than an ACK timeout of code 14.
const TIMEOUT: Duration = Duration::from_millis(70);

#[test]
fn packets_that_a_dead_process_did_not_take_are_not_expected_of_the_next() {
    let nic = rig::nic("reused-vf");
    let mut dying = rig::engine(&nic);
    let mut sender = rig::engine(&nic);
    let (theirs, ours) = (Objects::new(&mut dying), Objects::new(&mut sender));
    let (_, to) = theirs.qp(&mut dying, QpType::Rc);
    let (qp, _) = ours.qp(&mut sender, QpType::Rc);
    to_rts(&mut sender, qp, QpType::Rc, &nic, to);
    for wr_id in 0..32 {
        post(&mut sender, qp, send(wr_id, None));
    }

    let vf = dying.common.nic.vf;
    drop(dying);
    let mut next = rig::engine(&nic);
    assert_eq!(next.common.nic.vf, vf, "the lowest one that is free");
    run(&mut [&mut sender, &mut next]);
    sender.common.out.shm.prepare(vf);
    run(&mut [&mut sender, &mut next]);
    for _ in 0..8 {
        sender.clock.pass(TIMEOUT);
        run(&mut [&mut sender, &mut next]);
    }
    let first = sender.pop_wc(ours.cq).expect("the retries are used up");
    assert_eq!(first.status, WcStatus::RetryExcErr);
}
