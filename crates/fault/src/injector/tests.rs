use wire::{Operation, Position, Service};

use super::*;

fn injector(text: &str) -> Injector {
    let who = Who { nic: "peerdma0".to_owned(), program: "rping".to_owned() };
    Injector::new(&Plan::parse(text).expect("a plan"), &who)
}

fn opcode(operation: Operation) -> Opcode {
    Opcode::new(Service::Rc, operation, Position::Only).expect("an opcode")
}

fn packet(qp: u64, psn: u32, operation: Operation) -> Packet {
    let (qpn, psn) = (Qpn::new(0x4000 + qp as u32), Psn::new(psn));
    Packet { way: Way::Out, opcode: opcode(operation), qp, qpn, psn }
}

fn sends(injector: &mut Injector, qp: u64, count: u32) -> Vec<Verdict> {
    (0..count)
        .map(|psn| injector.packet(Duration::ZERO, &packet(qp, psn, Operation::Send)))
        .collect()
}

#[test]
fn the_nth_packet_of_each_qp_is_hit() {
    let mut injector = injector("[[fault]]\ndo = 'drop'\nopcode = 'send'\nnth = '2-3'");
    use Verdict::{Drop, Pass};
    assert_eq!(sends(&mut injector, 1, 4), [Pass, Drop, Drop, Pass]);
    let read = injector.packet(Duration::ZERO, &packet(2, 0, Operation::ReadResponse));
    assert_eq!(read, Pass, "an opcode that the rule does not name");
    assert_eq!(sends(&mut injector, 2, 2), [Pass, Drop]);
    let fired: Vec<_> = injector.report().collect();
    assert_eq!((fired[0].times, fired[0].met), (3, 6));
}

#[test]
fn a_probability_is_met_and_reproducible() {
    let plan = "seed = 3\n[[fault]]\ndo = 'drop'\nprobability = 0.25";
    let first = sends(&mut injector(plan), 1, 4000);
    let lost = first.iter().filter(|verdict| **verdict == Verdict::Drop).count();
    assert!((850..1150).contains(&lost), "{lost} of 4000");
    assert_eq!(first, sends(&mut injector(plan), 1, 4000));
    // However the packets of two QPs interleave, the verdicts on each QP's packets are the same.
    let mut woven = injector(plan);
    let mut of_first = Vec::new();
    for psn in 0..4000 {
        woven.packet(Duration::ZERO, &packet(2, psn, Operation::Send));
        of_first.push(woven.packet(Duration::ZERO, &packet(1, psn, Operation::Send)));
    }
    assert_eq!(first, of_first);
    let other = sends(&mut injector(&plan.replace('3', "4")), 1, 4000);
    assert_ne!(first, other, "another seed");
}

#[test]
fn a_rule_fires_a_limited_number_of_times_within_its_window() {
    let mut injector =
        injector("[[fault]]\ndo = 'delay'\nby = '5ms'\nfrom = '1s'\nuntil = '2s'\ntimes = 2");
    let mut at = |ms| injector.packet(Duration::from_millis(ms), &packet(1, 0, Operation::Send));
    let late = Verdict::Delay(Duration::from_millis(5));
    assert_eq!([at(999), at(1000), at(2001)], [Verdict::Pass, late, Verdict::Pass]);
    assert_eq!([at(1500), at(1500)], [late, Verdict::Pass]);
}

#[test]
fn the_first_rule_that_fires_applies_and_all_rules_count() {
    let mut injector =
        injector("[[fault]]\ndo = 'drop'\nnth = 1\n[[fault]]\ndo = 'duplicate'\nnth = '1-2'");
    assert_eq!(sends(&mut injector, 1, 3), [Verdict::Drop, Verdict::Duplicate, Verdict::Pass]);
}

