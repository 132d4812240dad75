//! The exporter of a buffer of another process, as this process sees it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use descriptors::Known;
use rustix::fs::SealFlags;
use rustix::io::Errno;

use super::link::Link;
use super::message::{Attach, Facts, Mapped, Reply, Request};
use crate::attached::{AttachmentInfo, ImporterClass};
use crate::attachment::Attachment;
use crate::exporter::{
    Direction, Exporter, ExporterError, ExporterErrorKind, MmapBacking, Pinning, SgBacking,
    SgEntry, SgTable,
};
use crate::gate::{ClaimError, GateSlot, GateState};
use crate::shared::Shared;

use crate::remote::{Remote, RwFlags};
use crate::resv::ResvGuard;
use crate::sys;
use crate::window::{BusWindow, Placement};

/// How long the exit of a process may take, from the end of its connection to the release of its
/// locks.
const DYING: Duration = Duration::from_secs(1);

/// Forwards operations to the exporting process. Addresses are those of this process's bus window.
#[derive(Debug)]
pub(crate) struct Proxy {
    link: Arc<Link>,
    buf: u64,
    facts: Facts,
    slot: Option<GateSlot>,
    window: Option<BusWindow>,
    /// Set when the memory was taken away because the exporting process is gone.
    is_revoked: AtomicBool,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Keyed by the first address of the table.
    maps: BTreeMap<u64, Map>,
    /// The numbers of the pins, by attachment.
    pins: BTreeMap<u64, Vec<u64>>,
}

#[derive(Debug)]
struct Map {
    number: u64,
    attachment: u64,
    epoch: Option<u64>,
    placements: Vec<Placement>,
}

impl Proxy {
    pub(super) fn new(link: Arc<Link>, buf: u64, facts: Facts) -> Self {
        let held = Mutex::default();
        let is_revoked = AtomicBool::new(false);
        Self { link, buf, facts, slot: None, window: None, is_revoked, held }
    }

