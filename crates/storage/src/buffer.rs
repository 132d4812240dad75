//! A dma-buf as a storage client sees it: the importer's side.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dmabuf::gate::OwnedGateGuard;
use dmabuf::{
    Attachment, DeviceAddr, Direction, DmaBuf, GateSlot, Importer, ImporterClass, MapError,
    MapGuard, Reach, ResvGuard, SgEntry, Stale, Usage,
};
use umem::{Fault, HostBuf, Umem};

use crate::engine::Inner as Client;
use crate::sys::Fixed;
use crate::{Error, Result};

/// How long a request waits for a move to end before it starts.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Memory that a [`Client`](crate::Client) reads into and writes from. A clone is the same buffer.
#[derive(Clone)]
pub struct Buffer {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    client: Arc<Client>,
    kind: Kind,
}

enum Kind {
    /// Ordinary memory of this process.
    Host(Arc<View>),
    /// A dma-buf.
    Imported(Box<Imported>),
}

struct Imported {
    attachment: Attachment,
    importer: Arc<StorageImporter>,
    gate: Option<GateSlot>,
    buffer: DmaBuf,
}

/// Where the bytes are, until they move.
pub(crate) struct View {
    pub(crate) umem: Umem,
    map_type: Reach,
    /// Whether direct I/O reaches them.
    pub(crate) is_on_bus: bool,
    fixed: OnceLock<Vec<Arc<Fixed>>>,
}

/// A view that is valid, and stays so while the guard exists.
pub(crate) type Entered = (Arc<View>, Option<Arc<OwnedGateGuard>>);

/// The callbacks for the dma-buf framework.
struct StorageImporter {
    name: String,
    addr: Option<DeviceAddr>,
    mapped: Mutex<Mapped>,
}

#[derive(Default)]
struct Mapped {
    map: Option<MapGuard>,
    /// The view made from the mapping.
    view: Option<Arc<View>>,
}

impl StorageImporter {
    fn mapped(&self) -> MutexGuard<'_, Mapped> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The view, if it is valid.
    fn known(&self) -> Option<Arc<View>> {
        self.mapped().view.clone().filter(|view| view.is_current())
    }
}

impl Importer for StorageImporter {
    fn name(&self) -> &str {
        &self.name
    }

    fn class(&self) -> ImporterClass {
        ImporterClass::Dynamic
    }

    fn allow_peer2peer(&self) -> bool {
        self.addr.is_some()
    }

    fn device(&self) -> Option<DeviceAddr> {
        self.addr
    }

    fn invalidate_mappings(&self, resv: &ResvGuard<'_>, _attachment: &Attachment) {
        let Mapped { map, view } = std::mem::take(&mut *self.mapped());
        // Dropping the view drops the registered pages. No request is in flight: the exporter has
        // closed its gate.
        drop(view);
        if let Some(map) = map {
            map.unmap(resv);
        }
    }
}

impl Buffer {
    pub(crate) fn import(client: &Arc<Client>, buffer: &DmaBuf) -> Result<Self> {
        let refused = |why: String| Error::Attach { client: client.name().to_owned(), why };
        let gate = buffer.gate_slot().map_err(|error| refused(format!("{buffer:?}: {error}")))?;
        let (name, addr) = (client.name().to_owned(), client.addr());
        let importer = Arc::new(StorageImporter { name, addr, mapped: Mutex::default() });
        let shared: Arc<dyn Importer> = Arc::clone(&importer) as _;
        let attachment = buffer.attach(&shared).map_err(|error| refused(error.to_string()))?;
        let imported = Imported { attachment, importer, gate, buffer: buffer.clone() };
        let kind = Kind::Imported(Box::new(imported));
        let made = Self { inner: Arc::new(Inner { client: Arc::clone(client), kind }) };
        // A mapping that is refused is refused now, and not at the first request.
        made.inner.view()?;
        Ok(made)
    }

    pub(crate) fn host(client: &Arc<Client>, memory: &HostBuf) -> Self {
        let view = View {
            umem: Umem::host(memory),
            map_type: Reach::System,
            is_on_bus: true,
            fixed: OnceLock::new(),
        };
        let kind = Kind::Host(Arc::new(view));
        Self { inner: Arc::new(Inner { client: Arc::clone(client), kind }) }
    }

    /// Length in bytes.
    pub fn size(&self) -> u64 {
        match &self.inner.kind {
            Kind::Host(view) => view.umem.len(),
            Kind::Imported(imported) => imported.buffer.size(),
        }
    }

    /// How the client reaches the memory at its present place, by the rules of the PCI tree.
    ///
    /// # Errors
    ///
    /// The exporter's refusal.
    pub fn map_type(&self) -> Result<Reach> {
        Ok(self.inner.view()?.map_type)
    }

    /// Whether the client has the memory mapped where it is now. Unlike
    /// [`map_type`](Self::map_type) it neither maps nor waits.
    pub fn is_mapped(&self) -> bool {
        match &self.inner.kind {
            Kind::Host(_) => true,
            Kind::Imported(imported) => imported.importer.known().is_some(),
        }
    }

    pub(crate) fn is_writable(&self) -> bool {
        match &self.inner.kind {
            Kind::Host(_) => true,
            Kind::Imported(imported) => imported.buffer.is_writable(),
        }
    }

