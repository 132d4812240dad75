//! Many small SENDs between two processes of one host.

use super::in_turns;
use crate::Outcome;
use crate::pairs::Place;
use crate::perftest;
use crate::report::{Report, Row, Target};
use crate::ucx;

const NAME: &str = "sends";
const MESSAGES: usize = 1_000_000;

/// A name, the size, how many QPs, and what else `ib_send_bw` is told.
const WAYS: [(&str, usize, usize, &[&str]); 8] = [
    ("8 bytes", 8, 1, &[]),
    ("64 bytes", 64, 1, &[]),
    ("512 bytes", 512, 1, &[]),
    ("64 bytes, 8 QPs", 64, 8, &[]),
    ("64 bytes, 64 QPs", 64, 64, &[]),
    ("64 bytes, 1024 QPs", 64, 1024, &["-r", "16", "-t", "16"]),
    ("64 bytes, every 64th signaled", 64, 1, &["-Q", "64"]),
    ("64 bytes, lists of 16", 64, 1, &["-l", "16"]),
];

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    for (way, size, qps, more) in WAYS {
        // One of 100 is signaled, or one of as many as the queue has. The client waits for ever if
        // that is not the last.
        let each = MESSAGES / qps / 400 * 400;
        let [length, count, qps] = [size, each, qps].map(|number| number.to_string());
        // -N: only the whole run is timed.
        let args = [&["-N", "-s", &length, "-n", &count, "-q", &qps], more].concat();
        let (ours, theirs) = in_turns(
            NAME,
            reps,
            report,
            || perftest::rate(&Place::here(), "ib_send_bw", &args),
            || Ok(ucx::run("ucp_am_bw", size, MESSAGES)?.rate / 1e6),
        )?;
        report.row(Row {
            bench: NAME,
            what: format!("ib_send_bw, {way}"),
            ours: ours.into(),
            beside: "ucx_perftest ucp_am_bw".to_owned(),
            theirs: theirs.into(),
            unit: "M/s",
            target: Target::AtLeast(1.0),
        });
    }
    Ok(())
}
