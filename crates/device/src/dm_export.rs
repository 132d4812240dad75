//! Device memory as a dma-buf: the calls.

use dmabuf::DmaBuf;

use crate::hca::Hca;
use crate::ids::DmId;
use crate::memory::dm_export::DmExport;
use crate::refusal::Result;

impl Hca {
    /// A block of device memory as a dma-buf. Only importers that allow revocation can import it:
    /// freeing the block revokes it. Later calls return the same buffer.
    #[doc(alias = "ibv_dm_export_dmabuf_fd")]
    pub fn export_dm(&self, dm: DmId) -> Result<DmaBuf> {
        let mut engine = self.alive()?;
        let config = engine.common.nic.config.clone();
        let block = engine.dm(dm)?;
        if block.export.is_none() {
            block.export = Some(DmExport::new(&config, &block.memory)?);
        }
        let export = block.export.as_ref().expect("it was just put there");
        Ok(export.buffer.clone())
    }

    /// Frees device memory that no region uses. Importers of its dma-buf lose it first.
    #[doc(alias = "ibv_free_dm")]
    pub fn free_dm(&self, dm: DmId) -> Result<()> {
        // Without the engine's lock: importers return their maps, and a NIC is one of them.
        let export = self.lock().take_dm(dm)?;
        if let Some(export) = export {
            export.end();
        }
        Ok(())
    }
}
