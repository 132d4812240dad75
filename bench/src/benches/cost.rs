//! Processor time for a gigabyte, and for a million messages, of both sides together.

use super::{in_turns, wire};
use crate::Outcome;
use crate::machine::cost;
use crate::netns::Veth;
use crate::perftest::{self, Place};
use crate::report::{Report, Row, Target};
use crate::ucx;

const NAME: &str = "cost";
const MIB: f64 = 1048576.0;
const WRITES: f64 = 4000.0;
const MESSAGES: usize = 2_000_000;

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let veth = Veth::new(1500)?;
    let places = [("a veth, MTU 1500", veth.place()), ("one host", Place::here())];
    for (place_is, place) in &places {
        for (how, more) in [("polled", &[][..]), ("by events", &["-e"][..])] {
            let writes = WRITES.to_string();
            let args = [&["-s", "1048576", "-n", &writes], more].concat();
            let (ours, theirs) = in_turns(
                NAME,
                reps,
                report,
                || {
                    let (_, seconds) = cost(|| perftest::run(place, "ib_write_bw", &args))?;
                    Ok(seconds * 1e9 / (WRITES * MIB))
                },
                || {
                    let (bytes, seconds) = cost(|| wire::tcp_bytes(place))?;
                    Ok(seconds * 1e9 / bytes)
                },
            )?;
            report.row(Row {
                bench: NAME,
                what: format!("ib_write_bw, 1 MiB, {how}, {place_is}"),
                ours: ours.into(),
                beside: "TCP (iperf3)".to_owned(),
                theirs: theirs.into(),
                unit: "s/GB",
                target: Target::None,
            });
        }
    }
    let count = MESSAGES.to_string();
    let args = ["-N", "-s", "64", "-n", &count];
    let millions = MESSAGES as f64 / 1e6;
    let (ours, theirs) = in_turns(
        NAME,
        reps,
        report,
        || Ok(cost(|| perftest::rate(&Place::here(), "ib_send_bw", &args))?.1 / millions),
        || Ok(cost(|| ucx::run("ucp_am_bw", 64, MESSAGES))?.1 / millions),
    )?;
    report.row(Row {
        bench: NAME,
        what: "ib_send_bw, 64 bytes, one host".to_owned(),
        ours: ours.into(),
        beside: "ucx_perftest ucp_am_bw".to_owned(),
        theirs: theirs.into(),
        unit: "s/million",
        target: Target::None,
    });
    Ok(())
}
