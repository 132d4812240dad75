//! Throughput and latency while other processes keep every processor busy.

use std::net::SocketAddr;

use super::in_turns;
use crate::Outcome;
use crate::child::{Role, Words};
use crate::netns::Veth;
use crate::pairs::Place;
use crate::report::{Report, Row, Target};
use crate::{iperf3, perftest};

const NAME: &str = "crowded";
/// How many processes are busy meanwhile.
const BUSY: usize = 8;
/// Rounds of a ping-pong: a side that polls may lose its processor in each.
const ROUNDS: usize = 2000;

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let veth = Veth::new(1500)?;
    let places = [("a veth, MTU 1500", veth.place()), ("one host", Place::here())];
    let _busy =
        (0..BUSY).map(|_| Ok(Role::start(&[], "busy", &[])?.0)).collect::<Outcome<Vec<Role>>>()?;
    for (place_is, place) in &places {
        let args = ["-s", "1048576", "-n", "1000"];
        let (ours, theirs) = in_turns(
            NAME,
            reps,
            report,
            || perftest::run(place, "ib_write_bw", &args),
            || iperf3::stream(place),
        )?;
        report.row(Row {
            bench: NAME,
            what: format!("ib_write_bw, 1 MiB, {place_is}"),
            ours: ours.into(),
            beside: "TCP (iperf3)".to_owned(),
            theirs: theirs.into(),
            unit: "MiB/s",
            target: Target::AtLeast(1.0),
        });
        for (how, more) in [("polled", &[][..]), ("by events", &["-e"][..])] {
            let rounds = ROUNDS.to_string();
            let args = [&["-s", "8", "-n", &rounds], more].concat();
            let (ours, theirs) = in_turns(
                NAME,
                reps,
                report,
                || perftest::tail(place, "ib_send_lat", &args),
                || tcp_tail(place),
            )?;
            report.row(Row {
                bench: NAME,
                what: format!("ib_send_lat, 99.9 %, {how}, {place_is}"),
                ours: ours.into(),
                beside: "TCP, 8 bytes, 99.9 %".to_owned(),
                theirs: theirs.into(),
                unit: "us",
                target: Target::AtMost(2.0),
            });
        }
    }
    Ok(())
}

/// The 99.9th percentile of half a round trip of eight bytes.
fn tcp_tail(place: &Place) -> Outcome<f64> {
    let rounds = ROUNDS.to_string();
    let echo = Role::start(&place.server, "tcp-echo", &["1".to_owned(), rounds.clone()])?;
    let (_echo, words): (Role, Words) = echo;
    let port = words.get::<SocketAddr>(0)?.port();
    let (_ping, words) =
        Role::start(&place.client, "tcp-ping", &[format!("{}:{port}", place.host), rounds])?;
    words.get(0)
}
