//! Datagrams that fill the queue of the carrier before the QP had its turn.

use iba::{QpType, SendFlags, WrOpcode};
use transport::wr::{Data, SendWr};

use crate::engine::Turn;
use crate::rig::{self, Process};

/// More trains than the queue holds, twice.
const MESSAGES: u64 = 12;

/// The background thread sleeps when a turn moved nothing and no QP is ready.
#[test]
fn a_qp_goes_on_at_once_if_the_socket_took_what_filled_the_queue() {
    let mut nic = rig::nic("trains");
    nic.config.force_udp = true;
    let [mut one, _other] = Process::pair(&nic, QpType::Uc);
    for number in 1..=MESSAGES {
        // Each is longer than the one before, so it needs a train of its own.
        let data = Data::Inline((0..4 * number as u8).collect());
        let wr = SendWr::new(number, WrOpcode::Send, SendFlags::INLINE, data);
        one.engine.qps.get_mut(one.qp).expect("it lives").qp.post_send(wr).expect("room");
    }
    one.engine.kick(one.qp);
    while one.engine.progress(Turn::Again) || one.engine.has_ready() {}
    assert_eq!(one.engine.counters().tx_udp_packets, MESSAGES);
}
