//! The page that the two sides of a gate share, as one open file description of it.

use std::sync::atomic::{AtomicBool, AtomicUsize};

use descriptors::PrivateFd;

use crate::sys::SharedWords;

#[derive(Debug)]
pub(super) struct Page {
    pub(super) file: PrivateFd,
    pub(super) words: SharedWords,
    /// Device and inode of the file.
    pub(super) id: (u64, u64),
    /// Whether the gate's owner in this process opened it and still exists. The kernel does not
    /// report a lock to its own holder.
    pub(super) is_owners: AtomicBool,
    /// The slot by which the owner's process enters, or [`NONE`]. The owner cannot query this lock
    /// either.
    pub(super) own_slot: AtomicUsize,
}

pub(super) const NONE: usize = usize::MAX;

impl Page {
    pub(super) fn new(file: PrivateFd, words: SharedWords, id: (u64, u64), owners: bool) -> Self {
        let (is_owners, own_slot) = (AtomicBool::new(owners), AtomicUsize::new(NONE));
        Self { file, words, id, is_owners, own_slot }
    }
}
