//! peerdma compared with the kernel's own software device, in a separate machine: the same
//! programs, the same kernel, the same wire.

use std::fmt::Write as _;

use crate::Outcome;
use crate::perftest;
use crate::report::{Report, Row, Target};
use crate::vm::{Said, Vm};

/// The link that joins the two hosts.
pub(super) struct Wire {
    /// As in `bench/vm/guest.sh`.
    pub(super) link: &'static str,
    pub(super) mtu: u32,
    pub(super) words: &'static str,
}

/// What a row compares.
pub(super) trait Case {
    fn what(&self) -> &str;
    fn unit(&self) -> &'static str;
    /// The lines of `bench/vm/guest.sh` that it needs.
    fn lines(&self) -> Vec<String>;
    /// Its figure, of what a device's programs printed for each of these lines.
    fn figure(&self, said: &Said, texts: &[&str]) -> Option<f64>;
}

/// The figure that a program prints.
struct Printed {
    /// Percent of the packets that are lost each way.
    loss: &'static str,
    what: &'static str,
    command: &'static str,
    unit: &'static str,
}

impl Case for Printed {
    fn what(&self) -> &str {
        self.what
    }

    fn unit(&self) -> &'static str {
        self.unit
    }

    fn lines(&self) -> Vec<String> {
        vec![format!("{} {}", self.loss, self.command)]
    }

    fn figure(&self, _: &Said, texts: &[&str]) -> Option<f64> {
        perftest::figure(texts.first()?)
    }
}

const fn case(
    loss: &'static str,
    what: &'static str,
    command: &'static str,
    unit: &'static str,
) -> Printed {
    Printed { loss, what, command, unit }
}

/// MTU of the link, and the path MTU that follows from it.
pub(super) const WIRES: [Wire; 3] = [
    Wire { link: "direct", mtu: 4200, words: "path MTU 4096" },
    Wire { link: "segments", mtu: 4200, words: "path MTU 4096, no offload" },
    Wire { link: "direct", mtu: 1500, words: "path MTU 1024" },
];

const SPEED: [Printed; 6] = [
    case("0", "ib_write_bw, 1 MiB", "ib_write_bw -F -s 1048576 -n 40", "MiB/s"),
    case("0", "ib_write_bw, 64 KiB", "ib_write_bw -F -s 65536 -n 500", "MiB/s"),
    case("0", "ib_send_bw, 64 KiB", "ib_send_bw -F -s 65536 -n 500", "MiB/s"),
    case("0", "ib_read_bw, 64 KiB", "ib_read_bw -F -o 16 -s 65536 -n 500", "MiB/s"),
    case("0", "ib_write_lat, 8 B", "ib_write_lat -F -s 8 -n 1000", "us"),
    case("0", "ib_send_lat, 8 B", "ib_send_lat -F -s 8 -n 1000", "us"),
];

const LOSSES: [Printed; 6] = [
    case("0", "WRITE, 64 KiB, none lost", "ib_write_bw -F -s 65536 -n 300", "MiB/s"),
    case("0.1", "WRITE, 64 KiB, 0.1 % lost", "ib_write_bw -F -s 65536 -n 300", "MiB/s"),
    case("1", "WRITE, 64 KiB, 1 % lost", "ib_write_bw -F -s 65536 -n 300", "MiB/s"),
    case("0", "READ, 64 KiB, none lost", "ib_read_bw -F -o 16 -s 65536 -n 300", "MiB/s"),
    case("0.1", "READ, 64 KiB, 0.1 % lost", "ib_read_bw -F -o 16 -s 65536 -n 300", "MiB/s"),
    case("1", "READ, 64 KiB, 1 % lost", "ib_read_bw -F -o 16 -s 65536 -n 300", "MiB/s"),
];

pub(super) fn speed(reps: u32, report: &mut Report) -> Outcome<()> {
    for wire in &WIRES {
        compare("vm", wire, &SPEED, reps, report)?;
    }
    Ok(())
}

pub(super) fn losses(reps: u32, report: &mut Report) -> Outcome<()> {
    let wire = Wire { link: "switch", mtu: 1500, words: "path MTU 1024" };
    compare("vm-loss", &wire, &LOSSES, reps, report)
}

/// Boots a machine, in which each case runs on both devices in turns.
pub(super) fn compare(
    bench: &'static str,
    wire: &Wire,
    cases: &[impl Case],
    reps: u32,
    report: &mut Report,
) -> Outcome<()> {
    let mut lines = String::new();
    // The numbers of each case's lines.
    let mut numbers = Vec::new();
    for case in cases {
        let first = lines.lines().count();
        for line in case.lines() {
            writeln!(lines, "{line}")?;
        }
        numbers.push(first..lines.lines().count());
    }
    let said = Vm::fetch()?.run(wire.link, wire.mtu, &lines, reps)?;
    for (case, numbers) in cases.iter().zip(numbers) {
        let what = format!("{}, {}", case.what(), wire.words);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for rep in 0..reps {
            let figure = |carrier| {
                let texts: Vec<_> = numbers
                    .clone()
                    .map(|number| said.section(&format!("{rep} {number} {carrier}")))
                    .collect();
                let failed = texts.iter().find(|text| text.lines().last() != Some("--- exit 0"));
                match (failed, case.figure(&said, &texts)) {
                    (None, Some(figure)) => Ok(figure),
                    (failed, _) => {
                        let text = failed.or(texts.last()).map_or("", |text| text);
                        Err(format!("{carrier}: {}", failure(text)))
                    }
                }
            };
            match (figure("peerdma"), figure("rxe")) {
                (Ok(our), Ok(their)) => {
                    ours.push(our);
                    theirs.push(their);
                }
                (our, their) => {
                    for why in [our, their].into_iter().filter_map(Result::err) {
                        report.note(bench, format!("{what}: repetition {} FAILED: {why}", rep + 1));
                    }
                }
            }
        }
        if !ours.is_empty() {
            report.row(Row {
                bench,
                what,
                ours: ours.into(),
                beside: "rdma_rxe".to_owned(),
                theirs: theirs.into(),
                unit: case.unit(),
                target: Target::None,
            });
        }
    }
    report.note(bench, format!("{}: {}", wire.words, said.machine()));
    Ok(())
}

/// The last words of a program that failed.
fn failure(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}
