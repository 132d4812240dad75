//! A connection under fire, one trouble at a time: silence in one direction, ports that move,
//! programs that restart, ends with different MTUs, and an attacker that forges answers.
//!
//! The tests in `random` have all of them at once.

use core::time::Duration;

use fabric_sim::build::{self, Build};
use fabric_sim::options::{BASE, PEER, QPN, RQ_PSN, SQ_PSN};
use fabric_sim::{Link, Net, Options, Rng};
use iba::{AttrMask, Mtu, Psn, QpAttr, QpEvent, QpState, RnrTimer, WcStatus};
use transport::{Counter, Side};
use wire::{NakCode, Opcode, Syndrome};

/// Where the bytes of one end come from, and where they go at the other.
const FROM: u64 = BASE;
const TO: u64 = BASE + 0x4000;

fn statuses(net: &Net, node: usize) -> Vec<WcStatus> {
    net.nodes[node].host.of(Side::Send).map(|done| done.status).collect()
}

fn bytes(length: usize, salt: u8) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 256 * 13) as u8 ^ salt).collect()
}

/// Posts a WRITE of 3,000 bytes of its own, which takes twelve packets of 256 bytes.
fn post_write(net: &mut Net, node: usize, wr_id: u64) {
    net.write_memory(node, FROM, &bytes(3000, wr_id as u8));
    net.post(node, build::write(wr_id, FROM, 3000, TO));
}

fn assert_written(net: &Net, node: usize, wr_id: u64) {
    assert!(net.read_memory(node, TO, 3000) == bytes(3000, wr_id as u8), "bytes of {wr_id}");
}

/// RTS, SQD, the new address of the peer, RTS: the only way to change it (IBA 11.2.5.3).
fn learn_address(net: &mut Net, node: usize, peer_address: u32) {
    let fabric_sim::net::Node { qp, host, .. } = &mut net.nodes[node];
    let state = |state| QpAttr { state, ..QpAttr::default() };
    qp.modify(host, &state(QpState::Sqd), AttrMask::STATE).expect("RTS leads to SQD");
    let mask = AttrMask::STATE | AttrMask::AV;
    qp.modify(host, &state(QpState::Sqd), mask).expect("SQD takes an address");
    qp.modify(host, &state(QpState::Rts), AttrMask::STATE).expect("SQD leads to RTS");
    net.nodes[node].peer_address = peer_address;
}

#[test]
fn answers_that_are_lost_for_a_while_cost_time_and_nothing_else() {
    let mut net = Net::pair(Options::rc());
    net.recv(1, 7, TO, 3000);
    net.write_memory(0, FROM, &bytes(3000, 1));
    net.send(0, 1, FROM, 3000);
    // The peer hears everything and is not heard: it carries out a repeated request once.
    net.mute.push(1);
    net.drive_bounded(6);
    assert!(statuses(&net, 0).is_empty());
    assert_eq!(net.completions(1).len(), 1, "the message is there");
    net.mute.clear();
    net.drive();
    assert_eq!(statuses(&net, 0), [WcStatus::Success]);
    assert_eq!(net.completions(1).len(), 1);
    assert!(net.nodes[1].host.counted(Counter::DuplicateRequest) > 0);
    assert_written(&net, 1, 1);
}

#[test]
fn answers_that_never_come_end_only_the_requester() {
    for silent in 0..2 {
        let mut net = Net::pair(Options { retry_cnt: 2, ..Options::rc() });
        for wr_id in 1..4 {
            post_write(&mut net, 0, wr_id);
        }
        net.mute.push(silent);
        net.drive();
        let expected = [WcStatus::RetryExcErr, WcStatus::WrFlushErr, WcStatus::WrFlushErr];
        assert_eq!(statuses(&net, 0), expected, "end {silent} is silent");
        assert_eq!(net.nodes[0].qp.state(), QpState::Err);
        assert_eq!(
            net.nodes[1].qp.state(),
            QpState::Rts,
            "an end that only answers waits for nothing"
        );
    }
}

