//! Processor time for a gigabyte and for a million messages of both hosts of a virtual machine,
//! what the kernel does for them included.

use super::vm::{Case, WIRES, compare};
use crate::Outcome;
use crate::report::Report;
use crate::vm::Said;

/// Messages of one size.
struct Messages {
    what: &'static str,
    /// Without their number.
    command: &'static str,
    /// How many a short run has, and a long one. What the programs cost that run is in both.
    counts: [u32; 2],
    /// How many the unit has.
    per: f64,
    unit: &'static str,
}

const LONG: Messages = Messages {
    what: "64 KiB, polled",
    command: "ib_send_bw -F -s 65536",
    counts: [100, 2100],
    per: 1e9 / 65536.0,
    unit: "s/GB",
};
const SHORT: Messages = Messages {
    what: "64 bytes, polled",
    command: "ib_send_bw -F -N -s 64",
    counts: [1000, 51_000],
    per: 1e6,
    unit: "s/million",
};
const CASES: [Messages; 4] = [
    LONG,
    Messages { what: "64 KiB, by events", command: "ib_send_bw -F -e -s 65536", ..LONG },
    SHORT,
    Messages { what: "64 bytes, by events", command: "ib_send_bw -F -N -e -s 64", ..SHORT },
];

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    for wire in WIRES.iter().filter(|wire| wire.link == "direct") {
        compare("vm-cost", wire, &CASES, reps, report)?;
    }
    Ok(())
}

impl Case for Messages {
    fn what(&self) -> &str {
        self.what
    }

    fn unit(&self) -> &'static str {
        self.unit
    }

    fn lines(&self) -> Vec<String> {
        self.counts.iter().map(|count| format!("0 {} -n {count}", self.command)).collect()
    }

    fn figure(&self, said: &Said, texts: &[&str]) -> Option<f64> {
        let at_rest = Time::of(said.section("rest"))?;
        let [short, long] = texts else { return None };
        let [short, long] = [Time::of(short)?, Time::of(long)?].map(|time| time.beyond(&at_rest));
        let [few, many] = self.counts.map(f64::from);
        let cost = (long - short) * self.per / (many - few);
        // On a busy machine a short run can take longer than a long one.
        (cost > 0.0).then_some(cost)
    }
}

/// What passed between two lines `--- clock UP IDLE PROCESSORS`, in seconds.
struct Time {
    up: f64,
    /// Of all processors together.
    busy: f64,
}

impl Time {
    fn of(text: &str) -> Option<Self> {
        let mut clocks = text.lines().filter_map(|line| line.strip_prefix("--- clock "));
        let mut clock = || -> Option<[f64; 3]> {
            let words: Vec<_> =
                clocks.next()?.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            words.try_into().ok()
        };
        let ([began, idle, _], [ended, idle_then, processors]) = (clock()?, clock()?);
        let up = ended - began;
        Some(Self { up, busy: up * processors - (idle_then - idle) })
    }

    /// The seconds of processors that were busy, without those that are when nothing runs.
    fn beyond(&self, at_rest: &Self) -> f64 {
        self.busy - at_rest.busy / at_rest.up * self.up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_always_busy_does_not_count() {
        let at_rest = Time::of("--- clock 10.0 4.0 2\n--- clock 20.0 23.0 2\n").expect("a time");
        assert_eq!((at_rest.up, at_rest.busy), (10.0, 1.0));
        let run = Time::of("--- clock 20.0 23.0 2\nx\n--- clock 30.0 28.0 2\n").expect("a time");
        assert_eq!(run.beyond(&at_rest), 14.0);
        assert!(Time::of("--- clock 20.0 23.0 2\n--- exit 0\n").is_none());
    }
}
