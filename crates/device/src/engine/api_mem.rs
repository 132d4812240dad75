//! Contexts, protection domains, memory regions and device memory.

use std::os::fd::BorrowedFd;

use dmabuf::DmaBuf;
use iba::Access;
use umem::{HostBuf, Umem};

use super::Engine;
use super::core::{AsyncEvent, Ctx, Dm, Pd};
use super::events::EventQueue;
use super::mr::{Mr, MrKind};
use crate::config::Preset;
use crate::ids::{CtxId, DmId, MrId, PdId};
use crate::refusal::{Kind, Refusal, Result, refuse};

/// A registered region, as its owner needs it.
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

/// What a re-registration changes.
#[derive(Clone, Debug, Default)]
#[doc(alias = "ibv_rereg_mr")]
#[expect(clippy::exhaustive_structs, reason = "callers fill in what changes")]
pub struct Rereg {
    /// Another range of memory, with its new first address.
    pub translation: Option<(Umem, u64)>,
    /// Another protection domain.
    pub pd: Option<PdId>,
    /// Other rights.
    pub access: Option<Access>,
}

const PAGE: u64 = 4096;

/// What a memory region may grant at all.
const MR_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE)
    .union(Access::MW_BIND)
    .union(Access::ZERO_BASED)
    .union(Access::HUGETLB)
    .union(Access::OPTIONAL_RANGE);

/// What a dma-buf region may grant (`docs/semantics.md` 2.2, check 4).
const DMABUF_ACCESS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE).union(Access::RELAXED_ORDERING);

/// What a region of device memory may grant (`docs/semantics.md` 3).
const DM_ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE).union(Access::ZERO_BASED);

impl Engine {
    /// Opens the device once more.
    pub fn open_ctx(&mut self) -> Result<CtxId> {
        let events = EventQueue::new()?;
        Ok(self.core.ctxs.insert(Ctx { events }).into())
    }

