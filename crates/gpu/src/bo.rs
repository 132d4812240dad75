//! Buffer objects: where they are, and how they move.

use std::fmt::Display;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use dmabuf::peer::PeerCore;
use dmabuf::{
    AttachmentInfo, DmaBuf, Fence, Gate, GateError, ImporterClass, Placement, Reach, Resv,
    ResvGuard, Usage, WeakDmaBuf, Zap,
};

use crate::device::Device;
use crate::error::{Result, busy, invalid, no_device, no_memory};
use crate::hook::{BufferEvent, buffer_hook};
use crate::names;
use crate::need::{Need, allows};
use crate::place::{Domain, Place};
use crate::pools::Resource;
use crate::stats::Counters;

/// A buffer object, without the program's handle.
pub(crate) struct BoInner {
    pub(crate) device: Arc<Device>,
    pub(crate) id: u64,
    pub(crate) size: u64,
    pub(crate) place: Place,
    pub(crate) resv: Resv,
    /// Made when the buffer is exported: before that, there are no other accesses to stop.
    pub(crate) gate: OnceLock<Gate>,
    /// Its dma-bufs: each shows the whole buffer, or a window of it.
    pub(crate) exported: Mutex<Vec<WeakDmaBuf>>,
    pub(crate) attachments: Mutex<Vec<AttachmentInfo>>,
    /// The joined dma-bufs that the buffer is a part of.
    wholes: Mutex<Vec<Weak<dyn Whole>>>,
    /// The mappings of the CPU.
    pub(crate) cpu_maps: Mutex<Vec<Zap>>,
    /// Registrations by address. They are told when the memory goes away.
    peers: Mutex<Vec<Peer>>,
    /// Changed under the reservation lock, except for pins.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// None once the memory is gone for good.
    resource: Option<Arc<Resource>>,
    /// The bus address, from the first map to the next move.
    placement: Option<Placement>,
    pins: usize,
    /// How often it moved.
    moves: u64,
    /// Pins, and maps of users that cannot lose the memory.
    firm: usize,
    revoked: Option<String>,
    /// Set by a move, cleared by the next map.
    has_moved: bool,
    /// Its place was chosen explicitly: use does not bring it back to VRAM.
    stays: bool,
}

/// A dma-buf of parts of several buffers.
pub(crate) trait Whole: Send + Sync {
    /// Some of it is about to be taken away: no importer gets in any more, and all importers are
    /// told.
    fn take_away(&self, why: &str);

    /// Importers that cannot lose it continue.
    fn keep(&self);

    /// The memory is gone for good.
    fn lose(&self);

    /// All of it is available again.
    fn give_back(&self);

    /// The dma-buf, while it is in use.
    fn buf(&self) -> Option<DmaBuf>;
}

/// A registration by address, and the part of the buffer that it covers.
struct Peer {
    core: PeerCore,
    offset: u64,
    len: u64,
}

impl BoInner {
    pub(crate) fn new(device: &Arc<Device>, size: u64, place: Place) -> Result<Arc<Self>> {
        device.check_present()?;
        let page = rustix::param::page_size() as u64;
        let whole = size.checked_next_multiple_of(page).filter(|size| *size > 0);
        let size = whole.ok_or_else(|| invalid(format!("a buffer of {size} bytes")))?;
        if !allows(place.allowed, place.preferred) || place.align & place.align.wrapping_sub(1) != 0
        {
            return Err(invalid(format!("no buffer can be placed as {place:?} asks")));
        }
        let id = device.next_bo();
        let fixed = !device.persona.moves;
        // Memory that never moves must be within reach of peers from the start.
        let visible = place.visible || fixed;
        let need = Need { bo: id, len: size, align: place.align, fixed, visible };
        let placed = device.place(need, &place).or_else(|_| {
            // Frees a buffer whose last user was a descriptor that is closed by now.
            dmabuf::sweep();
            device.place(need, &place)
        });
        let resource = Some(Arc::new(placed?));
        let bo = Arc::new(Self {
            device: Arc::clone(device),
            id,
            size,
            place,
            resv: Resv::new(),
            gate: OnceLock::new(),
            exported: Mutex::default(),
            attachments: Mutex::default(),
            wholes: Mutex::default(),
            cpu_maps: Mutex::default(),
            peers: Mutex::default(),
            state: Mutex::new(State { resource, ..State::default() }),
        });
        device.add(&bo);
        Ok(bo)
    }

