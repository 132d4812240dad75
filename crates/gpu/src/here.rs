//! The GPUs that this process has open.

use std::sync::{Arc, Weak};

use threads::whole::Mutex;

use crate::device::Device;

static OPEN: Mutex<Vec<Weak<Device>>> = Mutex::new(Vec::new());

/// Adds a GPU that was just opened.
pub(crate) fn add(device: &Arc<Device>) {
    let mut open = OPEN.lock();
    open.retain(|known| known.strong_count() > 0);
    open.push(Arc::downgrade(device));
}

/// The GPUs of this name, or all of them, except those opened before a fork.
pub(crate) fn open(name: Option<&str>) -> Vec<Arc<Device>> {
    // A GPU dropped here may be the last handle, so this is not done under the lock.
    let mut open: Vec<_> = OPEN.lock().iter().filter_map(Weak::upgrade).collect();
    open.retain(|device| {
        name.is_none_or(|name| *name == device.config.name) && !device.pools.ledger.is_husk()
    });
    open
}
