//! A device attached to a buffer, and the guards for its pins and maps.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::Resv;
use crate::attached::{AttachmentInfo, ImporterClass};
use crate::exporter::{Direction, Exporter, ExporterError, ExporterErrorKind, SgEntry, SgTable};
use crate::importer::Importer;
use crate::resv::{ResvGuard, Usage};
use crate::shared::Shared;

/// A device's relation to a buffer, from attach to detach. A clone is the same attachment; it
/// detaches when the last clone and the last guard made from it are dropped.
#[doc(alias = "dma_buf_attachment")]
#[derive(Clone)]
pub struct Attachment {
    inner: Arc<Inner>,
}

/// The buffer does not move while this exists. Dropping it unpins; if a map made under the pin
/// still exists, the pin stays until that map is gone.
#[must_use = "the buffer is unpinned when the guard is dropped"]
#[derive(Debug)]
pub struct PinGuard {
    token: Arc<PinToken>,
}

/// The addresses by which the device reaches the buffer. Dropping it unmaps: at once if the
/// reservation lock is free, and otherwise before its holder releases the lock.
#[must_use = "the buffer is unmapped when the guard is dropped"]
#[derive(Debug)]
pub struct MapGuard {
    attachment: Arc<Inner>,
    direction: Direction,
    /// Taken out when the guard is dropped.
    table: Option<SgTable>,
    /// Keeps the pin that this map relies on. Declared after the table: unmap first, then unpin.
    pin: Option<Arc<PinToken>>,
}

/// Why a device was not attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The exporter refused.
    #[error("{exporter} refuses to attach {importer}: {reason}")]
    Exporter {
        /// The exporter.
        exporter: String,
        /// The importer.
        importer: String,
        /// The exporter's reason.
        #[source]
        reason: ExporterError,
    },
}

/// Why a buffer was not pinned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The guard holds another buffer's lock.
    #[error("pinning needs this buffer's reservation lock, and the guard holds another")]
    WrongLock,
    /// A static importer does not pin: the framework does it at each map.
    #[error("{importer} is a static importer, which may not pin")]
    Static {
        /// The importer.
        importer: String,
    },
    /// The memory was taken away for good.
    #[error("the buffer was revoked from {importer}")]
    Revoked {
        /// The importer.
        importer: String,
    },
    /// The exporter refused.
    #[error("{exporter} refuses to pin for {importer}: {reason}")]
    Exporter {
        /// The exporter.
        exporter: String,
        /// The importer.
        importer: String,
        /// The exporter's reason.
        #[source]
        reason: ExporterError,
    },
}

/// Why a buffer was not mapped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The guard holds another buffer's lock.
    #[error("mapping needs this buffer's reservation lock, and the guard holds another")]
    WrongLock,
    /// An importer of a pinning class must pin first.
    #[error("{importer} is a pinned importer and must pin before it maps")]
    NotPinned {
        /// The importer.
        importer: String,
    },
    /// The memory was taken away for good.
    #[error("the buffer was revoked from {importer}")]
    Revoked {
        /// The importer.
        importer: String,
    },
    /// The exporter refused the map, or the pin with which a static importer's map begins.
    #[error("{exporter} refuses to map for {importer}: {reason}")]
    Exporter {
        /// The exporter.
        exporter: String,
        /// The importer.
        importer: String,
        /// The exporter's reason.
        #[source]
        reason: ExporterError,
    },
}

pub(crate) struct Inner {
    info: AttachmentInfo,
    buf: Arc<Shared>,
    importer: Weak<dyn Importer>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Set once a pinned revocable attachment lost the memory.
    revoked: bool,
    /// The existing pins; dead entries belong to dropped guards.
    pins: Vec<Weak<PinToken>>,
}

/// One pin at the exporter, shared by its guard and the maps made under it.
struct PinToken {
    /// Taken out when the pin ends.
    attachment: Option<Arc<Inner>>,
}

