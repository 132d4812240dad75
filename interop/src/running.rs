//! A started program: observing, disturbing and ending it.

use std::fs;
use std::io::Read;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::output::Output;
use crate::scratch::Scratch;
use crate::tag::Tag;

/// The interval of polling a condition.
const TICK: Duration = Duration::from_millis(5);
/// How long the last processes of a dead group may take to disappear.
const REAP: Duration = Duration::from_secs(5);

/// A program in its own process group.
///
/// Dropping it kills the group, even while a test is failing.
#[derive(Debug)]
pub struct Running {
    child: Child,
    command: String,
    tag: Tag,
    deadline: Instant,
    leaves_daemon: bool,
    /// The directory that it runs from, kept for as long as it may run.
    _scratch: Arc<Scratch>,
    stdout: Pipe,
    stderr: Pipe,
    status: Option<ExitStatus>,
}

impl Running {
    pub(crate) fn new(
        mut child: Child,
        command: String,
        tag: Tag,
        limit: Duration,
        leaves_daemon: bool,
        scratch: Arc<Scratch>,
    ) -> Self {
        let stdout = Pipe::read(child.stdout.take().expect("stdout is piped"));
        let stderr = Pipe::read(child.stderr.take().expect("stderr is piped"));
        let deadline = Instant::now() + limit;
        Self {
            child,
            command,
            tag,
            deadline,
            leaves_daemon,
            _scratch: scratch,
            stdout,
            stderr,
            status: None,
        }
    }

    /// The process id of the first process of the group.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until a TCP socket of its network namespace listens on `port`.
    #[track_caller]
    pub fn wait_listening(&mut self, port: u16) {
        let tables =
            [format!("/proc/{}/net/tcp", self.pid()), format!("/proc/{}/net/tcp6", self.pid())];
        self.wait_until(&format!("a listener on port {port}"), |_| {
            tables.iter().any(|table| listens(table, port))
        });
    }

    /// Waits until the program has used `cpu` of processor time: then a polling program is past its
    /// set-up.
    #[track_caller]
    pub fn wait_busy(&mut self, cpu: Duration) {
        self.wait_until("processor time", |me| me.cpu_time() >= cpu);
    }

    /// Waits until the program has used no processor time for a while: then it sleeps.
    #[track_caller]
    pub fn wait_idle(&mut self) {
        let mut seen = (self.cpu_time(), Instant::now());
        self.wait_until("sleep", |me| {
            let now = me.cpu_time();
            if now != seen.0 {
                seen = (now, Instant::now());
            }
            seen.1.elapsed() >= Duration::from_millis(300)
        });
    }

    /// Waits until `text` appears in standard output or standard error.
    #[track_caller]
    pub fn wait_says(&mut self, text: &str) {
        self.wait_until(&format!("the words {text:?}"), |me| {
            me.stdout.text().contains(text) || me.stderr.text().contains(text)
        });
    }

    /// Standard output so far.
    pub fn printed(&self) -> String {
        self.stdout.text()
    }

    /// Standard error so far.
    pub fn errors(&self) -> String {
        self.stderr.text()
    }

    /// Waits until `ready` holds; fails if the program ends or its time runs out first.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, mut ready: impl FnMut(&Self) -> bool) {
        while !ready(self) {
            if self.try_wait().is_some() {
                panic!("it ended before {what}:\n{}", self.collect());
            }
            if Instant::now() >= self.deadline {
                self.signal(Signal::KILL);
                let _ = self.child.wait().map(|status| self.status = Some(status));
                panic!("its time was up before {what}:\n{}", self.collect());
            }
            std::thread::sleep(TICK);
        }
    }

    /// Whether it has not ended yet.
    pub fn is_alive(&mut self) -> bool {
        self.try_wait().is_none()
    }

    /// Kills the group as a crash would: SIGKILL, nothing runs afterwards.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Stops every process of the group (SIGSTOP).
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes a stopped group (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks the group to end (SIGINT, as a terminal would).
    pub fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// Ends the group if it has not ended after `grace`.
    pub fn end_unless_ended(&mut self, grace: Duration) {
        let until = Instant::now() + grace;
        while self.try_wait().is_none() {
            if Instant::now() >= until {
                // Not SIGINT, which is ignored if a shell started the tests in the background.
                return self.signal(Signal::TERM);
            }
            std::thread::sleep(TICK);
        }
    }

    /// Waits for the end. A program that outlives its limit is killed and the test fails.
    #[track_caller]
    pub fn finish(mut self) -> Output {
        self.end()
    }

    /// Waits until the processes that a daemonising program left are gone, too.
    #[track_caller]
    pub fn wait_orphans(&self) {
        let limit = self.deadline.saturating_duration_since(Instant::now());
        let left = self.tag.reap(limit);
        assert!(left.is_empty(), "{}: its daemons {left:?} did not end", self.command);
    }

    /// Like [`finish`](Self::finish), keeping the value for [`wait_orphans`](Self::wait_orphans).
    #[track_caller]
    pub fn end(&mut self) -> Output {
        while self.try_wait().is_none() {
            if Instant::now() >= self.deadline {
                self.signal(Signal::KILL);
                self.status = Some(self.child.wait().expect("our own child"));
                panic!("its time was up, killed:\n{}", self.collect());
            }
            std::thread::sleep(TICK);
        }
        if !self.leaves_daemon {
            let left = self.tag.reap(REAP);
            assert!(left.is_empty(), "it left processes {left:?} behind:\n{}", self.collect());
        }
        self.collect()
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("our own child");
        }
        self.status
    }

    fn signal(&self, signal: Signal) {
        let group = Pid::from_raw(self.child.id().cast_signed()).expect("a pid is not zero");
        // ESRCH: everything in it has ended.
        let _ = kill_process_group(group, signal);
    }

    /// User and system time of all processes of the group.
    fn cpu_time(&self) -> Duration {
        let ticks: u64 = self.tag.processes().into_iter().filter_map(cpu_ticks).sum();
        let hz = rustix::param::clock_ticks_per_second();
        Duration::from_millis(ticks * 1000 / hz)
    }

    fn collect(&mut self) -> Output {
        // A daemon may keep the pipes open: then the output is what it has written so far.
        if !self.leaves_daemon {
            self.stdout.join();
            self.stderr.join();
        }
        Output {
            command: self.command.clone(),
            status: self.status.expect("collected after the end"),
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.signal(Signal::CONT);
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
        self.tag.reap(Duration::ZERO);
    }
}

/// One end of a pipe, emptied by a thread so that the program never blocks on it.
#[derive(Debug)]
struct Pipe {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Pipe {
    fn read(mut from: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut chunk) {
                into.lock().expect("no holder panics").extend_from_slice(&chunk[..n]);
            }
        });
        Self { bytes, reader: Some(reader) }
    }

    fn join(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the reader does not panic");
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().expect("no holder panics")).into_owned()
    }
}

/// Whether `/proc/PID/net/tcp` or `tcp6` shows a socket in state LISTEN (0A) on `port`.
fn listens(table: &str, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    fs::read_to_string(table).is_ok_and(|text| {
        text.lines().skip(1).any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().unwrap_or_default();
            let state = words.nth(1).unwrap_or_default();
            local.ends_with(&suffix) && state == "0A"
        })
    })
}

/// `utime + stime` of `/proc/PID/stat` (fields 14 and 15, counted after the name in parentheses).
fn cpu_ticks(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}
