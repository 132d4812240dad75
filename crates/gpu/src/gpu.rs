//! A program's handle of a GPU.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;

use dmabuf::{BusWindow, DmaBuf, Fence, Reach, Retired};
use pci::{Bdf, PciConfig, PciTree};

use crate::bo::BoInner;
use crate::config::GpuConfig;
use crate::device::Device;
use crate::error::{Result, invalid};
use crate::handle::Bo;
use crate::imported::{Imported, of_import};
use crate::open::open;
use crate::persona::Persona;
use crate::place::{Domain, Place};
use crate::reset::Resetting;
use crate::stats::GpuStats;

/// A software GPU. A clone is the same GPU; it lives as long as a handle or a buffer does.
#[derive(Clone)]
pub struct Gpu {
    device: Arc<Device>,
}

impl Gpu {
    /// Opens the GPU of this name, on a machine where all devices reach each other.
    ///
    /// # Errors
    ///
    /// An impossible configuration, no memory, or another process that has the GPU with another
    /// configuration.
    pub fn open(config: &GpuConfig) -> Result<Self> {
        let tree = PciConfig::default().build(&["peerdma0", config.name.as_str()]);
        let tree = tree.map_err(|error| invalid(error.to_string()))?;
        Self::open_in(config, Arc::new(tree))
    }