impl Attachment {
    /// Attaches `importer`; see [`DmaBuf::attach`](crate::DmaBuf::attach).
    pub(crate) fn new(
        shared: &Arc<Shared>,
        importer: &Arc<dyn Importer>,
    ) -> Result<Self, AttachError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        shared.resv().assert_unlocked("attach");
        let class = importer.class();
        let mut info = AttachmentInfo {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            importer: importer.name().to_owned(),
            class,
            peer2peer: class != ImporterClass::Static && importer.allow_peer2peer(),
            device: importer.device(),
            process: importer.process(),
        };
        shared.exporter().attach(&mut info).map_err(|reason| AttachError::Exporter {
            exporter: shared.exporter().name().to_owned(),
            importer: info.importer.clone(),
            reason,
        })?;
        let inner = Arc::new(Inner {
            info,
            buf: Arc::clone(shared),
            importer: Arc::downgrade(importer),
            state: Mutex::default(),
        });
        let resv = shared.resv().lock();
        shared.add(&resv, Arc::downgrade(&inner));
        Ok(Self { inner })
    }

    pub(crate) fn from_inner(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// What the exporter knows about the attachment.
    pub fn info(&self) -> &AttachmentInfo {
        &self.inner.info
    }

    /// Whether the device may be given addresses of another device's memory.
    pub fn peer2peer(&self) -> bool {
        self.inner.info.peer2peer
    }

    /// Whether an invalidation reaches the importer.
    #[doc(alias = "dma_buf_attach_revocable")]
    pub fn is_revocable(&self) -> bool {
        self.inner.info.class.is_revocable()
    }

    /// Whether the memory was taken away for good.
    pub fn is_revoked(&self) -> bool {
        self.inner.state().revoked
    }

    /// The buffer's reservation lock.
    pub fn resv(&self) -> &Resv {
        self.inner.buf.resv()
    }

    /// Pins the buffer where it is. An exporter whose buffers never move accepts every pin.
    ///
    /// # Errors
    ///
    /// [`PinError`].
    #[doc(alias = "dma_buf_pin")]
    pub fn pin(&self, resv: &ResvGuard<'_>) -> Result<PinGuard, PinError> {
        if !resv.protects(self.resv()) {
            return Err(PinError::WrongLock);
        }
        let importer = || self.inner.info.importer.clone();
        if self.inner.info.class == ImporterClass::Static {
            return Err(PinError::Static { importer: importer() });
        }
        if self.is_revoked() {
            return Err(PinError::Revoked { importer: importer() });
        }
        let token = self.inner.pin(resv).map_err(|reason| PinError::Exporter {
            exporter: self.inner.exporter().name().to_owned(),
            importer: importer(),
            reason,
        })?;
        Ok(PinGuard { token })
    }

    /// Gets the addresses by which the device reaches the buffer.
    ///
    /// A static importer's map pins first, and finally waits for fences of class
    /// [`Kernel`](Usage::Kernel), so that a move in progress ends before the device starts. Other
    /// classes do this themselves: a pinning class must hold a [`PinGuard`], a dynamic importer
    /// must expect [`Importer::invalidate_mappings`], and both check the fences. If a step fails,
    /// the steps before it are undone.
    ///
    /// # Errors
    ///
    /// [`MapError`].
    #[doc(alias = "dma_buf_map_attachment")]
    pub fn map(&self, resv: &ResvGuard<'_>, direction: Direction) -> Result<MapGuard, MapError> {
        if !resv.protects(self.resv()) {
            return Err(MapError::WrongLock);
        }
        let inner = &self.inner;
        let importer = || inner.info.importer.clone();
        let refused = |reason| MapError::Exporter {
            exporter: inner.exporter().name().to_owned(),
            importer: importer(),
            reason,
        };
        if self.is_revoked() {
            return Err(MapError::Revoked { importer: importer() });
        }
        let pin = match inner.info.class {
            ImporterClass::Static => Some(inner.pin(resv).map_err(|reason| {
                if reason.kind == ExporterErrorKind::Busy {
                    // `dma_buf_map_attachment`: a static importer cannot be told that a move is
                    // still in progress.
                    tracing::warn!("static importer {} cannot pin: {reason}", inner.info.importer);
                }
                refused(reason)
            })?),
            ImporterClass::Dynamic => None,
            ImporterClass::Pinned | ImporterClass::PinnedRevocable => {
                let pin = inner.state().pins.iter().find_map(Weak::upgrade);
                Some(pin.ok_or_else(|| MapError::NotPinned { importer: importer() })?)
            }
        };
        let table = match inner.exporter().map_dma_buf(resv, &inner.info, direction) {
            Ok(table) => table,
            Err(reason) => {
                if let Some(pin) = pin {
                    pin.release(resv);
                }
                return Err(refused(reason));
            }
        };
        report_unaligned(&table, inner);
        inner.buf.count_map();
        let map = MapGuard { attachment: Arc::clone(inner), direction, table: Some(table), pin };
        if inner.info.class == ImporterClass::Static
            && self.resv().wait(Usage::Kernel, None).is_err()
        {
            unreachable!("a wait without a limit ends with the fences");
        }
        Ok(map)
    }

    /// As [`map`](Self::map), taking the lock for the call.
    ///
    /// # Errors
    ///
    /// [`MapError`].
    #[doc(alias = "dma_buf_map_attachment_unlocked")]
    pub fn map_unlocked(&self, direction: Direction) -> Result<MapGuard, MapError> {
        self.resv().assert_unlocked("map_unlocked");
        self.map(&self.resv().lock(), direction)
    }

    /// Tells the importer that its mappings are invalid.
    pub(crate) fn invalidate(&self, resv: &ResvGuard<'_>) {
        if !self.is_revocable() {
            return;
        }
        if self.inner.info.class == ImporterClass::PinnedRevocable {
            let mut state = self.inner.state();
            // Without a pin the importer has nothing to lose: the exporter moves the buffer to
            // where it will be pinned.
            let is_pinned = state.pins.iter().any(|pin| pin.strong_count() > 0);
            if !is_pinned || std::mem::replace(&mut state.revoked, true) {
                return;
            }
        }
        // An importer that is gone has nothing to invalidate: its guards were dropped with it.
        if let Some(importer) = self.inner.importer.upgrade() {
            importer.invalidate_mappings(resv, self);
        }
    }
}

