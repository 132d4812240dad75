//! Whole lifetimes of connections over bad networks.

use std::collections::BTreeMap;
use std::time::Duration;

use cm::{Event, RepParam, ReqParam};
use iba::{Qpn, Time};
use wire::cm::CommId;

use crate::rig::{Dice, Faults, Rig, rep, req};

/// What a program saw of a connection.
#[derive(Debug, Default)]
struct Seen {
    stood: bool,
    ended: usize,
    exited: usize,
}

/// Programs that answer everything at once: the active one connects, sends its RTU, and ends the
/// connection when told to.
fn act(rig: &mut Rig, seen: &mut [BTreeMap<CommId, Seen>; 2]) {
    for side in 0..2 {
        for event in rig.take(side) {
            let now = rig.now;
            let cm = &mut rig.sides[side];
            let seen = &mut seen[side];
            match event {
                Event::Req { conn, .. } => {
                    let qpn = Qpn::new(0x1000 + conn);
                    cm.accept(now, conn, &RepParam { qpn, ..rep() }).expect("a REQ came");
                    seen.insert(conn, Seen::default());
                }
                Event::Rep { conn, .. } => {
                    cm.ready(conn, &[]).expect("a REP came");
                    seen.get_mut(&conn).expect("ours").stood = true;
                }
                Event::Rtu { conn, .. } => seen.get_mut(&conn).expect("ours").stood = true,
                Event::Dreq { conn } => {
                    cm.confirm_disconnect(now, conn, &[]).expect("a DREQ came");
                    seen.get_mut(&conn).expect("ours").ended += 1;
                }
                Event::Drep { conn } | Event::Rej { conn, .. } | Event::NoAnswer { conn, .. } => {
                    seen.get_mut(&conn).expect("ours").ended += 1;
                }
                Event::TimewaitExit { conn } => seen.get_mut(&conn).expect("ours").exited += 1,
                other => panic!("{other:?}"),
            }
        }
    }
}

fn run(rig: &mut Rig, seen: &mut [BTreeMap<CommId, Seen>; 2], time: Duration) {
    let until: Time = rig.now + time;
    loop {
        act(rig, seen);
        if !rig.step(until) {
            act(rig, seen);
            break;
        }
    }
}

#[test]
fn connections_begin_and_end_correctly_over_a_bad_network() {
    for seed in 1..=60 {
        let mut rig = Rig::new().with_listener();
        rig.dice = Dice(seed);
        rig.faults = Faults { loss: 20, copies: 15, late: 15 };
        let mut seen = [BTreeMap::new(), BTreeMap::new()];
        let mut conns = Vec::new();
        for index in 0..10 {
            let req = ReqParam { qpn: Qpn::new(0x100 + index), ..req() };
            let conn = rig.sides[0].connect(rig.now, &req).expect("good parameters");
            seen[0].insert(conn, Seen::default());
            conns.push(conn);
        }
        run(&mut rig, &mut seen, Duration::from_secs(120));
        assert!(seen[0].values().all(|seen| seen.stood), "seed {seed}: {seen:?}");
        assert_eq!(seen[1].len(), conns.len(), "seed {seed}: each REQ counted once");
        assert!(seen[1].values().all(|seen| seen.stood), "seed {seed}: {seen:?}");
        for conn in conns {
            rig.sides[0].disconnect(rig.now, conn, &[]).expect("it stands");
        }
        run(&mut rig, &mut seen, Duration::from_secs(120));
        for seen in seen.iter().flat_map(BTreeMap::values) {
            assert_eq!((seen.ended, seen.exited), (1, 1), "seed {seed}: {seen:?}");
        }
        assert!(rig.sides.iter().all(cm::Cm::is_empty), "seed {seed}: nothing is left");
        assert_eq!(rig.sides[0].poll_timeout().or(rig.sides[1].poll_timeout()), None);
    }
}

#[test]
fn the_same_seed_makes_the_same_transcript() {
    let transcript = |seed| {
        let mut rig = Rig::new().with_listener();
        rig.dice = Dice(seed);
        rig.faults = Faults { loss: 30, copies: 10, late: 10 };
        let mut seen = [BTreeMap::new(), BTreeMap::new()];
        let conn = rig.sides[0].connect(rig.now, &req()).expect("good parameters");
        seen[0].insert(conn, Seen::default());
        run(&mut rig, &mut seen, Duration::from_secs(100));
        rig.said()
    };
    assert_eq!(transcript(7), transcript(7));
    assert!((1..20).any(|seed| transcript(seed) != transcript(7)));
}