    pub(crate) fn name(&self) -> String {
        names::bo(&self.device.config.name, self.id)
    }

    /// Where it is.
    pub(crate) fn resource(&self) -> Result<Arc<Resource>> {
        let state = self.state();
        if let Some(why) = &state.revoked {
            return Err(no_device(self.gone(why)));
        }
        let gone = || no_device(format!("{} has no memory any more", self.name()));
        state.resource.clone().ok_or_else(gone)
    }

    /// Where it is, even while it is taken away but will be given back.
    pub(crate) fn placed(&self) -> Result<Arc<Resource>> {
        let gone = || no_device(format!("{} has no memory any more", self.name()));
        self.state().resource.clone().ok_or_else(gone)
    }

    /// Why it was taken away, if it was.
    pub(crate) fn why_revoked(&self) -> Option<String> {
        let state = self.state();
        state.revoked.as_ref().map(|why| self.gone(why))
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.state().pins > 0
    }

    /// Whether it is pinned by somebody who keeps it even under pressure.
    fn is_held(&self) -> bool {
        let state = self.state();
        state.pins > 0 && !(self.device.config.soft_pins && state.firm == 0)
    }

    pub(crate) fn pins(&self) -> usize {
        self.state().pins
    }

    pub(crate) fn moves(&self) -> u64 {
        self.state().moves
    }

    /// Registrations by address.
    pub(crate) fn peer_count(&self) -> usize {
        self.peers().iter().filter(|peer| !peer.core.is_over()).count()
    }

    /// Whether it is where peers can reach it.
    pub(crate) fn is_in_reach(&self, resource: &Resource) -> bool {
        resource.domain == Domain::Vram
            && resource.offset + resource.len <= self.device.config.visible()
    }

    /// Moves it to `domain`, evicting others; does nothing if it is there already. Returns a fence
    /// for its bytes.
    pub(crate) fn move_to(
        &self,
        resv: &ResvGuard<'_>,
        domain: Domain,
        visible: bool,
        why: &str,
    ) -> Result<Fence> {
        let resource = self.resource()?;
        if resource.domain == domain && (!visible || self.is_in_reach(&resource)) {
            return Ok(Fence::signaled_stub());
        }
        self.check_movable(domain, self.is_pinned())?;
        let to = self.device.obtain(domain, self.need(visible))?;
        self.relocate(resv, to, why)
    }

    /// Makes room: moves it out of VRAM, or only out of the BAR if just the BAR is short.
    pub(crate) fn evict(
        &self,
        resv: &ResvGuard<'_>,
        only_out_of_bar: bool,
        why: &str,
    ) -> Result<Fence> {
        let resource = self.resource()?;
        if resource.domain != Domain::Vram {
            return Ok(Fence::signaled_stub());
        }
        self.check_movable(Domain::Gtt, self.is_held())?;
        let mut to = None;
        if only_out_of_bar && self.device.config.visible() < self.device.config.vram {
            let elsewhere = self.device.try_obtain(Domain::Vram, self.need(false));
            to = elsewhere.filter(|to| !self.is_in_reach(to));
        }
        let to = match to {
            Some(to) => to,
            None => self.device.obtain(Domain::Gtt, self.need(false))?,
        };
        let fence = self.relocate(resv, to, why)?;
        Counters::add(&self.device.stats.evictions, 1);
        Ok(fence)
    }

    /// Moves it to `domain`, where it stays until it is moved or evicted.
    pub(crate) fn put(&self, resv: &ResvGuard<'_>, domain: Domain, why: &str) -> Result<Fence> {
        let fence = self.move_to(resv, domain, self.place.visible, why)?;
        self.state().stays = true;
        Ok(fence)
    }

    /// Called before it is used: an evicted buffer that belongs in VRAM comes back, if there is
    /// room without evicting others. `by_peer`: another device uses it. A buffer that cannot come
    /// back is used where it is.
    ///
    /// While an importer that does not reach VRAM has it attached, it stays where all importers
    /// reach it.
    pub(crate) fn bring_back(&self, resv: &ResvGuard<'_>, by_peer: bool) {
        let belongs = self.device.persona.moves && self.place.preferred == Domain::Vram;
        if belongs && self.is_away() {
            self.come_back(resv, by_peer);
        }
    }