    pub(crate) fn is_of(&self, client: &Arc<Client>) -> bool {
        Arc::ptr_eq(&self.inner.client, client)
    }
}

impl Inner {
    /// Where the bytes are, with the gate entered.
    pub(crate) fn enter(&self) -> Result<Entered> {
        let start = Instant::now();
        loop {
            let view = self.view()?;
            let entered = view.umem.gate().map(|(slot, epoch)| slot.enter_owned(epoch)).transpose();
            let stale = match entered {
                Ok(guard) => {
                    view.fixed.get_or_init(|| self.client.register(&view.umem));
                    return Ok((view, guard.map(Arc::new)));
                }
                Err(stale) => stale,
            };
            self.pause(start, stale)?;
        }
    }

    /// Runs an operation on the bytes that enters the gate by itself.
    pub(crate) fn access(
        &self,
        mut act: impl FnMut(&Umem) -> std::result::Result<(), Fault>,
    ) -> Result<std::result::Result<(), Fault>> {
        let start = Instant::now();
        loop {
            match act(&self.view()?.umem) {
                Err(Fault::Stale { stale }) => self.pause(start, stale)?,
                done => return Ok(done),
            }
        }
    }

    fn pause(&self, start: Instant, stale: Stale) -> Result<()> {
        match stale {
            Stale::Husk => {
                return Err(self.client.broken("it is that of the parent of this process"));
            }
            Stale::Revoked => return Err(Error::Gone { why: self.why_gone() }),
            Stale::Closed | Stale::Moved => {}
        }
        if start.elapsed() > PATIENCE {
            return Err(Error::Moving { seconds: PATIENCE.as_secs(), why: stale.to_string() });
        }
        std::thread::sleep(Duration::from_micros(50));
        Ok(())
    }

    fn why_gone(&self) -> String {
        let Kind::Imported(imported) = &self.kind else { return String::new() };
        let said = imported.gate.as_ref().and_then(GateSlot::why);
        let said = said.or_else(|| imported.buffer.why_gone());
        said.unwrap_or_else(|| format!("{} revoked it", imported.buffer.exporter_name()))
    }

    fn view(&self) -> Result<Arc<View>> {
        match &self.kind {
            Kind::Host(view) => Ok(Arc::clone(view)),
            Kind::Imported(imported) => {
                imported.importer.known().map_or_else(|| self.map(imported), Ok)
            }
        }
    }

    fn map(&self, imported: &Imported) -> Result<Arc<View>> {
        let Imported { attachment, importer, gate, buffer } = imported;
        let refused = |why: String| Error::Attach { client: self.client.name().to_owned(), why };
        let resv = attachment.resv().lock();
        // Another thread may have been first.
        if let Some(view) = importer.known() {
            return Ok(view);
        }
        let map = attachment.map(&resv, Direction::Bidirectional).map_err(|error| match error {
            MapError::Revoked { .. } => Error::Gone { why: error.to_string() },
            MapError::Exporter { ref reason, .. }
                if reason.kind == dmabuf::ExporterErrorKind::NoDevice =>
            {
                Error::Gone { why: error.to_string() }
            }
            error => refused(error.to_string()),
        })?;
        attachment.resv().wait(Usage::Kernel, Some(PATIENCE)).map_err(|_| Error::Moving {
            seconds: PATIENCE.as_secs(),
            why: format!("the move of {buffer:?} does not end"),
        })?;
        let table = map.table().clone();
        if let Some(old) = importer.mapped().map.replace(map) {
            old.unmap(&resv);
        }
        drop(resv);
        let on_bus = |entry: &SgEntry| dmabuf::window::of(entry.addr, entry.len).is_some();
        let (size, is_on_bus) = (buffer.size(), table.entries.iter().all(on_bus));
        let umem = if is_on_bus {
            Umem::bus(&table, 0, size, gate.clone())
        } else {
            let mapping = buffer.map(0, size).map_err(|error| refused(error.to_string()))?;
            Umem::dmabuf(mapping, 0, size)
        };
        let umem = umem.map_err(|fault| refused(format!("the table of {buffer:?}: {fault}")))?;
        // Direct I/O can reach pages of a file of ours wherever they are mapped.
        let is_on_bus = is_on_bus || !buffer.is_kernel();
        let map_type = table.map_type;
        let view = Arc::new(View { umem, map_type, is_on_bus, fixed: OnceLock::new() });
        importer.mapped().view = Some(Arc::clone(&view));
        Ok(view)
    }
}

impl View {
    fn is_current(&self) -> bool {
        self.umem.gate().is_none_or(|(slot, epoch)| slot.is_current(epoch))
    }

    /// The registered parts of the view.
    pub(crate) fn fixed(&self) -> &[Arc<Fixed>] {
        self.fixed.get().map_or(&[], Vec::as_slice)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Buffer");
        debug.field("client", &self.inner.client.name());
        match &self.inner.kind {
            Kind::Host(view) => debug.field("memory", &view.umem.len()),
            Kind::Imported(imported) => debug.field("buffer", &imported.buffer),
        };
        debug.finish_non_exhaustive()
    }
}
