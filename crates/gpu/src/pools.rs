//! The bytes of VRAM and GTT, and the right to some of them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use descriptors::Known;
use rustix::fs::{FallocateFlags, fallocate};
use umem::{Fault, HostBuf, Umem};

use crate::config::GpuConfig;
use crate::error::{Result, invalid, no_memory};
use crate::ledger::{Entry, Ledger, Locked};
use crate::place::Domain;

/// VRAM and GTT, each one file.
#[derive(Debug)]
pub(crate) struct Pools {
    vram: Pool,
    gtt: Pool,
    pub(crate) ledger: Ledger,
}

#[derive(Debug)]
struct Pool {
    bytes: HostBuf,
    /// The same file, for tables of importers.
    file: Arc<Known>,
}

/// Pages of a pool that belong to a buffer. Dropping it clears them and gives them back.
#[derive(Debug)]
pub(crate) struct Resource {
    pools: Arc<Pools>,
    pub(crate) index: u64,
    pub(crate) domain: Domain,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Pools {
    pub(crate) fn create(config: &GpuConfig, ledger: Ledger) -> Result<Self> {
        let make = |what: &str, len: u64| {
            let name = format!("peerdma-{}-{what}", config.name);
            let bytes = HostBuf::memfd(&name, length(len)?)
                .map_err(|error| no_memory(format!("{what} of {}: {error}", config.name)))?;
            Pool::new(bytes)
        };
        Ok(Self { vram: make("vram", config.vram)?, gtt: make("gtt", config.gtt)?, ledger })
    }

    pub(crate) fn join(
        config: &GpuConfig,
        ledger: Ledger,
        vram: OwnedFd,
        gtt: OwnedFd,
    ) -> Result<Self> {
        let take = |file, len| {
            let bytes = HostBuf::received(file, length(len)?).map_err(|error| {
                invalid(format!("memory of {}, as another process sent it: {error}", config.name))
            })?;
            Pool::new(bytes)
        };
        Ok(Self { vram: take(vram, config.vram)?, gtt: take(gtt, config.gtt)?, ledger })
    }

    /// Turns an entry of the table into ownership of its pages.
    pub(crate) fn resource(self: &Arc<Self>, entry: Entry) -> Resource {
        let Entry { index, domain, offset, len, .. } = entry;
        Resource { pools: Arc::clone(self), index, domain, offset, len }
    }

    /// Clears and frees a placement whose process is gone.
    pub(crate) fn reclaim(&self, table: &Locked<'_>, entry: Entry) {
        self.clear(entry.domain, entry.offset, entry.len);
        table.free(entry.index);
    }

    pub(crate) fn file(&self, domain: Domain) -> &Arc<Known> {
        &self.pool(domain).file
    }

    fn pool(&self, domain: Domain) -> &Pool {
        match domain {
            Domain::Vram => &self.vram,
            Domain::Gtt => &self.gtt,
        }
    }

    /// Gives the pages back to the system; they read as zeros.
    fn clear(&self, domain: Domain, offset: u64, len: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let file = self.file(domain);
        // If the program has put a file of its own at this descriptor, punching a hole would lose
        // its bytes.
        let punched = file.look().and_then(|()| fallocate(&**file, flags, offset, len));
        if punched.is_err() {
            // CAST: inside the pool, which is mapped.
            let _ = self.pool(domain).bytes.fill(offset as usize, 0, len as usize);
        }
    }
}

impl Pool {
    fn new(bytes: HostBuf) -> Result<Self> {
        let fd = bytes.fd().expect("a pool is a memfd").try_clone_to_owned();
        let file = fd.map_err(|error| no_memory(format!("no descriptor for a pool: {error}")))?;
        Ok(Self { bytes, file: Arc::new(Known::new(file)) })
    }
}

impl Resource {
    pub(crate) fn pools(&self) -> &Arc<Pools> {
        &self.pools
    }

    /// Where this process has it mapped. Pools are mapped for as long as they exist.
    pub(crate) fn cpu_addr(&self) -> usize {
        self.bytes().as_ptr().addr() + self.at(0)
    }

    /// Its bytes, for copies.
    pub(crate) fn umem(&self) -> std::result::Result<Umem, Fault> {
        Umem::host_range(self.bytes(), self.offset, self.len)
    }

    /// Copies the bytes of `from`. False if there was no memory for a page of either, and some
    /// bytes are lost.
    #[must_use]
    pub(crate) fn copy_from(&self, from: &Self) -> bool {
        let len = self.len.min(from.len);
        // CAST: both are in pools, which are mapped.
        let part = |resource: &Self| (resource.offset as usize, len as usize);
        let ((to, len), (start, _)) = (part(self), part(from));
        let target = self.bytes().foreign().slice(to, len);
        let source = from.bytes().foreign();
        let source = source.slice(start, len);
        match (target, source) {
            (Some(target), Some(source)) => target.copy_from_foreign(source).is_ok(),
            _ => false,
        }
    }

    /// The bytes are lost: they read as zeros.
    pub(crate) fn clear(&self) {
        self.pools.clear(self.domain, self.offset, self.len);
    }

    pub(crate) fn touch(&self) {
        self.pools.ledger.touch(self.index);
    }

    fn bytes(&self) -> &HostBuf {
        &self.pools.pool(self.domain).bytes
    }

    fn at(&self, offset: u64) -> usize {
        // CAST: inside the pool, which is mapped.
        (self.offset + offset) as usize
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        // A forked child has a copy of the value, and no right to the pages.
        if !self.pools.ledger.is_husk() {
            self.clear();
            self.pools.ledger.lock().free(self.index);
        }
    }
}

fn length(len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| no_memory(format!("{len:#x} bytes have no addresses here")))
}