#[test]
fn a_connection_survives_a_moved_port_only_if_it_learns_of_it_in_time() {
    for told in [true, false] {
        let mut net = Net::pair(Options::rc());
        post_write(&mut net, 0, 1);
        net.drive();
        post_write(&mut net, 0, 2);
        net.drive_bounded(1);
        net.readdress(1, 9);
        net.drive_bounded(4);
        if told {
            learn_address(&mut net, 0, 9);
        }
        net.drive();
        if told {
            assert_eq!(statuses(&net, 0), [WcStatus::Success; 2]);
            assert_written(&net, 1, 2);
        } else {
            assert_eq!(statuses(&net, 0), [WcStatus::Success, WcStatus::RetryExcErr]);
        }
    }
}

#[test]
fn packets_from_an_address_that_is_not_the_peers_are_dropped() {
    let mut net = Net::pair(Options { retry_cnt: 1, ..Options::rc() });
    net.readdress(0, 5);
    post_write(&mut net, 0, 1);
    net.drive();
    assert_eq!(statuses(&net, 0), [WcStatus::RetryExcErr]);
    assert!(net.wrong_source > 0);
    assert_eq!(net.read_memory(1, TO, 3000), [0; 3000], "nothing of it was carried out");
}

/// Old packets reach a new connection between the same numbers at the same addresses. They do no
/// harm, since it begins elsewhere in the sequence number space (IBA 12.4.1 requires that, and a
/// NIC leaves a QPN unused for a while).
#[test]
fn packets_of_an_old_connection_do_not_disturb_a_new_one_with_its_numbers() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut options = Options { seed, timeout: 4, ..Options::rc() };
        // Packets that are late by far more than a restart takes.
        options.link =
            Link { reorder: 400, duplicate: 300, delay: Duration::from_micros(3), ..Link::GOOD };
        let mut net = Net::pair(options.clone());
        for node in 0..2 {
            for wr_id in 0..6 {
                net.recv(node, wr_id, TO + 0x4000, 3000);
            }
            post_write(&mut net, node, 200);
            net.post(node, build::read(201, FROM + 0x2000, 2000, FROM));
            net.post(node, build::fetch_add(202, FROM + 0x3000, BASE + 0x3f00, 1));
            net.send(node, 203, FROM, 3000);
        }
        net.drive_bounded(1 + rng.below(60));

        // Both programs restart. The counter of atomics starts again.
        let far = 1 << 22;
        let psns = [SQ_PSN.add(far), RQ_PSN.add(2 * far)];
        net.restart(0, &options, psns[0], psns[1]);
        net.restart(1, &options, psns[1], psns[0]);
        for node in 0..2 {
            net.write_memory(node, BASE + 0x3f00, &[0; 8]);
            net.recv(node, 7, TO + 0x8000, 3000);
            post_write(&mut net, node, 1);
            net.post(node, build::read(2, FROM + 0x2000, 2000, FROM));
            net.post(node, build::fetch_add(3, FROM + 0x3000, BASE + 0x3f00, 1));
            net.send(node, 4, FROM, 3000);
        }
        net.drive();
        for node in 0..2 {
            assert_eq!(statuses(&net, node), [WcStatus::Success; 4], "seed {seed}");
            let received: Vec<_> = net.nodes[node].host.of(Side::Recv).collect();
            assert_eq!(received.len(), 1, "seed {seed}: one message, once");
            assert_eq!((received[0].wr_id, received[0].byte_len), (7, 3000));
            assert_written(&net, node, 1);
            assert!(net.read_memory(node, TO + 0x8000, 3000) == bytes(3000, 1), "seed {seed}");
            assert!(net.read_memory(node, FROM + 0x2000, 2000) == bytes(3000, 1)[..2000]);
            assert_eq!(net.read_memory(node, BASE + 0x3f00, 8), 1u64.to_ne_bytes());
        }
    }
}

/// A peer that lost its state and its connection answers nothing: its port has no such QP, or one
/// that is not in a state to receive.
#[test]
fn a_peer_that_restarted_without_its_connection_is_given_up() {
    let mut net = Net::pair(Options { retry_cnt: 2, ..Options::rc() });
    post_write(&mut net, 0, 1);
    net.drive_bounded(1);
    net.nodes[1].qp = Options::rc().qp(PEER);
    net.drive();
    assert_eq!(statuses(&net, 0), [WcStatus::RetryExcErr]);
    assert!(net.nodes[1].host.counted(Counter::DroppedPacket) > 0);
}

