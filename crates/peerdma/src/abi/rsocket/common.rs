//! What streams and datagram sockets have in common: a number, flags, options, and waiting threads.

use std::ffi::{c_int, c_short};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::settings::SETTINGS;
use super::waker::Watchers;

/// What `poll(2)` reports for a readable, and for a writable descriptor.
pub(super) const IN: c_short = libc::POLLIN | libc::POLLRDNORM;
pub(super) const OUT: c_short = libc::POLLOUT | libc::POLLWRNORM;

/// See the module.
pub(super) struct Common {
    pub(super) fd: c_int,
    /// As of `F_GETFL` and `F_GETFD`.
    pub(super) status_flags: AtomicI32,
    pub(super) descriptor_flags: AtomicI32,
    options: Mutex<Options>,
    pub(super) watchers: Arc<Watchers>,
    /// A forked child has it in name only.
    pid: u32,
}

/// Options that the connection manager does not keep.
#[derive(Clone)]
pub(super) struct Options {
    pub(super) sizes: rsocket::Sizes,
    pub(super) reuse_addr: bool,
    pub(super) linger: bool,
    pub(super) oob_inline: bool,
    pub(super) no_delay: bool,
    pub(super) v6_only: bool,
    pub(super) tos: c_int,
    /// `SO_ERROR`.
    pub(super) error: c_int,
    /// Seconds between probes, if the program set them.
    pub(super) keep_idle: Option<u32>,
    /// When the next probe is due, if probes are wanted.
    pub(super) probe: Option<Instant>,
    /// The path to use (`RDMA_ROUTE`).
    pub(super) route: Vec<u8>,
}

impl Options {
    fn new() -> Self {
        Self {
            sizes: SETTINGS.sizes,
            reuse_addr: false,
            linger: true,
            oob_inline: false,
            no_delay: false,
            v6_only: false,
            tos: 0,
            error: 0,
            keep_idle: None,
            probe: None,
            route: Vec::new(),
        }
    }

    /// How long a connection may be silent before a probe.
    pub(super) fn keep_idle(&self) -> Duration {
        Duration::from_secs(self.keep_idle.unwrap_or(7200).into())
    }
}

impl Common {
    pub(super) fn new(fd: c_int) -> Self {
        Self {
            fd,
            status_flags: AtomicI32::new(libc::O_RDWR),
            descriptor_flags: AtomicI32::new(0),
            options: Mutex::new(Options::new()),
            watchers: Arc::default(),
            pid: std::process::id(),
        }
    }

    /// The same for a socket that a listener created, with the listener's options.
    pub(super) fn child(&self, fd: c_int) -> Self {
        let flag = |flag: &AtomicI32| AtomicI32::new(flag.load(Ordering::Relaxed));
        let options =
            Options { error: 0, probe: None, route: Vec::new(), ..self.options().clone() };
        Self {
            status_flags: flag(&self.status_flags),
            descriptor_flags: flag(&self.descriptor_flags),
            options: Mutex::new(options),
            ..Self::new(fd)
        }
    }

    pub(super) fn options(&self) -> MutexGuard<'_, Options> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether calls return instead of waiting.
    pub(super) fn is_nonblocking(&self) -> bool {
        self.status_flags.load(Ordering::Relaxed) & libc::O_NONBLOCK != 0
    }

    /// Whether a call with these flags may wait.
    pub(super) fn may_wait(&self, flags: c_int) -> bool {
        !self.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0
    }

    /// Whether it belongs to the parent of this process.
    pub(super) fn is_inherited(&self) -> bool {
        self.pid != std::process::id()
    }
}
