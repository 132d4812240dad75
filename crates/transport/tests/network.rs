//! Two QPs and a network between them: the unreliable services, dead peers, full carriers.
//!
//! RC under random operations is in `random.rs`.

use fabric_sim::options::BASE;
use fabric_sim::{Net, Options, build};
use iba::{QpState, WcStatus, WrOpcode};
use transport::{SendWr, Side};

#[test]
fn uc_delivers_whole_messages_in_order_or_not_at_all() {
    for seed in 0..200 {
        let mut options = Options::uc();
        options.seed = seed;
        options.link.loss = 100;
        let mut net = Net::pair(options);
        for index in 0..40u32 {
            let length = index * 37 % 1000;
            net.write_memory(0, BASE, &vec![index as u8; length as usize]);
            net.recv(1, index.into(), BASE + u64::from(index) * 1000, 1000);
            let wr = build::wr(index.into(), WrOpcode::SendWithImm, BASE, length);
            net.post(0, SendWr { imm: index, ..wr });
            net.drive();
        }
        assert_eq!(net.completions(0).len(), 40, "the sender never knows");
        let mut last = None;
        for done in net.completions(1) {
            assert!(last < Some(done.imm), "in order");
            last = Some(done.imm);
            assert_eq!(done.byte_len, done.imm * 37 % 1000);
            let got = net.read_memory(1, BASE + done.wr_id * 1000, done.byte_len as usize);
            assert!(got.iter().all(|byte| u32::from(*byte) == done.imm));
        }
        assert!(net.completions(1).len() < 40 || seed > 0);
    }
}

#[test]
fn ud_delivers_right_bytes_whatever_the_network_does() {
    for seed in 0..200 {
        let mut options = Options::ud();
        options.seed = seed;
        options.link.loss = 100;
        options.link.duplicate = 100;
        options.link.reorder = 100;
        let mut net = Net::pair(options);
        for index in 0..40u64 {
            net.recv(1, index, 0x8000 + index * 300, 300);
            net.write_memory(0, BASE + index * 200, &[index as u8; 200]);
            let wr = build::wr(index, WrOpcode::SendWithImm, BASE + index * 200, 200);
            net.post(0, SendWr { imm: index as u32, ..wr });
        }
        net.drive();
        assert_eq!(net.completions(0).len(), 40);
        for done in net.completions(1) {
            assert_eq!(done.byte_len, 240);
            let got = net.read_memory(1, 0x8000 + done.wr_id * 300 + 40, 200);
            assert!(got.iter().all(|byte| u32::from(*byte) == done.imm));
        }
    }
}

#[test]
fn a_dead_peer_is_noticed_within_the_timeout_and_everything_is_flushed() {
    for segment in [None, Some(4096)] {
        let mut net = Net::pair(Options { segment, retry_cnt: 3, ..Options::rc() });
        net.recv(0, 100, BASE, 8);
        for wr_id in 0..4 {
            net.post(0, build::write(wr_id, BASE, 2000, BASE));
        }
        net.dead.push(1);
        net.drive();
        // Four times 8.192 us; over a wire 1, 2, 4 and 4 times as long.
        let timeouts = if segment.is_none() { 11 } else { 4 };
        assert!(net.now.as_nanos() < timeouts * 8_192 + 5_000, "{:?}", net.now);
        let statuses: Vec<_> = net.completions(0).iter().map(|done| done.status).collect();
        assert_eq!(statuses[0], WcStatus::RetryExcErr);
        assert_eq!(statuses[1..], [WcStatus::WrFlushErr; 4]);
        assert_eq!(net.nodes[0].qp.state(), QpState::Err);
    }
}

#[test]
fn a_receive_that_never_comes_ends_after_the_rnr_retries() {
    let mut net = Net::pair(Options { rnr_retry: 3, ..Options::rc() });
    net.send(0, 1, BASE, 8);
    net.drive();
    assert_eq!(net.completions(0)[0].status, WcStatus::RnrRetryExcErr);
    assert_eq!(net.nodes[1].qp.state(), QpState::Rts, "the responder did nothing wrong");
}

#[test]
fn a_carrier_with_room_for_one_packet_carries_everything() {
    let mut net = Net::pair(Options::rc());
    for node in 0..2 {
        net.nodes[node].host.room = Some(1);
        for wr_id in 0..10 {
            net.recv(node, wr_id, 0x8000 + wr_id * 1000, 1000);
            net.send(node, wr_id, BASE, 1000);
            net.post(node, build::read(100 + wr_id, BASE + 0x4000, 700, BASE));
        }
    }
    net.drive();
    for node in 0..2 {
        let host = &net.nodes[node].host;
        assert_eq!(host.of(Side::Send).count(), 20);
        assert_eq!(host.of(Side::Recv).count(), 10);
        assert!(host.completions.iter().all(|done| done.status == WcStatus::Success));
    }
}

#[test]
fn both_ends_may_fail_at_once() {
    let mut net = Net::pair(Options::rc());
    for node in 0..2 {
        net.post(node, build::write(1, BASE, 8, 0));
    }
    net.drive();
    for node in 0..2 {
        let done = net.completions(node)[0];
        // The refusal of one end and the error of the other cross.
        assert!(matches!(done.status, WcStatus::RemAccessErr | WcStatus::WrFlushErr), "{done:?}");
        assert_eq!(net.nodes[node].qp.state(), QpState::Err);
    }
}
