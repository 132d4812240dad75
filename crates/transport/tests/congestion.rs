//! Several connections through one line that is too slow for them, with a switch that marks packets
//! and with one that only drops them.
//!
//! `cargo test -p peerdma-transport --test congestion -- --nocapture` prints the table.

use core::time::Duration;

use fabric_sim::options::BASE;
use fabric_sim::{Link, Net, Options, Rate, build};
use iba::{Mtu, WcStatus};
use transport::Counter;

const MESSAGE: u32 = 64 << 10;
const MESSAGES: u64 = 150;
/// Work requests in flight on each connection.
const DEPTH: u64 = 16;
/// Bytes per second of the line: 10 Gbit/s.
const LINE: u64 = 1_250_000_000;

/// The results of all connections.
#[derive(Debug)]
struct Outcome {
    /// The share of the line that was payload.
    share: f64,
    /// Packets that the switch had no room for.
    overflowed: u64,
    marked: u64,
    /// Notifications that were sent, and that were obeyed.
    cnps: (u64, u64),
    /// How much the last connection had done when the first one finished, as a share of the first.
    fairness: f64,
}

fn run(connections: usize, queue: u64, mark: Option<u64>) -> Outcome {
    let rate = Rate { bytes: LINE, queue, mark };
    let options = Options {
        mtu: Mtu::Mtu1024,
        // 1 ms.
        timeout: 8,
        ecn: mark.is_some(),
        memory: 2 * MESSAGE as usize,
        link: Link { delay: Duration::from_micros(5), rate: Some(rate), ..Link::GOOD },
        ..Options::rc()
    };
    let mut net = Net::pairs(options, connections);
    let mut posted = vec![0u64; connections];
    let mut done = vec![0u64; connections];
    let mut fairness = None;
    while done.iter().any(|done| *done < MESSAGES) {
        for pair in 0..connections {
            while posted[pair] < MESSAGES && posted[pair] - done[pair] < DEPTH {
                let remote = BASE + u64::from(MESSAGE);
                net.post(2 * pair, build::write(posted[pair], BASE, MESSAGE, remote));
                posted[pair] += 1;
            }
        }
        net.drive_bounded(1);
        for (pair, done) in done.iter_mut().enumerate() {
            for completion in net.take_completions(2 * pair) {
                assert_eq!(completion.status, WcStatus::Success);
                *done += 1;
            }
        }
        if fairness.is_none() && done.contains(&MESSAGES) {
            let least = done.iter().min().copied().unwrap_or(0);
            fairness = Some(least as f64 / MESSAGES as f64);
        }
    }
    let bytes = connections as u64 * MESSAGES * u64::from(MESSAGE);
    let count = |end: usize, counter| -> u64 {
        net.nodes.iter().skip(end).step_by(2).map(|node| node.host.counted(counter)).sum()
    };
    Outcome {
        share: bytes as f64 / (net.now.as_nanos() as f64 / 1e9) / LINE as f64,
        overflowed: net.overflowed,
        marked: net.marked,
        cnps: (count(1, Counter::NpCnpSent), count(0, Counter::RpCnpHandled)),
        fairness: fairness.unwrap_or(0.0),
    }
}

#[test]
fn with_marks_nothing_is_lost_and_the_line_stays_full() {
    for connections in [2, 4, 8] {
        // Room for what all of them send before they can have heard anything, but not for the
        // windows that they grow to.
        let queue = connections as u64 * 160 * 1024;
        let lossy = run(connections, queue, None);
        let marking = run(connections, queue, Some(64 << 10));
        println!("{connections} connections\n  losing  {lossy:.3?}\n  marking {marking:.3?}");
        assert!(lossy.overflowed > 0, "the line is too slow for them: {lossy:?}");
        assert_eq!((lossy.marked, lossy.cnps), (0, (0, 0)));
        assert_eq!(marking.overflowed, 0, "{marking:?}");
        assert!(marking.share > 0.85 && marking.share > lossy.share - 0.02, "{marking:?}");
        let (sent, obeyed) = marking.cnps;
        assert!(marking.marked > sent && sent > 0 && obeyed == sent, "{marking:?}");
        assert!(marking.fairness > 0.5, "{marking:?}");
    }
}

#[test]
fn a_single_connection_fills_the_line_in_spite_of_marks() {
    let outcome = run(1, 1 << 20, Some(64 << 10));
    assert!(outcome.marked > 0 && outcome.overflowed == 0, "{outcome:?}");
    assert!(outcome.share > 0.85, "{outcome:?}");
}

/// A queue of less than 16 packets for each of them: a connection that kept sending that many would
/// lose them all, again and again.
#[test]
fn connections_through_a_short_queue_lose_much_and_still_finish() {
    for (connections, queue) in [(8, 16 << 10), (8, 64 << 10), (16, 64 << 10)] {
        let outcome = run(connections, queue, None);
        println!("{connections} connections, {queue} bytes\n  losing  {outcome:.3?}");
        assert!(outcome.share > 0.5 && outcome.fairness > 0.1, "{outcome:?}");
    }
}