#[test]
fn ends_that_disagree_about_the_mtu_agree_on_messages_that_fit_both() {
    for (own, others) in [(Mtu::Mtu256, Mtu::Mtu1024), (Mtu::Mtu1024, Mtu::Mtu256)] {
        let other = Options { mtu: others, ..Options::rc() };
        let mut net = Net::unequal_pair(Options { mtu: own, ..Options::rc() }, &other);
        net.write_memory(0, FROM, &bytes(256, 3));
        net.post(0, build::write(1, FROM, 256, TO));
        net.post(0, build::read(2, FROM + 0x1000, 200, TO));
        net.drive();
        assert_eq!(statuses(&net, 0), [WcStatus::Success; 2]);
        assert!(net.read_memory(0, FROM + 0x1000, 200) == bytes(256, 3)[..200]);

        // IBA 9.7.4: every packet but the last is as long as the MTU, and none is longer.
        net.post(0, build::write(3, FROM, 2000, TO));
        net.post(0, build::write(4, FROM, 8, TO));
        net.drive();
        let expected = [WcStatus::RemInvReqErr, WcStatus::WrFlushErr];
        assert_eq!(statuses(&net, 0)[2..], expected, "{own:?} to {others:?}");
        assert_eq!(net.nodes[1].qp.state(), QpState::Err);
        assert_eq!(net.nodes[1].host.events, [QpEvent::ReqErr]);
        assert!(net.read_memory(1, TO, 256) == bytes(256, 3), "nothing of it was carried out");
    }
}

#[test]
fn a_read_is_not_taken_in_packets_of_another_mtu() {
    for (own, others) in [(Mtu::Mtu256, Mtu::Mtu1024), (Mtu::Mtu1024, Mtu::Mtu256)] {
        let other = Options { mtu: others, ..Options::rc() };
        let mut net = Net::unequal_pair(Options { mtu: own, ..Options::rc() }, &other);
        net.post(0, build::read(1, FROM, 2048, TO));
        net.drive();
        assert_eq!(statuses(&net, 0), [WcStatus::BadRespErr], "{own:?} from {others:?}");
        assert_eq!(net.nodes[0].qp.state(), QpState::Err);
    }
}

#[test]
fn a_network_that_drops_long_packets_lets_short_messages_pass() {
    let mut options = Options { retry_cnt: 2, mtu: Mtu::Mtu1024, ..Options::rc() };
    options.link.longest = Some(512);
    let mut net = Net::pair(options);
    net.post(0, build::write(1, FROM, 500, TO));
    net.drive();
    net.post(0, build::write(2, FROM, 4000, TO));
    net.drive();
    assert_eq!(statuses(&net, 0), [WcStatus::Success, WcStatus::RetryExcErr]);
}

/// An attacker that does not see the packets can do nothing, as its numbers do not match those in
/// flight.
#[test]
fn forged_answers_that_miss_the_window_change_nothing() {
    let run = |forge: bool| {
        let mut net = Net::pair(Options::rc());
        for wr_id in 1..5 {
            post_write(&mut net, 0, wr_id);
        }
        for step in 0..200 {
            if forge {
                let (first, next) = (SQ_PSN.sub(1 + step), net.nodes[0].qp.query().sq_psn);
                // One before the oldest that is not acknowledged, and one that the window cannot
                // reach in the meantime.
                for psn in [first, next.add(600 + step)] {
                    for syndrome in [
                        Syndrome::ACK,
                        Syndrome::Nak(NakCode::PsnSequence),
                        Syndrome::Nak(NakCode::RemoteAccess),
                        Syndrome::RnrNak { timer: RnrTimer::from_code(31).expect("a code") },
                    ] {
                        net.forge(0, build::nak(psn, 77, syndrome), Vec::new());
                    }
                }
            }
            net.drive_bounded(1);
        }
        net.drive();
        assert_eq!(net.nodes[0].host.counted(Counter::PacketSeqErr), 0);
        let ends = statuses(&net, 0);
        (ends, net.read_memory(1, BASE, 0x8000))
    };
    let (ends, memory) = run(true);
    assert_eq!(ends, [WcStatus::Success; 4]);
    assert!(memory == run(false).1);
}