    pub(super) fn with(mut self, slot: Option<GateSlot>, window: BusWindow) -> Self {
        self.slot = slot;
        self.window = Some(window);
        self
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    pub(super) fn buf(&self) -> u64 {
        self.buf
    }

    /// Whether a note that this attachment's mappings are invalid comes too late: the gate has
    /// already shown that, and the present map was made after it. Telling the importer again would
    /// take valid mappings away from it.
    pub(super) fn is_late(&self, attachment: u64) -> bool {
        let Some(slot) = &self.slot else { return false };
        let held = self.held();
        let mut maps = held.maps.values().filter(|map| map.attachment == attachment);
        let all_hold = maps.all(|map| map.epoch.is_some_and(|epoch| slot.is_current(epoch)));
        // Notes that an exporter sent before it died may be read after its death, with the memory
        // still in its place.
        all_hold && matches!(slot.state(), GateState::Open { .. } | GateState::Orphaned { .. })
    }

    /// The exporting process is gone: the memory stays where it is, or is taken away.
    pub(super) fn end(&self, shared: &Shared) {
        let is_over = match &self.slot {
            None => self.facts.dies,
            Some(slot) => {
                // A connection may end while the process lives on; the gate itself then has the
                // information.
                let deadline = Instant::now() + DYING;
                while slot.is_owned() && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(1));
                }
                if self.facts.dies || slot.state() == GateState::Revoked {
                    slot.revoke_orphan();
                }
                self.facts.dies || slot.state() == GateState::Revoked
            }
        };
        if !is_over {
            tracing::info!("{:?} of an exporter that is gone stays where it is", shared.name());
            return;
        }
        let resv = shared.resv().lock();
        self.is_revoked.store(true, Ordering::Release);
        let attachments: Vec<_> = shared.attachments().iter().filter_map(Weak::upgrade).collect();
        for attachment in attachments {
            Attachment::from_inner(attachment).invalidate(&resv);
        }
    }

    fn check(&self) -> Result<(), ExporterError> {
        if self.is_revoked.load(Ordering::Acquire) {
            let what = "the memory was taken away when its exporter's process ended";
            return Err(ExporterError::new(ExporterErrorKind::NoDevice, what));
        }
        Ok(())
    }

    /// Makes a request that is either done or refused.
    fn ask(&self, request: &Request, undo: Option<Request>) -> Result<(), ExporterError> {
        self.check()?;
        match self.link.call(request, undo)?.0 {
            Reply::Done => Ok(()),
            _ => Err(self.link.lied("it answers another question")),
        }
    }

    /// Places the ranges at addresses in this process.
    fn place(
        &self,
        mapped: &Mapped,
        files: Vec<OwnedFd>,
        importer: &str,
    ) -> Result<(SgTable, Vec<Placement>), ExporterError> {
        let lie = |what| Err(self.link.lied(what));
        let files: Vec<_> = files.into_iter().map(|file| Arc::new(Known::new(file))).collect();
        let mut sizes = Vec::new();
        for file in &files {
            let sealed = sys::seals(file.as_fd()).is_some_and(|s| s.contains(SealFlags::SHRINK));
            match sys::identity(file.as_fd()) {
                Ok((_, size)) if sealed => sizes.push(size),
                _ => return lie("it gives memory that can vanish"),
            }
        }
        let Some(window) = &self.window else { return lie("there is no window") };
        let what = format!("{} of {}, mapped for {importer}", self.facts.exporter, self.who());
        let (mut entries, mut placements) = (Vec::new(), Vec::new());
        let mut total = 0u64;
        for entry in &mapped.entries {
            let at = usize::try_from(entry.file).ok().filter(|at| *at < files.len());
            let end = entry.offset.checked_add(entry.len);
            let (Some(at), Some(end)) = (at, end) else { return lie("it gives no such memory") };
            total = total.saturating_add(entry.len);
            if end > sizes[at] || total > self.facts.size {
                return lie("it gives memory beyond the end of a file or buffer");
            }
            let file = Arc::clone(&files[at]);
            let placed = window.place(file.as_fd(), entry.offset, entry.len, &what);
            let placed = placed.map_err(|error| {
                ExporterError::new(ExporterErrorKind::NoMemory, error.to_string())
            })?;
            let backing = Some(SgBacking { file, offset: entry.offset });
            entries.push(SgEntry { addr: placed.addr(), len: entry.len, backing });
            placements.push(placed);
        }
        if total != self.facts.size || mapped.epoch.is_some() != self.slot.is_some() {
            return lie("it gives another amount of memory than the buffer has, or no epoch");
        }
        Ok((SgTable { entries, epoch: mapped.epoch, map_type: mapped.map_type }, placements))
    }

    fn who(&self) -> String {
        self.link.pid().map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"))
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Remote for Proxy {
    fn is_idle(&self, writes: bool) -> Result<bool, ExporterError> {
        match self.ask(&Request::Poll { buf: self.buf, writes }, None) {
            Ok(()) => Ok(true),
            Err(error) if error.kind == ExporterErrorKind::Again => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn export_sync(&self, flags: RwFlags) -> Result<OwnedFd, ExporterError> {
        self.check()?;
        let request = Request::ExportSync { buf: self.buf, flags: flags.bits().into() };
        let (reply, fds) = self.link.call(&request, None)?;
        match (reply, <[OwnedFd; 1]>::try_from(fds)) {
            (Reply::Done, Ok([file])) => Ok(file),
            _ => Err(self.link.lied("it gives no fence")),
        }
    }

    fn import_sync(&self, flags: RwFlags, file: BorrowedFd<'_>) -> Result<(), ExporterError> {
        self.check()?;
        let file = rustix::io::fcntl_dupfd_cloexec(file, 0).map_err(|errno| {
            let kind = match errno {
                Errno::BADF => ExporterErrorKind::Invalid,
                errno => ExporterErrorKind::Kernel(errno),
            };
            ExporterError::new(kind, "no descriptor for a fence")
        })?;
        let request = Request::ImportSync { buf: self.buf, flags: flags.bits().into() };
        match self.link.ask(&request, None, &[file])?.0 {
            Reply::Done => Ok(()),
            Reply::Refused(error) => Err(error),
            _ => Err(self.link.lied("it answers another question")),
        }
    }
}

impl Exporter for Proxy {
    fn name(&self) -> &str {
        &self.facts.exporter
    }

    fn attach(&self, info: &mut AttachmentInfo) -> Result<(), ExporterError> {
        self.check()?;
        let attachment = info.id();
        let attach = Attach {
            buf: self.buf,
            attachment,
            class: info.class(),
            peer2peer: info.peer2peer(),
            device: info.device(),
            name: info.importer().to_owned(),
        };
        let undo = Some(Request::Detach { attachment });
        match self.link.call(&Request::Attach(attach), undo)?.0 {
            Reply::Attached { peer2peer } => {
                if !peer2peer {
                    info.clear_peer2peer();
                }
                Ok(())
            }
            _ => Err(self.link.lied("it answers an attach strangely")),
        }
    }

    fn detach(&self, info: &AttachmentInfo) {
        self.held().pins.remove(&info.id());
        self.link.post(Request::Detach { attachment: info.id() });
    }

    fn pinning(&self) -> Option<&dyn Pinning> {
        self.facts.has_pinning.then_some(self)
    }

    fn map_dma_buf(
        &self,
        _resv: &ResvGuard<'_>,
        info: &AttachmentInfo,
        direction: Direction,
    ) -> Result<SgTable, ExporterError> {
        self.check()?;
        let (attachment, map) = (info.id(), number());
        let undo = Request::Unmap { attachment, map };
        let request = Request::Map { attachment, map, direction };
        let (mapped, files) = match self.link.call(&request, Some(undo.clone()))? {
            (Reply::Mapped(mapped), files) => (mapped, files),
            _ => return Err(self.link.lied("it answers a map strangely")),
        };
        let (table, placements) =
            self.place(&mapped, files, info.importer()).inspect_err(|_| self.link.post(undo))?;
        let first = table.entries.first().map_or(0, |entry| entry.addr);
        self.held()
            .maps
            .insert(first, Map { number: map, attachment, epoch: table.epoch, placements });
        Ok(table)
    }

    fn unmap_dma_buf(
        &self,
        _resv: &ResvGuard<'_>,
        info: &AttachmentInfo,
        table: SgTable,
        _direction: Direction,
    ) {
        let first = table.entries.first().map_or(0, |entry| entry.addr);
        let Some(map) = self.held().maps.remove(&first) else { return };
        let current = match (&self.slot, table.epoch) {
            (Some(slot), Some(epoch)) if !slot.is_current(epoch) => {
                // The exporter's lock, which would keep us out until the gate is empty, is in
                // the other process.
                slot.settle(epoch);
                false
            }
            _ => true,
        };
        let why = if current { "it was unmapped" } else { "the exporter moved or revoked it" };
        for placement in map.placements {
            placement.retire(format!("{why}, and {} gave it back", info.importer()));
        }
        self.link.post(Request::Unmap { attachment: info.id(), map: map.number });
    }

    fn why_gone(&self) -> Option<String> {
        match (self.check(), &self.slot) {
            (Err(refusal), _) => Some(refusal.what),
            (Ok(()), Some(slot)) => slot.why(),
            (Ok(()), None) => None,
        }
    }

    fn gate_slot(&self) -> Result<Option<GateSlot>, ClaimError> {
        Ok(self.slot.clone())
    }

    fn process(&self) -> Option<u32> {
        Some(self.link.pid().unwrap_or(0))
    }

    fn is_coherent(&self) -> bool {
        self.facts.is_coherent
    }

    fn begin_cpu_access(&self, direction: Direction) -> Result<(), ExporterError> {
        let undo = Request::EndCpu { buf: self.buf, direction };
        self.ask(&Request::BeginCpu { buf: self.buf, direction }, Some(undo))
    }

    fn end_cpu_access(&self, direction: Direction) -> Result<(), ExporterError> {
        self.ask(&Request::EndCpu { buf: self.buf, direction }, None)
    }

    fn mmap_backing(&self, offset: u64, len: u64) -> Result<Option<MmapBacking>, ExporterError> {
        self.check()?;
        let hold = number();
        let request = Request::Hold { buf: self.buf, hold, offset, len };
        let undo = Some(Request::LetGo { hold });
        // Registered first, since a note may come before the answer.
        let zap = self.link.expect_zap(hold);
        let mut held = CpuHold { link: Arc::clone(&self.link), hold, is_held: false };
        let (mapped, files) = match self.link.call(&request, undo)? {
            (Reply::Mapped(mapped), files) => (mapped, files),
            (Reply::Done, _) => return Ok(None),
            _ => return Err(self.link.lied("it answers a hold strangely")),
        };
        held.is_held = true;
        let (Ok([file]), [entry]) = (<[OwnedFd; 1]>::try_from(files), &*mapped.entries) else {
            return Err(self.link.lied("it gives memory in several places to be mapped"));
        };
        let sealed =
            sys::seals(file.as_fd()).is_some_and(|seals| seals.contains(SealFlags::SHRINK));
        let size = sys::identity(file.as_fd()).map_or(0, |(_, size)| size);
        let end = entry.offset.checked_add(self.facts.size);
        if !sealed || end.is_none_or(|end| end > size) {
            return Err(self.link.lied("it gives memory that can vanish, or is not there"));
        }
        let backing = SgBacking { file: Arc::new(Known::new(file)), offset: entry.offset };
        Ok(Some(MmapBacking { backing, hold: Box::new(held), zap: Some(zap) }))
    }

    fn mmap(&self, offset: u64, len: u64) -> Result<(), ExporterError> {
        self.ask(&Request::Mmap { buf: self.buf, offset, len }, None)
    }
}

/// A range that the CPU has mapped here; the buffer stays where it is meanwhile.
struct CpuHold {
    link: Arc<Link>,
    hold: u64,
    /// Whether the exporter granted it.
    is_held: bool,
}

impl Drop for CpuHold {
    fn drop(&mut self) {
        self.link.forget_zap(self.hold);
        if self.is_held {
            self.link.post(Request::LetGo { hold: self.hold });
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.link.post(Request::Release { buf: self.buf });
    }
}

impl Pinning for Proxy {
    fn pin(&self, _resv: &ResvGuard<'_>, info: &AttachmentInfo) -> Result<(), ExporterError> {
        if info.class() == ImporterClass::Static {
            // A static importer's map pins in the process that serves it.
            return Ok(());
        }
        let (attachment, pin) = (info.id(), number());
        let undo = Request::Unpin { attachment, pin };
        self.ask(&Request::Pin { attachment, pin }, Some(undo))?;
        self.held().pins.entry(attachment).or_default().push(pin);
        Ok(())
    }

    fn unpin(&self, _resv: &ResvGuard<'_>, info: &AttachmentInfo) {
        let attachment = info.id();
        let pin = self.held().pins.get_mut(&attachment).and_then(Vec::pop);
        if let Some(pin) = pin {
            self.link.post(Request::Unpin { attachment, pin });
        }
    }
}

/// A number for a pin or map, not used before in this process.
fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
