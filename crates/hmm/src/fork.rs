//! Forks. The child has the process's pages but no userfaultfd: pages that are away would read as
//! zeros there. So all pages come back before the fork, and none leaves until the child exists.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use threads::first::First;
use threads::fork::Handlers;

use crate::shared::Shared;

static MIRRORS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());
/// Whether a thread of the process is forking.
static FORKS: AtomicBool = AtomicBool::new(false);

/// From now on a fork finds all pages of this mirror in the process.
pub(crate) fn register(shared: &Arc<Shared>) {
    static HOOKS: First = First::new();
    // They take only locks of this crate, which a thread that forks does not hold, and none in the
    // child.
    HOOKS.call(|| {
        Handlers { prepare: Some(prepare), parent: Some(parent), child: Some(child) }.register();
    });
    while FORKS.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    let mut mirrors = mirrors();
    mirrors.retain(|mirror| mirror.strong_count() > 0);
    mirrors.push(Arc::downgrade(shared));
}

fn mirrors() -> MutexGuard<'static, Vec<Weak<Shared>>> {
    MIRRORS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn each(act: impl Fn(&Shared)) {
    let all: Vec<Arc<Shared>> = mirrors().iter().filter_map(Weak::upgrade).collect();
    all.iter().filter(|mirror| mirror.check().is_ok()).for_each(|mirror| act(mirror));
}

extern "C" fn prepare() {
    FORKS.store(true, Ordering::Release);
    each(Shared::freeze);
}

extern "C" fn parent() {
    each(Shared::thaw);
    FORKS.store(false, Ordering::Release);
}

extern "C" fn child() {
    FORKS.store(false, Ordering::Release);
}
