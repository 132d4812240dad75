//! A handle that does not keep the buffer.

use std::fmt;
use std::sync::{Arc, Weak};

use descriptors::Known;

use crate::DmaBuf;
use crate::shared::Shared;

/// An exporter's handle of a buffer that it exported: enough to notify the importers, but it does
/// not keep the buffer alive. It keeps the file open.
#[derive(Clone)]
pub struct WeakDmaBuf {
    shared: Weak<Shared>,
    file: Arc<Known>,
    is_writable: bool,
}

impl DmaBuf {
    /// A handle that does not keep the buffer.
    pub fn downgrade(&self) -> WeakDmaBuf {
        let (shared, file, is_writable) = self.parts();
        WeakDmaBuf { shared: Arc::downgrade(shared), file: Arc::clone(file), is_writable }
    }
}

impl WeakDmaBuf {
    /// Whether every handle and attachment is gone.
    pub fn is_gone(&self) -> bool {
        self.shared.strong_count() == 0
    }

    /// The buffer, unless every handle and attachment is gone.
    pub fn upgrade(&self) -> Option<DmaBuf> {
        let shared = self.shared.upgrade()?;
        Some(DmaBuf::from_parts(shared, Arc::clone(&self.file), self.is_writable))
    }
}

impl fmt::Debug for WeakDmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakDmaBuf").field("fd", &self.file).finish()
    }
}
