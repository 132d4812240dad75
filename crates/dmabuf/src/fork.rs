//! What a fork does to gates, windows and connections.
//!
//! They belong to the process that made them. A child inherits neither the mappings (`MADV_DONTFORK`) nor a place in the
//! conversation with other processes: its copies are *husks*, whose operations fail and whose drops do nothing, and the
//! descriptors behind them are closed, so that a lock or a connection ends with the process it stands for. An import in
//! the child begins anew, and finds a buffer of the parent's as one of another process.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use crate::sys;

/// Forks between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Descriptors that a child must close.
static PRIVATE: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

/// Which process this is, among a parent and its children. What was made under another number is a husk.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// From now on forks are noticed.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| sys::at_fork(prepare, parent, child));
}

/// A descriptor that a child of a fork closes before it does anything else, and never uses.
#[derive(Debug)]
pub struct PrivateFd {
    fd: ManuallyDrop<OwnedFd>,
    generation: u32,
}

impl PrivateFd {
    /// Takes charge of a descriptor.
    pub fn new(fd: OwnedFd) -> Self {
        watch();
        private().insert(fd.as_raw_fd());
        Self { fd: ManuallyDrop::new(fd), generation: generation() }
    }

    /// Whether it is that of a parent.
    pub(crate) fn is_husk(&self) -> bool {
        self.generation != generation()
    }
}

impl AsFd for PrivateFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for PrivateFd {
    fn drop(&mut self) {
        if self.is_husk() {
            // Closed by `child`; the number may be somebody else's by now.
            return;
        }
        // One critical section: between removal and close a fork would leak the descriptor into the child, between
        // close and removal it would close another file's.
        let mut private = private();
        private.remove(&self.fd.as_raw_fd());
        sys::drop_fd(&mut self.fd);
    }
}

fn private() -> MutexGuard<'static, BTreeSet<RawFd>> {
    PRIVATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The locks of everything process-wide here, held across a fork so that the child finds it whole. In the order in which
/// they nest.
struct Held {
    bufs: crate::buf::HeldRegistry,
    server: crate::share::HeldServer,
    links: crate::share::HeldLinks,
    windows: crate::window::HeldWindows,
    slots: crate::gate::HeldSlots,
    sync_files: crate::sync_file::HeldFiles,
    clients: crate::peer::HeldClients,
    strangers: crate::strangers::HeldStrangers,
    private: MutexGuard<'static, BTreeSet<RawFd>>,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

extern "C" fn prepare() {
    let held = Held {
        bufs: crate::buf::hold_registry(),
        server: crate::share::hold_server(),
        links: crate::share::hold_links(),
        windows: crate::window::hold_windows(),
        slots: crate::gate::hold_slots(),
        sync_files: crate::sync_file::hold_files(),
        clients: crate::peer::hold_clients(),
        strangers: crate::strangers::hold(),
        private: private(),
    };
    HELD.set(Some(held));
}

extern "C" fn parent() {
    HELD.take();
}

extern "C" fn child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    let Some(held) = HELD.take() else { return };
    let Held { bufs, server, links, windows, slots, sync_files, clients, strangers, mut private } =
        held;
    for fd in std::mem::take(&mut *private) {
        sys::close_in_child(fd);
    }
    // The descriptors are closed; from here on husks may be dropped, which takes that lock.
    drop(private);
    drop(clients);
    crate::strangers::forget(strangers);
    crate::share::forget_server(server);
    crate::share::forget_links(links);
    crate::gate::forget_slots(slots);
    crate::window::forget_windows(windows);
    crate::sync_file::forget_files(sync_files);
    crate::buf::forget_shared(bufs);
}

#[cfg(all(test, not(loom)))]
mod tests;
