//! What all handles of a buffer share, and the buffers of this process.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use descriptors::Known;
use rustix::fs::OFlags;

use crate::attached::AttachmentInfo;
use crate::attachment::Inner as AttachmentInner;
use crate::exporter::{Exporter, IosysMap};
use crate::fork::{self, Locked, Room};
use crate::poll::queue::PollQueue;
use crate::remote::Remote;
use crate::resv::{Resv, ResvGuard};

/// The facts about a buffer's file when the buffer was made or imported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileFacts {
    pub(crate) ino: u64,
    pub(crate) flags: OFlags,
}

pub(crate) struct Shared {
    size: u64,
    pub(crate) facts: FileFacts,
    pub(crate) name: Mutex<String>,
    is_kernel: bool,
    exporter: Arc<dyn Exporter>,
    /// The same exporter, if it is in another process.
    remote: Option<Arc<dyn Remote>>,
    /// The open file description with which the buffer was made, if it was made here.
    origin: Option<Arc<Known>>,
    resv: Resv,
    attachments: Mutex<Vec<Weak<AttachmentInner>>>,
    /// The number of existing maps of attachments.
    maps: Mutex<usize>,
    pub(crate) unmapped: Condvar,
    /// Users of the exporter's CPU map. Changed under the reservation lock.
    pub(crate) vmap: Mutex<Option<(IosysMap, usize)>>,
    pub(crate) poll: Arc<PollQueue>,
}

impl Shared {
    pub(crate) fn make(
        facts: FileFacts,
        size: u64,
        name: String,
        is_kernel: bool,
        exporter: Arc<dyn Exporter>,
        resv: Resv,
    ) -> Self {
        Self {
            size,
            facts,
            name: Mutex::new(name),
            is_kernel,
            exporter,
            remote: None,
            origin: None,
            resv,
            attachments: Mutex::default(),
            maps: Mutex::new(0),
            unmapped: Condvar::new(),
            vmap: Mutex::new(None),
            poll: Arc::default(),
        }
    }

    /// The state of a buffer of another process.
    pub(crate) fn make_remote(
        facts: FileFacts,
        size: u64,
        name: String,
        remote: Arc<dyn Remote>,
    ) -> Self {
        let exporter = Arc::clone(&remote) as Arc<dyn Exporter>;
        let mut made = Self::make(facts, size, name, false, exporter, Resv::new());
        made.remote = Some(remote);
        made
    }

    /// Records that it was made here, with this open file description.
    pub(crate) fn with_origin(mut self, file: &Arc<Known>) -> Self {
        self.origin = Some(Arc::clone(file));
        self
    }

    /// The exporter, if it is in another process.
    pub(crate) fn remote(&self) -> Option<&dyn Remote> {
        self.remote.as_deref()
    }

    /// The open file description with which the buffer was made, if it was made here.
    pub(crate) fn origin(&self) -> Option<&Arc<Known>> {
        self.origin.as_ref()
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn is_kernel(&self) -> bool {
        self.is_kernel
    }

    pub(crate) fn name(&self) -> String {
        self.name.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The attached devices.
    pub(crate) fn attached(&self) -> Vec<AttachmentInfo> {
        let attachments: Vec<_> = self.attachments().iter().filter_map(Weak::upgrade).collect();
        attachments.iter().map(|attachment| attachment.info().clone()).collect()
    }

    pub(crate) fn exporter(&self) -> &dyn Exporter {
        &*self.exporter
    }

    pub(crate) fn resv(&self) -> &Resv {
        &self.resv
    }

    /// Adds an attachment to the list, under the lock.
    pub(crate) fn add(&self, _resv: &ResvGuard<'_>, attachment: Weak<AttachmentInner>) {
        self.attachments().push(attachment);
    }

    /// Removes attachments that are gone.
    pub(crate) fn remove_dead(&self) {
        self.attachments().retain(|attachment| attachment.strong_count() > 0);
    }

    pub(crate) fn count_map(&self) {
        *self.maps() += 1;
    }

    pub(crate) fn uncount_map(&self) {
        let mut maps = self.maps();
        *maps -= 1;
        // Waiters only wait for the last one, and each wake-up is a system call.
        if *maps == 0 {
            self.unmapped.notify_all();
        }
    }

    pub(crate) fn attachments(&self) -> MutexGuard<'_, Vec<Weak<AttachmentInner>>> {
        self.attachments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn maps(&self) -> MutexGuard<'_, usize> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.exporter.release();
        registry().retain(|_, shared| shared.strong_count() > 0);
    }
}

pub(crate) type Registry = BTreeMap<(u64, u64), Weak<Shared>>;

/// The buffers of this process by the identity of their file, so that two fds of one buffer give
/// one object.
pub(crate) fn registry() -> MutexGuard<'static, Registry> {
    static REGISTRY: Mutex<Registry> = Mutex::new(BTreeMap::new());
    fork::hold(Room::Buffers, || Box::new(registry()));
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The buffers of this process that are still in use.
#[doc(alias = "dma_buf_iter_begin")]
pub(crate) fn all() -> Vec<Arc<Shared>> {
    registry().values().filter_map(Weak::upgrade).collect()
}

impl Locked for MutexGuard<'static, Registry> {
    /// A buffer whose exporter is in the parent, or is served from there, is now a buffer of
    /// another process.
    fn forget(&mut self) {
        self.clear();
    }
}
