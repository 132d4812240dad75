//! Processor time for a gigabyte, and for a million messages, of both sides together.

use super::in_turns;
use crate::Outcome;
use crate::machine::cost;
use crate::netns::Veth;
use crate::pairs::Place;
use crate::report::{Report, Row, Target};
use crate::{iperf3, perftest, ucx};

const NAME: &str = "cost";
/// Messages of 64 KiB.
const LONG: f64 = 60_000.0;
const LONG_SIZE: &str = "65536";
const MESSAGES: usize = 2_000_000;

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let veth = Veth::new(1500)?;
    let places = [("a veth, MTU 1500", veth.place()), ("one host", Place::here())];
    for (place_is, place) in &places {
        for (how, more) in [("polled", &[][..]), ("by events", &["-e"][..])] {
            let count = LONG.to_string();
            let args = [&["-s", LONG_SIZE, "-n", &count], more].concat();
            let (ours, theirs) = in_turns(
                NAME,
                reps,
                report,
                || {
                    let (_, seconds) = cost(|| perftest::run(place, "ib_send_bw", &args))?;
                    Ok(seconds * 1e9 / (LONG * LONG_SIZE.parse::<f64>()?))
                },
                || {
                    let (bytes, seconds) = cost(|| iperf3::bytes(place))?;
                    Ok(seconds * 1e9 / bytes)
                },
            )?;
            report.row(Row {
                bench: NAME,
                what: format!("ib_send_bw, 64 KiB, {how}, {place_is}"),
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