    /// Whether it is in GTT and nothing holds it there.
    fn is_away(&self) -> bool {
        let state = self.state();
        let is_in_gtt = |at: &Arc<Resource>| at.domain == Domain::Gtt;
        state.resource.as_ref().is_some_and(is_in_gtt)
            && state.pins == 0
            && !state.stays
            && state.revoked.is_none()
    }

    #[cold]
    fn come_back(&self, resv: &ResvGuard<'_>, by_peer: bool) {
        if !self.all_peer2peer() {
            return;
        }
        let need = self.need(self.place.visible || by_peer);
        let Some(to) = self.device.room(Domain::Vram, need) else { return };
        if let Err(refusal) = self.relocate(resv, to, "used again") {
            tracing::debug!("{refusal}: used where it is");
        }
    }

    fn need(&self, visible: bool) -> Need {
        Need { bo: self.id, len: self.size, align: self.place.align, fixed: false, visible }
    }

    /// `is_held`: somebody who relies on its place keeps it there.
    fn check_movable(&self, domain: Domain, is_held: bool) -> Result<()> {
        let name = self.name();
        if !self.device.persona.moves {
            return Err(busy(format!("{name}: {} never moves", self.device.config.preset.name())));
        }
        if is_held {
            return Err(busy(format!("{name} is pinned and cannot move to {domain}")));
        }
        if !allows(self.place.allowed, domain) {
            return Err(invalid(format!("{name} may not be in {domain}")));
        }
        Ok(())
    }

    /// The move itself: stops all access, tells importers, retires the address, and has the bytes
    /// copied. Later maps of the buffer find the new place, and wait for the fence before they
    /// access the bytes.
    fn relocate(&self, resv: &ResvGuard<'_>, to: Resource, why: &str) -> Result<Fence> {
        let device = &self.device;
        device.engine.prepare()?;
        let slot = resv.reserve_fences(1);
        slot.map_err(|error| no_memory(format!("{}: {error}", self.name())))?;
        let hook = buffer_hook().map(|hook| (hook, Instant::now()));
        // Importers that announced work by fences do it through the open gate.
        self.wait(Usage::Bookkeep);
        let closed = self.gate.get().map(Gate::close).transpose().map_err(held)?;
        for exported in self.dma_bufs() {
            exported.invalidate_mappings(resv);
        }
        // Waits for what importers could not stop at once, and for earlier moves.
        self.wait(Usage::Bookkeep);
        let from = self.resource()?;
        let what = format!("{why}: from {} to {}", from.domain, to.domain);
        if let Some((hook, began)) = hook {
            let (waited, bytes) = (began.elapsed(), from.len);
            let (from, to) = (from.domain, to.domain);
            let moved = BufferEvent::Moved { from, to, bytes, waited, why };
            hook(&device.config.name, &self.name(), &moved);
        }
        let (moved, index) = (from.len, from.index);
        let to = Arc::new(to);
        let old = {
            let mut state = self.state();
            state.resource = Some(Arc::clone(&to));
            state.has_moved = true;
            state.stays = false;
            state.moves += 1;
            state.placement.take()
        };
        if let Some(old) = old {
            device.window.retire(old, what);
        }
        device.pools.ledger.lock().set_leaving(index);
        self.note_exporter(&to);
        let fence = device.engine.copy(from, to);
        let added = resv.add_fence(&fence, Usage::Kernel);
        added.expect("a slot was reserved under this lock");
        if let Some(closed) = closed {
            closed.open();
        }
        Counters::add(&device.stats.moves, 1);
        Counters::add(&device.stats.moved_bytes, moved);
        Ok(fence)
    }

    /// Waits for the buffer's fences, and does the work itself if nothing else will.
    pub(crate) fn wait(&self, usage: Usage) {
        for (fence, _) in self.resv.fences(usage) {
            self.device.engine.wait(&fence);
        }
    }

