//! Resident memory of a context, and what many QPs cost.

use crate::Outcome;
use crate::child::Role;
use crate::report::{Report, Row, Target};
use crate::sample::Sample;

const COUNTS: [usize; 4] = [1000, 2000, 5000, 10_000];
/// How many of the QPs carry traffic.
const BUSY: usize = 100;
/// Messages of each such QP.
const MESSAGES: u32 = 50;
/// The cost of one more QP with traffic is the difference of these, divided by their number.
const TRAFFIC: [usize; 2] = [100, 1000];
/// Messages of each of these: a completion queue must have room for all.
const FEW_MESSAGES: u32 = 4;
const LIMIT_KIB: f64 = 4096.0;

/// A context that does nothing yet, and one that is connected to a peer.
pub(super) fn context(reps: u32, report: &mut Report) -> Outcome<()> {
    let (mut opened, mut connected) = (Sample::default(), Sample::default());
    let mut limit = Sample::default();
    let mut without_files = Sample::default();
    for _ in 0..reps {
        let (mut node, words) = Role::start(&[], "node", &["1".to_owned()])?;
        let (mut peer, _) = Role::start(&[], "node", &["1".to_owned()])?;
        opened.push(words.get(0)?);
        talk(&mut node, &mut peer, 1, MESSAGES)?;
        let now = node.ask("resident")?;
        connected.push(now.get(0)?);
        without_files.push(now.get(1)?);
        limit.push(LIMIT_KIB);
    }
    for (what, ours) in [("context, opened", opened), ("context, connected", connected)] {
        report.row(Row {
            bench: "memory",
            what: what.to_owned(),
            ours,
            beside: "limit".to_owned(),
            theirs: limit.clone(),
            unit: "KiB",
            target: Target::AtMost(1.0),
        });
    }
    let kib = without_files.median();
    report.note("memory", format!(
        "connected: one CQ of 8192, one QP, two rings to the peer; {kib:.0} KiB of it are not pages of the program's file"
    ));
    Ok(())
}

/// What a QP costs when there are few, when there are many, and when many have traffic.
pub(super) fn qps(reps: u32, report: &mut Report) -> Outcome<()> {
    let mut time = COUNTS.map(|_| Sample::default());
    let mut size = COUNTS.map(|_| Sample::default());
    let mut busy = Ok(());
    let mut with_traffic = Sample::default();
    for rep in 0..reps {
        let [few, many] = TRAFFIC.map(resident_with_traffic);
        with_traffic.push((many? - few?) / (TRAFFIC[1] - TRAFFIC[0]) as f64);
        for ((count, time), size) in COUNTS.iter().zip(&mut time).zip(&mut size) {
            let (mut node, words) = Role::start(&[], "node", &[count.to_string()])?;
            time.push(words.get::<f64>(2)? * 1e6 / *count as f64);
            size.push(words.get::<f64>(3)? / *count as f64);
            if *count == 10_000 && rep == 0 {
                let (mut peer, _) = Role::start(&[], "node", &[BUSY.to_string()])?;
                busy = talk(&mut node, &mut peer, BUSY, MESSAGES);
            }
        }
    }
    for (samples, unit) in [(&time, "us"), (&size, "KiB")] {
        for (count, sample) in COUNTS.iter().zip(samples.iter()).skip(1) {
            report.row(Row {
                bench: "qps",
                what: format!("each of {count} QPs"),
                ours: sample.clone(),
                beside: format!("each of {}", COUNTS[0]),
                theirs: samples[0].clone(),
                unit,
                // A cost that is not linear grows with the count: tenfold QPs would cost much more
                // each.
                target: if *count == 10_000 { Target::AtMost(1.5) } else { Target::None },
            });
        }
    }
    report.row(Row {
        bench: "qps",
        what: format!("each of {} QPs that had traffic", TRAFFIC[1]),
        ours: with_traffic,
        beside: format!("each of {} that had none", COUNTS[0]),
        theirs: size[0].clone(),
        unit: "KiB",
        target: Target::None,
    });
    report.note(
        "qps",
        match busy {
            Ok(()) => format!(
                "{BUSY} of 10000 QPs, spread over them all, carried {MESSAGES} messages each"
            ),
            Err(error) => format!("{BUSY} of 10000 QPs did not carry their messages: {error}"),
        },
    );
    Ok(())
}

/// The additional KiB of a process that has opened a device and whose `count` QPs have all sent and
/// received.
fn resident_with_traffic(count: usize) -> Outcome<f64> {
    let (mut node, _) = Role::start(&[], "node", &[count.to_string()])?;
    let (mut peer, _) = Role::start(&[], "node", &[count.to_string()])?;
    talk(&mut node, &mut peer, count, FEW_MESSAGES)?;
    node.ask("resident")?.get(0)
}

/// Connects `count` QPs of each process, and sends over them in both directions.
fn talk(one: &mut Role, other: &mut Role, count: usize, messages: u32) -> Outcome<()> {
    let ours = one.ask(&format!("endpoints {count}"))?;
    let theirs = other.ask(&format!("endpoints {count}"))?;
    one.ask(&format!("connect {}", theirs.0.join(" ")))?;
    other.ask(&format!("connect {}", ours.0.join(" ")))?;
    stream(one, other, messages)?;
    stream(other, one, messages)
}

fn stream(from: &mut Role, to: &mut Role, messages: u32) -> Outcome<()> {
    to.ask(&format!("receive {messages}"))?;
    from.ask(&format!("send {messages}"))?;
    to.ask(&format!("received {messages}"))?;
    Ok(())
}
