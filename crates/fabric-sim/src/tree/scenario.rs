//! What the hosts of a tree do, and what comes of it.

use std::fmt;
use std::time::{Duration, Instant};

use super::{Flow, Report, Shape, Tree};
use crate::link::{Rate, Rng};

/// The longest that a scenario may take, in virtual time.
const LIMIT: Duration = Duration::from_secs(30);
/// Messages that a connection has outstanding.
const DEPTH: u64 = 8;

/// What the hosts do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "each has a row in the table")]
pub enum Scenario {
    /// Every host sends to one other, and hears from one.
    Permutation,
    /// Every host sends to every other, in the turns of a ring.
    AllToAll,
    /// This many hosts send to one.
    Incast(usize),
    /// As a permutation, and each host sends as many bytes to another one by a stream like TCP's.
    Mixed,
    /// As a permutation, and a line to the core fails in the middle of it.
    LineFails,
    /// As a permutation, and a host stops for 10 ms.
    HostStops,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// Connections.
    pub flows: usize,
    /// Connections that failed, or had not ended.
    pub failed: usize,
    /// How long the connections took: half of them, all but one in a hundred, and all.
    pub times: [Duration; 3],
    /// The same of streams, if there are any.
    pub stream_times: Option<[Duration; 3]>,
    /// Payload against what the lines of the receivers carry, up to the end of the last connection.
    pub share: f64,
    /// Jain's index of the rates of the connections: 1 if all are the same.
    pub fairness: f64,
    /// What happened on the way.
    pub report: Report,
    /// Time that the simulation took, in seconds.
    pub cost: f64,
}

impl Scenario {
    /// Lets the hosts of a tree do it with `bytes` for each connection, in messages of 64 KiB.
    pub fn run(self, shape: &Shape, bytes: u64) -> Outcome {
        let began = Instant::now();
        let mut tree = Tree::new(shape.clone());
        let hosts = shape.hosts();
        let length = bytes.min(64 << 10);
        // CAST: at most 64 KiB.
        let flow = |tree: &mut Tree, from, to| {
            tree.flow((from, to), bytes.div_ceil(length), length as u32, DEPTH)
        };
        match self {
            Self::AllToAll => {
                for turn in 1..hosts {
                    for from in 0..hosts {
                        flow(&mut tree, from, (from + turn) % hosts);
                    }
                    if !tree.run(LIMIT) {
                        break;
                    }
                }
            }
            Self::Incast(senders) => {
                for sender in 0..senders {
                    // From everywhere, and never from the receiver.
                    flow(&mut tree, 1 + sender % (hosts - 1), 0);
                }
            }
            Self::Permutation | Self::Mixed | Self::LineFails | Self::HostStops => {
                for (from, to) in permutation(hosts, shape.seed).into_iter().enumerate() {
                    flow(&mut tree, from, to);
                }
                self.beside(&mut tree, shape, bytes);
            }
        }
        // What has not ended by then counts as failed.
        tree.run(LIMIT);
        self.outcome(&tree, shape, began.elapsed())
    }

    /// What happens beside a permutation.
    fn beside(self, tree: &mut Tree, shape: &Shape, bytes: u64) {
        let soon = Duration::from_micros(100);
        match self {
            Self::Mixed => {
                let packets = bytes.div_ceil(u64::from(shape.options.mtu.bytes()));
                let others = permutation(shape.hosts(), shape.seed + 1);
                for (from, to) in others.into_iter().enumerate() {
                    tree.stream((from, to), packets);
                }
            }
            Self::LineFails if !tree.run(soon) => {
                let mut flows = 0..tree.flows().len();
                // One through the core.
                if let Some(flow) = flows.find(|flow| tree.path(*flow).len() == 6) {
                    let line = tree.path(flow)[2];
                    tree.cut(line);
                }
            }
            Self::HostStops if !tree.run(soon) => {
                tree.stop(0);
                tree.run(Duration::from_millis(10));
                tree.resume(0);
            }
            _ => {}
        }
    }

