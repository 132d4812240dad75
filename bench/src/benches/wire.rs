//! RoCEv2 between two hosts: network namespaces joined by a veth pair.

use super::in_turns;
use crate::Outcome;
use crate::child::{Role, free_port};
use crate::netns::Veth;
use crate::pairs::Place;
use crate::report::{Report, Row, Target};
use crate::sample::Sample;
use crate::{iperf3, perftest};

/// MTU of the link, and the path MTU that follows from it.
const LINKS: [(u32, usize); 2] = [(9000, 4096), (1500, 1024)];
/// The size of an 8-byte SEND as a datagram: BTH, the bytes, ICRC.
const SMALL: usize = 8 + AROUND_PAYLOAD;
/// Rounds of a ping-pong.
const ROUNDS: u64 = 20_000;
/// The same where a thread is woken for each packet.
const WAKES: u64 = 5_000;
/// BTH and ICRC, which every packet carries besides its payload.
const AROUND_PAYLOAD: usize = 12 + 4;
/// The port that the device itself uses; it is free between its runs.
const PORT: u16 = link::udp::PORT;
const SECONDS: &str = "0.8";
const MIB: f64 = 1048576.0;

/// How bytes cross the wire.
struct Way {
    what: &'static str,
    program: &'static str,
    args: &'static [&'static str],
    /// In both directions at once.
    both: bool,
}

const fn way(what: &'static str, program: &'static str, args: &'static [&'static str]) -> Way {
    Way { what, program, args, both: false }
}

const WRITE: Way = way("WRITE, 1 MiB", "ib_write_bw", &["-s", "1048576", "-n", "1000"]);

const OTHERS: [Way; 6] = [
    way("WRITE, 1 MiB, 8 QPs", "ib_write_bw", &["-s", "1048576", "-n", "125", "-q", "8"]),
    way("WRITE, 64 KiB, 64 QPs", "ib_write_bw", &["-s", "65536", "-n", "250", "-q", "64"]),
    Way { both: true, ..way("WRITE, 1 MiB, both ways", WRITE.program, WRITE_BOTH_WAYS) },
    way("READ, 1 MiB", "ib_read_bw", WRITE.args),
    way("SEND, 64 KiB", "ib_send_bw", &["-s", "65536", "-n", "16000"]),
    way("SEND, 4 KiB", "ib_send_bw", &["-s", "4096", "-n", "100000"]),
];
const WRITE_BOTH_WAYS: &[&str] = &["-s", "1048576", "-n", "1000", "-b"];

/// One stream of WRITEs beside a bare UDP stream, and beside one of TCP.
pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    for (mtu, path_mtu) in LINKS {
        let place = &Veth::new(mtu)?;
        let tcp = beside_udp("wire", &WRITE, place, (mtu, path_mtu), reps, report, |place| {
            // iperf3 may be missing: its failure is not ours.
            iperf3::stream(place).map_err(|error| error.to_string())
        })?;
        let (ours, tcp): (Vec<f64>, Vec<_>) = tcp.into_iter().unzip();
        match tcp.into_iter().collect::<Result<Vec<f64>, _>>() {
            Ok(tcp) => report.row(Row {
                bench: "wire",
                what: format!("{}, MTU {mtu}", WRITE.what),
                ours: ours.into(),
                beside: "TCP (iperf3)".to_owned(),
                theirs: tcp.into(),
                unit: "MiB/s",
                target: Target::None,
            }),
            Err(why) => report.note("wire", format!("iperf3 did not run: {why}")),
        }
    }
    Ok(())
}

/// Other operations, more connections, and both directions, beside bare UDP streams.
pub(super) fn ways(reps: u32, report: &mut Report) -> Outcome<()> {
    for (mtu, path_mtu) in LINKS {
        let place = &Veth::new(mtu)?;
        for way in &OTHERS {
            beside_udp("wire-ways", way, place, (mtu, path_mtu), reps, report, |_| ())?;
        }
    }
    Ok(())
}

