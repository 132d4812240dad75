//! The NIC as importer of dma-bufs.
//!
//! A region on a dma-buf is an attachment of the class of the NIC's persona (`docs/semantics.md`
//! 2.3 to 2.6), and the addresses it got from the exporter. When the exporter moves or revokes the
//! memory, its gate first stops every access, in this process and in those that use the direct
//! path; the call to the importer only returns the map. It needs nothing from the engine, and never
//! takes its lock: an exporter may hold its own lock for as long as it likes without affecting QPs,
//! except for accesses to this very buffer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dmabuf::gate::GateState;
use dmabuf::{
    Attachment, DeviceAddr, Direction, DmaBuf, Gate, GateSlot, Importer, ImporterClass, MapGuard,
    PinGuard, ResvGuard, SgTable, Usage,
};
use umem::Umem;

use crate::memory::BroughtIn;
use crate::memory::faults::Faults;
use crate::memory::finding::{Asked, Finding, is_current};
use crate::refusal::{Kind, Refusal, Result, from_attach, from_map, from_pin};

/// A dma-buf that a region imported.
#[derive(Debug)]
pub(crate) struct Import {
    buffer: DmaBuf,
    attachment: Attachment,
    importer: Arc<NicImporter>,
    /// The gate that accesses pass. `None`: the memory never moves.
    gate: Option<GateSlot>,
    /// The offset of the region in the buffer, and its length.
    offset: u64,
    length: u64,
    finding: Mutex<Finding>,
    /// Signals that the fault thread found something, or that an access took it.
    changed: Condvar,
}

/// How long an access waits for the fault thread before it is put off: about as long as a page
/// fault takes on a NIC.
const PATIENCE: Duration = Duration::from_micros(300);
/// How long the fault thread keeps a buffer where it found it, for the access to happen: otherwise
/// a GPU that moves it again and again would never let an access in.
const HOLD: Duration = Duration::from_millis(2);
/// How long the thread still keeps it there once the access has come.
const ACCESS: Duration = Duration::from_micros(200);

/// The callbacks of the dma-buf framework.
#[derive(Debug)]
struct NicImporter {
    nic: String,
    class: ImporterClass,
    device: Option<DeviceAddr>,
    /// The gate for an exporter that moves its memory but has none.
    own_gate: Option<Gate>,
    held: Mutex<Held>,
    invalidations: AtomicU64,
}

/// What the attachment holds on the buffer.
#[derive(Debug, Default)]
struct Held {
    map: Option<MapGuard>,
    pin: Option<PinGuard>,
    revoked: bool,
}

/// The result of an attempt to map again.
#[derive(Debug)]
pub(crate) enum Remapped {
    /// The memory is present; this is it.
    Here(Umem),
    /// It was present all along.
    Current,
    /// Not now.
    NotYet,
    /// The exporter refused: the access that asked fails, but another one may succeed
    /// (`docs/semantics.md` 2.5, 5).
    Refused,
    /// Never again.
    Gone,
}

impl NicImporter {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Importer for NicImporter {
    fn name(&self) -> &str {
        &self.nic
    }

    fn class(&self) -> ImporterClass {
        self.class
    }

    fn device(&self) -> Option<DeviceAddr> {
        self.device
    }

