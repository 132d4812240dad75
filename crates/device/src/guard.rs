//! The engine, locked by the program.

use std::ops::{Deref, DerefMut};

use threads::biased;
use transport::PostError;
use transport::wr::{RecvWr, Request};

use crate::engine::Engine;
use crate::ids::{CqId, QpId};
use crate::objects::bell::Ringing;
use crate::objects::cq::Wc;

/// The engine, locked. Work begun under it is always completed: dropping it wakes the background
/// thread if the thread would sleep past the remaining work.
#[derive(Debug)]
pub struct EngineGuard<'a> {
    engine: biased::MutexGuard<'a, Engine>,
    /// Whether more or less work may be left than before, or a bell be due.
    is_changed: bool,
    /// Fields are dropped in their order: these ring when the engine is unlocked.
    ringing: Ringing,
}

impl<'a> EngineGuard<'a> {
    #[inline]
    pub(crate) fn new(engine: biased::MutexGuard<'a, Engine>) -> Self {
        Self { engine, is_changed: false, ringing: Ringing::default() }
    }

    /// [`Engine::post_send`]. A WRITE or READ of which all is at hand is carried out, and leaves
    /// nothing to be done.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post_send<R: Request>(&mut self, id: QpId, request: R) -> Result<(), R::Error> {
        if let Some(plain) = request.plain_one_sided()
            && self.engine.post_at_hand(id, &plain)
        {
            self.note(self.engine.has_overrun());
            return Ok(());
        }
        (**self).post_send(id, request)
    }

    /// Adds a receive to a QP's queue. In ERR it is flushed at once (IBA 10.3.1).
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_recv(&mut self, id: QpId, wr: RecvWr) -> Result<(), PostError> {
        let is_changed = self.engine.post_recv(id, wr)?;
        self.note(is_changed);
        Ok(())
    }

    /// As [`Self::post_recv`], with a request that is written in place
    /// ([`transport::Qp::post_recv_with`]).
    #[inline]
    pub fn post_recv_with<X: From<PostError>>(
        &mut self,
        id: QpId,
        fill: impl FnOnce(&mut RecvWr) -> Result<(), X>,
    ) -> Result<(), X> {
        let is_changed = self.engine.post_recv_with(id, fill)?;
        self.note(is_changed);
        Ok(())
    }

    /// More or less work may be left than before, or a bell may be due.
    #[inline]
    fn note(&mut self, is_changed: bool) {
        self.is_changed |= is_changed || !self.engine.common.objects.bells.is_empty();
    }

    /// [`Engine::pop_wc`].
    #[inline]
    pub fn pop_wc(&mut self, id: CqId) -> Option<Wc> {
        self.engine.pop_wc(id)
    }

    /// [`Engine::take_wc`]. A completion that is taken leaves nothing to be done.
    #[inline]
    pub fn take_wc<R>(&mut self, id: CqId, read: impl FnOnce(&Wc) -> R) -> Option<R> {
        self.engine.take_wc(id, read)
    }

    /// The program polls, which may be all that it does.
    #[inline]
    pub(crate) fn note_poll(&mut self) {
        self.engine.held.note_poll();
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
            let bells = &mut self.engine.common.objects.bells;
            if !bells.is_empty() {
                self.ringing.take(bells);
            }
        }
    }
}
