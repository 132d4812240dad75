//! Memory of a device in a BAR, as its driver lends it (`docs/semantics.md` 2.8 and 4.4).
//!
//! It is reached peer-to-peer or not at all, by the rules of the PCI tree. It is never pinned, so
//! only importers that can lose it may have it, and its owner takes it away from all of them before
//! it goes away.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use descriptors::Known;
use pci::{Bdf, PciTree};

use crate::attached::AttachmentInfo;
use crate::exporter::{
    Direction, Exporter, ExporterError, ExporterErrorKind, Pinning, SgBacking, SgEntry, SgTable,
    Sharing,
};
use crate::gate::{Gate, GateError};
use crate::reach::Provider;
use crate::resv::{Resv, ResvGuard, Usage};
use crate::revoke::StillInUse;
use crate::window::PlaceError;
use crate::{BusWindow, DmaBuf, ExportError, Placement};

/// The owner of the memory, and its location.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "drivers build it")]
pub struct BarRange {
    /// The exporter's name.
    pub owner: String,
    /// A description of the memory, for messages: `device memory of NAME`.
    pub what: String,
    /// The machine.
    pub tree: Arc<PciTree>,
    /// Where the owner is in the machine.
    pub bdf: Option<Bdf>,
    /// The file that has the bytes: sealed against shrinking, or a device's.
    pub file: OwnedFd,
    /// Where in the file they begin, page-aligned.
    pub offset: u64,
    /// Their number: whole pages.
    pub len: u64,
}

/// A dma-buf of memory in a BAR, from its owner's side. Dropping it takes the memory away.
pub struct BarBuf {
    buffer: DmaBuf,
    exporter: Arc<BarExporter>,
}

/// Why a range of a BAR cannot be a dma-buf.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BarError {
    /// The process has no bus window.
    #[error("no bus window: {0}")]
    Window(#[from] std::io::Error),
    /// The range got no bus address.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// No gate could be made.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// No file could be made for it.
    #[error(transparent)]
    Export(#[from] ExportError),
}

/// How the memory was taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Revoked {
    /// Nobody reaches it.
    Free,
    /// An access was in progress and did not end.
    Held,
}

struct BarExporter {
    owner: String,
    what: String,
    tree: Arc<PciTree>,
    bdf: Option<Bdf>,
    backing: SgBacking,
    /// Whether another mapping of the file has the same bytes.
    is_shared: bool,
    len: u64,
    gate: Gate,
    /// Why the memory was taken away, once it was.
    gone: Mutex<Option<String>>,
    /// The result. A thread that revokes holds the lock, so that another one waits for it.
    revoked: Mutex<Option<Revoked>>,
    /// Where devices of this process find it, until it is revoked.
    place: Mutex<Option<Placement>>,
}

impl BarBuf {
    /// Makes a dma-buf of this name.
    ///
    /// # Errors
    ///
    /// [`BarError`].
    pub fn new(range: BarRange, name: &str) -> Result<Self, BarError> {
        Self::with(range, true, name)
    }

    /// The same for a file that gives each mapping other memory, as the kernel's
    /// `p2pmem/allocate` does: it is mapped once, here, and importers in other processes are
    /// refused.
    ///
    /// # Errors
    ///
    /// [`BarError`].
    pub fn mapped_once(range: BarRange, name: &str) -> Result<Self, BarError> {
        Self::with(range, false, name)
    }

    fn with(range: BarRange, is_shared: bool, name: &str) -> Result<Self, BarError> {
        let window = BusWindow::of_process()?;
        let BarRange { owner, what, tree, bdf, file, offset, len } = range;
        let place = window.place(file.as_fd(), offset, len, &what)?;
        let backing = SgBacking { file: Arc::new(Known::from(file)), offset };
        let exporter = Arc::new(BarExporter {
            gate: Gate::new(&owner)?,
            owner,
            what,
            tree,
            bdf,
            backing,
            is_shared,
            len,
            gone: Mutex::default(),
            revoked: Mutex::default(),
            place: Mutex::new(Some(place)),
        });
        let buffer = DmaBuf::export_with(Arc::clone(&exporter) as _, len, name, Resv::new())?;
        Ok(Self { buffer, exporter })
    }

    /// The dma-buf for importers.
    pub fn buffer(&self) -> &DmaBuf {
        &self.buffer
    }

    /// Takes the memory away from every importer, in every process. Until the fences of their work
    /// are signaled they have full access; then they are stopped, told, and waited for until they
    /// have let go. Once `limit` has passed, which is for both waits together, nothing more is
    /// waited for: the memory is out of their reach in any case.
    ///
    /// # Errors
    ///
    /// [`StillInUse`].
    pub fn revoke(&self, why: &str, limit: Duration) -> Result<(), StillInUse> {
        self.buffer.revoke(
            |_| {
                // In vain if the limit passes: the wait that follows reports it.
                let _ = self.buffer.resv().wait(Usage::Bookkeep, Some(limit));
                self.exporter.revoke(why);
            },
            Some(limit),
        )
    }

    /// Takes the memory away; waits only for accesses that have begun. Returns whether its bytes
    /// may be reused: not if an access does not end. A second call waits for the first, and returns
    /// the same.
    #[must_use = "bytes that are still accessed are nobody else's"]
    pub fn close(&self, why: &str) -> bool {
        self.exporter.revoke(why) == Revoked::Free
    }
}

impl Drop for BarBuf {
    fn drop(&mut self) {
        self.exporter.revoke("its owner is gone");
    }
}