    fn outcome(self, tree: &Tree, shape: &Shape, cost: Duration) -> Outcome {
        let flows = tree.flows();
        let (streams, ours): (Vec<_>, Vec<_>) = flows.iter().partition(|flow| flow.is_stream);
        let bytes = |flow: &Flow| (flow.done * u64::from(flow.length)) as f64;
        let rates: Vec<f64> =
            ours.iter().filter_map(|flow| Some(bytes(flow) / flow.took()?.as_secs_f64())).collect();
        let (sum, squares) = rates
            .iter()
            .fold((0.0, 0.0), |(sum, squares), rate| (sum + rate, squares + rate * rate));
        let receivers = if matches!(self, Self::Incast(_)) { 1 } else { shape.hosts() };
        let mtu = f64::from(shape.options.mtu.bytes());
        let best = shape.rate as f64 * receivers as f64 * mtu / (mtu + Rate::OVERHEAD as f64);
        let last = flows.iter().filter_map(|flow| flow.ended).max();
        let time = last.map_or(LIMIT, |last| last.since(transport::Time::ZERO)).as_secs_f64();
        Outcome {
            flows: flows.len(),
            failed: flows.iter().filter(|flow| flow.ended.is_none()).count(),
            times: times(&ours),
            stream_times: (!streams.is_empty()).then(|| times(&streams)),
            share: flows.iter().map(bytes).sum::<f64>() / time / best,
            fairness: sum * sum / (rates.len().max(1) as f64 * squares.max(f64::MIN_POSITIVE)),
            report: tree.report(),
            cost: cost.as_secs_f64(),
        }
    }
}

/// How long half of the flows took, all but one in a hundred, and all.
fn times(flows: &[Flow]) -> [Duration; 3] {
    let mut times: Vec<Duration> = flows.iter().filter_map(|flow| flow.took()).collect();
    times.sort_unstable();
    let last = times.len().saturating_sub(1);
    [500, 990, 1000].map(|permille| {
        times.get((times.len() * permille / 1000).min(last)).copied().unwrap_or(LIMIT)
    })
}

/// To whom each host sends: a cycle through all of them, in a random order.
fn permutation(hosts: usize, seed: u64) -> Vec<usize> {
    let mut rng = Rng::new(seed);
    let mut order: Vec<usize> = (0..hosts).collect();
    for last in (1..hosts).rev() {
        // CAST: below the number of hosts.
        order.swap(last, rng.below(last as u64 + 1) as usize);
    }
    let mut to = vec![0; hosts];
    for (place, from) in order.iter().enumerate() {
        to[*from] = order[(place + 1) % hosts];
    }
    to
}

impl Outcome {
    /// The head of a table of outcomes.
    pub const HEAD: &'static str = "flows failed   p50 us   p99 us   max us  share  fair  \
        sent again  dropped    lost   marked    CNPs timeouts pauses queue KB  events  s";
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [half, most, all] = self.times.map(|time| time.as_micros());
        let Report { dropped, lost, marked, notifications, timeouts, pauses, .. } = self.report;
        write!(f, "{:>5} {:>6} {half:>8} {most:>8} {all:>8}", self.flows, self.failed)?;
        write!(f, "  {:>5.2} {:>5.2}", self.share, self.fairness)?;
        write!(f, "  {:>10} {dropped:>8} {lost:>7}", self.report.retransmitted())?;
        write!(f, " {marked:>8} {notifications:>7} {timeouts:>8} {pauses:>6}")?;
        let events = self.report.events as f64 / 1e6;
        write!(f, " {:>8} {events:>6.1}M {:>4.1}", self.report.longest >> 10, self.cost)?;
        if let Some([half, most, all]) = self.stream_times.map(|times| times.map(|t| t.as_micros()))
        {
            write!(f, "  streams: {half} {most} {all}")?;
        }
        Ok(())
    }
}
