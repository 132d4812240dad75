//! Finds every process that a test started, including those that left its process group.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The variable that carries the tag.
pub(crate) const VARIABLE: &str = "PEERDMA_INTEROP_TAG";

/// A value that only the processes of one [`crate::Running`] carry in their environment.
#[derive(Clone, Debug)]
pub(crate) struct Tag(String);

impl Tag {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(format!("{}.{n}.", std::process::id()))
    }

    pub(crate) fn value(&self) -> &str {
        &self.0
    }

    /// The living processes that carry the tag. A zombie has no environment and is not counted.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let needle = format!("{VARIABLE}={}", self.0).into_bytes();
        let Ok(proc_dir) = fs::read_dir("/proc") else { return Vec::new() };
        proc_dir
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
            .filter(|pid| {
                fs::read(format!("/proc/{pid}/environ"))
                    .is_ok_and(|env| env.split(|b| *b == 0).any(|var| var == needle))
            })
            .collect()
    }

    /// Waits until no process carries the tag. Processes that are left after `limit` are killed and
    /// returned.
    pub(crate) fn reap(&self, limit: Duration) -> Vec<i32> {
        let deadline = Instant::now() + limit;
        loop {
            let left = self.processes();
            if left.is_empty() {
                return left;
            }
            if Instant::now() >= deadline {
                for pid in left.iter().filter_map(|pid| Pid::from_raw(*pid)) {
                    // ESRCH: it has ended by itself in the meantime.
                    let _ = kill_process(pid, Signal::KILL);
                }
                return left;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
