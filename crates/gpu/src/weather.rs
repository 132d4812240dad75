//! Faults of GPU memory, from a fault plan: acts on the GPUs of this process that are triggered by
//! time, by functions of a runtime, and by packets of a NIC.
//!
//! `PEERDMA_FAULT` names the plan. A thread of their own performs the acts; it starts with the
//! first of them. A call of a runtime that triggers an act waits until it is done, so that the same
//! call meets the same fault in each run; a NIC does not wait, since that would stall its engine.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use environment::NamedFile;
use fault::{GpuAct, GpuStrike, Plan, Weather};
use threads::whole::Mutex;

use crate::act::{Act, Came};
use crate::error::{Result, no_device};
use crate::place::Domain;
use crate::worker;

const LOG: &str = "peerdma::fault-plan";

/// How long a call of a runtime waits for what it triggered.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a process waits at exit to report what fired.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// Whether calls of a runtime may trigger something: [`UNREAD`], [`NONE`] or [`SOME`].
static OPERATIONS: AtomicU8 = AtomicU8::new(UNREAD);
/// The plan was not read.
const UNREAD: u8 = 0;
const NONE: u8 = 1;
const SOME: u8 = 2;

static SKY: Mutex<Option<Sky>> = Mutex::new(None);

/// A plan at work in this process.
struct Sky {
    pid: u32,
    /// When the first GPU was opened; before that, when the plan was read.
    opened: Instant,
    has_gpu: bool,
    weather: Weather,
    /// The effect of each rule, by its position.
    came: BTreeMap<u64, (String, Came)>,
    title: String,
    is_reported: bool,
    report: Option<PathBuf>,
}

/// A GPU is about to be opened, or a runtime called: reads the plan, if not done yet.
pub(crate) fn begin() -> Result<()> {
    let Some(path) = environment::var_os("PEERDMA_FAULT") else {
        OPERATIONS.store(NONE, Ordering::Relaxed);
        return Ok(());
    };
    if is_ours(SKY.lock().as_ref()) {
        return Ok(());
    }
    // Without the lock, for which a fork waits.
    let new = Sky::read(Path::new(&path));
    let mut sky = SKY.lock();
    if is_ours(sky.as_ref()) {
        return Ok(());
    }
    let has_operations = new.as_ref().is_ok_and(|new| new.weather.has_operations());
    OPERATIONS.store(if has_operations { SOME } else { NONE }, Ordering::Relaxed);
    *sky = Some(new?);
    Ok(())
}

/// A GPU was opened: the plan's time begins with the first.
pub(crate) fn opened() {
    let mut sky = SKY.lock();
    let ours = sky.as_mut().filter(|sky| sky.pid == std::process::id() && !sky.has_gpu);
    let Some(here) = ours else { return };
    (here.has_gpu, here.opened) = (true, Instant::now());
    drop(sky);
    wait_for_next();
}

/// A function of a runtime is called: first does what the plan has for that function.
#[inline]
pub fn operation(name: &'static str) {
    if OPERATIONS.load(Ordering::Relaxed) != NONE {
        called(name);
    }
}

#[cold]
fn called(name: &'static str) {
    if OPERATIONS.load(Ordering::Relaxed) == UNREAD {
        // Code that opens a GPU is told what is wrong with the plan.
        let _ = begin();
    }
    let mut sky = SKY.lock();
    let Some(here) = sky.as_mut().filter(|sky| sky.pid == std::process::id()) else { return };
    let strikes = here.weather.operation(here.opened.elapsed(), name);
    drop(sky);
    if strikes.is_empty() {
        return;
    }
    tracing::debug!(target: LOG, "{name} meets {} faults", strikes.len());
    let (done, wait) = mpsc::channel();
    let is_given = worker::submit(Box::new(move || {
        strikes.iter().for_each(carry_out);
        let _ = done.send(());
    }));
    if is_given {
        // TIMEOUT: an act on many buffers, or on a buffer that the program uses all the time,
        // continues without this call.
        let _ = wait.recv_timeout(PATIENCE);
    }
}

/// A packet of a NIC triggered something. Returns at once.
pub fn struck(strike: GpuStrike) {
    let given = worker::submit(Box::new(move || {
        let mut sky = SKY.lock();
        if let Some(sky) = sky.as_mut().filter(|sky| sky.pid == std::process::id()) {
            sky.weather.struck(sky.opened.elapsed(), &strike);
        }
        drop(sky);
        carry_out(&strike);
    }));
    if !given {
        tracing::warn!(target: LOG, "a fault of a GPU is left out: too many wait");
    }
}

/// Reports what fired, in words, once. Called at the end of the process.
pub fn report() {
    // This thread may hold the lock itself: the handler of a signal may end the process.
    let start = Instant::now();
    let mut sky = loop {
        match SKY.try_lock() {
            Some(sky) => break sky,
            None if start.elapsed() > END_PATIENCE => return,
            None => std::thread::yield_now(),
        }
    };
    if let Some(sky) = sky.as_mut().filter(|sky| sky.pid == std::process::id()) {
        sky.report();
    }
}