    /// The descriptor that is readable while an asynchronous event of the context waits. One read of eight bytes
    /// takes one event, which [`Engine::take_async_event`] then gives.
    pub fn async_fd(&self, ctx: CtxId) -> Option<BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        Some(self.core.ctxs.get(ctx.index())?.events.as_fd())
    }

    /// The oldest asynchronous event of a context.
    pub fn take_async_event(&mut self, ctx: CtxId) -> Option<AsyncEvent> {
        self.core.ctxs.get_mut(ctx.index())?.events.pop()
    }

    /// Closes a context and everything a program left open in it.
    pub fn close_ctx(&mut self, ctx: CtxId) {
        self.destroy_left_over(ctx);
        self.core.ctxs.try_remove(ctx.index());
    }

    /// Allocates a protection domain.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&mut self, ctx: CtxId) -> Result<PdId> {
        if self.core.pds.len() >= self.core.attr.max_pd as usize {
            refuse!(NoMemory, "alloc_pd: max_pd is {}", self.core.attr.max_pd);
        }
        Ok(self.core.pds.insert(Pd { ctx, uses: 0 }).into())
    }

    /// Frees a protection domain that nothing uses.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<()> {
        let uses = self.pd(pd)?.uses;
        if uses > 0 {
            refuse!(Busy, "dealloc_pd: {uses} objects are still in this protection domain");
        }
        self.core.pds.remove(pd.index());
        Ok(())
    }

    pub(crate) fn pd(&mut self, pd: PdId) -> Result<&mut Pd> {
        match self.core.pds.get_mut(pd.index()) {
            Some(pd) => Ok(pd),
            None => refuse!(Invalid, "there is no protection domain {}", pd.handle()),
        }
    }

    /// Counts an address handle of a protection domain; handles hold no state but this count.
    pub fn count_ah(&mut self, pd: PdId, created: bool) -> Result<()> {
        if created && self.core.ahs >= self.core.attr.max_ah {
            refuse!(NoMemory, "create_ah: max_ah is {}", self.core.attr.max_ah);
        }
        let pd = self.pd(pd)?;
        pd.uses = if created { pd.uses + 1 } else { pd.uses.saturating_sub(1) };
        let ahs = &mut self.core.ahs;
        *ahs = if created { *ahs + 1 } else { ahs.saturating_sub(1) };
        Ok(())
    }

    /// Registers memory of the program: `umem`, whose first byte peers and work requests call `iova`.
    ///
    /// Refused as the kernel does (`docs/semantics.md` 2.2): unknown rights, remote write without local write, a length
    /// of zero or one that wraps.
    #[doc(alias = "ibv_reg_mr")]
    pub fn reg_mr(&mut self, pd: PdId, umem: Umem, iova: u64, access: Access) -> Result<MrInfo> {
        Self::check_access("reg_mr", access, MR_ACCESS)?;
        let length = umem.len();
        if length == 0 {
            refuse!(Invalid, "reg_mr: a region of no bytes");
        }
        let base = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        if base.checked_add(length).is_none() {
            refuse!(Invalid, "reg_mr: {base:#x} + {length:#x} wraps");
        }
        self.insert_mr(pd, access, base, length, umem, 0, MrKind::User)
    }

    /// Registers part of a dma-buf. The checks come in the kernel's order (`docs/semantics.md` 2.2).
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn reg_dmabuf_mr(
        &mut self,
        pd: PdId,
        fd: Option<BorrowedFd<'_>>,
        offset: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<MrInfo> {
        if self.core.config.preset == Preset::Rxe {
            refuse!(NotSupported, "reg_dmabuf_mr: a NIC of preset \"rxe\" imports no dma-buf");
        }
        if offset % PAGE != iova % PAGE {
            refuse!(
                Invalid,
                "reg_dmabuf_mr: offset {offset:#x} and iova {iova:#x} differ within the page"
            );
        }
        Self::check_access("reg_dmabuf_mr", access, DMABUF_ACCESS)?;
        let Some(end) = offset.checked_add(length) else {
            refuse!(Invalid, "reg_dmabuf_mr: offset {offset:#x} + length {length:#x} wraps");
        };
        let Some(fd) = fd else {
            refuse!(BadFd, "reg_dmabuf_mr: the descriptor is not open");
        };
        let buffer = DmaBuf::import(fd).map_err(crate::refusal::from_import)?;
        let size = buffer.size();
        if end > size {
            refuse!(
                Invalid,
                "reg_dmabuf_mr: bytes {offset:#x} to {end:#x} of a buffer of {size:#x}"
            );
        }
        if length == 0 {
            refuse!(Invalid, "reg_dmabuf_mr: a region of no bytes");
        }
        if iova.checked_add(length).is_none() {
            refuse!(Invalid, "reg_dmabuf_mr: iova {iova:#x} + length {length:#x} wraps");
        }
        let start = offset / PAGE * PAGE;
        let mapping = buffer
            .map(start, end - start)
            .map_err(|error| Refusal::new(Kind::Invalid, format!("reg_dmabuf_mr: {error}")))?;
        let umem = Umem::dmabuf(mapping, offset - start, length)
            .map_err(|error| Refusal::new(Kind::Invalid, format!("reg_dmabuf_mr: {error}")))?;
        self.insert_mr(pd, access, iova, length, umem, 0, MrKind::Dmabuf)
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
        let block = self.dm(dm)?;
        let inside = offset.checked_add(length).is_some_and(|end| end <= block.length);
        if !inside {
            let size = block.length;
            refuse!(Invalid, "reg_dm_mr: {length:#x} bytes at {offset:#x} of a block of {size:#x}");
        }
        let umem = Umem::host(&block.memory);
        self.insert_mr(pd, access, 0, length, umem, offset, MrKind::Dm(dm))
    }

    fn check_access(call: &str, access: Access, allowed: Access) -> Result<()> {
        let unknown = access.difference(allowed);
        if !unknown.is_empty() {
            refuse!(Invalid, "{call}: access {unknown:?} is not possible here");
        }
        if access.lacks_local_write() {
            refuse!(Invalid, "{call}: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE");
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "each is a field of the region")]
    fn insert_mr(
        &mut self,
        pd: PdId,
        access: Access,
        iova: u64,
        length: u64,
        umem: Umem,
        offset: u64,
        kind: MrKind,
    ) -> Result<MrInfo> {
        if self.core.mrs.len() >= self.core.attr.max_mr as usize {
            refuse!(NoMemory, "reg_mr: max_mr is {}", self.core.attr.max_mr);
        }
        self.pd(pd)?.uses += 1;
        if let MrKind::Dm(dm) = kind {
            self.dm(dm)?.uses += 1;
        }
        let (id, key) =
            self.core.mrs.insert(|key| Mr { pd, key, access, iova, length, umem, offset, kind });
        self.publish_mr(id);
        Ok(MrInfo { id, lkey: key, rkey: key })
    }

    /// Changes a region; its keys change with it. A dma-buf or device-memory region cannot be changed
    /// (`docs/semantics.md` 2.7).
    #[doc(alias = "ibv_rereg_mr")]
    pub fn rereg_mr(&mut self, id: MrId, change: Rereg) -> Result<MrInfo> {
        let Some(mr) = self.core.mrs.get(id) else {
            refuse!(Invalid, "rereg_mr: there is no region {}", id.handle());
        };
        match mr.kind {
            MrKind::User => {}
            MrKind::Dmabuf => {
                refuse!(NotSupported, "rereg_mr: a dma-buf region cannot be changed")
            }
            MrKind::Dm(_) => refuse!(Invalid, "rereg_mr: a device-memory region cannot be changed"),
        }
        let old_pd = mr.pd;
        if change.translation.is_none() && change.pd.is_none() && change.access.is_none() {
            refuse!(Invalid, "rereg_mr: nothing is to change");
        }
        if let Some(access) = change.access {
            Self::check_access("rereg_mr", access, MR_ACCESS)?;
        }
        if let Some((umem, iova)) = &change.translation
            && (umem.is_empty() || iova.checked_add(umem.len()).is_none())
        {
            refuse!(Invalid, "rereg_mr: {:#x} bytes at {iova:#x}", umem.len());
        }
        if let Some(pd) = change.pd {
            self.pd(pd)?.uses += 1;
            self.pd(old_pd)?.uses -= 1;
        }
        self.withdraw_mr(id);
        let mr = self.core.mrs.get_mut(id).expect("the region was found above");
        if let Some(pd) = change.pd {
            mr.pd = pd;
        }
        if let Some(access) = change.access {
            mr.access = access;
        }
        if let Some((umem, iova)) = change.translation {
            mr.length = umem.len();
            mr.iova = iova;
            mr.umem = umem;
        }
        let key = self.core.mrs.rekey(id).expect("the region was found above");
        self.publish_mr(id);
        Ok(MrInfo { id, lkey: key, rkey: key })
    }

    /// Takes a region away. Once this returns no peer touches its memory.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn dereg_mr(&mut self, id: MrId) -> Result<()> {
        if self.core.mrs.get(id).is_none() {
            refuse!(Invalid, "dereg_mr: there is no region {}", id.handle());
        }
        self.withdraw_mr(id);
        let mr = self.core.mrs.remove(id).expect("the region was found above");
        self.pd(mr.pd)?.uses -= 1;
        if let MrKind::Dm(dm) = mr.kind {
            self.dm(dm)?.uses -= 1;
        }
        Ok(())
    }

    /// Allocates device memory: 64-byte granules, at an alignment of `2^log_align`
    /// (`docs/semantics.md` 3).
    #[doc(alias = "ibv_alloc_dm")]
    pub fn alloc_dm(&mut self, ctx: CtxId, length: u64, log_align: u32) -> Result<DmId> {
        let max = self.core.attr.max_dm_size;
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
        if self.core.dm_used + charge > max {
            let used = self.core.dm_used;
            refuse!(NoMemory, "alloc_dm: {length} bytes; {used} of {max} are in use");
        }
        let memory = HostBuf::memfd("peerdma:dm", length as usize)
            .map_err(|error| crate::refusal::no_memory("alloc_dm", &error))?;
        self.core.dm_used += charge;
        Ok(self.core.dms.insert(Dm { ctx, length, memory, uses: 0 }).into())
    }

    pub(crate) fn dm(&mut self, dm: DmId) -> Result<&mut Dm> {
        match self.core.dms.get_mut(dm.index()) {
            Some(block) => Ok(block),
            None => refuse!(Invalid, "there is no device memory {}", dm.handle()),
        }
    }

    /// Frees device memory that no region uses.
    #[doc(alias = "ibv_free_dm")]
    pub fn free_dm(&mut self, dm: DmId) -> Result<()> {
        let uses = self.dm(dm)?.uses;
        if uses > 0 {
            refuse!(Busy, "free_dm: {uses} memory regions are on this device memory");
        }
        let block = self.core.dms.remove(dm.index());
        self.core.dm_used -= block.length.next_multiple_of(64);
        Ok(())
    }

    /// The memory of a block, to copy to and from: 32-bit words in ascending order, each whole.
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
