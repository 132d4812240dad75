//! Which inodes are ours. Any thread may ask at any time, without a lock.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The most inodes there may be at once.
const ROOM: usize = 8192;

/// Inodes of one file system, none of which is 0.
pub(crate) struct Inodes {
    dev: AtomicU64,
    /// Slots from here on were never used.
    top: AtomicUsize,
    slots: Box<[AtomicU64]>,
}

impl Inodes {
    pub(crate) fn new() -> Self {
        let slots = (0..ROOM).map(|_| AtomicU64::new(0)).collect();
        Self { dev: AtomicU64::new(0), top: AtomicUsize::new(0), slots }
    }

    /// Adds an inode; false if there is no room. All inodes are of the same file system. The caller
    /// holds the lock of the state.
    pub(crate) fn add(&self, dev: u64, ino: u64) -> bool {
        // ORDERING: a thread looks for an inode only after it was given the descriptor, which it is
        // after this; that orders the two.
        let free = self.slots.iter().position(|slot| slot.load(Ordering::Relaxed) == 0);
        let Some(free) = free else { return false };
        self.dev.store(dev, Ordering::Relaxed);
        self.slots[free].store(ino, Ordering::Relaxed);
        self.top.fetch_max(free + 1, Ordering::Relaxed);
        true
    }

    pub(crate) fn remove(&self, ino: u64) {
        if let Some(slot) = self.used().iter().find(|slot| slot.load(Ordering::Relaxed) == ino) {
            slot.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn has(&self, dev: u64, ino: u64) -> bool {
        self.dev.load(Ordering::Relaxed) == dev
            && self.used().iter().any(|slot| slot.load(Ordering::Relaxed) == ino)
    }

    fn used(&self) -> &[AtomicU64] {
        &self.slots[..self.top.load(Ordering::Relaxed).min(ROOM)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_known_from_add_to_remove() {
        let inodes = Inodes::new();
        assert!(!inodes.has(9, 7));
        assert!(inodes.add(9, 7) && inodes.add(9, 8));
        assert!(inodes.has(9, 7) && inodes.has(9, 8) && !inodes.has(1, 7));
        inodes.remove(7);
        assert!(!inodes.has(9, 7) && inodes.has(9, 8));
    }
}
