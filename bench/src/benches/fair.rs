//! What each pair gets where many more engines than processors send at once.

use super::in_turns;
use crate::Outcome;
use crate::child::{Role, peerdma};
use crate::netns::Veth;
use crate::pairs::Place;
use crate::report::{Report, Row, Target};
use crate::{iperf3, machine, perftest};

const NAME: &str = "fair";
/// Pairs of processes for each processor.
const PAIRS: [usize; 3] = [2, 4, 8];
/// The seconds that are measured, and those before and after: not all pairs begin at once.
const SECONDS: usize = 3;
const MARGIN: usize = 2;
/// A counter that should not grow.
const TIMEOUTS: &str = "local_ack_timeout_err";

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let veth = Veth::new(1500)?;
    for (place_is, place) in [("veth", veth.place()), ("one host", Place::here())] {
        for pairs in PAIRS {
            compare(place_is, &place, pairs * machine::processors(), reps, report)?;
        }
    }
    Ok(())
}

/// As many pairs of perftest as connections of TCP.
fn compare(
    place_is: &str,
    place: &Place,
    pairs: usize,
    reps: u32,
    report: &mut Report,
) -> Outcome<()> {
    let mut timeouts = Timeouts::watch(place)?;
    let (duration, margin) = ((SECONDS + 2 * MARGIN).to_string(), MARGIN.to_string());
    let args = ["-s", "65536", "-D", &duration, "-f", &margin];
    let (ours, theirs) = in_turns(
        NAME,
        reps,
        report,
        || Ok(Shares(perftest::run_together(place, pairs, "ib_send_bw", &args)?)),
        || Ok(Shares(iperf3::streams(place, pairs, SECONDS, MARGIN)?)),
    )?;
    let mut row = |figure_is: &str, figure: fn(&Shares) -> f64, unit, target| {
        report.row(Row {
            bench: NAME,
            what: format!("{pairs} pairs, {place_is}, {figure_is}"),
            ours: ours.iter().map(figure).collect(),
            beside: "TCP (iperf3)".to_owned(),
            theirs: theirs.iter().map(figure).collect(),
            unit,
            target,
        });
    };
    row("smallest", Shares::smallest, "", Target::AtLeast(1.0));
    row("Jain's index", Shares::jain, "", Target::AtLeast(1.0));
    row("all", Shares::all, "MiB/s", Target::None);
    let count = timeouts.count()?;
    let verdict = if count == 0 { "met" } else { "MISSED" };
    report.note(
        NAME,
        format!("{pairs} pairs, {place_is}: {count} local ACK timeouts, target none, {verdict}"),
    );
    Ok(())
}

/// MiB/s of each pair.
struct Shares(Vec<f64>);

impl Shares {
    fn all(&self) -> f64 {
        self.0.iter().sum()
    }

    /// The smallest share, if 1 is the mean.
    fn smallest(&self) -> f64 {
        let smallest = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        smallest * self.0.len() as f64 / self.all()
    }

    /// 1 if all have the same; one over their number if one has all.
    fn jain(&self) -> f64 {
        let squares: f64 = self.0.iter().map(|share| share * share).sum();
        self.all().powi(2) / (self.0.len() as f64 * squares)
    }
}

/// The counter of local ACK timeouts of the host that asks.
struct Timeouts {
    reader: Role,
    before: u64,
}

impl Timeouts {
    fn watch(place: &Place) -> Outcome<Self> {
        let run = [peerdma()?.to_string_lossy().into_owned(), "run".to_owned(), "--".to_owned()];
        let (mut reader, _) = Role::start(&[&place.client[..], &run].concat(), "counters", &[])?;
        let before = reader.ask(TIMEOUTS)?.get(0)?;
        Ok(Self { reader, before })
    }

    /// How many there were since.
    fn count(&mut self) -> Outcome<u64> {
        Ok(self.reader.ask(TIMEOUTS)?.get::<u64>(0)?.saturating_sub(self.before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_shares_are_fair() {
        let equal = Shares(vec![10.0; 4]);
        assert_eq!((equal.smallest(), equal.jain(), equal.all()), (1.0, 1.0, 40.0));
        let starved = Shares(vec![40.0, 0.0, 0.0, 0.0]);
        assert_eq!((starved.smallest(), starved.jain()), (0.0, 0.25));
    }
}
