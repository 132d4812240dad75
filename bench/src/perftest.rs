//! Debian's perftest, unmodified, on peerdma.

use crate::Outcome;
use crate::child::{Program, free_port, peerdma};

/// Where server and client run.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The command prefix that puts the server where it belongs.
    pub(crate) server: Vec<String>,
    /// The same for the client.
    pub(crate) client: Vec<String>,
    /// How the client calls the server.
    pub(crate) host: String,
    /// How the server calls the client.
    pub(crate) back: String,
}

impl Place {
    /// Both on this host.
    pub(crate) fn here() -> Self {
        let host = "127.0.0.1".to_owned();
        Self { server: Vec::new(), client: Vec::new(), back: host.clone(), host }
    }
}

/// By this option of `peerdma run` a program's memory is a file that peers map.
const SHARED_HEAP: &str = "--shared-heap";

/// Runs a pair and returns the client's figure: average MiB/s of `_bw`, typical microseconds of
/// `_lat`.
pub(crate) fn run(place: &Place, program: &str, args: &[&str]) -> Outcome<f64> {
    run_with(place, &[], program, args)
}

/// The same for the rate of a `_bw` program, in millions of messages per second.
pub(crate) fn rate(place: &Place, program: &str, args: &[&str]) -> Outcome<f64> {
    let text = pair(place, &[], &[], program, args)?;
    result(&text, RATE).ok_or_else(|| format!("{program} printed no rate").into())
}

/// The 99.9th percentile that a `_lat` program reports, in microseconds.
pub(crate) fn tail(place: &Place, program: &str, args: &[&str]) -> Outcome<f64> {
    let text = pair(place, &[], &[], program, args)?;
    result(&text, TAIL).ok_or_else(|| format!("{program} printed no result").into())
}

/// The same as [`run`], in memory that peers map.
pub(crate) fn run_shared(place: &Place, program: &str, args: &[&str]) -> Outcome<f64> {
    let text = pair(place, &[SHARED_HEAP], &[], program, args)?;
    figure(&text).ok_or_else(|| format!("{program} printed no result").into())
}

/// The same as [`run`], with additional variables in the environment of both.
pub(crate) fn run_with(
    place: &Place,
    env: &[(&str, &str)],
    program: &str,
    args: &[&str],
) -> Outcome<f64> {
    let text = pair(place, &[], env, program, args)?;
    figure(&text).ok_or_else(|| format!("{program} printed no result").into())
}

/// Runs a pair with these options of `peerdma run`, and returns what the client prints.
fn pair(
    place: &Place,
    options: &[&str],
    env: &[(&str, &str)],
    program: &str,
    args: &[&str],
) -> Outcome<String> {
    let port = free_port()?;
    let peerdma = peerdma()?.to_string_lossy().into_owned();
    // -F: a processor whose clock varies does not matter.
    let mut words = vec![peerdma, "run".to_owned()];
    for list in [options, &["--", program, "-F", "-p"]] {
        words.extend(list.iter().map(|word| (*word).to_owned()));
    }
    words.push(port.to_string());
    words.extend(args.iter().map(|word| (*word).to_owned()));
    let mut server = Program::start(&place.server, env, &words)?;
    server.wait_listening(port)?;
    words.push(place.host.clone());
    let text = Program::start(&place.client, env, &words)?.finish()?;
    server.finish()?;
    Ok(text)
}

/// The columns of `_bw`: bytes, iterations, peak, average, rate.
const AVERAGE: usize = 3;
const RATE: usize = 4;
/// Of `_lat`: bytes, iterations, min, max, typical, average, deviation, 99 %, 99.9 %.
const TYPICAL: usize = 4;
const TAIL: usize = 8;

/// The figure that tells most.
pub(crate) fn figure(text: &str) -> Option<f64> {
    result(text, if text.contains("t_typical") { TYPICAL } else { AVERAGE })
}

/// A column of the line under the one that starts with `#bytes`.
fn result(text: &str, column: usize) -> Option<f64> {
    let mut lines = text.lines().skip_while(|line| !line.trim().starts_with("#bytes"));
    lines.next()?;
    lines.next()?.split_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_column_depends_on_the_program() {
        let bandwidth = "x\n #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]\n \
                         1048576    2000   9259.70   3801.92\t\t 0.003802\n";
        assert_eq!(figure(bandwidth), Some(3801.92));
        assert_eq!(result(bandwidth, RATE), Some(0.003802));
        let latency = " #bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec] \
                       t_stdev[usec] 99% percentile[usec] 99.9% percentile[usec]\n \
                       8 20000 0.72 10902.80 1.54 14.16 100.1 5.25 9.75\n";
        assert_eq!((figure(latency), result(latency, TAIL)), (Some(1.54), Some(9.75)));
    }
}
