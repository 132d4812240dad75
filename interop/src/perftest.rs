//! Reading what perftest prints.

use crate::output::Output;

/// One line of results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The message size.
    pub bytes: u64,
    /// The number of iterations.
    pub iterations: u64,
    /// Average bandwidth in MiB/s, or typical latency in microseconds.
    pub value: f64,
}

/// The result lines under the header that starts with `#bytes`.
///
/// `_bw` prints: bytes, iterations, peak, average, message rate. `_lat` prints: bytes, iterations,
/// min, max, typical, average and more. The two differ in the column to read.
pub fn rows(output: &Output) -> Vec<Row> {
    let mut column = None;
    let mut rows = Vec::new();
    for line in output.stdout.lines() {
        let line = line.trim();
        if line.starts_with("#bytes") {
            column = Some(if line.contains("t_typical") { 4 } else { 3 });
            continue;
        }
        let Some(column) = column else { continue };
        let words: Vec<_> = line.split_whitespace().collect();
        if let (Some(Ok(bytes)), Some(Ok(iterations)), Some(Ok(value))) = (
            words.first().map(|w| w.parse()),
            words.get(1).map(|w| w.parse()),
            words.get(column).map(|w| w.parse()),
        ) {
            rows.push(Row { bytes, iterations, value });
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn printed(stdout: &str) -> Output {
        let (command, stderr) = (String::new(), String::new());
        let status = std::process::ExitStatus::from_raw(0);
        Output { command, status, stdout: stdout.to_owned(), stderr }
    }

    #[test]
    fn bandwidth_is_the_average() {
        let out = printed(
            " remote address: LID 0000 QPN 0x0011\n\
             ---------------------------------\n\
             \x20#bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n\
             \x202          20               8.05               7.66 \t\t     4.014352\n\
             \x2065536      20             9011.02            8900.50  \t\t   0.142408\n\
             ---------------------------------\n",
        );
        let values: Vec<_> = rows(&out).iter().map(|r| (r.bytes, r.iterations, r.value)).collect();
        assert_eq!(values, [(2, 20, 7.66), (65536, 20, 8900.50)]);
    }

    #[test]
    fn latency_is_the_typical_one() {
        let out = printed(
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]\n\
             \x202       1000          0.80           7.17         0.83     \t       0.84        \t0.13\n",
        );
        assert_eq!(rows(&out), [Row { bytes: 2, iterations: 1000, value: 0.83 }]);
    }
}
