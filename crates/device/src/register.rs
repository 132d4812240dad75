//! Registering a dma-buf, or a peer's memory by its address.
//!
//! The exporter may be slow: it may have to move the buffer first, or live in another process. So
//! it is asked without the engine's lock, and the QPs continue in the meantime.

use std::os::fd::BorrowedFd;

use dmabuf::{DmaBuf, ImporterClass};
use iba::Access;

use crate::engine::MrInfo;
use crate::hca::Hca;
use crate::ids::PdId;
use crate::memory::import::Import;
use crate::memory::peer::PeerRegion;
use crate::refusal::{Refusal, Result, from_import, refuse};

impl Hca {
    /// Registers `length` bytes at `offset` of a dma-buf, with the address `iova` for peers and
    /// work requests. The descriptor may be closed afterwards. The checks come in the kernel's
    /// order (`docs/semantics.md` 2.2); `None` for a descriptor stands for a number that cannot be
    /// one.
    ///
    /// What happens when the exporter moves or revokes the buffer depends on the NIC's importer
    /// class ([`NicConfig::importer`](crate::config::NicConfig::importer)): the region is mapped
    /// again when it is next used (dynamic), or its key is dead from then on (revocable).
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn reg_dmabuf_mr(
        &self,
        pd: PdId,
        fd: Option<BorrowedFd<'_>>,
        offset: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<MrInfo> {
        let (class, nic, device) = {
            let engine = self.alive()?;
            let class = engine.check_dmabuf(offset, length, iova, access)?;
            (class, engine.common.nic.config.name.clone(), engine.common.nic.config.address)
        };
        let end = offset + length;
        let Some(fd) = fd else {
            refuse!(BadFd, "reg_dmabuf_mr: the descriptor is not open");
        };
        let buffer = DmaBuf::import(fd).map_err(from_import)?;
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
        let (import, umem) = Import::new(&nic, class, device, buffer, offset, length)?;
        self.alive()?.insert_dmabuf_mr(pd, access, iova, umem, import)
    }

    /// Registers `length` bytes at `addr` of this process, if some of them are memory of a device
    /// that the CPU has mapped; `None` if they are plain memory, as far as can be seen.
    ///
    /// Refused (EFAULT) as in mainline Linux, which cannot pin such a mapping. With
    /// [`NicConfig::peermem`](crate::config::NicConfig::peermem), the peer memory clients are asked
    /// one by one, and the region follows the rules of the one that claims the range
    /// (`docs/semantics.md` 2.11): its refusals are passed on, and when it revokes the memory the
    /// key is dead, like that of a revoked dma-buf.
    #[doc(alias = "ib_umem_get_peer")]
    pub fn reg_peer_mr(
        &self,
        pd: PdId,
        addr: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<Option<MrInfo>> {
        let Some(found) = dmabuf::peer::owner_of(addr, length) else { return Ok(None) };
        let (peermem, nic, class, device) = {
            let engine = self.alive()?;
            engine.check_reg_mr(addr, length, iova, access)?;
            let config = &engine.common.nic.config;
            (config.peermem, config.name.clone(), config.importer_class(), config.address)
        };
        let dmabuf::peer::PeerOwner { mapping, owner, has_client, .. } = found;
        let range = format!("{length:#x} bytes at {addr:#x}");
        let why = format!("reg_mr: {range}: {mapping} is {owner}");
        if !peermem {
            let other = match has_client {
                true => ", or let the NIC ask the memory's client (peermem = true)",
                false => "",
            };
            refuse!(
                BadAddress,
                "{why}, whose pages cannot be pinned; register its dma-buf (ibv_reg_dmabuf_mr){other}"
            );
        }
        let can_stop = class.is_some_and(ImporterClass::is_revocable);
        let write = access.contains(Access::LOCAL_WRITE);
        let got = PeerRegion::get(&nic, addr, length, write, device, can_stop);
        let (peer, umem) = got.map_err(|refusal| {
            let what = format!("{why}: {}; ibv_reg_dmabuf_mr is the alternative", refusal.what());
            Refusal::new(refusal.kind(), what)
        })?;
        self.alive()?.insert_peer_mr(pd, access, (addr, iova), umem, peer).map(Some)
    }
}
