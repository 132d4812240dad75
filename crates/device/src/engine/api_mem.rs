//! Contexts, protection domains, memory regions and device memory.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use dmabuf::ImporterClass;
use iba::Access;
use umem::{HostBuf, Umem};

use super::Engine;
use crate::budget::Full;
use crate::carrier::shm::UnderWay;
use crate::config::Preset;
use crate::ids::{CtxId, DmId, MrId, PdId};
use crate::memory::Dm;
use crate::memory::dm_export::DmExport;
use crate::memory::import::Import;
use crate::memory::mr::{Mr, MrKind};
use crate::memory::peer::PeerRegion;
use crate::objects::events::EventQueue;
use crate::objects::uses::Uses;
use crate::objects::{AsyncEvent, Ctx, Pd};
use crate::refusal::{Kind, Refusal, Result, refuse};

/// A registered region, as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MrInfo {
    /// The region.
    pub id: MrId,
    /// Its key for local use.
    pub lkey: u32,
    /// Its key for peers.
    pub rkey: u32,
}

/// The parts of a region.
struct Part {
    umem: Umem,
    offset: u64,
    length: u64,
    kind: MrKind,
    import: Option<Arc<Import>>,
    peer: Option<PeerRegion>,
    pinned: u64,
}

const PAGE: u64 = 4096;

/// The rights that a memory region may grant at all.
pub(super) const MR_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE)
    .union(Access::MW_BIND)
    .union(Access::ZERO_BASED)
    .union(Access::ON_DEMAND)
    .union(Access::HUGETLB)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::OPTIONAL_RANGE);

/// The rights that a dma-buf region may grant (`docs/semantics.md` 2.2, check 4).
const DMABUF_ACCESS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE).union(Access::RELAXED_ORDERING);

/// The rights that a region of device memory may grant (`docs/semantics.md` 3).
const DM_ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE).union(Access::ZERO_BASED);

impl Engine {
    /// Opens another context of the device.
    pub fn open_ctx(&mut self) -> Result<CtxId> {
        let charge = self.common.charges.context("open_device")?;
        let events = EventQueue::new()?;
        Ok(self.common.objects.ctxs.insert(Ctx { events, _charge: charge }).into())
    }

