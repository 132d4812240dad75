//! Memory regions and device memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use device::MrInfo;
use device::ids::{DmId, MrId, PdId};
use iba::{Access, LKey, RKey};
use rustix::fs::OFlags;
use transport::wr::Sge;
use umem::Umem;

use crate::arm::{Arm, On, other_device, refused};
use crate::owned::Owner;
use crate::{Context, DmaBuf, HostBuf, Kind, Pd, Refusal, Result};

/// A memory region. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_mr")]
pub struct Mr(Arc<Region>);

#[derive(Debug)]
struct Region {
    arm: Arm<On<MrId>, sysverbs::Mr>,
    lkey: LKey,
    rkey: RKey,
    iova: u64,
    length: u64,
    pd: Pd,
    /// What the region is on, kept until the region is gone.
    _memory: Option<Owner>,
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Arm::Soft(on) = &self.arm {
            // Fails only for a region that does not exist.
            let _ = on.hca.dereg_mr(on.id);
        }
    }
}

impl Context {
    /// Allocates device memory: memory of the NIC, which peers reach like any other.
    #[doc(alias = "ibv_alloc_dm")]
    pub fn alloc_dm(&self, length: u64) -> Result<Dm> {
        Dm::new(self, length)
    }
}

impl Pd {
    /// Registers a buffer of host memory. Its addresses are those the buffer has in this process.
    #[doc(alias = "ibv_reg_mr")]
    pub fn reg_mr(&self, buffer: &HostBuf, access: Access) -> Result<Mr> {
        Mr::host(self, buffer, access)
    }

    /// Registers `length` bytes at `offset` of a dma-buf, at addresses from `iova` on. The two must
    /// be equal modulo the page size.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn reg_dmabuf_mr(
        &self,
        buffer: impl AsFd,
        offset: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<Mr> {
        Mr::dmabuf(self, buffer.as_fd(), offset, length, iova, access)
    }

    /// Registers a whole [`DmaBuf`] at address 0.
    pub fn reg_whole_dmabuf(&self, buffer: &DmaBuf, access: Access) -> Result<Mr> {
        self.reg_dmabuf_mr(buffer.fd(), 0, buffer.size(), 0, access)
    }

    /// Registers `length` bytes at `offset` of device memory. Its addresses count from 0.
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn reg_dm_mr(&self, dm: &Dm, offset: u64, length: u64, access: Access) -> Result<Mr> {
        Mr::dm(self, dm, offset, length, access)
    }
}

impl Mr {
    fn host(pd: &Pd, buffer: &HostBuf, access: Access) -> Result<Self> {
        let (length, iova) = (buffer.len() as u64, buffer.as_ptr().addr() as u64);
        match pd.arm() {
            Arm::Soft(on) => {
                let info = on.alive()?.reg_mr(on.id, Umem::host(buffer), iova, access)?;
                let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
                Ok(Self::soft(pd, on, &info, iova, length))
            }
            Arm::Hard(hard) => Ok(Self::hard(pd, hard.reg_mr(buffer, access).map_err(refused)?)),
        }
    }

