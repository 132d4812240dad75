//! Sixteen hosts behind the switches of a fat tree. The same with a thousand hosts, as a table:
//! `cargo run --release -p fabric-sim --example fat_tree`.

use std::time::Duration;

use fabric_sim::tree::scenario::Outcome;
use fabric_sim::tree::{Pfc, Scenario, Sender, Shape, Tree};

const MEGA: u64 = 1 << 20;

/// Switches that mark.
fn marks() -> Shape {
    Shape::new(4)
}

/// Switches that mark, and stop their neighbours before they would have to drop.
fn lossless() -> Shape {
    Shape { pfc: Some(Pfc { pause: 128 << 10, resume: 96 << 10 }), ..marks() }
}

#[track_caller]
fn all_end(scenario: Scenario, shape: &Shape, bytes: u64) -> Outcome {
    let outcome = scenario.run(shape, bytes);
    println!("{scenario:?}\n{}\n{outcome}", Outcome::HEAD);
    assert_eq!(outcome.failed, 0, "{outcome}");
    outcome
}

#[test]
fn one_connection_fills_its_line() {
    for to in [1, 2, 15] {
        let mut tree = Tree::new(marks());
        let flow = tree.flow((0, to), 64, 64 << 10, 8);
        assert!(tree.run(Duration::from_secs(1)));
        let took = tree.flows()[flow].took().expect("it ended").as_secs_f64();
        let share = 4.0 * MEGA as f64 / took / marks().rate as f64;
        assert!(share > 0.9, "to host {to}: {share}");
        assert_eq!(tree.report().retransmitted(), 0);
    }
}

#[test]
fn with_marks_a_permutation_loses_nothing() {
    let report = all_end(Scenario::Permutation, &marks(), 4 * MEGA).report;
    assert!(report.marked > 0 && report.notifications > 0, "its paths collide");
    assert_eq!((report.lost, report.retransmitted(), report.timeouts), (0, 0, 0));
}

#[test]
fn all_to_all_takes_no_longer_than_its_bytes() {
    let outcome = all_end(Scenario::AllToAll, &marks(), MEGA / 16);
    assert_eq!(outcome.flows, 16 * 15);
    assert_eq!(outcome.report.lost, 0);
    // 64 KiB take 5.2 us on a line; four lines of one switch may fall on the same path.
    assert!(outcome.times[2] < Duration::from_micros(40), "{outcome}");
}

#[test]
fn streams_and_connections_leave_each_other_their_share() {
    for shape in [marks(), lossless()] {
        let outcome = all_end(Scenario::Mixed, &shape, 4 * MEGA);
        let streams = outcome.stream_times.expect("there are some");
        // Half of each kind; the slowest stream may have waited for its timer.
        let ratio = streams[0].as_secs_f64() / outcome.times[0].as_secs_f64();
        assert!((0.4..2.5).contains(&ratio), "{outcome}");
        assert!(outcome.times[2] < Duration::from_millis(4), "{outcome}");
    }
}

#[test]
fn an_incast_ends_with_and_without_losses() {
    let drops = all_end(Scenario::Incast(64), &marks(), MEGA);
    assert!(drops.report.dropped > 0, "64 first windows are more than a queue holds");
    let stops = all_end(Scenario::Incast(64), &lossless(), MEGA);
    assert!(stops.report.pauses > 0);
    assert_eq!((stops.report.lost, stops.report.retransmitted()), (0, 0));
    assert!(stops.share > 0.95, "{stops}");
    assert!(stops.times[2] < drops.times[2]);
}

/// Both send on as fast as their lines until somebody tells them: DCQCN's NIC after 50 us, rxe
/// never.
#[test]
fn an_incast_loses_less_than_by_the_devices_that_are_modelled() {
    let ours = all_end(Scenario::Incast(64), &marks(), MEGA);
    for sender in [Sender::Dcqcn, Sender::Rxe] {
        let theirs = all_end(Scenario::Incast(64), &Shape { sender, ..marks() }, MEGA);
        assert!(2 * ours.report.dropped < theirs.report.dropped, "{sender:?}");
        assert!(ours.times[2] < theirs.times[2], "{sender:?}");
    }
}

/// So that a comparison says something: what is alike in all of them comes to the same.
#[test]
fn models_fill_a_line_that_nobody_shares_and_survive_what_fails() {
    for sender in [Sender::Dcqcn, Sender::Rxe] {
        let shape = Shape { sender, ..lossless() };
        let mut tree = Tree::new(shape.clone());
        let flow = tree.flow((0, 15), 64, 64 << 10, 8);
        assert!(tree.run(Duration::from_secs(1)));
        let took = tree.flows()[flow].took().expect("it ended").as_secs_f64();
        assert!(4.0 * MEGA as f64 / took / shape.rate as f64 > 0.9, "{sender:?}: {took}");
        all_end(Scenario::LineFails, &shape, 4 * MEGA);
        all_end(Scenario::HostStops, &shape, 4 * MEGA);
    }
}

#[test]
fn connections_survive_a_line_that_fails_and_a_host_that_stops() {
    for shape in [marks(), lossless()] {
        let fails = all_end(Scenario::LineFails, &shape, 4 * MEGA);
        assert!(fails.report.lost > 0 && fails.report.timeouts > 0, "{fails}");
        let stops = all_end(Scenario::HostStops, &shape, 4 * MEGA);
        assert!(stops.times[2] > Duration::from_millis(10), "{stops}");
        assert!(stops.times[0] < Duration::from_millis(2), "others do not notice: {stops}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let outcome = Scenario::Incast(32).run(&Shape { seed, ..marks() }, MEGA / 4);
        (outcome.times, outcome.report.sent, outcome.report.marked, outcome.report.events)
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8), "another seed chooses other paths");
}