impl PinGuard {
    /// Unpins now, under a lock that is already held. Maps made under the pin keep it until they
    /// are gone.
    #[doc(alias = "dma_buf_unpin")]
    pub fn unpin(self, resv: &ResvGuard<'_>) {
        self.token.release(resv);
    }
}

impl MapGuard {
    /// Where the device finds the buffer's bytes.
    pub fn table(&self) -> &SgTable {
        self.table.as_ref().expect("the table is only taken out when the guard goes")
    }

    /// The direction of the map.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Unmaps now, under a lock that is already held, as an importer does while it is being
    /// invalidated.
    #[doc(alias = "dma_buf_unmap_attachment")]
    pub fn unmap(mut self, resv: &ResvGuard<'_>) {
        if !resv.protects(self.attachment.buf.resv()) {
            debug_assert!(false, "the buffer's own lock");
            return;
        }
        if let Some(table) = self.table.take() {
            self.attachment.unmap(resv, table, self.direction);
        }
        if let Some(pin) = self.pin.take() {
            pin.release(resv);
        }
    }
}

impl PinToken {
    /// Drops one reference, under the lock. The last one unpins.
    fn release(self: Arc<Self>, resv: &ResvGuard<'_>) {
        let Some(mut last) = Arc::into_inner(self) else { return };
        match last.attachment.take() {
            Some(attachment) if resv.protects(attachment.buf.resv()) => attachment.unpin(resv),
            other => {
                debug_assert!(false, "a pin ends under its own buffer's lock");
                // Dropped anyway: its own drop unpins under the right lock.
                last.attachment = other;
            }
        }
    }
}

impl Drop for MapGuard {
    fn drop(&mut self) {
        let Some(table) = self.table.take() else { return };
        let attachment = Arc::clone(&self.attachment);
        let (direction, pin) = (self.direction, self.pin.take());
        self.attachment.buf.resv().when_locked(move |resv| {
            attachment.unmap(resv, table, direction);
            drop(pin);
        });
    }
}

impl Drop for PinToken {
    fn drop(&mut self) {
        let Some(attachment) = self.attachment.take() else { return };
        let resv = attachment.buf.resv().clone();
        resv.when_locked(move |resv| attachment.unpin(resv));
    }
}

impl Inner {
    pub(crate) fn info(&self) -> &AttachmentInfo {
        &self.info
    }

    fn exporter(&self) -> &dyn Exporter {
        self.buf.exporter()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pin(self: &Arc<Self>, resv: &ResvGuard<'_>) -> Result<Arc<PinToken>, ExporterError> {
        if let Some(pinning) = self.exporter().pinning() {
            pinning.pin(resv, &self.info)?;
        }
        let token = Arc::new(PinToken { attachment: Some(Arc::clone(self)) });
        let mut state = self.state();
        state.pins.retain(|pin| pin.strong_count() > 0);
        state.pins.push(Arc::downgrade(&token));
        Ok(token)
    }

    fn unpin(&self, resv: &ResvGuard<'_>) {
        if let Some(pinning) = self.exporter().pinning() {
            pinning.unpin(resv, &self.info);
        }
    }

    fn unmap(&self, resv: &ResvGuard<'_>, table: SgTable, direction: Direction) {
        self.exporter().unmap_dma_buf(resv, &self.info, table, direction);
        self.buf.uncount_map();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Every guard holds the attachment, so nothing is mapped or pinned any more. The detach
        // operation runs without the lock (`docs/semantics.md` 1.5), even if this drop happens in a
        // callback that holds it.
        let (buf, info) = (Arc::clone(&self.buf), self.info.clone());
        self.buf.resv().when_unlocked(move || {
            buf.remove_dead();
            buf.exporter().detach(&info);
        });
    }
}

/// Debug builds: importers expect whole pages, though some cope with less (`docs/semantics.md`
/// 1.1), so a table without them is reported, never refused.
fn report_unaligned(table: &SgTable, attachment: &Inner) {
    let page = rustix::param::page_size() as u64;
    let is_odd = |entry: &SgEntry| !(entry.addr | entry.len).is_multiple_of(page);
    if cfg!(debug_assertions)
        && let Some(entry) = table.entries.iter().find(|entry| is_odd(entry))
    {
        tracing::warn!(
            "{} maps {:#x} bytes at {:#x} for {}, which are not whole pages",
            attachment.exporter().name(),
            entry.len,
            entry.addr,
            attachment.info.importer
        );
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attachment").field(&self.inner.info).finish()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.fmt(f)
    }
}

impl fmt::Debug for PinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PinToken").field(&self.attachment).finish()
    }
}