impl BarExporter {
    fn revoke(&self, why: &str) -> Revoked {
        let mut revoked = self.revoked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(revoked) = *revoked {
            return revoked;
        }
        let what = &self.what;
        *self.gone.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
        self.gate.tell(&format!("{what}: {why}"));
        // The gate stops every access, in every process.
        let how = match self.gate.revoke() {
            Ok(()) => Revoked::Free,
            Err(error) => {
                tracing::error!(target: "peerdma::peer-memory", "{what}: {error}");
                Revoked::Held
            }
        };
        let place = self.place.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(place) = place {
            place.retire(why);
        }
        *revoked.insert(how)
    }

    fn refuse<T>(&self, kind: ExporterErrorKind, why: &str) -> Result<T, ExporterError> {
        Err(ExporterError::new(kind, format!("{}: {why}", self.what)))
    }
}

impl Exporter for BarExporter {
    fn name(&self) -> &str {
        &self.owner
    }

    fn attach(&self, attachment: &mut AttachmentInfo) -> Result<(), ExporterError> {
        if attachment.peer2peer() {
            return Ok(());
        }
        self.refuse(ExporterErrorKind::NotSupported, "it is reached peer-to-peer or not at all")
    }

    fn pinning(&self) -> Option<&dyn Pinning> {
        Some(self)
    }

    fn map_dma_buf(
        &self,
        _resv: &ResvGuard<'_>,
        attachment: &AttachmentInfo,
        _direction: Direction,
    ) -> Result<SgTable, ExporterError> {
        let place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(place) = place.as_ref() else {
            let why = self.gone.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let why = why.as_deref().unwrap_or("it was freed");
            return self.refuse(ExporterErrorKind::NoDevice, why);
        };
        // The kernel calls dma_buf_phys_vec_to_sgt after the check whether the memory is there.
        let provider = Provider { tree: &self.tree, name: &self.owner, bdf: self.bdf };
        let map_type = match provider.reach(attachment.device()) {
            Ok(map_type) => map_type,
            Err(why) => return self.refuse(ExporterErrorKind::Invalid, &why),
        };
        let (addr, len) = (place.addr(), self.len);
        let backing = self.is_shared.then(|| self.backing.clone());
        let entry = SgEntry { addr, len, backing };
        Ok(SgTable { entries: vec![entry], epoch: Some(self.gate.epoch()), map_type })
    }

    fn gate(&self) -> Option<&Gate> {
        Some(&self.gate)
    }

    fn why_gone(&self) -> Option<String> {
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.as_ref().map(|why| format!("{}: {why}", self.what))
    }

    fn sharing(&self) -> Sharing {
        if self.is_shared { Sharing::HostRevoked } else { Sharing::Process }
    }
}

impl Pinning for BarExporter {
    fn pin(&self, _: &ResvGuard<'_>, _: &AttachmentInfo) -> Result<(), ExporterError> {
        self.refuse(ExporterErrorKind::NotSupported, "it cannot be pinned")
    }

    fn unpin(&self, _: &ResvGuard<'_>, _: &AttachmentInfo) {}
}

impl fmt::Debug for BarBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BarExporter { what, backing, len, .. } = &*self.exporter;
        write!(f, "BarBuf({what}, {len:#x} bytes at {:#x})", backing.offset)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::fence::Timeline;
    use crate::sys;

    fn memory() -> BarBuf {
        let file = sys::sealed_memfd("peerdma:bar", 4096).expect("memory exists");
        let tree = Arc::new(PciTree::default());
        let (owner, what) = ("nic".to_owned(), "device memory of nic".to_owned());
        let range = BarRange { owner, what, tree, bdf: None, file, offset: 0, len: 4096 };
        BarBuf::new(range, "dm").expect("a buffer")
    }

    /// Work on the memory that is not done yet.
    fn begin_work(dm: &BarBuf) -> Timeline {
        let work = Timeline::new("nvme", "read");
        let guard = dm.buffer.resv().lock();
        guard.reserve_fences(1).expect("memory");
        guard.add_fence(&work.point(), Usage::Bookkeep).expect("a slot was reserved");
        work
    }

    /// `docs/semantics.md` 1.6.
    #[test]
    fn work_that_has_begun_keeps_its_access_until_its_fence_is_signaled() {
        let dm = memory();
        let work = begin_work(&dm);
        let epoch = dm.exporter.gate.epoch();
        std::thread::scope(|scope| {
            let revoker = scope.spawn(|| dm.revoke("it was freed", Duration::from_secs(30)));
            while dm.buffer.resv().try_lock().is_some() {
                std::thread::yield_now();
            }
            assert!(dm.exporter.gate.admits(epoch), "the revoker waits");
            work.signal(1);
            assert_eq!(revoker.join().expect("no panic"), Ok(()));
        });
        assert!(dm.exporter.gate.is_revoked());
    }

    #[test]
    fn work_that_does_not_end_loses_the_memory() {
        let dm = memory();
        let _work = begin_work(&dm);
        let revoked = dm.revoke("it was freed", Duration::ZERO);
        assert_eq!(revoked, Err(StillInUse::Fences { count: 1 }));
        assert!(dm.exporter.gate.is_revoked());
    }

    /// A caller that is told that the bytes are free may give them to somebody else.
    #[test]
    fn a_second_close_returns_the_result_of_the_first() {
        let dm = memory();
        let mut first = dm.exporter.revoked.lock().expect("nobody panicked");
        let second = std::thread::scope(|scope| {
            let second = scope.spawn(|| dm.close("the second"));
            *first = Some(Revoked::Held);
            drop(first);
            second.join().expect("an answer")
        });
        assert!(!second, "somebody was inside when the first one ended");
        assert_eq!(dm.buffer().why_gone(), None, "the second one took nothing away");
        assert!(memory().close("alone"));
    }
}