    /// The bus address, and where the bytes are. Called under the reservation lock, so that neither
    /// changes.
    pub(crate) fn bus_addr(&self, resource: &Resource) -> Result<u64> {
        let mut state = self.state();
        if std::mem::take(&mut state.has_moved) {
            Counters::add(&self.device.stats.faults, 1);
        }
        if let Some(placement) = &state.placement {
            return Ok(placement.addr());
        }
        let none =
            |why: &dyn Display| no_memory(format!("no bus address for {}: {why}", self.name()));
        let file = resource.pools().file(resource.domain);
        file.look().map_err(|error| none(&error))?;
        let window = &self.device.window;
        let placed = window.place(file.as_fd(), resource.offset, self.size, &self.name());
        let placement = placed.map_err(|error| none(&error))?;
        let addr = placement.addr();
        state.placement = Some(placement);
        Ok(addr)
    }

    /// Pins it where it is. Only the first pin is charged. `firm`: for a user that cannot lose it.
    pub(crate) fn pin(&self, firm: bool) -> Result<()> {
        self.resource()?;
        self.pin_placed(firm)
    }

    /// The same, also for memory that is taken away but will be given back.
    pub(crate) fn pin_placed(&self, firm: bool) -> Result<()> {
        let resource = self.placed()?;
        let mut state = self.state();
        if state.pins == 0 {
            self.device.charge_pin(&resource)?;
        }
        state.pins += 1;
        state.firm += usize::from(firm);
        self.note_firmness(&state);
        Ok(())
    }

    pub(crate) fn unpin(&self, firm: bool) {
        let mut state = self.state();
        debug_assert!(state.pins > 0, "each unpin follows a pin");
        state.pins = state.pins.saturating_sub(1);
        state.firm = state.firm.saturating_sub(usize::from(firm));
        if state.pins == 0
            && let Some(resource) = &state.resource
        {
            self.device.pools.ledger.lock().set_pinned(resource.index, false);
        }
        self.note_firmness(&state);
    }

    /// Counts a map of a user that cannot lose the memory.
    pub(crate) fn hold(&self) {
        let mut state = self.state();
        state.firm += 1;
        self.note_firmness(&state);
    }

    pub(crate) fn release_hold(&self) {
        let mut state = self.state();
        state.firm = state.firm.saturating_sub(1);
        self.note_firmness(&state);
    }

    /// Tells other processes whether they may ask for the buffer although it is pinned.
    fn note_firmness(&self, state: &State) {
        if self.device.config.soft_pins
            && let Some(resource) = &state.resource
        {
            let soft = state.pins > 0 && state.firm == 0;
            self.device.pools.ledger.lock().set_soft(resource.index, soft);
        }
    }

    /// Takes the memory away from all importers that can lose it. Returns whether some importer
    /// kept it. The gate stays closed until [`give_back`](Self::give_back) opens it, or for good.
    pub(crate) fn take_away(
        &self,
        resv: &ResvGuard<'_>,
        why: &str,
    ) -> Result<(Option<dmabuf::Closed>, bool)> {
        self.wait(Usage::Bookkeep);
        let gone = self.gone(why);
        self.gate.get().inspect(|gate| gate.tell(&gone));
        let closed = match self.gate.get() {
            Some(gate) if !gate.is_revoked() => Some(gate.close().map_err(held)?),
            _ => None,
        };
        self.state().revoked = Some(why.to_owned());
        for exported in self.dma_bufs() {
            exported.invalidate_mappings(resv);
        }
        self.revoke_peers(0, u64::MAX);
        self.wait(Usage::Bookkeep);
        Counters::add(&self.device.stats.revoked, 1);
        if let Some(hook) = buffer_hook() {
            hook(&self.device.config.name, &self.name(), &BufferEvent::Revoked { why });
        }
        let kept = self.state().firm > 0;
        if !kept {
            let placement = self.state().placement.take();
            if let Some(placement) = placement {
                self.device.window.retire(placement, why);
            }
        }
        Ok((closed, kept))
    }

    /// Replaces the CPU's mappings by pages that raise SIGBUS. Called without the reservation lock.
    pub(crate) fn zap_cpu_maps(&self) {
        let zaps = std::mem::take(&mut *self.cpu_maps());
        zaps.iter().for_each(Zap::zap);
    }

