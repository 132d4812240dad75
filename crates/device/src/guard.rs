//! The engine, locked by the program.

use std::ops::{Deref, DerefMut};

use threads::biased;

use crate::engine::Engine;

/// The engine, locked. Work begun under it is always completed: dropping it wakes the background
/// thread if the thread would sleep past the remaining work.
#[derive(Debug)]
pub struct EngineGuard<'a>(biased::MutexGuard<'a, Engine>);

impl<'a> EngineGuard<'a> {
    #[inline]
    pub(crate) fn new(engine: biased::MutexGuard<'a, Engine>) -> Self {
        Self(engine)
    }
}

impl Deref for EngineGuard<'_> {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        &self.0
    }
}

impl DerefMut for EngineGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.0
    }
}

impl Drop for EngineGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.mind_alarm();
    }
}