    /// Opens the GPU of this name on a given machine. If the tree does not name it, no peer reaches
    /// it.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_in(config: &GpuConfig, tree: Arc<PciTree>) -> Result<Self> {
        Ok(Self { device: open(config, tree)? })
    }

    /// Makes a buffer of at least `size` bytes (rounded up to pages), all zero. If there is no room
    /// where it should be, the least recently used buffers are moved to GTT.
    ///
    /// # Errors
    ///
    /// ENOMEM when everything that could be evicted is pinned, EAGAIN when a limit on this
    /// process's VRAM is reached, ENODEV when the GPU was removed.
    pub fn alloc(&self, size: u64, place: Place) -> Result<Bo> {
        Ok(Bo::new(BoInner::new(&self.device, size, place)?))
    }

    /// Imports the buffer behind `fd`: that of another process of this user, of another GPU, or of
    /// the kernel. A buffer of this GPU and process is the same buffer again. `fd` may be closed
    /// afterwards.
    ///
    /// Another owner's buffer can be read, written, copied and passed on, wherever its owner moves
    /// it; it cannot be moved from here, nor exported by ranges. The importer is this GPU: a buffer
    /// of the same GPU stays where it is; for a buffer of another GPU the rules of peer-to-peer
    /// decide, as for a NIC.
    ///
    /// ```
    /// use gpu::{Gpu, GpuConfig, Place};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let gpu = Gpu::open(&GpuConfig { shared: false, ..GpuConfig::default() })?;
    /// let frame = dmabuf::DmaBuf::export(1 << 20, "frame")?;
    /// let imported = gpu.import(&frame.fd())?;
    /// imported.write(0, b"from the GPU")?;
    /// let bo = gpu.alloc(1 << 20, Place::VRAM)?;
    /// gpu::copy((&imported, 0), (&bo, 0), 1 << 20)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// EBADF and EINVAL for a file that is not a dma-buf; ENODEV if the exporter or the GPU is
    /// gone; otherwise the exporter's refusal.
    #[doc(alias = "drm_gem_prime_import")]
    pub fn import(&self, fd: impl AsFd) -> Result<Bo> {
        self.device.check_present()?;
        let buf = DmaBuf::import(fd.as_fd()).map_err(|error| of_import(&error))?;
        match self.device.bo_of(&buf) {
            Some(bo) => Ok(Bo::new(bo)),
            None => Ok(Bo::imported(Imported::new(&self.device, buf)?)),
        }
    }

    /// The path of this GPU's accesses to the memory of `other`.
    ///
    /// # Errors
    ///
    /// Why there is no path, in words.
    #[doc(alias = "cuDeviceCanAccessPeer")]
    pub fn reaches(&self, other: &Self) -> std::result::Result<Reach, String> {
        other.device.reach(self.device.addr())
    }

    /// Moves a buffer out of VRAM. It comes back when it is used and there is room.
    ///
    /// # Errors
    ///
    /// EBUSY when it is pinned, EINVAL when it may not be in GTT, ENOMEM when GTT is full.
    pub fn evict(&self, bo: &Bo) -> Result<Fence> {
        let bo = bo.own()?;
        bo.device.check_present()?;
        bo.evict(&bo.resv.lock(), false, "evicted")
    }

    /// Moves every buffer of this process that can move out of VRAM; returns how many did.
    pub fn evict_all(&self) -> usize {
        let in_vram = |bo: &Arc<BoInner>| bo.resource().is_ok_and(|r| r.domain == Domain::Vram);
        let bos = self.device.all().into_iter().filter(in_vram);
        bos.filter(|bo| bo.evict(&bo.resv.lock(), false, "evicted").is_ok()).count()
    }

    /// Moves a buffer to `domain`. It stays there until it is moved again, evicted, or an importer
    /// cannot be served there.
    ///
    /// # Errors
    ///
    /// As [`evict`](Self::evict); ENOMEM also when VRAM is full of buffers that cannot be evicted.
    pub fn move_to(&self, bo: &Bo, domain: Domain) -> Result<Fence> {
        let bo = bo.own()?;
        bo.device.check_present()?;
        bo.put(&bo.resv.lock(), domain, "moved on demand")
    }

    /// Resets the GPU for this process: all buffers of the process are revoked, the contents of
    /// VRAM are lost, and then the buffers can be mapped again, by new attachments and by dynamic
    /// importers. Importers that cannot be revoked keep their access; the names of their buffers
    /// are returned.
    pub fn reset(&self) -> Vec<String> {
        self.begin_reset().kept().to_vec()
    }

    /// Begins a reset; until it ends, every call answers ENODEV.
    pub fn begin_reset(&self) -> Resetting {
        Resetting::begin(&self.device, "the GPU was reset")
    }

    /// Removes the GPU from the machine: all buffers of this process are revoked for good, and
    /// every call answers ENODEV. Importers that cannot be revoked keep their access; the names of
    /// their buffers are returned.
    pub fn remove(&self) -> Vec<String> {
        Resetting::remove(&self.device, "the GPU was removed")
    }

    /// Whether the GPU is available: it was not removed, and is not being reset.
    pub fn is_operational(&self) -> bool {
        self.device.check_present().is_ok()
    }

    /// Does the next job of a manual copy engine; returns whether there was one.
    pub fn step(&self) -> bool {
        self.device.engine.step()
    }

    /// Waits until the moves in progress are done, and the memory of buffers that were freed
    /// meanwhile is free.
    pub fn wait_idle(&self) {
        self.device.engine.wait_idle();
    }

    /// For code that caught a fault at `addr`: if this was a stale access, counts it, and tells
    /// which buffer had the address, since when it has been invalid, and why.
    pub fn report_fault(&self, addr: u64) -> Option<Retired> {
        let retired = self.device.window.report_stale(addr)?;
        tracing::error!("stale access: {retired}");
        Some(retired)
    }

    /// Its bus addresses.
    pub fn window(&self) -> &BusWindow {
        &self.device.window
    }

    /// Where it is in the PCI tree.
    pub fn bdf(&self) -> Option<Bdf> {
        self.device.bdf
    }

    /// What its exporter does.
    pub fn persona(&self) -> &Persona {
        &self.device.persona
    }

    /// The configuration with which it was opened.
    pub fn config(&self) -> &GpuConfig {
        &self.device.config
    }

    /// The statistics.
    pub fn stats(&self) -> GpuStats {
        let stale_accesses = self.device.window.stale_accesses();
        GpuStats { stale_accesses, ..self.device.stats.read() }
    }

    /// Bytes of a domain in use, by all processes that share the GPU. Memory that dead processes
    /// left and no process holds is freed first.
    pub fn used(&self, domain: Domain) -> u64 {
        self.device.peers.reclaim_dead(&self.device.pools);
        self.device.used(domain)
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu").field("name", &self.device.config.name).finish_non_exhaustive()
    }
}