/// An attacker that sees the packets and holds back the true answers can do what a peer can do, and
/// no more.
#[test]
fn forged_answers_with_valid_numbers_count_as_the_peers() {
    let cases = [
        (Syndrome::ACK, WcStatus::Success),
        (Syndrome::Nak(NakCode::InvalidRequest), WcStatus::RemInvReqErr),
        (Syndrome::Nak(NakCode::RemoteAccess), WcStatus::RemAccessErr),
        (Syndrome::Nak(NakCode::RemoteOperational), WcStatus::RemOpErr),
        // Requests packets again, until no retry is left.
        (Syndrome::Nak(NakCode::PsnSequence), WcStatus::RetryExcErr),
    ];
    for (syndrome, expected) in cases {
        let mut net = Net::pair(Options { retry_cnt: 1, ..Options::rc() });
        net.mute.push(1);
        net.post(0, build::write(1, FROM, 8, TO));
        for _ in 0..3 {
            net.drive_bounded(1);
            net.forge(0, build::nak(SQ_PSN, 1, syndrome), Vec::new());
        }
        net.drive();
        assert_eq!(statuses(&net, 0), [expected], "{syndrome:?}");
    }
}

#[test]
fn a_forged_ack_of_a_read_brings_no_bytes_and_does_no_harm() {
    let mut net = Net::pair(Options::rc());
    net.write_memory(1, TO, &bytes(600, 9));
    net.post(0, build::read(1, FROM, 600, TO));
    net.drive_bounded(1);
    net.forge(0, build::ack(SQ_PSN.add(2), 1), Vec::new());
    net.drive();
    assert_eq!(statuses(&net, 0), [WcStatus::Success]);
    assert!(net.read_memory(0, FROM, 600) == bytes(600, 9), "it waited for the bytes");
    assert!(net.nodes[0].host.counted(Counter::ImpliedNakSeqErr) > 0, "and asked for them again");
}

/// Half of all sequence numbers belong to earlier requests. A READ with such a number and a key
/// that gives no access was not a request of the peer, unless it is one of the last that were
/// granted.
#[test]
fn a_forged_duplicate_read_does_no_harm() {
    let mut net = Net::pair(Options::rc());
    net.post(0, build::read(1, FROM, 600, TO));
    net.drive();
    let read = |psn: Psn| build::packet(Opcode::RcReadRequest, psn).with_reth(0xdead_0000, 600);
    for back in [1, 2, 1000, (1 << 23) - 10] {
        net.forge(1, read(SQ_PSN.sub(back)), Vec::new());
    }
    post_write(&mut net, 0, 2);
    net.drive();
    assert_eq!(statuses(&net, 0), [WcStatus::Success; 2]);
    assert_written(&net, 1, 2);
    assert!(net.nodes[1].host.counted(Counter::DuplicateRequest) >= 4);

    net.forge(1, read(SQ_PSN), Vec::new());
    net.drive();
    assert_eq!(net.nodes[1].host.events, [QpEvent::AccessErr], "requested again, and gone by now");
}

/// Sequence numbers of 24 bits and QPNs are all that a packet proves: an attacker that knows them
/// writes within what the regions and the QP grant, and nowhere else.
#[test]
fn a_forged_request_with_valid_numbers_reaches_only_what_the_peer_may_reach() {
    let mut net = Net::pair(Options::rc());
    let write = |psn: Psn, va| build::packet(Opcode::RcWriteOnly, psn).with_reth(va, 4);
    net.forge(1, write(SQ_PSN, TO), vec![1; 4]);
    net.drive();
    assert_eq!(net.read_memory(1, TO, 4), [1; 4]);
    net.forge(1, write(SQ_PSN.add(1), 0xdead_0000), vec![2; 4]);
    net.drive();
    assert_eq!(net.nodes[1].qp.state(), QpState::Err, "refused, as it is the peer's mistake");
    assert_eq!(net.nodes[1].host.events, [QpEvent::AccessErr]);
    assert_eq!(net.nodes[0].qp.qpn(), QPN);
}