#[test]
fn strikes_happen_at_their_time_or_with_their_packet() {
    let mut injector = injector(
        "[[fault]]\ndo = 'port-down'\nfor = '3s'\nfrom = '1s'\n\
         [[fault]]\ndo = 'qp-error'\nopcode = 'send'\nnth = 2\nqp = 7",
    );
    assert_eq!(injector.deadline(), Some(Duration::from_secs(1)));
    assert_eq!(injector.strikes(Duration::from_millis(999)).next(), None);
    let struck: Vec<_> = injector.strikes(Duration::from_secs(1)).collect();
    assert_eq!(struck, [Strike::PortDown(Duration::from_secs(3))]);
    assert_eq!(injector.deadline(), None, "it happens once");
    assert_eq!(sends(&mut injector, 7, 2), [Verdict::Pass; 2], "the packet itself goes");
    assert_eq!(injector.deadline(), Some(Duration::ZERO));
    let struck: Vec<_> = injector.strikes(Duration::from_secs(2)).collect();
    assert_eq!(struck, [Strike::QpError(Span { first: 7, last: 7 })]);
}

#[test]
fn a_region_is_revoked_the_given_time_after_its_packet() {
    let mut injector = injector(
        "[[fault]]\ndo = 'revoke'\nmr = 2\nby = '5ms'\nopcode = 'send'\nnth = '2-3'\n\
         [[fault]]\ndo = 'revoke'\nmr = 1\nopcode = 'send'\nnth = 3",
    );
    let ms = Duration::from_millis;
    let mut at = |now, psn| {
        assert_eq!(injector.packet(now, &packet(1, psn, Operation::Send)), Verdict::Pass);
        let struck: Vec<_> = injector.strikes(now).collect();
        let said: Vec<_> = injector.report().map(ToString::to_string).collect();
        (struck, injector.deadline(), said)
    };
    assert_eq!(at(ms(1), 0).1, None, "the first packet is none of the two");
    let (struck, deadline, said) = at(ms(2), 1);
    assert_eq!((struck, deadline), (vec![], Some(ms(7))), "5 ms after the second");
    assert!(said[0].starts_with("revoke: fired once (1 still to come), of 2 packets"), "{said:?}");
    // A rule without `by` strikes with its packet, though a rule before it waits.
    let (struck, deadline, said) = at(ms(4), 2);
    assert_eq!((struck, deadline), (vec![Strike::Revoke(Some(1))], Some(ms(7))));
    assert!(said[0].starts_with("revoke: fired 2 times (2 still to come)"), "{said:?}");
    assert!(said[1].starts_with("revoke: fired once, of 3 packets"), "{said:?}");
    assert_eq!(at(Duration::from_micros(6_999), 3).0, []);
    let (struck, deadline, said) = at(ms(7), 4);
    assert_eq!((struck, deadline), (vec![Strike::Revoke(Some(2))], Some(ms(9))));
    assert!(said[0].starts_with("revoke: fired 2 times (1 still to come)"), "{said:?}");
    let (struck, deadline, said) = at(ms(9), 5);
    assert_eq!(
        (struck, deadline),
        (vec![Strike::Revoke(Some(2))], None),
        "each of the two packets"
    );
    assert!(said[0].starts_with("revoke: fired 2 times, of 6 packets"), "{said:?}");
}

/// A plan that revokes at every packet, with a delay, remembers only a limited number.
#[test]
fn strikes_that_wait_are_bounded() {
    let mut injector = injector("[[fault]]\ndo = 'revoke'\nby = '1s'\nopcode = 'send'");
    sends(&mut injector, 1, 5000);
    assert_eq!(injector.strikes(Duration::from_secs(1)).count(), MAX_WAITING);
    let fired: Vec<_> = injector.report().map(|fired| (fired.times, fired.met)).collect();
    assert_eq!(fired, [(MAX_WAITING as u64, 5000)]);
    sends(&mut injector, 1, 1);
    assert_eq!(injector.report().map(|fired| fired.waiting).sum::<u64>(), 1, "there is room again");
}

