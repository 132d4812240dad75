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

/// MiB/s of each of so many connections at once, each between two processes of its own, in the
/// `seconds` that are left after the first `margin` and before the last.
pub(crate) fn streams(
    place: &Place,
    count: usize,
    seconds: usize,
    margin: usize,
) -> Outcome<Vec<f64>> {
    let duration = (seconds + 2 * margin).to_string();
    pairs::all(place, &[], count, |port| words(place, port, &duration))?
        .iter()
        .map(|text| {
            within(&parse(text)?, margin, seconds)
                .ok_or_else(|| "iperf3 printed too few intervals".into())
        })
        .collect()
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

/// MiB/s in so many intervals of a second after the first ones.
fn within(json: &Value, first: usize, count: usize) -> Option<f64> {
    let intervals = json["intervals"].as_array()?.get(first..first + count)?;
    let sum = |what: &str| -> Option<f64> {
        intervals.iter().map(|interval| interval["sum"][what].as_f64()).sum()
    };
    Some(sum("bytes")? / MIB / sum("seconds")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margins_do_not_count() {
        let interval =
            |mib: u32| serde_json::json!({ "sum": { "bytes": mib << 20, "seconds": 1.0 } });
        let intervals = [9, 4, 6, 1].map(interval);
        let json = serde_json::json!({ "intervals": intervals });
        assert_eq!(within(&json, 1, 2), Some(5.0));
        assert_eq!(within(&json, 1, 4), None);
    }
}
