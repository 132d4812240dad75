//! Debian's perftest, unmodified, on peerdma.

use crate::Outcome;
use crate::child::peerdma;
use crate::pairs::{self, Place, Words};

/// By this option of `peerdma run` a program's memory is a file that peers map.
const SHARED_HEAP: &str = "--shared-heap";

/// Runs a pair and returns the client's figure: average MiB/s of `_bw`, typical microseconds of
/// `_lat`.
pub(crate) fn run(place: &Place, program: &str, args: &[&str]) -> Outcome<f64> {
    run_with(place, &[], program, args)
}

/// The same for the rate of a `_bw` program, in millions of messages per second.
pub(crate) fn rate(place: &Place, program: &str, args: &[&str]) -> Outcome<f64> {
    run_for(RATE, place, program, args)
}

/// The 99.9th percentile that a `_lat` program reports, in microseconds.
pub(crate) fn tail(place: &Place, program: &str, args: &[&str]) -> Outcome<f64> {
    run_for(TAIL, place, program, args)
}

fn run_for(column: usize, place: &Place, program: &str, args: &[&str]) -> Outcome<f64> {
    let text = pair(place, &[], &[], program, args)?;
    result(&text, column).ok_or_else(|| format!("{program} printed no such column").into())
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

/// The same as [`run`] of so many pairs at once: the figure of each.
pub(crate) fn run_together(
    place: &Place,
    count: usize,
    program: &str,
    args: &[&str],
) -> Outcome<Vec<f64>> {
    let peerdma = peerdma()?.to_string_lossy().into_owned();
    pairs::all(place, &[], count, |port| words(place, &peerdma, &[], port, program, args))?
        .iter()
        .map(|text| figure(text).ok_or_else(|| format!("{program} printed no result").into()))
        .collect()
}

/// Runs a pair with these options of `peerdma run`, and returns what the client prints.
fn pair(
    place: &Place,
    options: &[&str],
    env: &[(&str, &str)],
    program: &str,
    args: &[&str],
) -> Outcome<String> {
    let peerdma = peerdma()?.to_string_lossy().into_owned();
    pairs::one(place, env, |port| words(place, &peerdma, options, port, program, args))
}

fn words(
    place: &Place,
    peerdma: &str,
    options: &[&str],
    port: &str,
    program: &str,
    args: &[&str],
) -> Words {
    // -F: a processor whose clock varies does not matter.
    let lists = [&[peerdma, "run"], options, &["--", program, "-F", "-p", port], args];
    let server: Vec<_> = lists.concat().into_iter().map(str::to_owned).collect();
    let client = server.iter().chain([&place.host]).cloned().collect();
    Words { server, client }
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