/// The packets that a rule drops, of two QPs with the sequence numbers 0 to 4, one millisecond
/// apart.
#[track_caller]
fn dropped(conditions: &str) -> Vec<(u64, u32)> {
    let mut injector = injector(&format!("[[fault]]\ndo = 'drop'\n{conditions}"));
    let packets = (0..5).flat_map(|psn| [(1, psn), (2, psn)]);
    let hit = packets.filter(|(qp, psn)| {
        let now = Duration::from_millis((*psn).into());
        injector.packet(now, &packet(*qp, *psn, Operation::Send)) == Verdict::Drop
    });
    hit.collect()
}

#[test]
fn numbers_and_times_select_exactly_what_they_name() {
    assert_eq!(dropped("psn = '2-3'"), [(1, 2), (2, 2), (1, 3), (2, 3)]);
    assert_eq!(dropped("psn = 4"), [(1, 4), (2, 4)]);
    assert_eq!(dropped("qpn = 0x4002"), [(2, 0), (2, 1), (2, 2), (2, 3), (2, 4)]);
    assert_eq!(dropped("qpn = '0x4001-0x4001'\npsn = '0x3-'"), [(1, 3), (1, 4)]);
    assert_eq!(dropped("qpn = 0x4003"), []);
    assert_eq!(dropped("until = '1ms'"), [(1, 0), (2, 0), (1, 1), (2, 1)], "that time included");
    assert_eq!(dropped("from = '2ms'\nuntil = '2ms'\nqp = 2"), [(2, 2)]);
    // Only packets that meet these conditions count.
    assert_eq!(dropped("psn = '2-'\nnth = 2"), [(1, 3), (2, 3)]);
}

#[test]
fn rules_for_others_are_left_out() {
    assert!(injector("[[fault]]\ndo = 'drop'\nnic = 'peerdma1'").is_empty());
    assert!(injector("[[fault]]\ndo = 'drop'\nprogram = 'ucmatose'").is_empty());
    assert!(!injector("[[fault]]\ndo = 'drop'\nprogram = 'rping'").is_empty());
}

#[test]
fn page_faults_are_slow_within_the_window() {
    let mut injector =
        injector("[[fault]]\ndo = 'slow-faults'\nby = '2ms'\nuntil = '1s'\ntimes = 1");
    assert_eq!(injector.page_fault(Duration::ZERO), Duration::from_millis(2));
    injector.page_faulted(Duration::ZERO);
    assert_eq!(injector.page_fault(Duration::ZERO), Duration::ZERO, "once");
    assert_eq!(injector.page_fault(Duration::from_secs(2)), Duration::ZERO);
}

#[test]
fn management_datagrams_are_cm_and_nothing_else() {
    let mut injector =
        injector("[[fault]]\ndo = 'drop'\nopcode = 'cm'\n[[fault]]\ndo = 'drop'\nopcode = 'send'");
    let ud = Opcode::new(Service::Ud, Operation::Send, Position::Only).expect("an opcode");
    let mad = Packet { opcode: ud, qp: 0, qpn: Qpn::GSI, ..packet(0, 0, Operation::Send) };
    assert_eq!(injector.packet(Duration::ZERO, &mad), Verdict::Drop);
    let fired: Vec<_> = injector.report().map(|fired| fired.times).collect();
    assert_eq!(fired, [1, 0]);
}

#[test]
fn management_datagrams_meet_the_faults_of_any_packet() {
    for what in ["drop", "duplicate", "reorder", "delay'\nby = '1s", "corrupt", "junk"] {
        for way in ["in", "out"] {
            let text = format!("[[fault]]\ndo = '{what}'\nopcode = 'cm'\nway = '{way}'");
            assert!(Plan::parse(&text).is_ok(), "{text}");
        }
    }
    for what in ["mark", "not-ready", "refuse", "qp-error", "cq-overrun", "revoke"] {
        let text = format!("[[fault]]\ndo = '{what}'\nopcode = 'cm'\nway = 'in'");
        assert!(Plan::parse(&text).is_err(), "{text}");
    }
}

