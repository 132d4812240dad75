//! `PEERDMA_TRACE`: what happens to buffers of this process's GPUs, beside what its NICs write to
//! the same trace. Neither knows the other: they meet in the file.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use gpu::{BufferEvent, Domain};
use perfetto::{Kind, Names, Trace};
use threads::whole::Mutex;

/// Names the file of the trace.
const TRACE: &str = "PEERDMA_TRACE";

/// The longest wait for another thread that writes. It may be this one, in a handler of a signal
/// that ends the process.
const PATIENCE: Duration = Duration::from_millis(20);

const CATEGORY: u64 = 1;
const TO_VRAM: u64 = 1;
const TO_GTT: u64 = 2;
const REVOKED: u64 = 3;
const BYTES: u64 = 1;
const WHY: u64 = 2;
const NAMES: Names<'_> = Names {
    categories: &["gpu"],
    events: &[(TO_VRAM, "move to VRAM"), (TO_GTT, "move to GTT"), (REVOKED, "revoked")],
    args: &["bytes", "why"],
    words: &[],
};

/// This process's part of the trace. It ends with the first error.
struct OfGpus {
    pid: u32,
    trace: Option<Trace>,
    /// The tracks of GPUs and of their buffers, by name.
    tracks: HashMap<String, u64>,
}

static OF_GPUS: Mutex<Option<OfGpus>> = Mutex::new(None);

/// Watches the GPUs if there is a trace.
pub(super) fn begin() {
    if environment::var_os(TRACE).is_some() {
        gpu::set_buffer_hook(happened);
    }
}

impl OfGpus {
    fn open() -> Self {
        let path = environment::var_os(TRACE).unwrap_or_default();
        let opened = Trace::open(Path::new(&path), &NAMES);
        let trace = opened.inspect_err(|error| {
            tracing::error!(target: "peerdma::trace", "no trace of GPUs: {error}");
        });
        Self { pid: std::process::id(), trace: trace.ok(), tracks: HashMap::new() }
    }

    fn write(&mut self, gpu: &str, buffer: &str, what: &BufferEvent<'_>) -> std::io::Result<()> {
        let Self { trace: Some(trace), tracks, .. } = self else { return Ok(()) };
        let mut track = |trace: &mut Trace, parent: u64, name: &str| {
            *tracks.entry(name.to_owned()).or_insert_with(|| trace.track(parent, name, 0))
        };
        let process = trace.process();
        let of_gpu = track(trace, process, &format!("GPU {gpu}"));
        let track = track(trace, of_gpu, buffer);
        let now = perfetto::now();
        match *what {
            BufferEvent::Moved { to, bytes, waited, why, .. } => {
                let name = if to == Domain::Vram { TO_VRAM } else { TO_GTT };
                // CAST: a move does not wait for centuries.
                let began = now.saturating_sub(waited.as_nanos() as u64);
                let mut event = trace.event(began, Kind::Begin, track, name);
                event.category(CATEGORY).number(BYTES, bytes).text(WHY, why);
                drop(event);
                drop(trace.event(now, Kind::End, track, 0));
            }
            BufferEvent::Revoked { why } => {
                let mut event = trace.event(now, Kind::Instant, track, REVOKED);
                event.category(CATEGORY).text(WHY, why);
            }
            _ => {}
        }
        trace.flush()
    }
}

/// Something happened to a buffer. It is written at once, unless another process is writing: it is
/// rare, and the process may be killed.
fn happened(gpu: &str, buffer: &str, what: &BufferEvent<'_>) {
    with(|of_gpus| of_gpus.get_or_insert_with(OfGpus::open).write(gpu, buffer, what));
}

/// Writes what waits, at the end of the process.
pub(super) fn end() {
    with(|of_gpus| {
        let trace = of_gpus.as_mut().and_then(|of_gpus| of_gpus.trace.as_mut());
        trace.map_or(Ok(()), Trace::finish)
    });
}

/// Does something with this process's part of the trace, which ends if that fails.
fn with(act: impl FnOnce(&mut Option<OfGpus>) -> std::io::Result<()>) {
    let began = Instant::now();
    let mut of_gpus = loop {
        match OF_GPUS.try_lock() {
            Some(of_gpus) => break of_gpus,
            None if began.elapsed() < PATIENCE => std::thread::yield_now(),
            None => return,
        }
    };
    let parents = of_gpus.take_if(|of| of.pid != std::process::id());
    if let Some(trace) = parents.and_then(|of| of.trace) {
        trace.abandon_in_child();
    }
    if let Err(error) = act(&mut of_gpus) {
        tracing::error!(target: "peerdma::trace", "the trace of GPUs ends here: {error}");
        if let Some(of_gpus) = of_gpus.as_mut() {
            of_gpus.trace = None;
        }
    }
}