    pub(crate) fn cpu_maps(&self) -> MutexGuard<'_, Vec<Zap>> {
        self.cpu_maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_wholes(&self) -> MutexGuard<'_, Vec<Weak<dyn Whole>>> {
        self.wholes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the buffer is a part of this joined dma-buf.
    pub(crate) fn join(&self, whole: Weak<dyn Whole>) {
        self.lock_wholes().push(whole);
    }

    /// The joined dma-bufs that it is a part of.
    pub(crate) fn wholes(&self) -> Vec<Arc<dyn Whole>> {
        let mut wholes = self.lock_wholes();
        wholes.retain(|known| known.strong_count() > 0);
        wholes.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn gone(&self, why: &str) -> String {
        format!("{} was revoked: {why}", self.name())
    }

    /// The memory is available again.
    pub(crate) fn give_back(&self) {
        let mut state = self.state();
        state.revoked = None;
        state.has_moved = true;
    }

    /// The memory is gone, or the contents of VRAM are lost.
    pub(crate) fn lose(&self, for_good: bool) {
        let mut state = self.state();
        if for_good {
            state.resource = None;
        } else if let Some(resource) = &state.resource
            && resource.domain == Domain::Vram
        {
            resource.clear();
        }
    }

    pub(crate) fn dma_bufs(&self) -> Vec<DmaBuf> {
        let exported = self.exported.lock().unwrap_or_else(PoisonError::into_inner);
        exported.iter().filter_map(WeakDmaBuf::upgrade).collect()
    }

    /// Notes in the ledger the names by which others have this placement open, if it was ever
    /// exported.
    pub(crate) fn note_exporter(&self, resource: &Resource) {
        if self.gate.get().is_some() {
            self.note_exporter_of(resource);
        }
    }

    /// The same, for a buffer that is exported in any way.
    pub(crate) fn note_exporter_of(&self, resource: &Resource) {
        if let Some(token) = dmabuf::export_token() {
            self.device.pools.ledger.set_exporter(resource.index, token);
        }
    }

    pub(crate) fn attachments(&self) -> MutexGuard<'_, Vec<AttachmentInfo>> {
        self.attachments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a registration by address, which is told when the memory goes away.
    pub(crate) fn add_peer(&self, core: PeerCore, offset: u64, len: u64) {
        let mut peers = self.peers();
        peers.retain(|known| !known.core.is_over());
        peers.push(Peer { core, offset, len });
    }

    /// Stops, for good, every device that uses some of these bytes by address. Returns how many.
    pub(crate) fn revoke_peers(&self, offset: u64, len: u64) -> usize {
        let end = offset.saturating_add(len);
        let touches = |peer: &mut Peer| peer.offset < end && offset < peer.offset + peer.len;
        let gone: Vec<_> = self.peers().extract_if(.., touches).collect();
        let used = gone.iter().filter(|peer| !peer.core.is_over()).count();
        gone.iter().for_each(|peer| peer.core.invalidate());
        used
    }

    fn peers(&self) -> MutexGuard<'_, Vec<Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether every importer reaches VRAM, so that all can be served there.
    pub(crate) fn all_peer2peer(&self) -> bool {
        let reaches = |info: &AttachmentInfo| {
            self.device.is_it(info)
                || info.peer2peer()
                    && info.class() != ImporterClass::Static
                    && self.device.reach(info.device()).is_ok()
        };
        self.attachments().iter().all(reaches)
    }

    /// The path of an importer's accesses to where the buffer is.
    pub(crate) fn map_type(&self, resource: &Resource, info: &AttachmentInfo) -> Reach {
        match resource.domain {
            Domain::Gtt => Reach::System,
            Domain::Vram if self.device.is_it(info) => Reach::BusAddress,
            Domain::Vram => self.device.reach(info.device()).unwrap_or(Reach::ThroughHostBridge),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BoInner {
    fn drop(&mut self) {
        self.revoke_peers(0, u64::MAX);
        let placement = self.state().placement.take();
        if let Some(placement) = placement {
            placement.retire("the buffer was freed");
        }
    }
}

fn held(error: GateError) -> dmabuf::ExporterError {
    match error {
        GateError::Held { .. } => busy(error.to_string()),
        error => no_device(error.to_string()),
    }
}
