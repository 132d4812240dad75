//! Who may pass, by two words: the epoch, and a slot's counter.
//!
//! The accessor counts itself in and then looks at the epoch; the mover changes the epoch and then
//! looks at the counter. With sequential consistency among these four, one of them sees the other.
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
/// The state that never ends.
pub(super) const REVOKED: u64 = u64::MAX;
/// The first epoch. A page of zeros is no open gate.
pub(super) const FIRST: u64 = 2;

/// Index of a slot's counter: a cache line for each.
pub(super) const fn count_at(slot: usize) -> usize {
    8 * (slot + 1)
}

/// Index of the word in which the slot's owner says its process id.
pub(super) const fn pid_at(slot: usize) -> usize {
    count_at(slot) + 1
}

/// Counts the caller in, if the gate is open in this epoch; otherwise says what the state is.
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

/// Lets nobody in any more. `state` is odd.
pub(super) fn shut(words: &impl Words, state: u64) {
    words.store(STATE, state, Ordering::SeqCst);
    full_fence();
}

/// Whether nobody is inside by this slot, after [`shut`].
pub(super) fn is_idle(words: &impl Words, slot: usize) -> bool {
    // ORDERING: sequentially consistent against `enter`; it also acquires what `leave` released.
    words.load(count_at(slot), Ordering::SeqCst) == 0
}

/// Lets those in who know the new epoch.
pub(super) fn open(words: &impl Words, epoch: u64) {
    // ORDERING: release: who sees the epoch sees the buffer where it is now.
    words.store(STATE, epoch, Ordering::Release);
}

/// The present state.
pub(super) fn state(words: &impl Words) -> u64 {
    words.load(STATE, Ordering::SeqCst)
}

/// Whether it is that of an open gate.
#[inline]
pub(super) fn is_open(state: u64) -> bool {
    state.is_multiple_of(2)
}

/// Loom takes sequentially consistent accesses for acquire and release ones, but knows the fence.
/// The model is thus of the same protocol written with fences; on the machine the accesses
/// themselves are enough, and cheaper.
#[inline]
fn full_fence() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}
