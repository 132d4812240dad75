//! Calls that withdraw something from peers that may be using it.
//!
//! A peer of our user may be in the middle of a copy into our memory
//! ([`crate::carrier::shm::direct`]). A call that removes that memory or the right to it first
//! withdraws it, so that no new copy begins, then waits for the copies in progress, and only then
//! releases it. The engine is not locked while it waits: a peer that was stopped in the middle of a
//! copy holds up only the caller.

use std::time::{Duration, Instant};

use iba::{AttrMask, QpAttr};

use crate::carrier::shm::UnderWay;
use crate::ids::{CtxId, MrId, QpId};
use crate::refusal::Result;
use crate::{EngineGuard, Hca, MrInfo, Rereg};

/// A copy of 256 KiB takes some tens of microseconds: for this many checks, the thread only yields
/// the processor in between.
const QUICK_LOOKS: u32 = 64;
/// The pause between two checks of a copy that takes longer.
const PAUSE: Duration = Duration::from_micros(200);
/// How long a failed device waits.
const PATIENCE_OF_THE_FAILED: Duration = Duration::from_secs(1);

impl Hca {
    /// Deregisters a region. Once this returns, no peer accesses its memory.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn dereg_mr(&self, id: MrId) -> Result<()> {
        let mut engine = self.lock();
        if engine.failure().is_some() {
            let under_way = engine.all_copies();
            drop(self.wait(engine, under_way));
            return Ok(());
        }
        let (mut mr, under_way) = engine.take_mr(id)?;
        // A client that is revoking its memory waits for our copies, so the engine must not wait
        // for the client.
        let peer = mr.peer.take();
        let done = self.wait(engine, under_way).finish_dereg(mr);
        drop(peer);
        done
    }

    /// Changes a region; with its memory its keys change, too. Once this returns, no peer accesses
    /// its memory by the old ones.
    ///
    /// # Errors
    ///
    /// `docs/semantics.md` 2.7; the region is as it was. A dma-buf region cannot be changed, nor
    /// can a device-memory region. Rights to write need memory that was registered for writing. New
    /// memory is charged before the old is released.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn rereg_mr(&self, id: MrId, change: Rereg) -> Result<MrInfo> {
        let mut engine = self.alive()?;
        let (begun, under_way) = engine.begin_rereg(id, change)?;
        self.wait(engine, under_way).finish_rereg(id, begun)
    }

    /// Moves a QP to another state, or changes what its state allows. Once this returns, its peer
    /// makes no use of rights that were withdrawn. A connected QP gets the address of another host
    /// when the next hop to it is known.
    ///
    /// # Errors
    ///
    /// [`Kind::TimedOut`](crate::Kind) if the next hop does not answer within a second,
    /// [`Kind::Unreachable`](crate::Kind) if there is no route; otherwise as the rules of QPs
    /// require.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify_qp(&self, id: QpId, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        if mask.contains(AttrMask::AV) {
            self.wait_for_next_hop(id, &attr.av)?;
        }
        let mut engine = self.alive()?;
        let under_way = engine.modify_qp(id, attr, mask)?;
        drop(self.wait(engine, under_way));
        Ok(())
    }

    /// Destroys a QP. Its outstanding requests are gone, and their completions with them.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy_qp(&self, id: QpId) -> Result<()> {
        let mut engine = self.lock();
        let under_way = engine.destroy_qp(id)?;
        drop(self.wait(engine, under_way));
        Ok(())
    }

    /// Closes a context and everything a program left open in it.
    #[doc(alias = "ibv_close_device")]
    pub fn close_ctx(&self, ctx: CtxId) {
        let mut engine = self.lock();
        let mut closing = engine.begin_close(ctx);
        let peers: Vec<_> = closing.mrs.iter_mut().filter_map(|mr| mr.peer.take()).collect();
        self.wait(engine, closing.under_way).finish_close(closing.ctx, closing.mrs);
        drop(peers);
    }

    /// Waits for copies in progress, with the engine unlocked. A failed device has hung up and
    /// would not learn of a peer's death, so it does not wait forever.
    fn wait<'a>(&'a self, mut engine: EngineGuard<'a>, mut under_way: UnderWay) -> EngineGuard<'a> {
        let mut looks = 0;
        let began = Instant::now();
        while engine.goes_on(&mut under_way) {
            if engine.failure().is_some() && began.elapsed() >= PATIENCE_OF_THE_FAILED {
                tracing::warn!(target: "peerdma::path", "a peer may still be copying");
                break;
            }
            drop(engine);
            looks += 1;
            if looks < QUICK_LOOKS {
                std::thread::yield_now();
            } else {
                if looks == QUICK_LOOKS {
                    tracing::debug!(
                        target: "peerdma::path",
                        "waiting for a peer that is in the middle of a copy; is it stopped?"
                    );
                }
                std::thread::sleep(PAUSE);
            }
            engine = self.lock();
        }
        engine
    }
}

#[cfg(test)]
mod tests;
