//! Counters below `ports/N/`: files whose contents are made when they are opened.
//!
//! To make them other processes are asked, and one that is stopped takes until our patience is at
//! its end. So a thread of the supervisor does that, and other calls are answered meanwhile.

use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;

use super::listener::{Answer, Listener};
use crate::live::Live;
use crate::sysfs::is_counted;

/// A counter that a program opens.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Counter {
    nic: String,
    port: String,
    name: String,
}

/// A call that waits for one.
struct Job {
    id: u64,
    counter: Counter,
    cloexec: bool,
}

/// The thread that answers such calls.
pub(super) struct Counting {
    jobs: Sender<Job>,
}

impl Counter {
    /// The counter that a file of the tree is.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let mut parts = path.to_str()?.rsplit('/');
        let mut next = || parts.next();
        let (name, directory, port) = (next()?, next()?, next()?);
        let (ports, nic) = (next()?, next()?);
        let is_one = matches!(directory, "counters" | "hw_counters") && ports == "ports";
        (is_one && is_counted(name)).then(|| Self {
            nic: nic.to_owned(),
            port: port.to_owned(),
            name: name.to_owned(),
        })
    }
}

impl Counting {
    /// Starts the thread.
    pub(super) fn start(live: Arc<Live>, listener: Listener) -> std::io::Result<Self> {
        let (jobs, taken) = channel();
        let thread = std::thread::Builder::new().name("peerdma-count".to_owned());
        thread.spawn(move || count(&live, &listener, &taken))?;
        Ok(Self { jobs })
    }

    /// Has a call answered. False if the thread has ended.
    pub(super) fn answer(&self, id: u64, counter: Counter, cloexec: bool) -> bool {
        self.jobs.send(Job { id, counter, cloexec }).is_ok()
    }
}

fn count(live: &Live, listener: &Listener, jobs: &Receiver<Job>) {
    for Job { id, counter, cloexec } in jobs {
        let Counter { nic, port, name } = &counter;
        let value = live.counter(nic, port, name);
        // Nobody closes descriptors while one is made and given away.
        let _still = live.keep_still();
        let answer = match file(value) {
            Ok(file) => Answer::File { file, cloexec },
            Err(error) => Answer::Error(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        };
        tracing::debug!(?counter, ?value, "door: counter");
        if let Err(error) = listener.answer(id, answer) {
            tracing::warn!(%error, "door: no answer could be given");
        }
    }
}

/// A file that has a number in it, and cannot be written.
fn file(value: u64) -> std::io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create("counter", MemfdFlags::CLOEXEC)?;
    let mut memory = std::fs::File::from(memory);
    writeln!(memory, "{value}")?;
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_counted_is_a_counter() {
        let of = |path: &str| Counter::of(Path::new(path)).map(|counter| counter.name);
        let hca = "/sys/devices/virtual/peerdma/peerdma0/infiniband/peerdma0";
        let counter = format!("{hca}/ports/1/counters/port_xmit_packets");
        assert_eq!(of(&counter).as_deref(), Some("port_xmit_packets"));
        let counter = format!("{hca}/ports/1/hw_counters/out_of_buffer");
        assert_eq!(of(&counter).as_deref(), Some("out_of_buffer"));
        for other in ["ports/1/hw_counters/lifespan", "ports/1/state", "node_type", "ports"] {
            assert_eq!(of(&format!("{hca}/{other}")), None, "{other}");
        }
        assert_eq!(of("/counters/out_of_buffer"), None);
    }

    #[test]
    fn a_counter_is_a_file_that_reads_as_the_kernels_does() {
        let mut file = std::fs::File::from(file(42).expect("memory"));
        assert_eq!(std::io::read_to_string(&file).expect("readable"), "42\n");
        file.write_all(b"0").expect_err("read-only");
    }
}
