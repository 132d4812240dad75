//! The buffer as importers see it: `docs/semantics.md` 1.10, 1.11, 2.6.

use std::sync::{Arc, PoisonError};

use dmabuf::{
    AttachmentInfo, Direction, DmaBuf, Exporter, Gate, ImporterClass, IosysMap, MmapBacking,
    Pinning, ResvGuard, SgBacking, SgEntry, SgTable, Sharing, Usage, in_words,
};

use crate::bo::BoInner;
use crate::cpu::CpuPages;
use crate::error::{Result, busy, invalid, no_memory, not_permitted, not_supported, unsupported};
use crate::need::allows;
use crate::persona::{Orphans, PinPolicy, WithoutP2p};
use crate::place::Domain;
use crate::pools::Resource;

/// The longest entry of a table: the largest whole number of pages that a 32-bit length holds.
const STRETCH: u64 = 0xffff_f000;

/// What one dma-buf shows of a buffer: all of it, or whole pages of it. All windows of a buffer
/// share its reservation lock and its gate, and keep its memory.
pub(crate) struct Window {
    bo: Arc<BoInner>,
    offset: u64,
    len: u64,
}

impl Window {
    pub(crate) fn new(bo: Arc<BoInner>, offset: u64, len: u64) -> Self {
        Self { bo, offset, len }
    }
}

impl Exporter for Window {
    fn name(&self) -> &str {
        self.bo.device.config.preset.exporter_name()
    }

    fn attach(&self, info: &mut AttachmentInfo) -> Result<()> {
        self.bo.attach(info)
    }

    fn detach(&self, info: &AttachmentInfo) {
        self.bo.attachments().retain(|other| other.id() != info.id());
        if self.bo.pins_at_attach() && !self.bo.device.is_it(info) {
            self.bo.unpin(!info.class().is_revocable());
        }
    }

    fn pinning(&self) -> Option<&dyn Pinning> {
        self.bo.device.persona.has_pin.then_some(&*self.bo)
    }

    fn map_dma_buf(
        &self,
        resv: &ResvGuard<'_>,
        info: &AttachmentInfo,
        _direction: Direction,
    ) -> Result<SgTable> {
        let (bo, device) = (&self.bo, &self.bo.device);
        let mapped =
            device.check_present().and_then(|()| bo.map(resv, info, self.offset, self.len));
        mapped.map_err(|refusal| match device.config.preset.hides_reasons() {
            true => no_memory(refusal.what),
            false => refusal,
        })
    }

    fn unmap_dma_buf(
        &self,
        _resv: &ResvGuard<'_>,
        info: &AttachmentInfo,
        _table: SgTable,
        _direction: Direction,
    ) {
        if !info.class().is_revocable() {
            self.bo.release_hold();
        }
        // The address stays until the buffer moves: mapping it again costs nothing then.
    }

    fn gate(&self) -> Option<&Gate> {
        self.bo.gate.get()
    }

    fn sharing(&self) -> Sharing {
        match self.bo.device.persona.orphans {
            Orphans::Keep => Sharing::HostKept,
            Orphans::Revoke => Sharing::HostRevoked,
        }
    }

    fn release(&self) {
        // Its descriptor is closed with it.
        let mut exported = self.bo.exported.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<_> = exported.extract_if(.., |known| known.is_gone()).collect();
        drop(exported);
        drop(gone);
    }

    fn why_gone(&self) -> Option<String> {
        self.bo.resource().err().map(|refusal| refusal.what)
    }

    fn is_coherent(&self) -> bool {
        true
    }

    fn mmap_backing(&self, _offset: u64, _len: u64) -> Result<Option<MmapBacking>> {
        let pages = CpuPages::of(&self.bo)?;
        let offset = pages.offset() + self.offset;
        let backing = SgBacking { file: Arc::clone(pages.file()), offset };
        let zap = Some(pages.zap().clone());
        Ok(Some(MmapBacking { backing, hold: Box::new(pages), zap }))
    }

    fn vmap(&self, resv: &ResvGuard<'_>) -> Result<IosysMap> {
        let resource = self.bo.pin_for_cpu(resv, true)?;
        // CAST: inside a pool, which is mapped.
        let addr = resource.cpu_addr() + self.offset as usize;
        Ok(match resource.domain {
            Domain::Vram => IosysMap::Io(addr),
            Domain::Gtt => IosysMap::System(addr),
        })
    }

    fn vunmap(&self, _resv: &ResvGuard<'_>, _map: IosysMap) {
        self.bo.unpin(true);
    }
}