#[test]
fn marks_are_put_on_incoming_packets() {
    let mut injector = injector("[[fault]]\ndo = 'mark'\nway = 'in'\nopcode = 'send'");
    let coming = Packet { way: Way::In, ..packet(1, 0, Operation::Send) };
    assert_eq!(injector.packet(Duration::ZERO, &coming), Verdict::Mark);
    assert!(
        Plan::parse("[[fault]]\ndo = 'mark'").is_err(),
        "no switch marks a packet where it leaves"
    );
}

#[test]
fn every_mistake_in_a_plan_is_explained() {
    for (text, said) in [
        ("[[fault]]\ndo = 'explode'", "unknown variant `explode`"),
        ("[[fault]]\ndo = 'drop'\nopcod = 'send'", "unknown field `opcod`"),
        (
            "[[fault]]\ndo = 'drop'\nopcode = 'sendd'",
            "\"sendd\" is neither an opcode of IBA nor one of request",
        ),
        (
            "[[fault]]\ndo = 'drop'\n[[fault]]\ndo = 'delay'",
            "fault 2 (delay): does not say how long",
        ),
        ("[[fault]]\nname = 'x'\ndo = 'drop'\nby = '1s'", "fault 1 (x): `by` is for delay"),
        ("[[fault]]\ndo = 'revoke'\nfrom = '1s'\nby = '1s'", "`by` is counted from a packet"),
        ("[[fault]]\ndo = 'port-down'\nfor = '1s'\nby = '1s'", "`by` is for delay"),
        ("[[fault]]\ndo = 'drop'\nfrom = 'noon'", "\"noon\" is not a time"),
        ("[[fault]]\ndo = 'drop'\npsn = '9-4'", "\"9-4\" is neither a number nor a span"),
        ("[[fault]]\ndo = 'drop'\nqp = -1", "-1 is below 0"),
        ("[[fault]]\ndo = 'drop'\nprobability = 7.0", "a probability is from 0 to 1"),
        ("[[fault]]\ndo = 'not-ready'", "way = \"in\""),
        ("[[fault]]\ndo = 'port-down'\nqp = 1\nfor = '1s'", "a QP, but no packet of it"),
        ("[[fault]]\ndo = 'drop'\nfrom = '2s'\nuntil = '1s'", "it ends before it begins"),
        (
            "[[fault]]\ndo = 'refuse'\nway = 'in'\nopcode = 'cm'",
            "concerns packets to a QP of the program",
        ),
    ] {
        let error = Plan::parse(text).expect_err(text).to_string();
        assert!(error.contains(said), "{text}\n{error}");
    }
}

#[test]
fn opcodes_have_the_names_of_tshark_and_of_the_standard() {
    let mut injector =
        injector("[[fault]]\ndo = 'drop'\nopcode = ['RC_SEND_ONLY', 'rc rdma read response only']");
    for operation in [Operation::Send, Operation::ReadResponse] {
        assert_eq!(injector.packet(Duration::ZERO, &packet(1, 0, operation)), Verdict::Drop);
    }
    assert_eq!(injector.packet(Duration::ZERO, &packet(1, 0, Operation::Ack)), Verdict::Pass);
}

/// The documentation shows valid plans.
#[test]
fn the_plans_in_the_documentation_are_valid() {
    let page = include_str!("../../../../docs/FAULT_PLANS.md");
    let shown = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    let plan = Plan::parse(shown.expect("an example")).expect("a plan");
    assert_eq!(plan.rules.len(), 3);
    let network = include_str!("../../../../examples/bad-network.toml");
    assert_eq!(Plan::parse(network).expect("a plan").rules.len(), 6);
}
