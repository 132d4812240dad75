//! Device memory as a dma-buf: the NIC as exporter (`docs/semantics.md` 2.8), with the rules of
//! memory in a BAR.

use std::time::Duration;

use dmabuf::{BarBuf, BarRange, DmaBuf};
use pci::Bdf;
use umem::HostBuf;

use crate::config::NicConfig;
use crate::refusal::{Kind, Refusal, Result};

const PAGE: u64 = 4096;

/// How long freeing waits for importers that do not release it. They cannot reach the memory in any
/// case.
const PATIENCE: Duration = Duration::from_secs(10);

/// A block of device memory that was exported.
#[derive(Debug)]
pub(crate) struct DmExport {
    pub(crate) buffer: DmaBuf,
    bar: BarBuf,
    nic: String,
}

impl DmExport {
    pub(crate) fn new(config: &NicConfig, memory: &HostBuf) -> Result<Self> {
        let nic = config.name.as_str();
        let failed = |error: &dyn std::error::Error| {
            Refusal::new(Kind::NoMemory, format!("dm_export_dmabuf_fd: {error}"))
        };
        let file = memory.fd().ok_or_else(|| {
            Refusal::new(Kind::NotSupported, "dm_export_dmabuf_fd: the memory is not in a file")
        })?;
        let range = BarRange {
            owner: nic.to_owned(),
            what: format!("device memory of {nic}"),
            tree: config.tree.clone().unwrap_or_default(),
            bdf: config.address.and_then(|address| Bdf::from_bits(address.0)),
            file: file.try_clone_to_owned().map_err(|error| failed(&error))?,
            offset: 0,
            len: (memory.len() as u64).next_multiple_of(PAGE),
        };
        let bar = BarBuf::new(range, "dm").map_err(|error| failed(&error))?;
        Ok(Self { buffer: bar.buffer().clone(), bar, nic: nic.to_owned() })
    }

    /// Revokes the memory from every importer, and waits until they have released it.
    pub(crate) fn end(self) {
        if let Err(error) = self.bar.revoke("the device memory was freed", PATIENCE) {
            tracing::warn!(
                target: "peerdma::peer-memory",
                nic = %self.nic, "device memory was freed under its importers: {error}"
            );
        }
    }
}
