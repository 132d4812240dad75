//! Debian's `iperf3`: streams of TCP.

use serde_json::Value;

use crate::Outcome;
use crate::pairs::{self, Place, Words};

const MIB: f64 = 1048576.0;

/// MiB/s of one connection.
pub(crate) fn stream(place: &Place) -> Outcome<f64> {
    Ok(received(place, "bits_per_second")? / 8.0 / MIB)
}

/// The bytes that one connection carries in a second.
pub(crate) fn bytes(place: &Place) -> Outcome<f64> {
    received(place, "bytes")
}

/// What the receiver counts in a second.
fn received(place: &Place, what: &str) -> Outcome<f64> {
    let json = parse(&pairs::one(place, &[], |port| words(place, port, "1"))?)?;
    let value = json["end"]["sum_received"][what].as_f64();
    value.ok_or_else(|| format!("iperf3 printed no {what}").into())
}

fn words(place: &Place, port: &str, seconds: &str) -> Words {
    let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    Words {
        server: own(&["iperf3", "-s", "-1", "-p", port]),
        client: own(&["iperf3", "-J", "-t", seconds, "-p", port, "-c", &place.host]),
    }
}

fn parse(text: &str) -> Outcome<Value> {
    Ok(serde_json::from_str(text)?)
}
