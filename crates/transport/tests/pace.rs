//! Packet pacing over a network with a virtual clock: what leaves a QP, and when.

use core::time::Duration;

use fabric_sim::options::BASE;
use fabric_sim::{Link, Net, Options, build};
use iba::{Mtu, QpState, WcStatus};
use transport::{Counter, ModifyError, RateLimit};

/// 80 Mbit/s: ten bytes per microsecond.
const KBPS: u32 = 80_000;
const MESSAGE: u32 = 16 << 10;
/// Ethernet, IPv4, UDP, BTH and ICRC around the payload of a packet, and the RETH of the first
/// packet of a WRITE.
const AROUND: u64 = 58;
const RETH: u64 = 16;

fn limited(options: Options, limit: RateLimit) -> Net {
    let mut net = Net::pair(options);
    net.nodes[0].qp.modify_rate_limit(limit).expect("an RC QP in RTS takes a limit");
    net
}

fn options() -> Options {
    let link = Link { delay: Duration::from_micros(1), ..Link::GOOD };
    // 4.096 us * 2^6: a packet of 1,024 bytes takes 108 us, and the round trip must not look lost.
    Options { mtu: Mtu::Mtu1024, timeout: 6, memory: 1 << 20, link, ..Options::rc() }
}

/// Bytes on a wire for this many WRITEs of [`MESSAGE`] bytes.
fn on_a_wire(messages: u64) -> u64 {
    messages * (u64::from(MESSAGE) + u64::from(MESSAGE / 1024) * AROUND + RETH)
}

/// Writes until everything is acknowledged, and returns how many microseconds that took.
fn write(net: &mut Net, messages: u64) -> u64 {
    let began = net.now;
    for at in 0..messages {
        net.post(0, build::write(at, BASE, MESSAGE, BASE + u64::from(MESSAGE)));
    }
    net.drive();
    let completions = net.take_completions(0);
    assert_eq!(completions.len() as u64, messages);
    assert!(completions.iter().all(|done| done.status == WcStatus::Success));
    net.now.since(began).as_micros() as u64
}

#[test]
fn a_limited_qp_sends_at_its_rate_and_repeats_nothing() {
    let limit = RateLimit { kbps: KBPS, max_burst: 4_000, typical_packet: 0 };
    for options in [options(), options().over_memory(32 << 10)] {
        let mut net = limited(options, limit);
        let took = write(&mut net, 32);
        let least = (on_a_wire(32) - 4_000) / 10;
        assert!((least..least + least / 100).contains(&took), "{took} us, at least {least}");
        assert_eq!(net.nodes[0].host.counted(Counter::LocalAckTimeoutErr), 0);
    }
}

#[test]
fn without_a_limit_the_same_takes_no_time() {
    let mut net = limited(options(), RateLimit::default());
    assert!(write(&mut net, 32) < 1_000);
}

#[test]
fn the_rate_of_modify_qp_is_that_of_the_limit() {
    let mut net = Net::pair(options());
    let fabric_sim::net::Node { qp, host, .. } = &mut net.nodes[0];
    let attr = iba::QpAttr { rate_limit: KBPS, ..iba::QpAttr::default() };
    qp.modify(host, &attr, iba::AttrMask::RATE_LIMIT).unwrap();
    assert_eq!(net.nodes[0].qp.query().rate_limit, KBPS);
    // A burst is what the rate allows in a millisecond.
    assert!(write(&mut net, 8) > (on_a_wire(8) - 10_000) / 10);
}

#[test]
fn packets_that_a_limit_holds_back_go_when_it_is_removed() {
    let mut net = limited(options(), RateLimit { kbps: 1, ..RateLimit::default() });
    net.post(0, build::write(0, BASE, MESSAGE, BASE + u64::from(MESSAGE)));
    assert!(!net.drive_bounded(4), "a second packet at 1 kbit/s takes 9 s");
    assert!(net.take_completions(0).is_empty());
    net.nodes[0].qp.modify_rate_limit(RateLimit::default()).unwrap();
    let before = net.now;
    net.drive();
    assert_eq!(net.take_completions(0).len(), 1);
    assert!(net.now.since(before) < Duration::from_secs(1));
}

#[test]
fn operations_of_a_limited_qp_are_not_carried_out_directly() {
    let limit = RateLimit { kbps: KBPS, ..RateLimit::default() };
    let mut net = limited(Options { direct: true, ..options().over_memory(32 << 10) }, limit);
    write(&mut net, 4);
    assert_eq!(net.nodes[0].host.direct_done, 0);
}

#[test]
fn only_rc_in_rts_has_a_limit_among_connections() {
    let limit = RateLimit { kbps: KBPS, ..RateLimit::default() };
    let mut uc = Net::pair(Options::uc());
    let refused = uc.nodes[0].qp.modify_rate_limit(limit);
    assert!(matches!(refused, Err(ModifyError::Transition { .. })), "{refused:?}");
    let mut net = Net::pair(options());
    let fabric_sim::net::Node { qp, host, .. } = &mut net.nodes[0];
    let attr = iba::QpAttr { state: QpState::Err, ..iba::QpAttr::default() };
    qp.modify(host, &attr, iba::AttrMask::STATE).unwrap();
    assert!(qp.modify_rate_limit(limit).is_err());
}

#[test]
fn a_qp_that_was_reset_has_no_limit() {
    let mut net = limited(options(), RateLimit { kbps: 1, ..RateLimit::default() });
    let fabric_sim::net::Node { qp, host, .. } = &mut net.nodes[0];
    let attr = iba::QpAttr { state: QpState::Reset, ..iba::QpAttr::default() };
    qp.modify(host, &attr, iba::AttrMask::STATE).unwrap();
    assert_eq!((qp.rate_limit(), qp.query().rate_limit), (RateLimit::default(), 0));
}