/// Adds a row, and returns what each repetition had, with that of one more measurement.
fn beside_udp<T>(
    bench: &'static str,
    way: &Way,
    veth: &Veth,
    (mtu, path_mtu): (u32, usize),
    reps: u32,
    report: &mut Report,
    mut more: impl FnMut(&Place) -> T,
) -> Outcome<Vec<(f64, T)>> {
    let place = veth.place();
    let segment = path_mtu + AROUND_PAYLOAD;
    let (ours, theirs) = in_turns(
        bench,
        reps,
        report,
        || perftest::run(&place, way.program, way.args),
        || Ok((udp_streams(&place, segment, way.both)?, more(&place))),
    )?;
    let (streams, more): (Vec<_>, Vec<_>) = theirs.into_iter().unzip();
    let (udp, lost): (Vec<_>, Vec<_>) = streams.into_iter().unzip();
    report.row(Row {
        bench,
        what: format!("{}, MTU {mtu}", way.what),
        ours: ours.clone().into(),
        beside: "UDP with GSO and GRO".to_owned(),
        theirs: udp.into(),
        unit: "MiB/s",
        target: Target::WorstAtLeast(0.75),
    });
    let lost = Sample::from(lost).median() * 100.0;
    report.note(
        bench,
        format!("MTU {mtu}: the bare UDP stream has no flow control; {lost:.0} % of it did not arrive and does not count"),
    );
    Ok(ours.into_iter().zip(more).collect())
}

/// Half round trips of 8 bytes. With SENDs both sides poll their completion queues; with WRITEs a
/// side spins on its memory meanwhile, and needs one more processor for the thread that receives
/// its packets.
pub(super) fn latency(reps: u32, report: &mut Report) -> Outcome<()> {
    let veth = Veth::new(1500)?;
    let place = veth.place();
    let programs =
        [("ib_send_lat", ROUNDS, Target::AtMost(1.5)), ("ib_write_lat", WAKES, Target::None)];
    for (program, rounds, target) in programs {
        let rounds = rounds.to_string();
        let args = ["-s", "8", "-n", &rounds];
        let ours = || perftest::run(&place, program, &args);
        let (ours, theirs) = in_turns("wire-lat", reps, report, ours, || udp_ping(&place))?;
        report.row(Row {
            bench: "wire-lat",
            what: format!("{program}, 8 bytes"),
            ours: ours.into(),
            beside: format!("UDP, {SMALL} bytes"),
            theirs: theirs.into(),
            unit: "us",
            target,
        });
    }
    Ok(())
}

fn udp_ping(place: &Place) -> Outcome<f64> {
    let (port, rounds) = (free_port()?.to_string(), ROUNDS.to_string());
    let (_echo, _) = Role::start(&place.server, "udp-echo", &[port.clone(), rounds.clone()])?;
    let args = [place.host.clone(), port, SMALL.to_string(), rounds];
    let (_ping, half) = Role::start(&place.client, "udp-ping", &args)?;
    half.get(0)
}

/// The MiB/s that arrive, of one stream or of one each way, and the share that is lost.
fn udp_streams(place: &Place, segment: usize, both: bool) -> Outcome<(f64, f64)> {
    let mut hosts = vec![(&place.server, &place.client, &place.host)];
    if both {
        hosts.push((&place.client, &place.server, &place.back));
    }
    let port = PORT.to_string();
    let receivers = hosts
        .iter()
        .map(|(there, ..)| Role::start(there, "udp-receiver", std::slice::from_ref(&port)))
        .collect::<Outcome<Vec<_>>>()?;
    let senders = hosts
        .iter()
        .map(|(_, here, to)| {
            let args = [to.to_string(), port.clone(), segment.to_string(), SECONDS.to_owned()];
            Role::start_later(here, "udp-sender", &args)
        })
        .collect::<Outcome<Vec<_>>>()?;
    let (mut speed, mut sent, mut arrived) = (0.0, 0.0, 0.0);
    for mut sender in senders {
        sent += sender.answer()?.get::<f64>(0)?;
    }
    for (mut receiver, _) in receivers {
        let got = receiver.answer()?;
        let (bytes, seconds): (f64, f64) = (got.get(0)?, got.get(1)?);
        arrived += bytes;
        speed += bytes / MIB / seconds;
    }
    Ok((speed, 1.0 - arrived / sent))
}