    fn invalidate_mappings(&self, resv: &ResvGuard<'_>, _attachment: &Attachment) {
        self.invalidations.fetch_add(1, Ordering::Relaxed);
        let closed = self.own_gate.as_ref().map(Gate::close);
        let mut held = self.held();
        if let Some(map) = held.map.take() {
            map.unmap(resv);
        }
        if self.class == ImporterClass::PinnedRevocable {
            if let Some(pin) = held.pin.take() {
                pin.unpin(resv);
            }
            held.revoked = true;
        }
        match closed {
            None => {}
            Some(Ok(closed)) if held.revoked => closed.revoke(),
            Some(Ok(closed)) => {
                closed.open();
            }
            Some(Err(error)) => {
                tracing::error!(target: "peerdma::peer-memory", nic = %self.nic, "{error}");
            }
        }
    }
}

impl Import {
    /// Attaches, pins if the class requires it, and maps: checks 12 to 14 of `docs/semantics.md`
    /// 2.2.
    pub(crate) fn new(
        nic: &str,
        class: ImporterClass,
        device: Option<DeviceAddr>,
        buffer: DmaBuf,
        offset: u64,
        length: u64,
    ) -> Result<(Arc<Self>, Umem)> {
        let io = |error: &dyn std::error::Error| {
            Refusal::new(Kind::Io, format!("reg_dmabuf_mr: the buffer's gate: {error}"))
        };
        let mut gate = buffer.gate_slot().map_err(|error| io(&error))?;
        let mut own_gate = None;
        if gate.is_none() && buffer.is_dynamic() && class.is_revocable() {
            let own = Gate::new(nic).map_err(|error| io(&error))?;
            gate = Some(own.slot().map_err(|error| io(&error))?);
            own_gate = Some(own);
        }
        let importer = Arc::new(NicImporter {
            nic: nic.to_owned(),
            class,
            device,
            own_gate,
            held: Mutex::default(),
            invalidations: AtomicU64::new(0),
        });
        let shared: Arc<dyn Importer> = Arc::clone(&importer) as Arc<dyn Importer>;
        let attachment = buffer.attach(&shared).map_err(from_attach)?;
        let (finding, changed) = (Mutex::default(), Condvar::new());
        let import = Self { buffer, attachment, importer, gate, offset, length, finding, changed };
        let umem = {
            let resv = import.attachment.resv().lock();
            if class.pins() {
                let pin = import.attachment.pin(&resv).map_err(from_pin)?;
                import.importer.held().pin = Some(pin);
            }
            // The whole buffer is mapped at once, and never a part (`docs/semantics.md` 2.5). The
            // map itself may have moved it, so the wait comes afterwards.
            let umem = import.map(&resv)?;
            import.wait_for_moves(&resv)?;
            umem
        };
        let umem = match umem {
            Some(umem) => umem,
            None => import.map_for_cpu()?,
        };
        Ok((Arc::new(import), umem))
    }

    /// The kernel's `ib_umem_dmabuf_map_pages` waits for fences of memory management, without a
    /// limit.
    fn wait_for_moves(&self, resv: &ResvGuard<'_>) -> Result<()> {
        debug_assert!(resv.protects(self.attachment.resv()), "the buffer's own lock");
        let waited = self.attachment.resv().wait(Usage::Kernel, None);
        waited.map_err(|error| Refusal::new(Kind::TimedOut, format!("reg_dmabuf_mr: {error}")))?;
        Ok(())
    }

    /// Maps, and keeps the map. `None`: the addresses are not on the bus of this process, so the
    /// memory is reached as the CPU reaches it.
    fn map(&self, resv: &ResvGuard<'_>) -> Result<Option<Umem>> {
        let map = self.attachment.map(resv, Direction::Bidirectional).map_err(from_map)?;
        let mut table = map.table().clone();
        if let Some(own) = &self.importer.own_gate {
            table.epoch = Some(own.epoch());
        }
        let umem = self.through(&table)?;
        // The earlier mapping ended with its gate.
        if let Some(old) = self.importer.held().map.replace(map) {
            old.unmap(resv);
        }
        Ok(umem)
    }

    fn through(&self, table: &SgTable) -> Result<Option<Umem>> {
        let on_bus = |entry: &dmabuf::SgEntry| dmabuf::window::of(entry.addr, entry.len).is_some();
        if !table.entries.iter().all(on_bus) {
            return Ok(None);
        }
        let umem = Umem::bus(table, self.offset, self.length, self.gate.clone());
        let umem = umem.map_err(|fault| {
            Refusal::new(Kind::Invalid, format!("reg_dmabuf_mr: the exporter's table: {fault}"))
        })?;
        Ok(Some(umem))
    }

    /// Why the memory is gone, in words.
    pub(crate) fn why_gone(&self) -> String {
        let info = self.buffer.info();
        let who = || format!("{} of {} was revoked by its owner", info.name, info.exporter);
        self.buffer.why_gone().unwrap_or_else(who)
    }

    fn map_for_cpu(&self) -> Result<Umem> {
        const PAGE: u64 = 4096;
        let refuse = |error: &dyn std::error::Error| {
            Refusal::new(Kind::Invalid, format!("reg_dmabuf_mr: {error}"))
        };
        let start = self.offset / PAGE * PAGE;
        let end = self.offset + self.length;
        let mapping = self.buffer.map(start, end - start).map_err(|error| refuse(&error))?;
        Umem::dmabuf(mapping, self.offset - start, self.length).map_err(|fault| refuse(&fault))
    }

