//! What a fork does to gates, windows and connections.
//!
//! They belong to the process that made them. A child inherits neither the mappings
//! (`MADV_DONTFORK`) nor a place in the conversation with other processes: its copies are *husks*,
//! whose operations fail and whose drops do nothing, and the descriptors behind them are closed, so
//! that a lock or a connection ends with the process it stands for. An import in the child starts
//! over, and treats a buffer of the parent as one of another process.

use descriptors::fork;

/// From now on forks are noticed ([`fork::watch`]).
pub fn watch() {
    fork::watch_also(|| Box::new(Held::all()));
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
}

impl Held {
    fn all() -> Self {
        Self {
            given: crate::given::hold_given(),
            bufs: crate::buf::hold_registry(),
            server: crate::share::hold_server(),
            links: crate::share::hold_links(),
            windows: crate::window::hold_windows(),
            slots: crate::gate::hold_slots(),
            sync_files: crate::sync_file::hold_files(),
            clients: crate::peer::hold_clients(),
        }
    }
}

impl fork::Held for Held {
    fn forget(self: Box<Self>) {
        let Self { given, bufs, server, links, windows, slots, sync_files, clients } = *self;
        drop(clients);
        crate::share::forget_server(server);
        crate::share::forget_links(links);
        crate::gate::forget_slots(slots);
        crate::window::forget_windows(windows);
        crate::sync_file::forget_files(sync_files);
        crate::buf::forget_shared(bufs);
        crate::given::forget_given(given);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