impl Pinning for BoInner {
    fn pin(&self, resv: &ResvGuard<'_>, info: &AttachmentInfo) -> Result<()> {
        let (name, firm) = (self.name(), !info.class().is_revocable());
        self.device.check_present()?;
        let resource = self.resource()?;
        let vram = match self.device.persona.pin_policy {
            PinPolicy::Refuse => return Err(not_supported(format!("{name} cannot be pinned"))),
            PinPolicy::Gtt => false,
            PinPolicy::VramIfP2p => {
                allows(self.place.allowed, Domain::Vram) && self.all_peer2peer()
            }
        };
        let gtt = self.may_be_in_gtt();
        if !vram && !gtt {
            return Err(invalid(format!(
                "{name} may be in VRAM only, which not every importer of it reaches: there is no place to pin it"
            )));
        }
        if self.is_pinned() {
            let fits = match resource.domain {
                Domain::Vram => vram,
                Domain::Gtt => gtt,
            };
            if !fits {
                return Err(invalid(format!("{name} is pinned in {} already", resource.domain)));
            }
            return Self::pin(self, firm);
        }
        let why = "to be pinned";
        let wants_vram = vram && (self.place.preferred == Domain::Vram || !gtt);
        if wants_vram {
            self.device.check_pin_limits(self.size)?;
            match self.move_to(resv, Domain::Vram, true, why) {
                Ok(_) => return Self::pin(self, firm),
                Err(refusal) if !gtt => return Err(refusal),
                Err(refusal) => tracing::debug!("{refusal}: pinned in GTT instead"),
            }
        }
        self.move_to(resv, Domain::Gtt, false, why)?;
        Self::pin(self, firm)
    }

    fn unpin(&self, _resv: &ResvGuard<'_>, info: &AttachmentInfo) {
        Self::unpin(self, !info.class().is_revocable());
    }
}

impl BoInner {
    pub(crate) fn attach(&self, info: &mut AttachmentInfo) -> Result<()> {
        let persona = &self.device.persona;
        let named = |why: &str| format!("{}: {why}", self.device.config.preset.exporter_name());
        let refused = |why: &str| Err(not_supported(named(why)));
        self.device.check_present()?;
        self.resource()?;
        if self.device.is_it(info) {
            // The GPU itself, in another process: it reaches its own memory wherever it is.
            self.attachments().push(info.clone());
            return Ok(());
        }
        if persona.needs_p2p && !info.peer2peer() {
            return refused("only importers that take peer-to-peer addresses are served");
        }
        if persona.needs_revocable && !info.class().is_revocable() {
            return refused("only importers from which the memory can be taken away are served");
        }
        let unreachable = self.device.reach(info.device()).err();
        let is_static = info.class() == ImporterClass::Static;
        let why = unreachable.as_deref().unwrap_or("the importer takes no peer-to-peer addresses");
        if unreachable.is_some() && persona.without_p2p != WithoutP2p::Einval {
            info.clear_peer2peer();
        }
        if !info.peer2peer() {
            match persona.without_p2p {
                WithoutP2p::Refuse => return refused(why),
                WithoutP2p::Enotsupp if unreachable.is_some() || !is_static => {
                    return Err(unsupported(named(why)));
                }
                WithoutP2p::System if !self.may_be_in_gtt() => {
                    return refused(&format!("{why}, and the buffer may not be in GTT"));
                }
                _ => {}
            }
        }
        if self.pins_at_attach() {
            info.clear_peer2peer();
            let resv = self.resv.lock();
            self.move_to(&resv, Domain::Gtt, false, "attached by an importer")?;
            self.wait(Usage::Kernel);
            self.pin(!info.class().is_revocable())?;
        }
        self.attachments().push(info.clone());
        Ok(())
    }

    /// A dma-buf of a part of the buffer.
    pub(crate) fn new_window(
        self: &Arc<Self>,
        offset: u64,
        len: u64,
        name: String,
    ) -> Result<DmaBuf> {
        let resource = self.placed()?;
        let none = |error: String| no_memory(format!("{name} cannot be exported: {error}"));
        if self.gate.get().is_none() {
            let gate = Gate::new(&self.name()).map_err(|error| none(in_words(error)))?;
            let _ = self.gate.set(gate);
        }
        let exporter = Arc::new(Window::new(Arc::clone(self), offset, len));
        let buf = DmaBuf::export_with(exporter, len, &name, self.resv.clone())
            .map_err(|error| none(error.to_string()))?;
        self.exported.lock().unwrap_or_else(PoisonError::into_inner).push(buf.downgrade());
        self.note_exporter(&resource);
        Ok(buf)
    }