    fn dmabuf(
        pd: &Pd,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<Self> {
        match pd.arm() {
            Arm::Soft(on) => {
                let hca = &on.hca;
                let info = hca.reg_dmabuf_mr(on.id, Some(fd), offset, length, iova, access)?;
                Ok(Self::soft(pd, on, &info, iova, length))
            }
            Arm::Hard(hard) => {
                let mr = hard.reg_dmabuf_mr(fd, offset, length, iova, access).map_err(refused)?;
                Ok(Self::hard(pd, mr))
            }
        }
    }

    pub(crate) fn peer(pd: &Pd, addr: u64, length: u64, access: Access) -> Result<Self> {
        let on = pd.arm().soft("reg_mapping")?;
        let Some(info) = on.hca.reg_peer_mr(on.id, addr, length, addr, access)? else {
            let what = format!("reg_mapping: the owner of the memory at {addr:#x} is unknown");
            return Err(Refusal::new(Kind::BadAddress, what));
        };
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { addr };
        Ok(Self::soft(pd, on, &info, iova, length))
    }

    fn dm(pd: &Pd, dm: &Dm, offset: u64, length: u64, access: Access) -> Result<Self> {
        const CALL: &str = "reg_dm_mr";
        pd.context().check_same(&dm.0.context, CALL, "device memory")?;
        let other = || other_device(CALL, "device memory");
        match pd.arm() {
            Arm::Soft(on) => {
                let block = dm.0.arm.same_soft().ok_or_else(other)?.id;
                let access = access | Access::ZERO_BASED;
                let info = on.alive()?.reg_dm_mr(on.id, block, offset, length, access)?;
                Ok(Self::soft_owned(pd, on, &info, 0, length, Arc::new(dm.clone())))
            }
            Arm::Hard(hard) => {
                let block = dm.0.arm.same_hard().ok_or_else(other)?;
                let mr = hard.reg_dm_mr(block, offset, length, access).map_err(refused)?;
                Ok(Self::hard(pd, mr))
            }
        }
    }

    fn soft(pd: &Pd, on: &On<PdId>, info: &MrInfo, iova: u64, length: u64) -> Self {
        Self::soft_on(pd, on, info, iova, length, None)
    }

    /// A region on memory that it keeps.
    pub(crate) fn soft_owned(
        pd: &Pd,
        on: &On<PdId>,
        info: &MrInfo,
        iova: u64,
        length: u64,
        memory: Owner,
    ) -> Self {
        Self::soft_on(pd, on, info, iova, length, Some(memory))
    }

    fn soft_on(
        pd: &Pd,
        on: &On<PdId>,
        info: &MrInfo,
        iova: u64,
        length: u64,
        memory: Option<Owner>,
    ) -> Self {
        Self(Arc::new(Region {
            arm: Arm::Soft(on.with(info.id)),
            lkey: LKey(info.lkey),
            rkey: RKey(info.rkey),
            iova,
            length,
            pd: pd.clone(),
            _memory: memory,
        }))
    }

    pub(crate) fn hard(pd: &Pd, mr: sysverbs::Mr) -> Self {
        Self(Arc::new(Region {
            lkey: mr.lkey(),
            rkey: mr.rkey(),
            iova: mr.iova(),
            length: mr.len(),
            arm: Arm::Hard(mr),
            pd: pd.clone(),
            _memory: None,
        }))
    }

    pub(crate) fn arm(&self) -> &Arm<On<MrId>, sysverbs::Mr> {
        &self.0.arm
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.0.length
    }

    /// Always false: it has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.0.length == 0
    }

    /// The key by which peers name it.
    pub fn rkey(&self) -> RKey {
        self.0.rkey
    }

    /// The key by which requests of this side name it.
    pub fn lkey(&self) -> LKey {
        self.0.lkey
    }

    pub(crate) fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// `length` bytes at `offset`, for a work request of this side. A range outside the region is
    /// refused when the request is carried out, as LOC_PROT_ERR.
    pub fn slice(&self, offset: u64, length: u32) -> Slice<'_> {
        let addr = self.0.iova.wrapping_add(offset);
        Slice { sge: Sge { addr, length, lkey: self.lkey() }, pd: &self.0.pd }
    }

    /// The place at `offset`, for a work request of a peer.
    pub fn remote(&self, offset: u64) -> Remote {
        Remote { addr: self.0.iova.wrapping_add(offset), rkey: self.rkey() }
    }
}

/// Bytes of a local region, for a work request. The region is there as long as its slices, so the
/// key of a request that is posted is that of no other region:
///
/// ```compile_fail,E0505
/// # fn try_it(region: verbs::Mr) {
/// let slice = region.slice(0, 8);
/// drop(region);
/// let _ = verbs::SendRequest::send(1, &[slice]);
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_sge")]
pub struct Slice<'mr> {
    pub(crate) sge: Sge,
    /// The domain of the region, whose device must be that of the queue.
    pub(crate) pd: &'mr Pd,
}

impl PartialEq for Slice<'_> {
    /// Whether both are the same bytes by the same region.
    fn eq(&self, other: &Self) -> bool {
        self.sge == other.sge && self.pd.context().is_same(other.pd.context())
    }
}

