//! Fences in a row: the points of a timeline semaphore.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Fence, Kind};

/// Makes and walks chains.
///
/// Each link stands for a point of a timeline: it is signaled when its own fence is and all links
/// before it are. What is signaled at the old end is forgotten while the chain is walked.
#[doc(alias = "dma_fence_chain")]
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "a name for the constructors")]
pub struct FenceChain;

/// Why there is no such link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// A chain grows at its end, not inside.
    #[error("a link of a chain holds no chain")]
    Nested,
    /// The chain has no such point yet (EINVAL).
    #[error("the chain has not reached point {seqno}: its last is {last}")]
    NotReached {
        /// What was asked for.
        seqno: u64,
        /// What there is.
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
    /// A link for point `seqno` after `previous`, done when `fence` is done and all before it are.
    /// If `previous` has reached `seqno`, the link begins a new context, as points that go back
    /// cannot be ordered.
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

    /// The link that stands for point `seqno` of the chain that ends with `last`: the first that
    /// reaches it. `None`: the point is signaled and forgotten. Point 0 is the chain as it is.
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
        // The links of a chain reach back point by point; each serves the points after the one
        // before it.
        Ok(Self::walk(last).into_iter().find(|fence| {
            fence.context() != last.context()
                || link_of(fence).is_none_or(|link| link.previous_seqno < seqno)
        }))
    }

    /// The links of a chain, from its end back to the oldest that is not signaled (the last one
    /// always), and whatever fence the chain began with. A fence that is not a chain is alone.
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
    /// The fence of a link, without those before it; itself for other fences.
    #[doc(alias = "dma_fence_chain_contained")]
    pub fn work(&self) -> Self {
        link_of(self).map_or_else(|| self.clone(), |link| link.fence.clone())
    }
}

impl Link {
    pub(super) fn is_done(&self) -> bool {
        self.first_active().is_none()
    }

    /// The first fence, seen from this link back, that is not signaled.
    pub(super) fn first_active(&self) -> Option<Fence> {
        if !self.fence.is_signaled() {
            return Some(self.fence.clone());
        }
        // Every link that `older` returns is active by its own fence, or is not a link.
        self.older().map(|fence| fence.work()).filter(|work| !work.is_signaled())
    }

    /// The next older fence that is not signaled, forgetting those in between that are.
    fn older(&self) -> Option<Fence> {
        loop {
            // Asked without the lock: a fence that answers yes may run callbacks, which may walk
            // this chain.
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
