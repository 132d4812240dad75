//! One dma-buf of parts of several buffers, concatenated.
//!
//! The parts stay where they are as long as any process has the dma-buf: a table of addresses has
//! one epoch, but each buffer would move by itself. If a reset, a removal or an owner takes away
//! any part, the whole is taken away.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use dmabuf::{
    AttachmentInfo, Closed, Direction, DmaBuf, Exporter, Gate, IosysMap, MmapBacking, Pinning,
    Resv, ResvGuard, SgBacking, SgTable, Sharing, Usage, WeakDmaBuf, Zap, in_words,
};

use crate::bo::{BoInner, Whole};
use crate::cpu::CpuPages;
use crate::error::{Result, invalid, no_device, no_memory, not_supported, unsupported};
use crate::handle::Bo;
use crate::persona::Orphans;
use crate::place::Domain;

/// The longest name of such a buffer: file names are limited.
const NAME_MAX: usize = 160;

/// What an importer sees of several buffers.
pub(crate) struct Joined {
    parts: Vec<Part>,
    name: String,
    resv: Resv,
    gate: Gate,
    buf: OnceLock<WeakDmaBuf>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Why some of it is gone.
    revoked: Option<String>,
    /// The gate, while it is closed.
    closed: Option<Closed>,
}

/// A part of a buffer, which stays where it is.
struct Part {
    bo: Arc<BoInner>,
    offset: u64,
    len: u64,
    /// Where it begins in the whole.
    start: u64,
}

impl Part {
    fn new(bo: &Arc<BoInner>, offset: u64, len: u64, start: u64) -> Result<Self> {
        let resv = bo.resv.lock();
        if bo.device.persona.moves && !bo.is_pinned() {
            bo.move_to(&resv, Domain::Vram, true, "exported with others")?;
        }
        bo.pin_placed(false)?;
        Ok(Self { bo: Arc::clone(bo), offset, len, start })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.bo.unpin(false);
    }
}

/// One dma-buf of `len` bytes at `offset` of each of these buffers of one GPU, in this order: for
/// allocations that a program has placed at adjacent addresses. All are whole pages. The buffers
/// stay where they are, and keep their memory, until no process has the dma-buf any more.
///
/// ```
/// use gpu::{Gpu, GpuConfig, Place, Preset, export_joined};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Gpu::open(&GpuConfig { preset: Preset::Nvidia, shared: false, ..GpuConfig::default() })?;
/// let (one, two) = (gpu.alloc(8192, Place::VRAM)?, gpu.alloc(8192, Place::VRAM)?);
/// let buf = export_joined(&[(&one, 4096, 4096), (&two, 0, 8192)])?;
/// assert_eq!(buf.size(), 12288);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// EINVAL for an empty list, for a part that is not whole pages of a buffer, and for buffers of
/// several GPUs; EOPNOTSUPP when one was imported, when there are too many, and for a driver that
/// pins at attach; otherwise the refusal to move one to VRAM or to pin it there.
#[doc(alias = "cuMemGetHandleForAddressRange")]
pub fn export_joined(ranges: &[(&Bo, u64, u64)]) -> Result<DmaBuf> {
    let page = rustix::param::page_size() as u64;
    let (mut parts, mut len) = (Vec::new(), 0);
    for &(bo, offset, size) in ranges {
        bo.check(offset, size)?;
        let bo = bo.own()?;
        if size == 0 || !(offset | size).is_multiple_of(page) {
            return Err(invalid(format!("{size:#x} bytes at {offset:#x} are not whole pages")));
        }
        if bo.pins_at_attach() {
            let driver = bo.device.config.preset.name();
            return Err(not_supported(format!("{driver} exports each buffer by itself")));
        }
        parts.push(Part::new(bo, offset, size, len)?);
        len += size;
    }
    let first = parts.first().ok_or_else(|| invalid("no buffers to be exported together"))?;
    let device = Arc::clone(&first.bo.device);
    if parts.iter().any(|part| !Arc::ptr_eq(&part.bo.device, &device)) {
        return Err(invalid("buffers of several GPUs cannot be one dma-buf"));
    }
    let name = name(&device.config.name, parts.iter().map(|part| part.bo.id));
    if name.len() > NAME_MAX {
        let what = format!("{} buffers are too many to be exported together", parts.len());
        return Err(not_supported(what));
    }
    let none = |error: String| no_memory(format!("{name} cannot be exported: {error}"));
    let gate = Gate::new(&name).map_err(|error| none(in_words(error)))?;
    let (resv, buf, state) = (Resv::new(), OnceLock::new(), Mutex::default());
    let joined = Arc::new(Joined { parts, name: name.clone(), resv, gate, buf, state });
    let buf = DmaBuf::export_with(Arc::clone(&joined) as _, len, &name, joined.resv.clone());
    let buf = buf.map_err(|error| none(error.to_string()))?;
    let _ = joined.buf.set(buf.downgrade());
    for part in &joined.parts {
        // Under the lock: a thread that takes the buffer away either came before this and is
        // noticed here, or comes later and finds this.
        let _resv = part.bo.resv.lock();
        let whole: Arc<dyn Whole> = Arc::clone(&joined) as _;
        part.bo.join(Arc::downgrade(&whole));
        part.bo.note_exporter_of(&*part.bo.placed()?);
        if let Some(why) = part.bo.why_revoked() {
            joined.begin_without(why);
        }
    }
    Ok(buf)
}

