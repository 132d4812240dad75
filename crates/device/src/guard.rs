//! The engine, locked by the program.

use std::ops::{Deref, DerefMut};

use threads::biased;
use transport::wr::Request;

use crate::engine::Engine;
use crate::ids::QpId;

/// The engine, locked. Work begun under it is always completed: dropping it wakes the background
/// thread if the thread would sleep past the remaining work.
#[derive(Debug)]
pub struct EngineGuard<'a> {
    engine: biased::MutexGuard<'a, Engine>,
    /// Whether more or less work may be left than before.
    is_changed: bool,
}

impl<'a> EngineGuard<'a> {
    #[inline]
    pub(crate) fn new(engine: biased::MutexGuard<'a, Engine>) -> Self {
        Self { engine, is_changed: false }
    }

    /// [`Engine::post_send`]. A WRITE or READ of which all is at hand is carried out, and leaves
    /// nothing to be done.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post_send<R: Request>(&mut self, id: QpId, request: R) -> Result<(), R::Error> {
        if let Some(plain) = request.plain_one_sided()
            && self.engine.post_at_hand(id, &plain)
        {
            self.is_changed |= self.engine.has_overrun();
            return Ok(());
        }
        (**self).post_send(id, request)
    }
}

impl Deref for EngineGuard<'_> {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl DerefMut for EngineGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Engine {
        self.is_changed = true;
        &mut self.engine
    }
}

impl Drop for EngineGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_changed {
            self.engine.mind_alarm();
        }
    }
}