    /// Maps again, at once or with the help of the fault thread. The engine is locked, and neither
    /// the program nor other QPs must wait for a GPU, so the wait is short; if it was too short,
    /// the access is tried again.
    pub(crate) fn remap(self: &Arc<Self>, umem: &Umem, faults: &Faults) -> Remapped {
        if is_current(umem) {
            return Remapped::Current;
        }
        if self.importer.held().revoked {
            return Remapped::Gone;
        }
        if self.importer.class != ImporterClass::Dynamic {
            return Self::look_again(umem);
        }
        if !self.is_remote() {
            let tried = self.try_remap();
            if !matches!(tried, Remapped::NotYet) {
                self.finding().forget();
                return tried;
            }
        }
        let is_new = self.finding().want(self.gate_state());
        if is_new && !faults.ask(Arc::clone(self)) {
            self.finding().end();
            return Remapped::Refused;
        }
        let waited = self
            .changed
            .wait_timeout_while(self.finding(), PATIENCE, |finding| !finding.is_found());
        let (mut finding, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let found = finding.take(self.gate_state());
        self.changed.notify_all();
        found.unwrap_or(Remapped::NotYet)
    }

    /// What to expect of an access that is tried again.
    pub(crate) fn outlook(&self, umem: &Umem) -> BroughtIn {
        if is_current(umem) {
            return BroughtIn::Here;
        }
        self.finding().outlook(self.gate_state())
    }

    /// Drops what the fault thread finds, as nobody will take it.
    pub(crate) fn forget(&self) {
        self.finding().forget();
    }

    fn gate_state(&self) -> Option<GateState> {
        self.gate.as_ref().map(GateSlot::state)
    }

    /// For pinned memory: its gate closes when it is revoked, and for a moment when it is revoked
    /// from other users, after which it opens again.
    fn look_again(umem: &Umem) -> Remapped {
        let Some((gate, mapped)) = umem.gate() else { return Remapped::Gone };
        match gate.state() {
            GateState::Closed { .. } => Remapped::NotYet,
            GateState::Open { epoch } | GateState::Orphaned { epoch } if epoch == mapped => {
                Remapped::Current
            }
            _ => Remapped::Gone,
        }
    }

    fn finding(&self) -> MutexGuard<'_, Finding> {
        self.finding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault thread's part: waits for its turn and for the exporter, and keeps the buffer in
    /// place until it was used.
    pub(super) fn remap_and_wait(&self, wake: impl FnOnce()) {
        let resv = self.attachment.resv().lock();
        // Before the exporter is asked: a change while it answers makes the answer outdated.
        let asked = Asked { when: Instant::now(), gate: self.gate_state() };
        let mapped = self.map(&resv).and_then(|umem| self.wait_for_moves(&resv).map(|()| umem));
        let found = self.outcome(mapped);
        let is_here = matches!(found, Remapped::Here(_));
        self.finding().put(found, asked);
        self.changed.notify_all();
        wake();
        if is_here {
            let waited =
                self.changed.wait_timeout_while(self.finding(), HOLD, |finding| finding.is_found());
            let (finding, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            drop(finding);
            if !waited.timed_out() {
                std::thread::sleep(ACCESS);
            }
        }
        drop(resv);
        self.finding().end();
    }

    fn try_remap(&self) -> Remapped {
        let Some(resv) = self.attachment.resv().try_lock() else { return Remapped::NotYet };
        if !self.attachment.resv().test_signaled(Usage::Kernel) {
            return Remapped::NotYet;
        }
        let mapped = self.map(&resv);
        // The map itself may have moved it, and the bytes are still being copied.
        if mapped.is_ok() && !self.attachment.resv().test_signaled(Usage::Kernel) {
            return Remapped::NotYet;
        }
        self.outcome(mapped)
    }

    /// The result of an attempt to map. A refusal concerns this attempt only: a GPU that is being
    /// reset maps again later.
    fn outcome(&self, mapped: Result<Option<Umem>>) -> Remapped {
        let why = match mapped {
            Ok(Some(umem)) => return Remapped::Here(umem),
            Err(refusal) if refusal.kind() == Kind::WouldBlock => return Remapped::NotYet,
            Ok(None) => {
                "it is no longer on the bus, where it was when it was registered".to_owned()
            }
            Err(refusal) => refusal.to_string(),
        };
        tracing::warn!(
            target: "peerdma::peer-memory", nic = %self.importer.nic,
            "an access fails, and its region stays: {why}"
        );
        Remapped::Refused
    }

    /// Whether its exporter lives in another process, so that every request to it takes time.
    pub(super) fn is_remote(&self) -> bool {
        self.buffer.exporter_process().is_some()
    }

    /// How often the exporter invalidated its map.
    pub(crate) fn invalidations(&self) -> u64 {
        self.importer.invalidations.load(Ordering::Relaxed)
    }
}
