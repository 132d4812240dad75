//! The cost of recording every packet (`peerdma run --pcap`), and of a trace (`--trace`) beside it.

use std::fs;
use std::path::Path;

use super::in_turns;
use crate::Outcome;
use crate::netns::Veth;
use crate::pairs::Place;
use crate::perftest;
use crate::report::{Report, Row, Target};

const BENCH: &str = "pcap";

/// Both processes record into one file, which is in the page cache until it is removed.
pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let veth = Veth::new(9000)?;
    let (here, wire) = (Place::here(), veth.place());
    let latency = ["-s", "8", "-n", "20000"];
    // 100 MiB, all of which are recorded twice.
    let bandwidth = ["-s", "65536", "-n", "1600"];
    for (place, program, args, bytes, what, unit) in [
        (&here, "ib_send_lat", latency, "", "ib_send_lat, 8 bytes", "us"),
        (&here, "ib_send_bw", bandwidth, "", "ib_send_bw, 64 KiB", "MiB/s"),
        (&here, "ib_send_bw", bandwidth, "128", "... 128 bytes of each packet", "MiB/s"),
        (&wire, "ib_send_lat", latency, "", "ib_send_lat, 8 bytes, wire", "us"),
        (&wire, "ib_send_bw", bandwidth, "", "ib_send_bw, 64 KiB, wire", "MiB/s"),
        (&wire, "ib_send_bw", bandwidth, "128", "... 128 bytes of each packet", "MiB/s"),
    ] {
        let (ours, theirs) = in_turns(
            BENCH,
            reps,
            report,
            || recorded(place, bytes, program, &args),
            || perftest::run(place, program, &args),
        )?;
        report.row(Row {
            bench: BENCH,
            what: what.to_owned(),
            ours: ours.into(),
            beside: "not recorded".to_owned(),
            theirs: theirs.into(),
            unit,
            target: Target::None,
        });
    }
    let (less, more) = (Target::AtMost(1.0), Target::AtLeast(1.0));
    for (place, program, args, what, unit, target) in [
        (&here, "ib_send_lat", latency, "ib_send_lat, 8 bytes, traced", "us", less),
        (&here, "ib_send_bw", bandwidth, "ib_send_bw, 64 KiB, traced", "MiB/s", more),
        (&wire, "ib_send_lat", latency, "ib_send_lat, 8 bytes, wire, traced", "us", less),
        (&wire, "ib_send_bw", bandwidth, "ib_send_bw, 64 KiB, wire, traced", "MiB/s", more),
    ] {
        let (ours, theirs) = in_turns(
            BENCH,
            reps,
            report,
            || traced(place, program, &args),
            || recorded(place, "", program, &args),
        )?;
        report.row(Row {
            bench: BENCH,
            what: what.to_owned(),
            ours: ours.into(),
            beside: "recorded".to_owned(),
            theirs: theirs.into(),
            unit,
            target,
        });
    }
    Ok(())
}

fn traced(place: &Place, program: &str, args: &[&str]) -> Outcome<f64> {
    let file = std::env::temp_dir().join(format!("peerdma-bench-{}.pftrace", std::process::id()));
    let path = file.to_str().ok_or("the path of the file is no text")?;
    measured(place, &file, &[("PEERDMA_TRACE", path)], program, args)
}

fn recorded(place: &Place, bytes: &str, program: &str, args: &[&str]) -> Outcome<f64> {
    let file = std::env::temp_dir().join(format!("peerdma-bench-{}.pcapng", std::process::id()));
    let path = file.to_str().ok_or("the path of the file is no text")?;
    let env = [("PEERDMA_PCAP", path), ("PEERDMA_PCAP_BYTES", bytes)];
    measured(place, &file, &env, program, args)
}

/// A figure of a program that writes this file.
fn measured(
    place: &Place,
    file: &Path,
    env: &[(&str, &str)],
    program: &str,
    args: &[&str],
) -> Outcome<f64> {
    let figure = perftest::run_with(place, env, program, args);
    let length = fs::metadata(file).map(|file| file.len());
    fs::remove_file(file)?;
    if length? == 0 {
        return Err("nothing was recorded".into());
    }
    figure
}
