//! Who may enter, decided by two words: the epoch, and a slot's counter.
//!
//! The accessor counts itself in and then loads the epoch; the mover changes the epoch and then
//! loads the counter. With sequential consistency among these four, one of them sees the other.
//! The models run this very code.

#[cfg(not(loom))]
pub(super) use core::sync::atomic::Ordering;
#[cfg(loom)]
pub(super) use loom::sync::atomic::Ordering;

/// The words of a gate, by index.
pub(super) trait Words {
    fn load(&self, index: usize, order: Ordering) -> u64;
    fn store(&self, index: usize, value: u64, order: Ordering);
    fn add(&self, index: usize, order: Ordering);
    fn sub(&self, index: usize, order: Ordering);
}

/// Index of the state: an even epoch is open, an odd one closed.
const STATE: usize = 0;
/// The final state.
pub(super) const REVOKED: u64 = u64::MAX;
/// The first epoch. It is not 0, so that a page of zeros is not an open gate.
pub(super) const FIRST: u64 = 2;

/// Index of a slot's counter: a cache line for each.
pub(super) const fn count_at(slot: usize) -> usize {
    8 * (slot + 1)
}

/// Index of the word in which the slot's owner stores its process id.
pub(super) const fn pid_at(slot: usize) -> usize {
    count_at(slot) + 1
}

/// Counts the caller in, if the gate is open in this epoch; otherwise returns the state.
#[inline]
pub(super) fn enter(words: &impl Words, slot: usize, epoch: u64) -> Result<(), u64> {
    // ORDERING: with the load below, against `shut` and `is_idle`.
    words.add(count_at(slot), Ordering::SeqCst);
    full_fence();
    let state = words.load(STATE, Ordering::SeqCst);
    if state == epoch && is_open(epoch) {
        return Ok(());
    }
    leave(words, slot);
    Err(state)
}

/// Counts the caller out.
#[inline]
pub(super) fn leave(words: &impl Words, slot: usize) {
    // ORDERING: release: what was copied happened before the mover sees the counter.
    words.sub(count_at(slot), Ordering::Release);
}

/// Lets nobody in from now on. `state` is odd.
pub(super) fn shut(words: &impl Words, state: u64) {
    words.store(STATE, state, Ordering::SeqCst);
    full_fence();
}

/// Whether nobody is inside through this slot, after [`shut`].
pub(super) fn is_idle(words: &impl Words, slot: usize) -> bool {
    // ORDERING: sequentially consistent against `enter`; it also acquires what `leave` released.
    words.load(count_at(slot), Ordering::SeqCst) == 0
}

/// Lets in callers that know the new epoch.
pub(super) fn open(words: &impl Words, epoch: u64) {
    // ORDERING: release: a thread that sees the epoch sees the buffer in its new place.
    words.store(STATE, epoch, Ordering::Release);
}

/// The current state.
pub(super) fn state(words: &impl Words) -> u64 {
    words.load(STATE, Ordering::SeqCst)
}

/// Whether this is the state of an open gate.
#[inline]
pub(super) fn is_open(state: u64) -> bool {
    state.is_multiple_of(2)
}

/// Loom treats sequentially consistent accesses as acquire and release, but models the fence. So
/// the model is the same protocol with fences; on real hardware the accesses alone are enough, and
/// cheaper.
#[inline]
fn full_fence() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}
