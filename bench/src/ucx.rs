//! Debian's `ucx_perftest` between two processes, on shared memory.

use crate::Outcome;
use crate::child::{Program, free_port};

/// What it reports for a whole run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// The median of what a message takes, in microseconds; of a latency test, half a round trip.
    pub(crate) median: f64,
    /// MB/s.
    pub(crate) bandwidth: f64,
    /// Messages per second.
    pub(crate) rate: f64,
}

/// Runs a test with messages of `size` bytes.
pub(crate) fn run(test: &str, size: usize, count: usize) -> Outcome<Figures> {
    const SHARED_MEMORY: (&str, &str) = ("UCX_TLS", "posix");
    let (port, size, count) = (free_port()?.to_string(), size.to_string(), count.to_string());
    let words = ["ucx_perftest", "-t", test, "-s", &size, "-n", &count, "-p", &port];
    let mut server = Program::start(&[], &[SHARED_MEMORY], &words)?;
    server.wait_listening(port.parse()?)?;
    let client = [&words[..], &["127.0.0.1"]].concat();
    let text = Program::start(&[], &[SHARED_MEMORY], &client)?.finish()?;
    figures(&text).ok_or_else(|| format!("no result in {text}").into())
}

/// `Final:`, then the count; median, average and overall average in microseconds; and the average
/// and overall average of MB/s and of messages per second.
pub(crate) fn figures(text: &str) -> Option<Figures> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("Final:"))?;
    let columns: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let column = |number: usize| columns.get(number).copied();
    Some(Figures { median: column(1)?, bandwidth: column(5)?, rate: column(7)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_those_of_the_whole_run() {
        let text = "[thread 0]  1000  0.1\nFinal:  3000000  0.060  0.168  0.169  364.34  364.35  \
                    5969353  5969354\n";
        let figures = figures(text).expect("a result");
        assert_eq!((figures.median, figures.rate), (0.06, 5_969_354.0));
        assert_eq!(figures.bandwidth, 364.35);
    }
}
