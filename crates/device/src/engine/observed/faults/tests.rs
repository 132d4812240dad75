use std::path::Path;
use std::time::{Duration, Instant};

use fault::Plan;
use iba::{QpType, Qpn, RKey, SendFlags, WcStatus, WrOpcode};
use smallvec::SmallVec;
use transport::wr::{Data, SendWr};

use super::*;
use crate::engine::Turn;
use crate::observe::plan::Injected;
use crate::observe::{Observed, Observers};
use crate::rig::{self, Objects, post, run, send, to_rts};

const MS: Duration = Duration::from_millis(1);
/// Longer than anything takes on `lo`.
const LONG: Duration = Duration::from_secs(30);

/// A process with two pairs of QPs, each pair connected, whose buffer is the target of WRITEs.
struct Planned {
    engine: Engine,
    objects: Objects,
    /// The sending QP of each pair.
    from: [(QpId, Qpn); 2],
    /// And the one that receives.
    to: [(QpId, Qpn); 2],
}

impl Planned {
    /// `plan` gets the numbers of the sending QPs.
    fn new(test: &str, force_udp: bool, plan: impl FnOnce([Qpn; 2]) -> String) -> Self {
        let mut nic = rig::nic(test);
        nic.config.force_udp = force_udp;
        // As under every plan: a packet carries each operation.
        nic.config.direct = false;
        let mut engine = rig::engine(&nic);
        let objects = Objects::new(&mut engine);
        let from = [(); 2].map(|()| objects.qp(&mut engine, QpType::Rc));
        let to = [(); 2].map(|()| objects.qp(&mut engine, QpType::Rc));
        let text = plan(from.map(|(_, qpn)| qpn));
        let plan = Plan::parse(&text).expect("a plan");
        let now = engine.clock.now();
        let plan = Injected::new(&plan, Path::new("test.toml"), &nic.config, now);
        engine.common.observed = Observed::by(Observers { tap: None, tracer: None, plan });
        for ((one, one_qpn), (other, other_qpn)) in from.into_iter().zip(to) {
            to_rts(&mut engine, one, QpType::Rc, &nic, other_qpn);
            to_rts(&mut engine, other, QpType::Rc, &nic, one_qpn);
        }
        Self { engine, objects, from, to }
    }

    /// Lets time pass, and handles what is due in it.
    fn pass(&mut self, wait: Duration) {
        self.engine.clock.pass(wait);
        run(&mut [&mut self.engine]);
    }

    /// WRITEs eight bytes, a pattern of the place, to that place in the buffer, and waits for the
    /// completion.
    fn write(&mut self, pair: usize, place: u64) -> WcStatus {
        let data = Data::Inline(SmallVec::from_slice(&pattern(place)));
        let flags = SendFlags::SIGNALED | SendFlags::INLINE;
        let (remote_addr, rkey) = (8 * place, RKey(self.objects.mr.rkey));
        let wr =
            SendWr { remote_addr, rkey, ..SendWr::new(place, WrOpcode::RdmaWrite, flags, data) };
        post(&mut self.engine, self.from[pair].0, wr);
        run(&mut [&mut self.engine]);
        let wc = self.engine.pop_wc(self.objects.cq).expect("it is done");
        assert_eq!(wc.wr_id, place);
        wc.status
    }

    fn bytes_at(&self, place: u64) -> [u8; 8] {
        let mut bytes = [0; 8];
        self.objects.buffer.read(8 * place as usize, &mut bytes).expect("our own memory");
        bytes
    }

    /// What fired, rule by rule.
    fn said(&self) -> Vec<String> {
        let injected = self.engine.common.known_plan().expect("there is a plan");
        injected.injector.report().map(ToString::to_string).collect()
    }
}

/// No place has the bytes of another one, nor zeros.
fn pattern(place: u64) -> [u8; 8] {
    (place + 1).wrapping_mul(0x0101_0101_0101_0101).to_be_bytes()
}

/// Of the WRITEs of two QPs with the sequence numbers 0 to 4, one millisecond apart: those with
/// wrong bytes (the QP, from 0, and the number) if a rule with these conditions corrupts payloads.
#[track_caller]
fn spoilt(test: &str, conditions: impl FnOnce([Qpn; 2]) -> String) -> Vec<(usize, u64)> {
    let text = |qpns| format!("[[fault]]\ndo = 'junk'\nopcode = 'write'\n{}", conditions(qpns));
    let mut planned = Planned::new(test, false, text);
    let mut wrong = Vec::new();
    for psn in 0..5 {
        for pair in [0, 1] {
            let place = psn + 8 * pair as u64;
            assert_eq!(planned.write(pair, place), WcStatus::Success);
            if planned.bytes_at(place) != pattern(place) {
                wrong.push((pair, psn));
            }
        }
        planned.pass(MS);
    }
    let counted = planned.engine.counters().injected_faults;
    assert_eq!(counted, wrong.len() as u64, "{:?}", planned.said());
    wrong
}

#[test]
fn a_qpn_names_one_qp_and_no_other() {
    let of_second = spoilt("plan-qpn", |[_, second]| format!("qpn = {}", second.value()));
    assert_eq!(of_second, [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4)]);
    let of_none = spoilt("plan-no-qpn", |[_, second]| format!("qpn = {}", second.value() + 9));
    assert_eq!(of_none, []);
}

#[test]
fn a_psn_names_one_packet_of_each_qp() {
    let spanned = spoilt("plan-psn", |_| "psn = '0x1-2'".to_owned());
    assert_eq!(spanned, [(0, 1), (1, 1), (0, 2), (1, 2)]);
    let one = spoilt("plan-qpn-psn", |[first, _]| format!("psn = 3\nqpn = {}", first.value()));
    assert_eq!(one, [(0, 3)]);
}

