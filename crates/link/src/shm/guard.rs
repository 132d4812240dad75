//! The guard slot: how a process that copies and one that withdraws the memory see each other.
//!
//! Two engines may agree that the sending engine itself accesses the memory of the receiving one. A
//! table of the receiver lists that memory; the receiver can withdraw it at any time, and must then
//! know that nothing touches it any more. The slot is a word of the page next to the ring:
//!
//! ```text
//!   who copies                      who withdraws
//!   ----------                      -------------
//!   hold: slot = key                table entry = dead
//!   (a store that is a fence)       fence
//!   entry alive? copy : leave       look: is it held for what was withdrawn?
//!   free: slot = 0                  then look until it is held otherwise
//! ```
//!
//! Both store before a fence and load after it, so when a copy and a withdrawal coincide, at
//! least one sees the other. A slot gets a new number each time it is held: a copy that began
//! before the withdrawal has ended when the word has changed, whatever was begun since.
//!
//! A peer can hold its slot forever, maliciously, or because it was stopped. So no thread should
//! hold a lock while it waits, and only the slots of peers that have the table count: a stranger,
//! which copies nothing, has the same page and may write anything there
//! ([`Inbound::held`](super::Inbound::held)).

use crate::sync::{Ordering, Words, fence};

use super::layout::SLOT;

/// What a slot contained when it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held(u64);

impl Held {
    /// Whether nothing was being copied.
    pub fn is_free(self) -> bool {
        self.0 == 0
    }

    /// Whether it was held for `key`.
    pub fn is_for(self, key: u32) -> bool {
        // CAST: the key is the lower half of the word.
        !self.is_free() && self.0 as u32 == key
    }
}

/// Holds the slot for `key`, which is not 0. `number` differs from the last one. The caller must
/// look up what to copy after this, by sequentially consistent loads.
#[inline]
pub(super) fn hold(words: &impl Words, key: u32, number: u32) {
    // ORDERING: sequentially consistent, as are the stores and loads of the table: the slot is held
    // before the table is read, which pairs with the fence in `look`. A fence after a store with
    // less order does the same, and took 20 ns more on an AMD EPYC (MFENCE and not XCHG). And a
    // reader that sees the slot held again knows that the previous copy is over.
    words.store(SLOT, u64::from(number) << 32 | u64::from(key), Ordering::SeqCst);
    full_fence();
}

/// Frees the slot.
#[inline]
pub(super) fn free(words: &impl Words) {
    // ORDERING: the copy is over before the slot is seen free.
    words.store(SLOT, 0, Ordering::Release);
}

/// Looks at the slot. No copy can reach what was withdrawn before this call, except the one that
/// holds the slot now.
pub(super) fn look(words: &impl Words) -> Held {
    // ORDERING: the table is changed before the slot is read; pairs with the fence in `hold`.
    fence(Ordering::SeqCst);
    Held(words.load(SLOT, Ordering::Acquire))
}

/// On x86-64 the store is a fence. Loom treats sequentially consistent accesses as acquire and
/// release, but models the fence; QEMU on x86-64 does the same for arm64 (STLR and LDAR), which the
/// litmus test shows there now and then.
#[inline]
fn full_fence() {
    #[cfg(any(loom, not(target_arch = "x86_64")))]
    fence(Ordering::SeqCst);
}