impl Eq for Slice<'_> {}

// It names bytes and a domain, and changes neither: a panic leaves it as it was.
impl UnwindSafe for Slice<'_> {}
impl RefUnwindSafe for Slice<'_> {}

/// A place in a peer's memory: what a peer sends, so that this side can write, read or change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "programs send it to each other")]
pub struct Remote {
    /// The address, in the region's own addresses.
    pub addr: u64,
    /// The region's key.
    pub rkey: RKey,
}

impl Remote {
    /// The place `offset` bytes further on.
    #[must_use]
    pub const fn add(self, offset: u64) -> Self {
        Self { addr: self.addr.wrapping_add(offset), rkey: self.rkey }
    }
}

/// Device memory. Clones are the same memory.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_dm")]
pub struct Dm(Arc<Block>);

#[derive(Debug)]
struct Block {
    arm: Arm<On<DmId>, sysverbs::Dm>,
    length: u64,
    context: Context,
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Arm::Soft(on) = &self.arm {
            // Every region on it holds it, so none is left.
            let _ = on.hca.free_dm(on.id);
        }
    }
}

impl Dm {
    fn new(context: &Context, length: u64) -> Result<Self> {
        let arm = match context.arm() {
            Arm::Soft(soft) => {
                let id = soft.alive()?.alloc_dm(soft.id, length, 0)?;
                Arm::Soft(soft.with(id))
            }
            Arm::Hard(hard) => Arm::Hard(hard.alloc_dm(length).map_err(refused)?),
        };
        Ok(Self(Arc::new(Block { arm, length, context: context.clone() })))
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.0.length
    }

    /// Always false: it has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.0.length == 0
    }

    /// The memory as a dma-buf, for importers that support revocation: it is revoked when the last
    /// clone of this and the last region on it are gone.
    ///
    /// # Errors
    ///
    /// [`Kind::NotSupported`] for a NIC of a library; see [`export_fd`](Self::export_fd).
    pub fn export(&self) -> Result<DmaBuf> {
        let on = self.0.arm.soft("dm_export_dmabuf")?;
        on.hca.export_dm(on.id)
    }

    /// The same as a descriptor, which lives longer than this: for
    /// [`reg_dmabuf_mr`](Pd::reg_dmabuf_mr) of any NIC, and other importers.
    ///
    /// # Errors
    ///
    /// [`Kind::NotSupported`] if the NIC does not export it, or its library, which needs the symbols
    /// of IBVERBS_1.16.
    #[doc(alias = "ibv_dm_export_dmabuf_fd")]
    pub fn export_fd(&self) -> Result<OwnedFd> {
        match &self.0.arm {
            Arm::Soft(on) => {
                let buffer = on.hca.export_dm(on.id)?;
                let failed = |errno| Refusal::new(Kind::Io, format!("dm_export_dmabuf: {errno}"));
                dmabuf::give(buffer, OFlags::RDWR | OFlags::CLOEXEC).map_err(failed)
            }
            Arm::Hard(dm) => dm.export().map_err(refused),
        }
    }

    /// Copies `bytes` in at `offset`. Offset and length are multiples of four.
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        match &self.0.arm {
            Arm::Soft(on) => {
                let memory = on.alive()?.dm_memory(on.id, offset, bytes.len() as u64)?;
                Umem::host(&memory).write(offset, bytes).map_err(fault)
            }
            Arm::Hard(dm) => dm.write(offset, bytes).map_err(refused),
        }
    }

    /// Copies bytes at `offset` out. Offset and length are multiples of four.
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        match &self.0.arm {
            Arm::Soft(on) => {
                let memory = on.alive()?.dm_memory(on.id, offset, bytes.len() as u64)?;
                Umem::host(&memory).read(offset, bytes).map_err(fault)
            }
            Arm::Hard(dm) => dm.read(offset, bytes).map_err(refused),
        }
    }
}

fn fault(fault: umem::Fault) -> Refusal {
    Refusal::new(Kind::BadAddress, fault.to_string())
}
