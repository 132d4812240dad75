//! A function that is called when the last owner drops it.

use std::sync::{Mutex, PoisonError};

/// The function, called on drop.
pub(crate) struct Last(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Last {
    pub(crate) fn new(act: impl FnOnce() + Send + 'static) -> Self {
        Self(Mutex::new(Some(Box::new(act))))
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        let act = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(act) = act {
            act();
        }
    }
}
