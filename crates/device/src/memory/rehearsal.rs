//! Makes the first import of a process before a program waits for one.

use dmabuf::{DmaBuf, Memory};

use super::import::Import;
use crate::config::NicConfig;

/// Imports a private page, and releases it, when a NIC is opened. The first import of a process
/// loads its code from the file, with a page fault for every few pages, which takes several times
/// as long as the import itself. A program expects to spend that time at opening, and not between
/// two messages.
pub(crate) fn rehearse(config: &NicConfig) {
    const PAGE: u64 = 4096;
    let Some(class) = config.importer_class() else { return };
    let exported = DmaBuf::export_from(&Memory::Memfd, PAGE, "rehearsal");
    let imported = exported.as_ref().map_err(ToString::to_string).and_then(|buffer| {
        let buffer = DmaBuf::import(buffer.fd()).map_err(|error| error.to_string())?;
        let import = Import::new(&config.name, class, config.address, buffer, 0, PAGE);
        import.map(drop).map_err(|refusal| refusal.to_string())
    });
    if let Err(why) = imported {
        tracing::debug!("the first registration will be slower: {why}");
    }
}
