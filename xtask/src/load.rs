//! How much of the machine's processors a group uses: the rest is time that it waits.

use std::fs;

/// Ticks of all processors since the machine started.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    all: u64,
    idle: u64,
}

impl Load {
    /// Now; `None` where `/proc/stat` (proc_stat(5)) cannot be read.
    pub(crate) fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal; guests are in user and nice.
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self { all: ticks.iter().take(8).sum(), idle })
    }

    /// The percentage that was used since then.
    pub(crate) fn since(self, before: Self) -> u64 {
        let (all, idle) = (self.all - before.all, self.idle.saturating_sub(before.idle));
        (100 * all.saturating_sub(idle)).checked_div(all).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_nothing_ran_is_not_used() {
        let before = Load::parse("cpu  10 0 5 100 3 0 0 0 0 0\ncpu0 1 2 3\n").unwrap();
        let after = Load::parse("cpu  30 0 15 160 13 0 0 0 7 0\ncpu0 1 2 3\n").unwrap();
        assert_eq!(after.since(before), 30);
        assert_eq!(after.since(after), 0);
        assert!(Load::parse("intr 7\n").is_none());
    }
}
