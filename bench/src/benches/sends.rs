//! Many small SENDs between two processes of one host.

use super::in_turns;
use crate::Outcome;
use crate::perftest::{self, Place};
use crate::report::{Report, Row, Target};
use crate::ucx;

const NAME: &str = "sends";
const MESSAGES: usize = 1_000_000;

/// What `ib_send_bw` is told besides the size and the count. Nothing but the whole run is timed:
/// reading the clock for each message takes a sixth of the time.
const WAYS: [(&str, usize, &[&str]); 8] = [
    ("8 bytes", 8, &[]),
    ("64 bytes", 64, &[]),
    ("512 bytes", 512, &[]),
    ("64 bytes, 8 QPs", 64, &["-q", "8"]),
    ("64 bytes, 64 QPs", 64, &["-q", "64"]),
    ("64 bytes, 1024 QPs", 64, &["-q", "1024", "-r", "16", "-t", "16"]),
    ("64 bytes, every 64th signaled", 64, &["-Q", "64"]),
    ("64 bytes, lists of 16", 64, &["-l", "16"]),
];

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    for (way, size, more) in WAYS {
        let qps = more.iter().position(|word| *word == "-q").map(|at| more[at + 1]);
        // One of 100 is signaled, or one of as many as the queue has. The client waits for ever if
        // that is not the last.
        let each = MESSAGES / qps.map_or(Ok(1), str::parse::<usize>)? / 400 * 400;
        let (length, count) = (size.to_string(), each.to_string());
        let args = [&["-N", "-s", &length, "-n", &count], more].concat();
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
