//! Descriptors that a child of a fork must not keep.
#![allow(unsafe_code, reason = "closes by number in the child of a fork")]

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::fork;
use crate::known::{Inherited, Known};

/// The number of forks between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Those of this process. Only a [`PrivateFd`] that is no husk puts its number in, and takes it out
/// when it goes away.
static PRIVATE: Mutex<BTreeMap<RawFd, Inherited>> = Mutex::new(BTreeMap::new());

/// Which process this is, among a parent and its children. A value made under another number is a
/// husk.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// A descriptor that a child of a fork closes before it does anything else, and never uses.
#[derive(Debug)]
pub struct PrivateFd {
    fd: ManuallyDrop<Known>,
    generation: u32,
}

impl PrivateFd {
    /// Takes charge of a descriptor.
    pub fn new(fd: OwnedFd) -> Self {
        fork::watch();
        let fd = Known::new(fd);
        private().insert(fd.as_raw_fd(), fd.inherited());
        Self { fd: ManuallyDrop::new(fd), generation: generation() }
    }

    /// Whether it is that of a parent.
    pub fn is_husk(&self) -> bool {
        self.generation != generation()
    }

    /// Whether it is this process's, and the program did not touch its number ([`Known`]).
    pub fn is_ours(&self) -> bool {
        !self.is_husk() && self.fd.is_ours()
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
            // Closed by the child; the number may belong to something else by now.
            return;
        }
        // One critical section: between removal and close a fork would leak the descriptor into the
        // child, between close and removal it would close another file's.
        let mut private = private();
        private.remove(&self.fd.as_raw_fd());
        // SAFETY: this runs once, and the value goes away.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}

fn private() -> MutexGuard<'static, BTreeMap<RawFd, Inherited>> {
    PRIVATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The list, held across a fork.
pub(crate) struct HeldPrivate(MutexGuard<'static, BTreeMap<RawFd, Inherited>>);

/// Keeps the list unchanged.
pub(crate) fn hold() -> HeldPrivate {
    HeldPrivate(private())
}

impl HeldPrivate {
    /// In the child: closes them, and makes husks of their owners.
    pub(crate) fn close_in_child(mut self) {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        for fd in std::mem::take(&mut *self.0).into_values() {
            // SAFETY: a `PrivateFd` owns the number, and is a husk by now: it never uses or closes
            // it again.
            unsafe { fd.close() };
        }
    }
}