/// Has the thread perform the next act that time triggers.
fn wait_for_next() {
    let sky = SKY.lock();
    let next = sky.as_ref().and_then(|sky| Some(sky.opened + sky.weather.deadline()?));
    drop(sky);
    if let Some(next) = next {
        // There is only one such job.
        worker::submit_at(next, Box::new(on_time), true);
    }
}

fn on_time() {
    let mut sky = SKY.lock();
    let Some(here) = sky.as_mut().filter(|sky| sky.pid == std::process::id()) else { return };
    let strikes = here.weather.due(here.opened.elapsed());
    drop(sky);
    strikes.iter().for_each(carry_out);
    wait_for_next();
}

/// Runs in the thread, without a lock.
fn carry_out(strike: &GpuStrike) {
    let by = format!("fault {} ({})", strike.rule, strike.name);
    let gpu = strike.gpu.as_deref();
    let buffers: Option<RangeInclusive<u64>> = strike.buffers.map(|span| span.first..=span.last);
    let (act, end) = acts(strike.act);
    let came = crate::acting::act(gpu, act, buffers.as_ref(), &by);
    tracing::info!(target: LOG, "{by}: {}", words(act, &came));
    let mut sky = SKY.lock();
    if let Some(sky) = sky.as_mut() {
        let (_, all) =
            sky.came.entry(strike.rule).or_insert_with(|| (strike.name.clone(), Came::default()));
        all.add(came);
        let words = words(act, all);
        sky.weather.note(strike, words);
    }
    drop(sky);
    if let Some((after, end)) = end {
        let gpu = strike.gpu.clone();
        let job = move || drop(crate::acting::act(gpu.as_deref(), end, None, &by));
        if !worker::submit_at(Instant::now() + after, Box::new(job), false) {
            tracing::warn!(target: LOG, "it ends at once: too many wait for their end");
            crate::acting::act(strike.gpu.as_deref(), end, None, "its end");
        }
    }
}

/// The act, and what ends it and when.
fn acts(act: GpuAct) -> (Act, Option<(Duration, Act)>) {
    match act {
        GpuAct::Move(fault::Domain::Vram) => (Act::Move(Domain::Vram), None),
        GpuAct::Move(fault::Domain::Gtt) => (Act::Move(Domain::Gtt), None),
        GpuAct::Evict => (Act::Evict, None),
        GpuAct::Revoke => (Act::Revoke, None),
        GpuAct::Reset => (Act::Reset, None),
        GpuAct::Unplug => (Act::Unplug, None),
        GpuAct::Fill(share, lasts) => {
            let window = lasts.map(|_| new_window());
            (Act::Fill(share, window), lasts.zip(window.map(Act::End)))
        }
        GpuAct::Throttle(rate, lasts) => {
            let window = lasts.map(|_| new_window());
            (Act::Throttle(rate, window), lasts.zip(window.map(Act::End)))
        }
    }
}

/// A number for a window, never used before.
fn new_window() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn words(act: Act, came: &Came) -> String {
    let mut words = act.words(came.done);
    if came.refused > 0 {
        let _ = write!(words, ", {} refused", came.refused);
        if let Some(why) = came.why.last() {
            let _ = write!(words, " ({why})");
        }
    }
    words
}

impl Sky {
    fn read(path: &Path) -> Result<Self> {
        let refused = |what| no_device(format!("fault plan {what}"));
        let file = NamedFile::read(path)
            .map_err(|error| refused(format!("{}: {error}", path.display())))?;
        let plan = Plan::parse(file.text()).map_err(|error| refused(file.blame(&error)))?;
        let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let program = program.trim_end();
        let pid = std::process::id();
        let title = format!(
            "fault plan {} (seed {}) in {program}, pid {pid}, on its GPUs",
            path.display(),
            plan.seed
        );
        Ok(Self {
            pid,
            opened: Instant::now(),
            has_gpu: false,
            weather: Weather::new(&plan, program),
            came: BTreeMap::new(),
            title,
            is_reported: false,
            report: environment::var_os("PEERDMA_FAULT_REPORT").map(PathBuf::from),
        })
    }

    fn report(&mut self) {
        if std::mem::replace(&mut self.is_reported, true) {
            return;
        }
        let fired: Vec<_> = self.weather.report().collect();
        if fired.is_empty() {
            return;
        }
        let mut words = format!("{}:\n", self.title);
        for fired in fired {
            let _ = writeln!(words, "  {fired}");
        }
        let appended = self.report.as_ref().map(|path| {
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path)?;
            file.write_all(words.as_bytes())
        });
        match appended {
            Some(Ok(())) => {}
            // The reader of standard error learns what fired. If it is closed, there is no reader.
            None => drop(std::io::stderr().write_all(format!("peerdma: {words}").as_bytes())),
            Some(Err(error)) => tracing::error!(target: LOG, "no report: {error}; {words}"),
        }
    }
}

/// Whether this process read the plan: a forked child starts over.
fn is_ours(sky: Option<&Sky>) -> bool {
    sky.is_some_and(|sky| sky.pid == std::process::id())
}
