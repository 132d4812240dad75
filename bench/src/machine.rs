//! The machine on which the figures were measured.

use std::fs;

use crate::Outcome;

/// The machine in a few lines: figures mean nothing without it.
pub(crate) fn describe() -> String {
    let cpus = processors();
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown", |(_, model)| model.trim());
    let kernel = read("/proc/sys/kernel/osrelease");
    let huge = read("/sys/kernel/mm/transparent_hugepage/enabled");
    format!(
        "{cpus} CPUs ({model}), Linux {kernel}, load average {}, huge pages: {huge}\n\
         Nothing is pinned. Other work on this machine shows as spread.",
        load()
    )
}

/// How many processors this program may use.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The load average of one, five and fifteen minutes. This program's own children count as well.
pub(crate) fn load() -> String {
    read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Runs something, and tells how many seconds of processor time its child processes took that
/// ended meanwhile, theirs included.
pub(crate) fn cost<T>(run: impl FnOnce() -> Outcome<T>) -> Outcome<(T, f64)> {
    let before = of_children()?;
    let value = run()?;
    Ok((value, of_children()? - before))
}

/// Processor time of children that ended, in seconds.
fn of_children() -> Outcome<f64> {
    let text = read("/proc/self/stat");
    // The name of the program, in parentheses, may have spaces. proc_pid_stat(5): fields 16 and 17.
    let (_, rest) = text.rsplit_once(')').ok_or("no /proc/self/stat")?;
    let mut fields = rest.split_whitespace().skip(13);
    let mut field = || fields.next().and_then(|word| word.parse::<u64>().ok());
    let ticks = field().zip(field()).map(|(user, system)| user + system);
    let ticks = ticks.ok_or("an incomplete /proc/self/stat")?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// Resident memory of this process in KiB: all of it, and all except the pages of program files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    pub(crate) all: u64,
    pub(crate) without_files: u64,
}

impl Resident {
    pub(crate) fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        Self { all: field("VmRSS:"), without_files: field("RssAnon:") + field("RssShmem:") }
    }

    /// How much more this is than `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            all: self.all.saturating_sub(before.all),
            without_files: self.without_files.saturating_sub(before.without_files),
        }
    }
}
