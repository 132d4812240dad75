//! What a client consists of: its place on the bus, its ring and the thread that reaps
//! completions, and its statistics.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use dmabuf::DeviceAddr;
use rustix::io::Errno;
use sandbox::HINT;
use umem::Umem;

use crate::error::{Error, Result};
use crate::sys::{Fixed, Ring};

/// The configuration of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "programs build it")]
pub struct ClientConfig {
    /// The name that exporters and messages use for it.
    pub name: String,
    /// Where the client is on the bus; exporters use this to find out whether it reaches their
    /// memory. `None`: nowhere, so that it has no peer-to-peer access.
    pub addr: Option<DeviceAddr>,
    /// What moves the bytes.
    pub engine: Engine,
    /// Requests that may be in flight, 1 to 4096.
    pub depth: u32,
    /// Whether buffers are registered with the io_uring.
    pub fixed: bool,
    /// Whether all bytes go through ordinary memory, as with a device that has no peer-to-peer
    /// access: for comparison.
    pub bounce: bool,
}

/// What moves the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are no other ways")]
pub enum Engine {
    /// io_uring where this process may have one; otherwise a warning says why, and system calls
    /// are used instead.
    #[default]
    Auto,
    /// io_uring is required: without it there is no client.
    Uring,
    /// `pread` and `pwrite`: each request is complete when its call returns.
    Calls,
}

/// What a client has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests that succeeded.
    pub requests: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Of these, the bytes that went through ordinary memory.
    pub bounced: u64,
    /// Times that the kernel moved only a part of a request, and was asked for the rest.
    pub continued: u64,
    /// Requests that failed after they had started.
    pub failed: u64,
    /// Times that registered memory was passed to the kernel.
    pub fixed: u64,
}

pub(crate) struct Inner {
    config: ClientConfig,
    ring: Option<Arc<Ring>>,
    reaper: Mutex<Option<JoinHandle<()>>>,
    pub(crate) under_way: AtomicU32,
    pub(crate) counts: Counts,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) requests: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) bounced: AtomicU64,
    pub(crate) continued: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) fixed: AtomicU64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            name: "storage0".to_owned(),
            addr: None,
            engine: Engine::Auto,
            depth: 128,
            fixed: true,
            bounce: false,
        }
    }
}

impl Inner {
    pub(crate) fn new(config: &ClientConfig) -> Result<Self> {
        let mut config = config.clone();
        config.depth = config.depth.clamp(1, 4096);
        let started = match config.engine {
            Engine::Calls => None,
            Engine::Auto | Engine::Uring => match start(config.depth) {
                Ok(started) => Some(started),
                Err(error) => {
                    let (client, why) = (config.name.clone(), why(&error));
                    if config.engine == Engine::Uring {
                        return Err(Error::NoRing { client, why });
                    }
                    tracing::warn!(
                        target: "peerdma::storage",
                        "storage client {client}: no io_uring ({why}): pread and pwrite instead, one request at a time"
                    );
                    None
                }
            },
        };
        let (ring, reaper) = started.unzip();
        Ok(Self {
            config,
            ring,
            reaper: Mutex::new(reaper),
            under_way: AtomicU32::new(0),
            counts: Counts::default(),
        })
    }

    pub(crate) fn stats(&self) -> Stats {
        let Counts { requests, bytes, bounced, continued, failed, fixed } = &self.counts;
        // ORDERING: counters that only grow and are only reported.
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Stats {
            requests: load(requests),
            bytes: load(bytes),
            bounced: load(bounced),
            continued: load(continued),
            failed: load(failed),
            fixed: load(fixed),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    pub(crate) fn addr(&self) -> Option<DeviceAddr> {
        self.config.addr
    }

    pub(crate) fn depth(&self) -> u32 {
        self.config.depth
    }

    pub(crate) fn bounces(&self) -> bool {
        self.config.bounce
    }

    pub(crate) fn ring(&self) -> Option<&Arc<Ring>> {
        self.ring.as_ref()
    }

    pub(crate) fn broken(&self, why: &str) -> Error {
        Error::Broken { client: self.config.name.clone(), why: why.to_owned() }
    }

    /// Registers each contiguous part of a memory.
    pub(crate) fn register(&self, umem: &Umem) -> Vec<Arc<Fixed>> {
        let mut fixed = Vec::new();
        if let Some(ring) = self.ring.as_ref().filter(|_| self.config.fixed && !self.bounces()) {
            umem.for_each_part(0, umem.len(), |part, _, _| fixed.extend(ring.register(part)));
        }
        fixed
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A request holds the client, so none is in flight.
        let reaper = self.reaper.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (Some(ring), Some(reaper)) = (&self.ring, reaper) else { return };
        if !ring.is_ours() {
            return;
        }
        ring.stop();
        // The last request may have ended on the thread itself.
        if reaper.thread().id() != std::thread::current().id() && reaper.join().is_err() {
            tracing::error!(target: "peerdma::storage", "the thread of an io_uring panicked");
        }
    }
}

type Started = (Arc<Ring>, JoinHandle<()>);

/// A ring, and the thread that reaps completions if nobody else does, so that memory is released
/// when the kernel is done with it and not only when its user asks.
fn start(depth: u32) -> std::io::Result<Started> {
    let ring = Ring::new(depth)?;
    let reaping = Arc::clone(&ring);
    let reaper = threads::spawn("peerdma-storage", move || {
        while !reaping.is_stopped() {
            match reaping.wait() {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!(target: "peerdma::storage", "io_uring_enter: {error}");
                    return;
                }
            }
            reaping.reap();
        }
    })?;
    Ok((ring, reaper))
}

fn why(error: &std::io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::NOSYS) => {
            format!("this kernel has none, or a filter of system calls hides it{HINT}")
        }
        Some(Errno::PERM) => format!(
            "it is forbidden, by kernel.io_uring_disabled or a filter of system calls{HINT}"
        ),
        Some(Errno::MFILE) => dmabuf::in_words(Errno::MFILE),
        _ => error.to_string(),
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("config", &self.config)
            .field("has_ring", &self.ring.is_some())
            .finish_non_exhaustive()
    }
}