    /// Where an importer finds `len` bytes at `offset`.
    pub(crate) fn map(
        &self,
        resv: &ResvGuard<'_>,
        info: &AttachmentInfo,
        offset: u64,
        len: u64,
    ) -> Result<SgTable> {
        let resource = self.validate(resv, info)?;
        resource.touch();
        let map_type = self.map_type(&resource, info);
        let addr = self.bus_addr(&resource)? + offset;
        let file = self.device.pools.file(resource.domain);
        let entries = (0..len.div_ceil(STRETCH))
            .map(|n| {
                let start = n * STRETCH;
                let offset = resource.offset + offset + start;
                SgEntry {
                    addr: addr + start,
                    len: STRETCH.min(len - start),
                    backing: Some(SgBacking { file: Arc::clone(file), offset }),
                }
            })
            .collect();
        if !info.class().is_revocable() {
            self.hold();
        }
        self.device.stats.count_map(map_type, len);
        Ok(SgTable { entries, epoch: self.gate.get().map(Gate::epoch), map_type })
    }

    /// Moves the buffer to where this importer can reach it.
    fn validate(&self, resv: &ResvGuard<'_>, info: &AttachmentInfo) -> Result<Arc<Resource>> {
        let persona = &self.device.persona;
        if self.device.is_it(info) {
            self.bring_back(resv, false);
            return self.resource();
        }
        let path = self.device.reach(info.device());
        let takes_addresses = info.peer2peer() || persona.without_p2p == WithoutP2p::Enotsupp;
        let is_served = takes_addresses && path.is_ok();
        if is_served {
            self.bring_back(resv, true);
        }
        let resource = self.resource()?;
        if is_served {
            if resource.domain == Domain::Gtt || self.is_in_reach(&resource) {
                return Ok(resource);
            }
            // In VRAM, but outside the BAR.
            self.move_into_bar_or_gtt(resv, "mapped by a peer")?;
            return self.resource();
        }
        if persona.moves && resource.domain == Domain::Gtt {
            return Ok(resource);
        }
        let why =
            path.err().unwrap_or_else(|| "the importer takes no peer-to-peer addresses".to_owned());
        let what = format!("{}: {why}", self.name());
        match persona.without_p2p {
            WithoutP2p::Eperm => return Err(not_permitted(what)),
            WithoutP2p::Einval => return Err(invalid(what)),
            _ if !self.may_be_in_gtt() => {
                return Err(invalid(format!("{what}, and the buffer may not be in GTT")));
            }
            _ if self.is_pinned() => {
                return Err(busy(format!("{what}, and the buffer is pinned in VRAM")));
            }
            _ => {}
        }
        self.move_to(resv, Domain::Gtt, false, "mapped by an importer without peer-to-peer")?;
        self.resource()
    }

    /// Moves the buffer to where the CPU reaches it, and pins it there. `firm`: for a user that
    /// cannot lose it.
    pub(crate) fn pin_for_cpu(&self, resv: &ResvGuard<'_>, firm: bool) -> Result<Arc<Resource>> {
        self.device.check_present()?;
        if !self.device.persona.mmap {
            let preset = self.device.config.preset;
            let what =
                format!("{}: {} does not allow mapping its memory", self.name(), preset.name());
            return Err(if preset.hides_reasons() { unsupported(what) } else { invalid(what) });
        }
        let resource = self.resource()?;
        if resource.domain == Domain::Vram && !self.is_in_reach(&resource) {
            self.move_into_bar_or_gtt(resv, "mapped by the CPU")?;
        }
        self.wait(Usage::Kernel);
        Self::pin(self, firm)?;
        self.resource()
    }

    fn move_into_bar_or_gtt(&self, resv: &ResvGuard<'_>, why: &str) -> Result<()> {
        if let Err(refusal) = self.move_to(resv, Domain::Vram, true, why) {
            tracing::debug!("{refusal}: GTT instead");
            self.move_to(resv, Domain::Gtt, false, why)?;
        }
        Ok(())
    }

    fn may_be_in_gtt(&self) -> bool {
        self.device.persona.moves && allows(self.place.allowed, Domain::Gtt)
    }

    pub(crate) fn pins_at_attach(&self) -> bool {
        let persona = &self.device.persona;
        !persona.has_pin && persona.moves && persona.pin_policy == PinPolicy::Gtt
    }
}
