//! The guard slot: how one who copies and one who takes the memory away see each other.
//!
//! Two engines may agree that the one that sends touches the memory of the one that receives by
//! itself. What memory that is stands in a table of the receiver, which can withdraw it at any time
//! and must then know that nothing touches it any more. The slot is a word of the page beside the
//! ring:
//!
//! ```text
//!   who copies                      who withdraws
//!   ----------                      -------------
//!   hold: slot = key                table entry = dead
//!   fence                           fence
//!   entry alive? copy : leave       look: is it held for what was withdrawn?
//!   free: slot = 0                  then look until it is held otherwise
//! ```
//!
//! Both store before their fence and load after it, so of a copy and a withdrawal at the same
//! moment at least one sees the other. A slot is numbered anew each time it is held: a copy that
//! began before the withdrawal has ended when the word is another one, whatever was begun since.
//!
//! A peer can hold its slot for ever, by malice or because it was stopped. So nobody should hold a
//! lock while it waits, and only the slots of peers that have the table count: a stranger, who
//! copies nothing, has the same page and may write there what it likes
//! ([`Inbound::held`](super::Inbound::held)).

use crate::sync::{Ordering, Words, fence};

use super::layout::SLOT;

/// What a slot said when it was looked at.
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

/// Holds the slot for `key`, which is not 0. `number` differs from the one of the last time. What
/// is to be copied must be looked up after this.
#[inline]
pub(super) fn hold(words: &impl Words, key: u32, number: u32) {
    // ORDERING: who sees the slot held anew sees that the copy before it is over.
    words.store(SLOT, u64::from(number) << 32 | u64::from(key), Ordering::Release);
    // ORDERING: the slot is held before the table is read; pairs with the fence in `look`.
    fence(Ordering::SeqCst);
}

/// Frees the slot.
#[inline]
pub(super) fn free(words: &impl Words) {
    // ORDERING: the copy is over before the slot is seen free.
    words.store(SLOT, 0, Ordering::Release);
}

/// Looks at the slot. What was withdrawn before this call is out of reach of every copy but the one
/// that holds it now.
pub(super) fn look(words: &impl Words) -> Held {
    // ORDERING: the table is changed before the slot is read; pairs with the fence in `hold`.
    fence(Ordering::SeqCst);
    Held(words.load(SLOT, Ordering::Acquire))
}