    /// The descriptor that is readable while an asynchronous event of the context waits. One read
    /// of eight bytes takes one event, which [`Engine::take_async_event`] then returns.
    pub fn async_fd(&self, ctx: CtxId) -> Option<BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        Some(self.common.objects.ctxs.get(ctx.index())?.events.as_fd())
    }

    /// The oldest asynchronous event of a context.
    pub fn take_async_event(&mut self, ctx: CtxId) -> Option<AsyncEvent> {
        self.common.objects.ctxs.get_mut(ctx.index())?.events.pop()
    }

    /// Allocates a protection domain.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&mut self, ctx: CtxId) -> Result<PdId> {
        let charge = self.common.charges.object("alloc_pd")?;
        if self.common.objects.pds.len() >= self.common.nic.attr.max_pd as usize {
            refuse!(NoMemory, "alloc_pd: max_pd is {}", self.common.nic.attr.max_pd);
        }
        let pd = Pd { ctx, uses: Uses::default(), handles: 0, _charge: charge };
        Ok(self.common.objects.pds.insert(pd).into())
    }

    /// Frees a protection domain that nothing uses.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<()> {
        if self.failure().is_some() {
            return Ok(());
        }
        let of = self.pd(pd)?;
        let uses = of.uses.count() + of.handles;
        if uses > 0 {
            refuse!(Busy, "dealloc_pd: {uses} objects still use this protection domain");
        }
        self.common.objects.pds.remove(pd.index());
        Ok(())
    }

    pub(super) fn pd(&mut self, pd: PdId) -> Result<&mut Pd> {
        match self.common.objects.pds.get_mut(pd.index()) {
            Some(pd) => Ok(pd),
            None => refuse!(Invalid, "there is no protection domain {}", pd.handle()),
        }
    }

    /// Counts an address handle of a protection domain; handles hold no state but this count.
    pub fn count_ah(&mut self, pd: PdId, created: bool) -> Result<()> {
        let charge = created.then(|| self.common.charges.object("create_ah")).transpose()?;
        if created && self.common.objects.ahs.len() >= self.common.nic.attr.max_ah as usize {
            refuse!(NoMemory, "create_ah: max_ah is {}", self.common.nic.attr.max_ah);
        }
        if !created && self.failure().is_some() {
            return Ok(());
        }
        let pd = self.pd(pd)?;
        pd.handles = if created { pd.handles + 1 } else { pd.handles.saturating_sub(1) };
        let ahs = &mut self.common.objects.ahs;
        match charge {
            Some(charge) => ahs.push(charge),
            None => drop(ahs.pop()),
        }
        Ok(())
    }

    /// Registers memory of the program: `umem`, whose first byte has the address `iova` for peers
    /// and work requests.
    ///
    /// Refused as the kernel does (`docs/semantics.md` 2.2): unknown rights, remote write without
    /// local write, a length of zero or one that wraps.
    #[doc(alias = "ibv_reg_mr")]
    pub fn reg_mr(&mut self, pd: PdId, umem: Umem, iova: u64, access: Access) -> Result<MrInfo> {
        let (addr, length) = (umem.addr() as u64, umem.len());
        let base = self.check_reg_mr(addr, length, iova, access)?;
        let is_paged = access.contains(Access::ON_DEMAND);
        let pinned = if is_paged { 0 } else { self.charge_pins("reg_mr", addr, length)? };
        let part =
            Part { umem, offset: 0, length, kind: MrKind::User, import: None, peer: None, pinned };
        let inserted = self.insert_mr(pd, access, base, part);
        if inserted.is_err() {
            self.uncharge_pins(pinned);
        }
        inserted
    }

    /// The checks of a registration that come before the memory is examined, in the order of the
    /// kernel's `ib_uverbs_reg_mr` and `ib_umem_get`.
    pub fn check_reg_mr(&self, addr: u64, length: u64, iova: u64, access: Access) -> Result<u64> {
        Self::check_access("reg_mr", access, MR_ACCESS)?;
        let lacking = Access::ZERO_BASED.union(Access::HUGETLB);
        if self.common.nic.config.preset == Preset::Rxe && access.intersects(lacking) {
            refuse!(NotSupported, "reg_mr: rxe has no {:?}", access.intersection(lacking));
        }
        if access.contains(Access::ON_DEMAND) {
            self.check_odp(addr, length, iova, access)?;
        }
        let base = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        for start in [addr, base] {
            if start.checked_add(length).is_none() {
                refuse!(Invalid, "reg_mr: {start:#x} + {length:#x} wraps");
            }
        }
        let is_paged = access.contains(Access::ON_DEMAND);
        if !is_paged {
            self.check_may_pin("reg_mr")?;
        }
        // An empty range within a page still has that page to pin.
        if length == 0 && (is_paged || crate::memory::pins::pages(addr, length) == 0) {
            refuse!(Invalid, "reg_mr: a region of no bytes, and of no page");
        }
        if !is_paged {
            self.check_pins("reg_mr", addr, length)?;
        }
        Ok(base)
    }

    /// Creates a region of a peer device's memory. It is charged like any region of the program
    /// (`docs/semantics.md` 2.7, 2.11).
    pub(crate) fn insert_peer_mr(
        &mut self,
        pd: PdId,
        access: Access,
        (addr, iova): (u64, u64),
        umem: Umem,
        peer: PeerRegion,
    ) -> Result<MrInfo> {
        let length = umem.len();
        let base = self.check_reg_mr(addr, length, iova, access)?;
        let pinned = self.charge_pins("reg_mr", addr, length)?;
        let (kind, peer) = (MrKind::Peer, Some(peer));
        let part = Part { umem, offset: 0, length, kind, import: None, peer, pinned };
        let inserted = self.insert_mr(pd, access, base, part);
        if inserted.is_err() {
            self.uncharge_pins(pinned);
        }
        inserted
    }

    /// The checks of a dma-buf registration that come before the buffer is examined
    /// (`docs/semantics.md` 2.2, 2 to 7), and the importer class of this NIC.
    pub(crate) fn check_dmabuf(
        &self,
        offset: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<ImporterClass> {
        let config = &self.common.nic.config;
        let Some(class) = config.importer_class() else {
            refuse!(NotSupported, "reg_dmabuf_mr: {} imports no dma-buf", config.name);
        };
        if offset % PAGE != iova % PAGE {
            refuse!(
                Invalid,
                "reg_dmabuf_mr: offset {offset:#x} and iova {iova:#x} differ within the page"
            );
        }
        Self::check_access("reg_dmabuf_mr", access, DMABUF_ACCESS)?;
        if offset.checked_add(length).is_none() {
            refuse!(Invalid, "reg_dmabuf_mr: offset {offset:#x} + length {length:#x} wraps");
        }
        Ok(class)
    }

    /// Creates a region of an imported dma-buf.
    pub(crate) fn insert_dmabuf_mr(
        &mut self,
        pd: PdId,
        access: Access,
        iova: u64,
        umem: Umem,
        import: Arc<Import>,
    ) -> Result<MrInfo> {
        let length = umem.len();
        if iova.checked_add(length).is_none() {
            refuse!(Invalid, "reg_dmabuf_mr: iova {iova:#x} + length {length:#x} wraps");
        }
        let part = Part {
            umem,
            offset: 0,
            length,
            kind: MrKind::Dmabuf,
            import: Some(import),
            peer: None,
            pinned: 0,
        };
        self.insert_mr(pd, access, iova, part)
    }

    /// Registers part of a block of device memory, zero-based (`docs/semantics.md` 3).
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn reg_dm_mr(
        &mut self,
        pd: PdId,
        dm: DmId,
        offset: u64,
        length: u64,
        access: Access,
    ) -> Result<MrInfo> {
        if !access.contains(Access::ZERO_BASED) {
            refuse!(Invalid, "reg_dm_mr: device memory needs IBV_ACCESS_ZERO_BASED");
        }
        Self::check_access("reg_dm_mr", access, DM_ACCESS)?;
        let ctx = self.pd(pd)?.ctx;
        let block = self.dm(dm)?;
        if block.ctx != ctx {
            refuse!(Invalid, "reg_dm_mr: the block belongs to another context than the PD");
        }
        let inside = offset.checked_add(length).is_some_and(|end| end <= block.length);
        if !inside {
            let size = block.length;
            refuse!(Invalid, "reg_dm_mr: {length:#x} bytes at {offset:#x} of a block of {size:#x}");
        }
        let umem = Umem::host(&block.memory);
        let part = Part {
            umem,
            offset,
            length,
            kind: MrKind::Dm(dm),
            import: None,
            peer: None,
            pinned: 0,
        };
        self.insert_mr(pd, access, 0, part)
    }

    /// On-demand paging according to the persona (`docs/semantics.md` 2.5).
    pub(super) fn check_odp(
        &self,
        addr: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<()> {
        let config = &self.common.nic.config;
        if !config.has_odp() {
            refuse!(NotSupported, "reg_mr: {} has no on-demand paging", config.name);
        }
        if length == u64::MAX {
            if !config.has_implicit_odp() {
                refuse!(NotSupported, "reg_mr: {} has no implicit on-demand paging", config.name);
            }
            if addr != 0 || iova != 0 || access.contains(Access::HUGETLB) {
                refuse!(
                    Invalid,
                    "reg_mr: the whole address space is registered at address and iova 0, without HUGETLB"
                );
            }
        }
        Ok(())
    }

    pub(super) fn check_access(call: &str, access: Access, allowed: Access) -> Result<()> {
        let unknown = access.difference(allowed);
        if !unknown.is_empty() {
            refuse!(Invalid, "{call}: access {unknown:?} is not supported here");
        }
        if access.lacks_local_write() {
            refuse!(Invalid, "{call}: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE");
        }
        Ok(())
    }

    fn insert_mr(&mut self, pd: PdId, access: Access, iova: u64, part: Part) -> Result<MrInfo> {
        if self.common.memory.mrs.len() >= self.common.nic.attr.max_mr as usize {
            refuse!(NoMemory, "reg_mr: max_mr is {}", self.common.nic.attr.max_mr);
        }
        let pd_use = self.pd(pd)?.uses.take();
        let dm_use = match part.kind {
            MrKind::Dm(dm) => Some(self.dm(dm)?.uses.take()),
            _ => None,
        };
        let charge = self.common.charges.object("reg_mr")?;
        let Part { umem, offset, length, kind, import, peer, pinned } = part;
        let odp = access.contains(Access::ON_DEMAND).then(Box::default);
        let (id, key) = self.common.memory.mrs.insert(|key| Mr {
            pd,
            pd_use,
            _dm_use: dm_use,
            key,
            access,
            iova,
            length,
            umem,
            offset,
            kind,
            import,
            peer,
            odp,
            is_revoked: false,
            pinned,
            is_writable: access.needs_writable(),
            _charge: charge,
        });
        self.publish_mr(id);
        Ok(MrInfo { id, lkey: key, rkey: key })
    }

    /// Begins to deregister a region ([`crate::Hca::dereg_mr`]): from here on, its key is unknown.
    /// Its memory must stay until the copies in progress have ended.
    pub(crate) fn take_mr(&mut self, id: MrId) -> Result<(Mr, UnderWay)> {
        self.check_unshown("dereg_mr", id)?;
        let under_way = self.withdraw_mr(id);
        let Some(mr) = self.common.memory.mrs.remove(id) else {
            refuse!(Invalid, "dereg_mr: there is no region {}", id.handle());
        };
        Ok((mr, under_way))
    }

    /// Releases a region that no peer accesses any more.
    pub(crate) fn finish_dereg(&mut self, mr: Mr) -> Result<()> {
        if self.failure().is_some() {
            return Ok(());
        }
        self.uncharge_pins(mr.pinned);
        if let Some(import) = mr.import {
            self.common.counters.first.page_invalidations += import.invalidations();
            self.common.memory.faults.let_go(import);
        }
        Ok(())
    }

    /// Allocates device memory: 64-byte granules, at an alignment of `2^log_align`
    /// (`docs/semantics.md` 3).
    #[doc(alias = "ibv_alloc_dm")]
    pub fn alloc_dm(&mut self, ctx: CtxId, length: u64, log_align: u32) -> Result<DmId> {
        let object = self.common.charges.object("alloc_dm")?;
        let max = self.common.nic.attr.max_dm_size;
        if max == 0 {
            refuse!(NotSupported, "alloc_dm: this NIC has no device memory");
        }
        if length == 0 || length > max {
            refuse!(Invalid, "alloc_dm: {length} bytes; max_dm_size is {max}");
        }
        if log_align > 12 {
            refuse!(Invalid, "alloc_dm: alignment 2^{log_align}; 2^12 is the largest");
        }
        let charge = length.next_multiple_of(64);
        let memory = HostBuf::memfd("peerdma-dm", length as usize)
            .map_err(|error| crate::refusal::no_memory("alloc_dm", &error))?;
        let (nic, vf) = (&self.common.nic.config.name, self.common.nic.vf);
        if let Err(full) = self.common.memory.dm_budget.take(nic, vf, charge, max) {
            return Err(no_dm(length, max, full));
        }
        Ok(self
            .common
            .memory
            .dms
            .insert(Dm {
                ctx,
                length,
                memory,
                uses: Uses::default(),
                export: None,
                _charge: object,
            })
            .into())
    }

    pub(crate) fn dm(&mut self, dm: DmId) -> Result<&mut Dm> {
        match self.common.memory.dms.get_mut(dm.index()) {
            Some(block) => Ok(block),
            None => refuse!(Invalid, "there is no device memory {}", dm.handle()),
        }
    }

    /// Begins to free device memory that no region uses ([`crate::Hca::free_dm`]). Returns its
    /// dma-buf, which is left.
    pub(crate) fn take_dm(&mut self, dm: DmId) -> Result<Option<DmExport>> {
        if self.failure().is_some() {
            return Ok(None);
        }
        let uses = self.dm(dm)?.uses.count();
        if uses > 0 {
            refuse!(Busy, "free_dm: {uses} memory regions use this device memory");
        }
        let block = self.common.memory.dms.remove(dm.index());
        let (nic, vf) = (&self.common.nic.config.name, self.common.nic.vf);
        self.common.memory.dm_budget.give(nic, vf, block.length.next_multiple_of(64));
        Ok(block.export)
    }

    /// The memory of a block, to copy to and from: 32-bit words in ascending order, each in one
    /// access.
    #[doc(alias = "ibv_memcpy_to_dm")]
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn dm_memory(&mut self, dm: DmId, offset: u64, length: u64) -> Result<HostBuf> {
        let block = self.dm(dm)?;
        if offset.checked_add(length).is_none_or(|end| end > block.length) {
            let size = block.length;
            refuse!(
                BadAddress,
                "memcpy_dm: {length:#x} bytes at {offset:#x} of a block of {size:#x}"
            );
        }
        if !offset.is_multiple_of(4) || !length.is_multiple_of(4) {
            refuse!(Invalid, "memcpy_dm: offset and length must be multiples of 4");
        }
        Ok(block.memory.clone())
    }
}

/// Why there is no device memory.
fn no_dm(length: u64, max: u64, full: Full) -> Refusal {
    let what = match full {
        Full::Own { used } => format!("{length} bytes; {used} of {max} are in use"),
        Full::Together { used, others } => format!(
            "{length} bytes; of {max} this process has {used}, and others of this user have {others}"
        ),
        Full::Registry(error) => error.to_string(),
    };
    Refusal::new(Kind::NoMemory, format!("alloc_dm: {what}"))
}
