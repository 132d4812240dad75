//! Fences in a row: the points of a timeline semaphore.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Fence, Kind};

/// Makes and walks chains.
///
/// Each link stands for a point of a timeline: it is signaled when its own fence and all links
/// before it are. A walk along the chain drops signaled links at the old end.
#[doc(alias = "dma_fence_chain")]
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "a name for the constructors")]
pub struct FenceChain;

/// Why there is no such link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// A chain can only be extended at its end.
    #[error("a link of a chain holds no chain")]
    Nested,
    /// The chain has no such point yet (EINVAL).
    #[error("the chain has not reached point {seqno}: its last is {last}")]
    NotReached {
        /// The requested point.
        seqno: u64,
        /// The last point.
        last: u64,
    },
    /// There is no chain to search (EINVAL).
    #[error("the fence is not a chain, and has no points")]
    NotAChain,
}

/// One link.
pub(super) struct Link {
    previous: Mutex<Option<Fence>>,
    previous_seqno: u64,
    fence: Fence,
}

impl FenceChain {
    /// A link for point `seqno` after `previous`, done when `fence` and all links before it are
    /// done. If `previous` has reached `seqno`, the link begins a new context, since points that go
    /// back cannot be ordered.
    ///
    /// # Errors
    ///
    /// [`ChainError::Nested`].
    #[doc(alias = "dma_fence_chain_init")]
    pub fn link(previous: Option<Fence>, fence: Fence, seqno: u64) -> Result<Fence, ChainError> {
        if link_of(&fence).is_some() {
            return Err(ChainError::Nested);
        }
        let last = previous.as_ref().filter(|fence| link_of(fence).is_some());
        let (context, seqno, previous_seqno) = match last {
            Some(last) if seqno > last.seqno() => (last.context(), seqno, last.seqno()),
            Some(last) => (Fence::new_context(), seqno.max(last.seqno()), 0),
            None => (Fence::new_context(), seqno, 0),
        };
        let link = Link { previous: Mutex::new(previous), previous_seqno, fence };
        Ok(Fence::new(context, seqno, "dma_fence_chain", "unbound", Kind::Chain(link)))
    }

    /// The link for point `seqno` of the chain that ends with `last`: the first link that reaches
    /// it. `None`: the point is signaled and was dropped. Point 0 is the whole chain.
    ///
    /// # Errors
    ///
    /// [`ChainError`].
    #[doc(alias = "dma_fence_chain_find_seqno")]
    pub fn find(last: &Fence, seqno: u64) -> Result<Option<Fence>, ChainError> {
        if seqno == 0 {
            return Ok(Some(last.clone()));
        }
        if link_of(last).is_none() {
            return Err(ChainError::NotAChain);
        }
        if last.seqno() < seqno {
            return Err(ChainError::NotReached { seqno, last: last.seqno() });
        }
        // The links of a chain go back point by point; each stands for all points after the
        // previous link's.
        Ok(Self::walk(last).into_iter().find(|fence| {
            fence.context() != last.context()
                || link_of(fence).is_none_or(|link| link.previous_seqno < seqno)
        }))
    }

    /// The links of a chain, from its end (always) back to the oldest that is not signaled, and the
    /// fence with which the chain began. A fence that is not a chain is returned alone.
    #[doc(alias = "dma_fence_chain_for_each")]
    pub fn walk(last: &Fence) -> Vec<Fence> {
        let mut fences = vec![last.clone()];
        let mut at = last.clone();
        while let Some(next) = link_of(&at).and_then(Link::older) {
            fences.push(next.clone());
            at = next;
        }
        fences
    }
}

impl Fence {
    /// The fence of a link, without the links before it; other fences are returned as they are.
    #[doc(alias = "dma_fence_chain_contained")]
    pub fn work(&self) -> Self {
        link_of(self).map_or_else(|| self.clone(), |link| link.fence.clone())
    }
}

impl Link {
    pub(super) fn is_done(&self) -> bool {
        self.first_active().is_none()
    }

    /// The first unsignaled fence from this link back.
    pub(super) fn first_active(&self) -> Option<Fence> {
        if !self.fence.is_signaled() {
            return Some(self.fence.clone());
        }
        // Every link that `older` returns is active by its own fence, or is not a link.
        self.older().map(|fence| fence.work()).filter(|work| !work.is_signaled())
    }

    /// The next older unsignaled fence; drops the signaled ones in between.
    fn older(&self) -> Option<Fence> {
        loop {
            // Checked without the lock: the check of a signaled fence may run callbacks, which may
            // walk this chain.
            let fence = self.previous().clone()?;
            if !fence.work().is_signaled() {
                return Some(fence);
            }
            let next = link_of(&fence).and_then(|link| link.previous().clone());
            let mut previous = self.previous();
            if previous.as_ref().is_some_and(|now| now.is_same(&fence)) {
                *previous = next;
            }
        }
    }

    fn previous(&self) -> MutexGuard<'_, Option<Fence>> {
        self.previous.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // One by one: a chain may have more links than the stack has room for.
        let mut previous = self.previous().take();
        while let Some(fence) = previous {
            let last = std::sync::Arc::into_inner(fence.inner);
            previous = match last.as_ref().map(|inner| &inner.kind) {
                Some(Kind::Chain(link)) => link.previous().take(),
                _ => None,
            };
        }
    }
}

fn link_of(fence: &Fence) -> Option<&Link> {
    match &fence.inner.kind {
        Kind::Chain(link) => Some(link),
        _ => None,
    }
}
