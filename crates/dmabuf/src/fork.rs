//! What a fork does to gates, windows and connections.
//!
//! They belong to the process that made them. A child inherits neither the mappings
//! (`MADV_DONTFORK`) nor a place in the conversation with other processes: its copies are *husks*,
//! whose operations fail and whose drops do nothing, and the descriptors behind them are closed, so
//! that a lock or a connection ends with the process it stands for. An import in the child begins
//! anew, and finds a buffer of the parent's as one of another process.

use std::cell::RefCell;
use std::sync::Once;

pub use crate::sys::PrivateFd;
pub(crate) use crate::sys::generation;
use crate::sys::{self, HeldPrivate};

/// From now on forks are noticed.
///
/// The C library asks those who registered last first. Whoever holds a lock of its own while it
/// calls us, and keeps that lock across forks, must therefore register after this: a fork is to
/// take the two in the same order.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| sys::at_fork(prepare, parent, child));
}

/// The locks of everything process-wide here, held across a fork so that the child finds it whole.
/// In the order in which they nest.
struct Held {
    given: crate::given::HeldGiven,
    bufs: crate::buf::HeldRegistry,
    server: crate::share::HeldServer,
    links: crate::share::HeldLinks,
    windows: crate::window::HeldWindows,
    slots: crate::gate::HeldSlots,
    sync_files: crate::sync_file::HeldFiles,
    clients: crate::peer::HeldClients,
    strangers: crate::strangers::HeldStrangers,
    private: HeldPrivate,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

extern "C" fn prepare() {
    let held = Held {
        given: crate::given::hold_given(),
        bufs: crate::buf::hold_registry(),
        server: crate::share::hold_server(),
        links: crate::share::hold_links(),
        windows: crate::window::hold_windows(),
        slots: crate::gate::hold_slots(),
        sync_files: crate::sync_file::hold_files(),
        clients: crate::peer::hold_clients(),
        strangers: crate::strangers::hold(),
        private: sys::hold_private(),
    };
    HELD.set(Some(held));
}

extern "C" fn parent() {
    HELD.take();
}

extern "C" fn child() {
    let Some(held) = HELD.take() else { return };
    let Held {
        given,
        bufs,
        server,
        links,
        windows,
        slots,
        sync_files,
        clients,
        strangers,
        private,
    } = held;
    // From here on husks may be dropped.
    private.close_in_child();
    drop(clients);
    crate::strangers::forget(strangers);
    crate::share::forget_server(server);
    crate::share::forget_links(links);
    crate::gate::forget_slots(slots);
    crate::window::forget_windows(windows);
    crate::sync_file::forget_files(sync_files);
    crate::buf::forget_shared(bufs);
    crate::given::forget_given(given);
}

#[cfg(all(test, not(loom)))]
mod tests;