/// The name of several buffers of a GPU together: `gpu0.bo3-5+bo9`.
fn name(gpu: &str, numbers: impl Iterator<Item = u64>) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |(first, last): &(u64, u64)| match first == last {
        true => format!("bo{first}"),
        false => format!("bo{first}-{last}"),
    };
    format!("{gpu}.{}", runs.iter().map(run).collect::<Vec<_>>().join("+"))
}

impl Joined {
    /// Some of it is taken away now, but may be given back: no importer gets in.
    fn begin_without(&self, why: String) {
        let mut state = self.state();
        if state.revoked.is_none() {
            state.closed = self.gate.close().ok();
            state.revoked = Some(why);
        }
    }

    fn wait(&self, usage: Usage) {
        // TIMEOUT: none; a fence is signaled in finite time without outside help.
        let _ = self.resv.wait(usage, None);
    }

    fn check(&self) -> Result<()> {
        match &self.state().revoked {
            Some(why) => Err(no_device(why.clone())),
            None => Ok(()),
        }
    }

    fn first(&self) -> &BoInner {
        &self.parts[0].bo
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Whole for Joined {
    fn take_away(&self, why: &str) {
        let resv = self.resv.lock();
        self.wait(Usage::Bookkeep);
        let mut state = self.state();
        if state.revoked.is_some() {
            return;
        }
        state.revoked = Some(why.to_owned());
        self.gate.tell(why);
        match self.gate.close() {
            Ok(closed) => state.closed = Some(closed),
            Err(error) => tracing::error!("{error}"),
        }
        drop(state);
        if let Some(buf) = self.buf() {
            buf.invalidate_mappings(&resv);
        }
        self.wait(Usage::Bookkeep);
    }

    fn keep(&self) {
        if let Some(closed) = self.state().closed.take() {
            closed.reopen();
        }
    }

    fn lose(&self) {
        if let Some(closed) = self.state().closed.take() {
            closed.revoke();
        }
    }

    fn give_back(&self) {
        let _resv = self.resv.lock();
        let mut state = self.state();
        state.revoked = None;
        if let Some(closed) = state.closed.take() {
            closed.open();
        }
    }

    fn buf(&self) -> Option<DmaBuf> {
        self.buf.get()?.upgrade()
    }
}

impl Exporter for Joined {
    fn name(&self) -> &str {
        self.first().device.config.preset.exporter_name()
    }

    fn attach(&self, info: &mut AttachmentInfo) -> Result<()> {
        self.check()?;
        let attached = self.parts.iter().try_for_each(|part| part.bo.attach(info));
        attached.inspect_err(|_| self.detach(info))
    }

    fn detach(&self, info: &AttachmentInfo) {
        for part in &self.parts {
            part.bo.attachments().retain(|other| other.id() != info.id());
        }
    }

    fn pinning(&self) -> Option<&dyn Pinning> {
        self.first().device.persona.has_pin.then_some(self)
    }

    fn map_dma_buf(
        &self,
        resv: &ResvGuard<'_>,
        info: &AttachmentInfo,
        _direction: Direction,
    ) -> Result<SgTable> {
        let device = &self.first().device;
        let mut whole: Option<SgTable> = None;
        let mut add = |part: &Part| {
            let table = part.bo.map(resv, info, part.offset, part.len)?;
            match &mut whole {
                None => whole = Some(table),
                Some(whole) => whole.entries.extend(table.entries),
            }
            Ok(())
        };
        let mut mapped = device.check_present().and_then(|()| self.check());
        let mut held = 0;
        for part in &self.parts {
            mapped = mapped.and_then(|()| add(part));
            if mapped.is_err() {
                break;
            }
            held += 1;
        }
        if let Err(refusal) = mapped {
            self.parts[..held].iter().for_each(|part| release(part, info));
            return Err(match device.config.preset.hides_reasons() {
                true => no_memory(refusal.what),
                false => refusal,
            });
        }
        let table = whole.ok_or_else(|| invalid("nothing to map"))?;
        Ok(SgTable { epoch: Some(self.gate.epoch()), ..table })
    }

    fn unmap_dma_buf(
        &self,
        _resv: &ResvGuard<'_>,
        info: &AttachmentInfo,
        _table: SgTable,
        _direction: Direction,
    ) {
        self.parts.iter().for_each(|part| release(part, info));
    }

    fn gate(&self) -> Option<&Gate> {
        Some(&self.gate)
    }

    fn sharing(&self) -> Sharing {
        match self.first().device.persona.orphans {
            Orphans::Keep => Sharing::HostKept,
            Orphans::Revoke => Sharing::HostRevoked,
        }
    }

    fn why_gone(&self) -> Option<String> {
        self.check().err().map(|refusal| refusal.what)
    }

    fn is_coherent(&self) -> bool {
        true
    }

    /// The CPU can map only one contiguous range of one file: parts that are not adjacent must be
    /// mapped one by one.
    fn mmap_backing(&self, offset: u64, len: u64) -> Result<Option<MmapBacking>> {
        self.check()?;
        let end = offset.saturating_add(len);
        let touched =
            self.parts.iter().filter(|part| part.start < end && offset < part.start + part.len);
        let zap = Zap::default();
        let (mut pages, mut found) = (Vec::new(), None);
        for part in touched {
            let here = CpuPages::of(&part.bo)?;
            let at = (here.offset() + part.offset).checked_sub(part.start);
            let at = at.map(|at| (Arc::clone(here.file()), at));
            let known = found.get_or_insert_with(|| at.clone());
            let is_same = match (&*known, &at) {
                (Some((file, at)), Some((other, other_at))) => {
                    Arc::ptr_eq(file, other) && at == other_at
                }
                _ => false,
            };
            if !is_same {
                let what = format!("{}: its parts are not side by side in VRAM", self.name);
                let hides = part.bo.device.config.preset.hides_reasons();
                return Err(if hides { unsupported(what) } else { invalid(what) });
            }
            let all = zap.clone();
            here.zap().on_zap(move || all.zap());
            pages.push(here);
        }
        let (file, offset) = found.flatten().ok_or_else(|| invalid("nothing to map"))?;
        let backing = SgBacking { file, offset };
        Ok(Some(MmapBacking { backing, hold: Box::new(pages), zap: Some(zap) }))
    }

    fn vmap(&self, _resv: &ResvGuard<'_>) -> Result<IosysMap> {
        Err(invalid(format!("{}: several buffers have no one address", self.name)))
    }
}

impl Pinning for Joined {
    fn pin(&self, resv: &ResvGuard<'_>, info: &AttachmentInfo) -> Result<()> {
        for (pinned, part) in self.parts.iter().enumerate() {
            // It is pinned already, so that nothing moves under a lock that is not its own.
            if let Err(refusal) = Pinning::pin(&*part.bo, resv, info) {
                for part in &self.parts[..pinned] {
                    Pinning::unpin(&*part.bo, resv, info);
                }
                return Err(refusal);
            }
        }
        Ok(())
    }

    fn unpin(&self, resv: &ResvGuard<'_>, info: &AttachmentInfo) {
        self.parts.iter().for_each(|part| Pinning::unpin(&*part.bo, resv, info));
    }
}

fn release(part: &Part, info: &AttachmentInfo) {
    if !info.class().is_revocable() {
        part.bo.release_hold();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::is_of as is_name_of;

    #[test]
    fn each_part_is_found_in_the_name_of_the_whole() {
        let name = name("gpu0", [3, 4, 5, 9, 11, 12].into_iter());
        assert_eq!(name, "gpu0.bo3-5+bo9+bo11-12");
        for number in [3, 4, 5, 9, 11, 12] {
            assert!(is_name_of(&format!("gpu0.bo{number}"), &name), "{number}");
        }
        for bo in ["gpu0.bo1", "gpu0.bo2", "gpu0.bo6", "gpu0.bo10", "gpu1.bo3", "gpu0.bo"] {
            assert!(!is_name_of(bo, &name), "{bo}");
        }
    }
}
