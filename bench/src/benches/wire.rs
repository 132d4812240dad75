//! RoCEv2 between two hosts: network namespaces joined by a veth pair.

use serde_json::Value;

use super::in_turns;
use crate::Outcome;
use crate::child::{Program, Role, free_port};
use crate::netns::Veth;
use crate::perftest::{self, Place};
use crate::report::{Report, Row, Target};
use crate::sample::Sample;

/// MTU of the link, and the path MTU that follows from it.
const LINKS: [(u32, usize); 2] = [(9000, 4096), (1500, 1024)];
/// The size of an 8-byte SEND as a datagram: BTH, the bytes, ICRC.
const SMALL: usize = 8 + AROUND_PAYLOAD;
/// Rounds of a ping-pong.
const ROUNDS: u64 = 20_000;
/// BTH and ICRC, which every packet carries besides its payload.
const AROUND_PAYLOAD: usize = 12 + 4;
/// The port that the device itself uses; it is free between its runs.
const PORT: u16 = link::udp::PORT;
const SECONDS: &str = "0.8";
const WRITES: &str = "1000";
const MIB: f64 = 1048576.0;

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    for (mtu, path_mtu) in LINKS {
        let veth = Veth::new(mtu)?;
        let place = veth.place();
        let args = ["-s", "1048576", "-n", WRITES];
        let (ours, theirs) = in_turns(
            "wire",
            reps,
            report,
            || perftest::run(&place, "ib_write_bw", &args),
            || {
                let udp = udp_stream(&place, path_mtu + AROUND_PAYLOAD)?;
                // iperf3 may be missing: its failure is not ours.
                Ok((udp, tcp_stream(&place).map_err(|error| error.to_string())))
            },
        )?;
        let (udp, tcp): (Vec<_>, Vec<_>) = theirs.into_iter().unzip();
        let (udp, lost): (Vec<_>, Vec<_>) = udp.into_iter().unzip();
        let mut row = |beside: &str, theirs: Vec<f64>, target| {
            report.row(Row {
                bench: "wire",
                what: format!("ib_write_bw, 1 MiB, MTU {mtu}"),
                ours: ours.clone().into(),
                beside: beside.to_owned(),
                theirs: theirs.into(),
                unit: "MiB/s",
                target,
            });
        };
        row("UDP with GSO and GRO", udp, Target::AtLeast(0.7));
        match tcp.into_iter().collect() {
            Ok(tcp) => row("TCP (iperf3)", tcp, Target::None),
            Err(why) => report.note("wire", format!("iperf3 did not run: {why}")),
        }
        let lost = Sample::from(lost).median() * 100.0;
        report.note(
            "wire",
            format!("MTU {mtu}: the bare UDP stream has no flow control; {lost:.0} % of it did not arrive and does not count"),
        );
    }
    Ok(())
}

/// Half round trips of 8 bytes. Both sides poll their completion queues: a side that spins on
/// memory, as in `ib_write_lat`, needs one more processor for the thread that receives its packets.
pub(super) fn latency(reps: u32, report: &mut Report) -> Outcome<()> {
    let veth = Veth::new(1500)?;
    let place = veth.place();
    let rounds = ROUNDS.to_string();
    let args = ["-s", "8", "-n", &rounds];
    let ours = || perftest::run(&place, "ib_send_lat", &args);
    let (ours, theirs) = in_turns("wire-lat", reps, report, ours, || udp_ping(&place))?;
    report.row(Row {
        bench: "wire-lat",
        what: "ib_send_lat, 8 bytes".to_owned(),
        ours: ours.into(),
        beside: format!("UDP, {SMALL} bytes"),
        theirs: theirs.into(),
        unit: "us",
        target: Target::AtMost(1.5),
    });
    Ok(())
}

fn udp_ping(place: &Place) -> Outcome<f64> {
    let (port, rounds) = (free_port()?.to_string(), ROUNDS.to_string());
    let (_echo, _) = Role::start(&place.server, "udp-echo", &[port.clone(), rounds.clone()])?;
    let args = [place.host.clone(), port, SMALL.to_string(), rounds];
    let (_ping, half) = Role::start(&place.client, "udp-ping", &args)?;
    half.get(0)
}

/// The MiB/s that arrive, and the share that is lost.
fn udp_stream(place: &Place, segment: usize) -> Outcome<(f64, f64)> {
    let port = PORT.to_string();
    let (mut receiver, _) =
        Role::start(&place.server, "udp-receiver", std::slice::from_ref(&port))?;
    let args = [place.host.clone(), port, segment.to_string(), SECONDS.to_owned()];
    let (_sender, sent) = Role::start(&place.client, "udp-sender", &args)?;
    let got = receiver.answer()?;
    let (sent, bytes, seconds): (f64, f64, f64) = (sent.get(0)?, got.get(0)?, got.get(1)?);
    Ok((bytes / MIB / seconds, 1.0 - bytes / sent))
}

/// MiB/s of one TCP connection.
fn tcp_stream(place: &Place) -> Outcome<f64> {
    let port = free_port()?;
    let name = port.to_string();
    let mut server = Program::start(&place.server, &[], &["iperf3", "-s", "-1", "-p", &name])?;
    server.wait_listening(port)?;
    let words = ["iperf3", "-J", "-t", "1", "-p", &name, "-c", &place.host];
    let text = Program::start(&place.client, &[], &words)?.finish()?;
    server.finish()?;
    let json: Value = serde_json::from_str(&text)?;
    let bits = json["end"]["sum_received"]["bits_per_second"].as_f64();
    Ok(bits.ok_or("iperf3 printed no rate")? / 8.0 / MIB)
}
