//! An open device, and what is bound to its program.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpu::{Bo, Resetting};

use super::config::Config;
use super::iommu::Iommu;
use super::structure::refuse;
use crate::{Result, refused};

/// An open device, which answers nothing before it is bound.
#[derive(Default)]
pub(crate) struct Device {
    bound: Mutex<Option<Bound>>,
}

/// The state of a device that a program has bound.
#[doc(alias = "vfio_device_file")]
pub(super) struct Bound {
    /// The memory behind BAR 0.
    pub(super) bar: Bo,
    pub(super) config: Config,
    /// Present while memory is not enabled.
    pub(super) suspended: Option<Resetting>,
    pub(super) iommu: Arc<Iommu>,
    /// The address space that the device is attached to.
    pub(super) attached: Option<u32>,
}

impl Device {
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Bound>> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the device, if it is bound. This takes the lock of the device's memory, as in the
    /// kernel: an export at the same time comes either before a revocation or after it.
    pub(super) fn with<T>(&self, body: impl FnOnce(&mut Bound) -> Result<T>) -> Result<T> {
        match &mut *self.lock() {
            Some(bound) => body(bound),
            None => {
                Err(refuse(libc::EINVAL, format_args!("the device is not bound to an iommufd")))
            }
        }
    }

    /// The last descriptor is closed: what was exported is revoked.
    pub(crate) fn close(&self) {
        let bound = self.lock().take();
        if let Some(bound) = bound {
            bound.close();
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let Some(bound) = self.lock().take() else { return };
        // The caller may hold any lock, and importers take locks of their own.
        if let Err(error) = threads::spawn("peerdma-vfio", || bound.close()) {
            tracing::error!(target: "peerdma::drm", "a device stays open: {error}");
        }
    }
}

impl Bound {
    /// Whether memory answers.
    #[doc(alias = "__vfio_pci_memory_enabled")]
    pub(super) fn is_enabled(&self) -> bool {
        self.suspended.is_none()
    }

    /// Follows Memory Space Enable in the command register.
    #[doc(alias = "vfio_pci_dma_buf_move")]
    pub(super) fn follow(&mut self) -> Result<()> {
        if self.config.has_memory() {
            self.suspended = None;
        } else if self.suspended.is_none() {
            self.suspended = Some(self.suspend("memory of the device was disabled")?);
        }
        Ok(())
    }

    /// The contents of memory are lost; the registers keep their values.
    #[doc(alias = "VFIO_DEVICE_RESET")]
    pub(super) fn reset(&mut self) -> Result<()> {
        match &self.suspended {
            Some(suspended) => suspended.lose_contents(),
            None => self.suspend("the device was reset")?.lose_contents(),
        }
        Ok(())
    }

    fn suspend(&self, why: &str) -> Result<Resetting> {
        let suspended = self.bar.suspend(why).map_err(|error| refused(&error))?;
        tell_kept(&suspended);
        Ok(suspended)
    }

    #[doc(alias = "vfio_pci_dma_buf_cleanup")]
    fn close(mut self) {
        if let Some(id) = self.attached.take() {
            self.iommu.detach(id);
        }
        let suspended = match self.suspended.take() {
            Some(suspended) => Ok(suspended),
            None => self.suspend("the device was closed"),
        };
        if let Ok(suspended) = suspended {
            suspended.end_for_good();
        }
    }
}

fn tell_kept(suspended: &Resetting) {
    for name in suspended.kept() {
        tracing::warn!(target: "peerdma::drm", "{name}: an importer kept its access");
    }
}
