//! The GPU as a peer memory client, for plain registrations of memory that a program has mapped
//! (docs/semantics.md 2.11).
//!
//! A range is claimed if all of it is one buffer of this process. Its pages are pinned where they
//! are, and charged like any pin. They are taken back when the GPU is reset or removed, and when
//! the program frees the buffer, as the driver of a real GPU does when the program frees registered
//! memory.

use std::sync::{Arc, Weak};

use dmabuf::peer::{PeerClient, PeerCore, PeerMemory, PeerRange, shared_mappings};
use dmabuf::{DeviceAddr, ExporterError, Reach, SgBacking, SgEntry, SgTable};

use crate::bo::BoInner;
use crate::device::Device;
use crate::error::{Result, busy, invalid, no_device};
use crate::place::Domain;
use crate::pools::Pools;

/// The client that the device registers.
pub(crate) struct Client {
    name: String,
    device: Weak<Device>,
}

/// A claimed range of a buffer.
pub(crate) struct Claimed {
    bo: Weak<BoInner>,
    /// The buffer, if it must outlive the registration.
    lasting: Option<Arc<BoInner>>,
    /// Where it begins in the buffer, and its length.
    offset: u64,
    len: u64,
    page: u64,
    /// Where the buffer was when it was found, if it was found by an address of its place.
    place: Option<(Domain, u64)>,
}

impl Client {
    pub(crate) fn of(device: &Arc<Device>) -> Arc<dyn PeerClient> {
        let name = device.config.name.clone();
        Arc::new(Self { name, device: Arc::downgrade(device) })
    }
}

impl PeerClient for Client {
    fn name(&self) -> &str {
        &self.name
    }

    fn needs_invalidation(&self) -> bool {
        true
    }

    fn owner(&self, mapping: &PeerRange) -> Option<String> {
        let device = self.device.upgrade()?;
        let domain = domain_of(&device.pools, mapping)?;
        let driver = device.config.preset.name();
        let what = match device.bo_at(domain, mapping.offset, 1) {
            Some(bo) => bo.name(),
            None => "no buffer of this process".to_owned(),
        };
        Some(format!("{domain} of {} ({driver}): {what}", self.name))
    }

    fn acquire(&self, addr: u64, len: u64) -> Option<Box<dyn PeerMemory>> {
        let device = self.device.upgrade()?;
        let (domain, start) = stretch(&device.pools, addr, len)?;
        let bo = device.bo_at(domain, start, len)?;
        let place = bo.resource().ok().map(|at| (at.domain, at.offset))?;
        // The buffer may have moved meanwhile.
        let offset = start.checked_sub(place.1).filter(|offset| offset + len <= bo.size)?;
        let page = rustix::param::page_size() as u64;
        let (bo, place) = (Arc::downgrade(&bo), Some(place));
        Some(Box::new(Claimed { bo, lasting: None, offset, len, page, place }))
    }
}

impl Claimed {
    /// `len` bytes at `offset` of a buffer, for callers that know them by an address other than the
    /// buffer's place.
    pub(crate) fn new(bo: &Arc<BoInner>, offset: u64, len: u64, page: u64) -> Result<Self> {
        let weak = Arc::downgrade(bo);
        let claimed = Self { bo: weak, lasting: None, offset, len, page, place: None };
        let fits = page.is_power_of_two() && page >= rustix::param::page_size() as u64;
        let end = offset.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
        if !fits || len == 0 || end.is_none_or(|end| end > bo.size) {
            return Err(invalid(format!(
                "{len:#x} bytes at {offset:#x}, in pages of {page:#x}, are not all inside {} of {:#x} bytes",
                bo.name(),
                bo.size
            )));
        }
        Ok(claimed)
    }

    /// For users that cannot stop when the memory is taken back: it is never taken back.
    pub(crate) fn for_good(mut self) -> Self {
        self.lasting = self.bo.upgrade();
        self
    }

    fn bo(&self) -> Result<Arc<BoInner>> {
        self.bo.upgrade().ok_or_else(|| no_device("the buffer was freed"))
    }
}

impl PeerMemory for Claimed {
    fn get_pages(&self, _write: bool, core: &PeerCore) -> std::result::Result<(), ExporterError> {
        let bo = self.bo()?;
        bo.device.check_present()?;
        let resv = bo.resv.lock();
        if self.place.is_none() {
            bo.bring_back(&resv, true);
        }
        let resource = bo.resource()?;
        if self.place.is_some_and(|place| place != (resource.domain, resource.offset)) {
            return Err(busy(format!("{} moved while it was being registered", bo.name())));
        }
        bo.pin(self.lasting.is_some())?;
        if self.lasting.is_none() {
            bo.add_peer(core.clone(), self.offset, self.len);
        }
        Ok(())
    }

    fn dma_map(&self, device: Option<DeviceAddr>) -> std::result::Result<SgTable, ExporterError> {
        let bo = self.bo()?;
        let _resv = bo.resv.lock();
        let resource = bo.resource()?;
        let map_type = match resource.domain {
            Domain::Gtt => Reach::System,
            Domain::Vram => bo.device.reach(device).map_err(invalid)?,
        };
        let start = self.offset / self.page * self.page;
        let len = (self.offset + self.len).next_multiple_of(self.page) - start;
        let addr = bo.bus_addr(&resource)? + start;
        let file = Arc::clone(bo.device.pools.file(resource.domain));
        let backing = Some(SgBacking { file, offset: resource.offset + start });
        bo.device.stats.count_map(map_type, len);
        Ok(SgTable { entries: vec![SgEntry { addr, len, backing }], epoch: None, map_type })
    }

    fn dma_unmap(&self) {
        // The address stays until the buffer moves: mapping it again costs nothing then.
    }

    fn put_pages(&self) {
        // A buffer that was freed has nothing pinned any more.
        if let Some(bo) = self.bo.upgrade() {
            bo.unpin(self.lasting.is_some());
        }
    }

    fn page_size(&self) -> u64 {
        self.page
    }
}

/// Where a range is, if the CPU has it mapped as one contiguous part of one domain.
fn stretch(pools: &Pools, addr: u64, len: u64) -> Option<(Domain, u64)> {
    let end = addr.checked_add(len)?;
    let mut at = addr;
    let mut found = None;
    for mapping in shared_mappings(addr, len) {
        let domain = domain_of(pools, &mapping)?;
        if mapping.start > at {
            return None;
        }
        let here = (domain, mapping.offset + (at - mapping.start));
        let (domain, start) = *found.get_or_insert(here);
        if here != (domain, start + (at - addr)) {
            return None;
        }
        at = mapping.end.min(end);
    }
    found.filter(|_| at == end)
}

fn domain_of(pools: &Pools, mapping: &PeerRange) -> Option<Domain> {
    [Domain::Vram, Domain::Gtt].into_iter().find(|domain| {
        rustix::fs::fstat(&**pools.file(*domain))
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == mapping.file)
    })
}
