//! What a fork does to descriptors.
//!
//! They belong to the process that made them. A child closes its copies before it does anything
//! else, so that a lock or a connection ends with the process it stands for. Their owner is a
//! *husk* in the child: it fails, and its drop does nothing.

use std::cell::RefCell;
use std::sync::OnceLock;

use threads::first::First;
use threads::fork::Handlers;

use crate::private::{self, HeldPrivate};
use crate::strangers::{self, HeldStrangers};

/// Locks of process-wide state, held across a fork so that the child finds it whole. In the parent
/// they are dropped.
pub trait Held {
    /// In the child: forgets the parent's state. Descriptors are closed already.
    fn forget(self: Box<Self>);
}

/// What takes the locks, in the order in which they nest.
pub type Hold = fn() -> Box<dyn Held>;

/// Of what lies above.
static ABOVE: OnceLock<Hold> = OnceLock::new();

/// From now on forks are noticed.
///
/// The C library calls the handlers that were registered last first. A crate that holds a lock of
/// its own while it calls us, and keeps that lock across forks, must therefore register after this:
/// a fork must take the two in the same order.
pub fn watch() {
    static ONCE: First = First::new();
    ONCE.call(|| {
        // Without them, forked children keep our descriptors.
        Handlers { prepare: Some(prepare), parent: Some(parent), child: Some(in_child) }.register();
    });
}

/// The same, for the one crate above this one that has locks of its own: they are taken before
/// those of this crate.
pub fn watch_also(hold: Hold) {
    let known = ABOVE.get_or_init(|| hold);
    debug_assert!(std::ptr::fn_addr_eq(*known, hold), "it is one crate");
    watch();
}

struct All {
    above: Option<Box<dyn Held>>,
    strangers: HeldStrangers,
    private: HeldPrivate,
}

thread_local! {
    static HELD: RefCell<Option<All>> = const { RefCell::new(None) };
}

extern "C" fn prepare() {
    let above = ABOVE.get().map(|hold| hold());
    HELD.set(Some(All { above, strangers: strangers::hold(), private: private::hold() }));
}

extern "C" fn parent() {
    HELD.take();
}

extern "C" fn in_child() {
    let Some(All { above, strangers, private }) = HELD.take() else { return };
    // From here on husks may be dropped.
    private.close_in_child();
    strangers::forget(strangers);
    if let Some(above) = above {
        above.forget();
    }
}
