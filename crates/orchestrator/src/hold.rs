//! Memory that stays while a device is at work on it.

use std::fmt;
use std::time::{Duration, Instant};

use dmabuf::{DmaBuf, Fence, ResvGuard, Timeline, Usage};

use crate::place::Placed;

/// How long a hold may make the memory's owner wait before it is [overdue](Hold::is_overdue).
pub const HOLD_LIMIT: Duration = Duration::from_secs(2);

/// How often a hold asks for a lock that is taken: others have it for less than a microsecond,
/// unless they move the memory.
const ATTEMPTS: u32 = 256;

/// A request of a device is under way on the memory, which its owner neither moves nor takes away
/// before this is dropped: a fence of the request, as an importer adds one to the reservation
/// object (`docs/semantics.md` 1.7). It has to end in finite time.
#[must_use = "the memory is held until this is dropped"]
pub struct Hold {
    buffer: DmaBuf,
    work: Timeline,
    fence: Fence,
    since: Instant,
}

/// Why memory cannot be held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// Its owner is about to move it or to take it away: ask again. The caller may have holds that
    /// the owner waits for, so this is no place to wait.
    #[error("the memory of {provider} is about to move, or to be taken away")]
    Busy {
        /// The provider.
        provider: String,
    },
    /// It is gone.
    #[error("{why}")]
    Gone {
        /// Who took it away, and why.
        why: String,
    },
    /// There is no room for another request.
    #[error("no room for another request in the memory of {provider}")]
    NoMemory {
        /// The provider.
        provider: String,
    },
}

impl Placed {
    /// Keeps the memory where it is until the [`Hold`] is dropped, so that no request of a device
    /// loses it halfway. A provider that leaves gives no more of them and waits for those that
    /// there are, 10 seconds at most, as the kernel waits for the references to the pages of a
    /// provider.
    ///
    /// # Errors
    ///
    /// [`HoldError`].
    #[doc(alias = "percpu_ref_tryget_live_rcu")]
    pub fn hold(&self) -> Result<Hold, HoldError> {
        let provider = || self.provider().to_owned();
        let guard = lock_unless_it_moves(self.buffer());
        let guard = guard.ok_or_else(|| HoldError::Busy { provider: provider() })?;
        if let Some(why) = self.buffer().why_gone() {
            return Err(HoldError::Gone { why });
        }
        if self.is_leaving() {
            return Err(HoldError::Gone { why: format!("{} leaves", self.provider()) });
        }
        let room = guard.reserve_fences(1);
        room.map_err(|_| HoldError::NoMemory { provider: provider() })?;
        let work = Timeline::new("orchestrator", self.provider());
        let fence = work.point();
        // Whoever moves memory waits for fences of this class, and nobody else does.
        let added = guard.add_fence(&fence, Usage::Bookkeep);
        added.expect("a slot was reserved under this lock");
        Ok(Hold { buffer: self.buffer().clone(), work, fence, since: Instant::now() })
    }
}

fn lock_unless_it_moves(buffer: &DmaBuf) -> Option<ResvGuard<'_>> {
    (0..ATTEMPTS).find_map(|_| {
        let guard = buffer.resv().try_lock();
        if guard.is_none() {
            std::hint::spin_loop();
        }
        guard
    })
}

impl Hold {
    /// Whether it should end now, whatever becomes of the request: it has lasted for longer than
    /// [`HOLD_LIMIT`], and the memory's owner waits.
    pub fn is_overdue(&self) -> bool {
        self.since.elapsed() > HOLD_LIMIT && lock_unless_it_moves(&self.buffer).is_none()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.work.signal(self.fence.seqno());
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("for", &self.since.elapsed()).finish_non_exhaustive()
    }
}

/// How long a provider that leaves waits for requests.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until no request is under way on memory of which no new hold is given.
pub(crate) fn drain(buffer: &DmaBuf, provider: &str) {
    let _guard = buffer.resv().lock();
    // TIMEOUT: a request that does not end cannot keep a device that is gone.
    if buffer.resv().wait(Usage::Bookkeep, Some(PATIENCE)).is_err() {
        let count = buffer.resv().fences(Usage::Bookkeep).len();
        tracing::warn!(
            target: "peerdma::peer-memory",
            "{provider} leaves with {count} requests under way on its memory, which fail"
        );
    }
}
