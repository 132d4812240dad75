//! peerdma compared with the kernel's own software device, in a separate machine: the same
//! programs, the same kernel, the same wire.

use std::fmt::Write as _;

use crate::Outcome;
use crate::perftest;
use crate::report::{Report, Row, Target};
use crate::vm::Vm;

/// The link that joins the two hosts.
struct Wire {
    /// As in `bench/vm/guest.sh`.
    link: &'static str,
    mtu: u32,
    words: &'static str,
}

/// One comparison.
struct Case {
    /// Percent of the packets that are lost each way.
    loss: &'static str,
    what: &'static str,
    command: &'static str,
    unit: &'static str,
}

const fn case(
    loss: &'static str,
    what: &'static str,
    command: &'static str,
    unit: &'static str,
) -> Case {
    Case { loss, what, command, unit }
}

/// MTU of the link, and the path MTU that follows from it.
const WIRES: [Wire; 3] = [
    Wire { link: "direct", mtu: 4200, words: "path MTU 4096" },
    Wire { link: "segments", mtu: 4200, words: "path MTU 4096, no offload" },
    Wire { link: "direct", mtu: 1500, words: "path MTU 1024" },
];

const SPEED: [Case; 6] = [
    case("0", "ib_write_bw, 1 MiB", "ib_write_bw -F -s 1048576 -n 40", "MiB/s"),
    case("0", "ib_write_bw, 64 KiB", "ib_write_bw -F -s 65536 -n 500", "MiB/s"),
    case("0", "ib_send_bw, 64 KiB", "ib_send_bw -F -s 65536 -n 500", "MiB/s"),
    case("0", "ib_read_bw, 64 KiB", "ib_read_bw -F -o 16 -s 65536 -n 500", "MiB/s"),
    case("0", "ib_write_lat, 8 B", "ib_write_lat -F -s 8 -n 1000", "us"),
    case("0", "ib_send_lat, 8 B", "ib_send_lat -F -s 8 -n 1000", "us"),
];

const LOSSES: [Case; 6] = [
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
fn compare(
    bench: &'static str,
    wire: &Wire,
    cases: &[Case],
    reps: u32,
    report: &mut Report,
) -> Outcome<()> {
    let mut lines = String::new();
    for case in cases {
        writeln!(lines, "{} {}", case.loss, case.command)?;
    }
    let said = Vm::fetch()?.run(wire.link, wire.mtu, &lines, reps)?;
    for (number, case) in cases.iter().enumerate() {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for rep in 0..reps {
            let figure = |carrier| {
                let text = said.section(&format!("{rep} {number} {carrier}"));
                let end = text.lines().last().unwrap_or("nothing");
                match perftest::figure(text) {
                    Some(figure) if end == "--- exit 0" => Ok(figure),
                    _ => Err(format!("{carrier}: {}", failure(text))),
                }
            };
            match (figure("peerdma"), figure("rxe")) {
                (Ok(our), Ok(their)) => {
                    ours.push(our);
                    theirs.push(their);
                }
                (our, their) => {
                    for why in [our, their].into_iter().filter_map(Result::err) {
                        let words = format!("{}, {}", case.what, wire.words);
                        report
                            .note(bench, format!("{words}: repetition {} FAILED: {why}", rep + 1));
                    }
                }
            }
        }
        if !ours.is_empty() {
            report.row(Row {
                bench,
                what: format!("{}, {}", case.what, wire.words),
                ours: ours.into(),
                beside: "rdma_rxe".to_owned(),
                theirs: theirs.into(),
                unit: case.unit,
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
