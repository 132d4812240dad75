//! Registering a dma-buf.
//!
//! The exporter may be slow: it may have to move the buffer first, or live in another process. So it is asked without
//! the engine's lock, and the QPs go on meanwhile.

use std::os::fd::BorrowedFd;

use dmabuf::DmaBuf;
use iba::Access;

use crate::engine::MrInfo;
use crate::engine::import::Import;
use crate::hca::Hca;
use crate::ids::PdId;
use crate::refusal::{Result, from_import, refuse};

impl Hca {
    /// Registers `length` bytes at `offset` of a dma-buf, which peers and work requests call `iova`. The descriptor may be
    /// closed afterwards. The checks come in the kernel's order (`docs/semantics.md` 2.2); `None` for a descriptor stands
    /// for a number that none can be.
    ///
    /// What happens when the exporter moves the buffer or takes it away is a matter of the NIC's importer class
    /// ([`NicConfig::importer`](crate::config::NicConfig::importer)): the region is mapped again when it is next used
    /// (dynamic), or its key is dead from then on (revocable).
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
            (class, engine.core.config.name.clone(), engine.core.config.address)
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
}
