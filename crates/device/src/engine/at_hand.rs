//! Operations on a peer's memory for which all is at hand: the memory of both sides is mapped, so
//! that a WRITE or READ is a copy, and is over when it is posted.

use transport::wr::PlainOneSided;

use super::Engine;
use super::env::QpEnv;
use crate::ids::QpId;

impl Engine {
    /// Carries out a WRITE or READ that is posted now, if all that it needs is at hand. If not, it
    /// is still to be posted. Either way nothing more is left to do than before, unless its
    /// completion overran a queue ([`Engine::has_overrun`]).
    ///
    /// Observers see requests in the queue, and a completion with a timestamp needs the time: where
    /// there are any, nothing is at hand.
    #[inline]
    pub(crate) fn post_at_hand(&mut self, id: QpId, request: &PlainOneSided) -> bool {
        let is_dead = self.is_dead();
        let Self { common, qps, .. } = self;
        if is_dead || common.stamps || !common.is_plain() {
            return false;
        }
        let Some(entry) = qps.get_mut(id).filter(|entry| !entry.queued) else { return false };
        entry.qp.post_at_hand(&mut QpEnv::new(common, &mut entry.context), request)
    }

    /// Whether queues overran whose QPs are still to be told.
    #[inline]
    pub(crate) fn has_overrun(&self) -> bool {
        !self.common.objects.due.overruns.is_empty()
    }
}
