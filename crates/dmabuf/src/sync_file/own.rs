//! Files for fences of this process.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use descriptors::Known;
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use super::{SyncFenceInfo, SyncFileError, SyncFileInfo};
use crate::fence::Fence;
use crate::fork::{self, Locked, Room};

/// The count of an eventfd whose fence is signaled. As a semaphore, the eventfd takes this many
/// reads to become unready, and nothing more can be written to it, so that a program which reads or
/// writes it by mistake changes nothing.
const SIGNALED: u64 = u64::MAX - 1;

/// Longest name of a sync_file, without its NUL.
const NAME_LEN: usize = 31;

/// A fence and its eventfd. A clone is the same file.
#[derive(Clone)]
pub(super) struct Own {
    inner: Arc<Inner>,
}

struct Inner {
    fence: Fence,
    name: String,
    event: Known,
    /// The id of the eventfd.
    id: u64,
    /// The process of the fence: a forked child shares the eventfd, and must not signal it for its
    /// parent.
    generation: u32,
}

impl Own {
    pub(super) fn new(fence: &Fence, name: &str) -> Result<Self, SyncFileError> {
        let system = |call| move |errno| SyncFileError::System { call, errno };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let event = Known::new(rustix::event::eventfd(0, flags).map_err(system("eventfd"))?);
        let (id, _) = descriptors::eventfd(event.as_fd())
            .ok_or(system("fdinfo of an eventfd")(Errno::NOENT))?;
        let mut end = name.len().min(NAME_LEN);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        let name = name[..end].to_owned();
        let generation = descriptors::generation();
        let inner = Arc::new(Inner { fence: fence.clone(), name, event, id, generation });
        registry().insert(id, Arc::downgrade(&inner));
        // The callback keeps the eventfd, and thus its id, until the fence is signaled: holders of
        // an fd of it are notified even after this value is gone.
        let waiting = Arc::clone(&inner);
        if fence.add_callback(move |_| waiting.show()).is_err() {
            inner.show();
        }
        Ok(Self { inner })
    }

    /// The file behind `fd`, if it is one of this process.
    pub(super) fn find(fd: BorrowedFd<'_>) -> Option<Self> {
        let (id, count) = descriptors::eventfd(fd)?;
        let known = registry().get(&id).and_then(Weak::upgrade);
        if let Some(inner) = known {
            return Some(Self { inner });
        }
        // Only we count so far: its fence was signaled, and everything but the fd is gone.
        if count != SIGNALED {
            return None;
        }
        let event = Known::new(rustix::io::fcntl_dupfd_cloexec(fd, 0).ok()?);
        let fence = Fence::signaled_stub();
        let generation = descriptors::generation();
        let inner = Inner { fence, name: "stub".to_owned(), event, id, generation };
        Some(Self { inner: Arc::new(inner) })
    }

    pub(super) fn fence(&self) -> &Fence {
        &self.inner.fence
    }

    pub(super) fn info(&self) -> SyncFileInfo {
        let fences = self.inner.fence.unwrap_parts().into_iter().map(|fence| SyncFenceInfo {
            timeline: fence.timeline_name().to_owned(),
            driver: fence.driver_name().to_owned(),
            status: fence.status(),
            timestamp: fence.timestamp().unwrap_or(0),
        });
        SyncFileInfo {
            name: self.inner.name.clone(),
            fences: fences.collect(),
            status: self.inner.fence.status(),
        }
    }
}

impl AsFd for Own {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.event.as_fd()
    }
}

impl Inner {
    /// Makes the file readable.
    fn show(&self) {
        if self.generation != descriptors::generation() {
            return;
        }
        if !self.event.is_ours() {
            return;
        }
        let shown = rustix::io::write(&self.event, &SIGNALED.to_ne_bytes());
        if let Err(errno) = shown {
            tracing::warn!("sync_file {} cannot be made ready: {errno}", self.name);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The id may belong to another file as soon as the eventfd is closed, which is after this.
        let mut registry = registry();
        if registry.get(&self.id).is_some_and(|known| known.strong_count() == 0) {
            registry.remove(&self.id);
        }
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Own")
            .field("name", &self.inner.name)
            .field("fence", &self.inner.fence)
            .finish_non_exhaustive()
    }
}

type Registry = BTreeMap<u64, Weak<Inner>>;

/// The files of this process, by the id of their eventfd.
fn registry() -> MutexGuard<'static, Registry> {
    static REGISTRY: Mutex<Registry> = Mutex::new(BTreeMap::new());
    fork::hold(Room::SyncFiles, || Box::new(registry()));
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Locked for MutexGuard<'static, Registry> {
    /// The parent's fences are signaled in the parent, and are not known here.
    fn forget(&mut self) {
        self.clear();
    }
}
