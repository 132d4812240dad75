//! The dma-buf of an allocation.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use descriptors::Known;

use crate::status::Result;

/// The descriptor of a dma-buf that programs get: the same one each time, until the memory is
/// freed.
#[derive(Default)]
pub(crate) struct Exported(Mutex<Option<Known>>);

impl Exported {
    /// Its number. `make` creates the dma-buf on the first call.
    pub(crate) fn number(&self, make: impl FnOnce() -> Result<OwnedFd>) -> Result<i32> {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = file.as_ref().filter(|file| file.is_ours()) {
            return Ok(file.as_raw_fd());
        }
        let new = make()?;
        let number = new.as_raw_fd();
        *file = Some(Known::at_its_number(new));
        Ok(number)
    }

    /// Closes the descriptor, since the memory is freed.
    pub(crate) fn close(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