#[test]
fn until_is_the_last_time_at_which_a_rule_fires() {
    let early = spoilt("plan-until", |_| "until = '1ms'".to_owned());
    assert_eq!(early, [(0, 0), (1, 0), (0, 1), (1, 1)]);
    let between = spoilt("plan-from-until", |_| "from = '1.5ms'\nuntil = '3.5ms'".to_owned());
    assert_eq!(between, [(0, 2), (1, 2), (0, 3), (1, 3)]);
}

#[test]
fn a_region_that_is_revoked_late_serves_earlier_accesses() {
    let mut planned = Planned::new("plan-revoke", false, |_| {
        "[[fault]]\ndo = 'revoke'\nmr = 1\nby = '10ms'\nway = 'in'\nopcode = 'write'\nnth = 2\ntimes = 1"
            .to_owned()
    });
    for place in [0, 1, 2] {
        assert_eq!(planned.write(0, place), WcStatus::Success);
    }
    assert!(planned.said()[0].contains("fired once (1 still to come)"), "{:?}", planned.said());
    let at = planned.engine.common.now + 10 * MS;
    let due = planned.engine.common.observers_deadline();
    assert_eq!(due, Some(at), "the device wakes up for it");

    planned.pass(10 * MS - Duration::from_nanos(1));
    assert_eq!(planned.write(0, 3), WcStatus::Success);
    assert_eq!(planned.engine.counters().injected_faults, 0);
    planned.pass(Duration::from_nanos(1));
    assert_eq!(planned.engine.counters().injected_faults, 1, "by itself: no packet is needed");
    assert_eq!(planned.write(0, 4), WcStatus::RemAccessErr);

    let served: Vec<_> = (0..5).filter(|place| planned.bytes_at(*place) != [0; 8]).collect();
    assert_eq!(served, [0, 1, 2, 3]);
    let why = planned.engine.explain(planned.from[0].1, 4, WcStatus::RemAccessErr);
    assert!(why.expect("it failed").contains("the peer refused access"));
    let said = &planned.said()[0];
    assert!(said.contains("revoke: fired once, of 5 packets"), "{said}");
}

/// A mark of the plan is answered like that of a switch: by one notification, which the sender
/// obeys.
#[test]
fn a_mark_hits_the_named_packet_and_is_answered() {
    let mut planned = Planned::new("plan-mark", true, |_| {
        "[[fault]]\ndo = 'mark'\nway = 'in'\nopcode = 'send'\npsn = 1\nqp = 3".to_owned()
    });
    let mut seen = Vec::new();
    for wr_id in 0..3 {
        for pair in [0, 1] {
            let receive = planned.objects.recv(100);
            planned.engine.post_recv(planned.to[pair].0, receive).expect("room for it");
            post(&mut planned.engine, planned.from[pair].0, send(wr_id, None));
            let began = Instant::now();
            let mut done = 0;
            while done < 2 || planned.notifications_under_way() {
                assert!(began.elapsed() < LONG, "{:?}", planned.engine.counters());
                planned.engine.progress(Turn::Everything);
                done += rig::completed(&mut planned.engine, planned.objects.cq).len();
            }
            let counters = planned.engine.counters();
            seen.push((
                counters.np_ecn_marked_roce_packets,
                counters.np_cnp_sent,
                counters.rp_cnp_handled,
            ));
        }
    }
    // The first receiving QP is the third one created; each pair counts its packets from 0.
    let (none, one) = ((0, 0, 0), (1, 1, 1));
    assert_eq!(seen, [none, none, one, one, one, one], "{:?}", planned.said());
    assert!(
        planned.said()[0].starts_with("mark: fired once, of 1 packets"),
        "{:?}",
        planned.said()
    );
}

impl Planned {
    fn notifications_under_way(&self) -> bool {
        let counters = self.engine.counters();
        counters.np_ecn_marked_roce_packets > counters.rp_cnp_handled + counters.rp_cnp_ignored
    }
}

/// What overtook the lost packet waits at the responder, and is not sent again.
#[test]
fn of_several_packets_the_lost_one_alone_is_sent_again() {
    let mut planned = Planned::new("plan-early", true, |_| {
        "[[fault]]\ndo = 'drop'\npsn = 1\ntimes = 1".to_owned()
    });
    let rkey = RKey(planned.objects.mr.rkey);
    let sender = planned.from[0].0;
    for place in 0..6 {
        let data = Data::Inline(SmallVec::from_slice(&pattern(place)));
        let flags = SendFlags::SIGNALED | SendFlags::INLINE;
        let wr = SendWr::new(place, WrOpcode::RdmaWrite, flags, data);
        let wr = SendWr { remote_addr: 8 * place, rkey, ..wr };
        let entry = planned.engine.qps.get_mut(sender).expect("it lives");
        entry.qp.post_send(wr).expect("room");
    }
    planned.engine.kick(sender);
    run(&mut [&mut planned.engine]);
    for place in 0..6 {
        let wc = planned.engine.pop_wc(planned.objects.cq).expect("it is done");
        assert_eq!((wc.wr_id, wc.status), (place, WcStatus::Success));
        assert_eq!(planned.bytes_at(place), pattern(place));
    }
    let counters = planned.engine.counters();
    assert_eq!((counters.injected_faults, counters.out_of_sequence), (1, 1));
    assert_eq!(counters.duplicate_request, 0, "nothing arrived twice");
    assert_eq!(counters.rx_write_requests, 6);
    assert_eq!(counters.local_ack_timeout_err, 0);
}
