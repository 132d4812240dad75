//! A render node: one GPU, opened when a program first opens the node.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use gpu::{Bo, Gpu, GpuConfig, Preset};
use pci::PciTree;

use crate::{Result, refused};

pub(crate) struct Node {
    config: GpuConfig,
    tree: Arc<PciTree>,
    gpu: Mutex<Option<Gpu>>,
    /// All handles' objects for it in this process.
    objects: Mutex<Vec<Weak<Object>>>,
}

/// A buffer object, as handles name it.
#[doc(alias = "drm_gem_object")]
pub(crate) struct Object {
    pub(crate) bo: Bo,
    pub(crate) node: Arc<Node>,
    /// Its fake offset for `mmap`.
    pub(crate) offset: u64,
    /// False if the program said that it would never map the buffer.
    pub(crate) cpu_access: bool,
}

impl Node {
    pub(crate) fn new(config: GpuConfig, tree: Arc<PciTree>) -> Self {
        Self { config, tree, gpu: Mutex::default(), objects: Mutex::default() }
    }

    /// The driver whose ioctls it has.
    pub(crate) fn driver(&self) -> Preset {
        self.config.preset
    }

    /// How its GPU is configured.
    pub(crate) fn config(&self) -> &GpuConfig {
        &self.config
    }

    /// The object of a buffer that the program may map: the existing one, or a new one.
    pub(crate) fn object(
        self: &Arc<Self>,
        bo: Bo,
        new_offset: impl FnOnce(u64) -> u64,
    ) -> Arc<Object> {
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        let known: Vec<_> = objects.iter().filter_map(Weak::upgrade).collect();
        if let Some(known) = known.iter().find(|known| known.bo.is_same(&bo)).cloned() {
            // Dropped without the lock.
            drop(objects);
            return known;
        }
        let offset = new_offset(bo.size());
        let object = Arc::new(Object { bo, node: Arc::clone(self), offset, cpu_access: true });
        objects.retain(|known| known.strong_count() > 0);
        objects.push(Arc::downgrade(&object));
        drop(objects);
        object
    }

    /// Remembers an object that was made.
    pub(crate) fn add(&self, object: &Arc<Object>) {
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        objects.retain(|known| known.strong_count() > 0);
        objects.push(Arc::downgrade(object));
    }

    /// Its GPU.
    pub(crate) fn gpu(&self) -> Result<Gpu> {
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
