//! A render node: one GPU, opened when a program first opens the node.

use std::sync::{Arc, Mutex, PoisonError};

use gpu::{Bo, Gpu, GpuConfig, Preset};
use pci::PciTree;

use super::{Result, refused};

pub(super) struct Node {
    config: GpuConfig,
    tree: Arc<PciTree>,
    gpu: Mutex<Option<Gpu>>,
}

/// A buffer object, as handles name it.
#[doc(alias = "drm_gem_object")]
pub(super) struct Object {
    pub(super) bo: Bo,
    pub(super) node: Arc<Node>,
    /// Its name for `mmap`.
    pub(super) offset: u64,
    /// False if the program said that it would never map it.
    pub(super) cpu_access: bool,
}

impl Node {
    pub(super) fn new(config: GpuConfig, tree: Arc<PciTree>) -> Self {
        Self { config, tree, gpu: Mutex::default() }
    }

    /// Whose ioctls it has.
    pub(super) fn driver(&self) -> Preset {
        self.config.preset
    }

    /// Its GPU.
    pub(super) fn gpu(&self) -> Result<Gpu> {
        let mut gpu = self.gpu.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = &*gpu {
            return Ok(gpu.clone());
        }
        let opened = Gpu::open_in(&self.config, Arc::clone(&self.tree)).map_err(|error| {
            tracing::warn!(target: "peerdma::drm", "{}: {error}", self.config.name);
            refused(&error)
        })?;
        Ok(gpu.insert(opened).clone())
    }
}
