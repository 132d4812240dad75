//! The gate: how an exporter stops every access to a buffer, in every process, without asking
//! anybody.
//!
//! ```text
//!            mover                        a page that all share                accessor (any process)
//!                                  +-----------------------------+
//!   close: epoch odd ------------> |  epoch     | slot | slot | ..|  <------  enter: slot += 1, then
//!   wait: every slot 0, or its     +-----------------------------+           is the epoch still mine?
//!         owner dead                                                            yes: copy
//!   change where the buffer is                                                  no:  Stale
//!   open: a new even epoch                                                    leave: slot -= 1
//! ```
//!
//! Whoever maps a buffer learns the epoch in which the addresses hold
//! ([`SgTable::epoch`](crate::SgTable::epoch)), and enters the gate with it for each piece of an
//! access. Of an enter and a close at the same moment at least one sees the other, so once
//! [`Gate::close`] returns nothing touches the buffer, and nothing does again through old
//! addresses.
//!
//! An exporter that moves a buffer holds its reservation lock and goes: close; copy; put the new
//! addresses into force; [`invalidate_mappings`](crate::DmaBuf::invalidate_mappings), so that
//! importers give their maps back; open. One that takes it away for good begins with
//! [`Gate::revoke`].
//!
//! An importer that finds its map stale may give it back at once if it holds the exporter's own
//! lock, since the mover does, too. Giving back a map that is *not* stale while another thread is
//! inside is its own mistake: the guard keeps the buffer where it is, not the map.
//!
//! * **A stopped importer blocks nobody**, unless it stopped in the middle of a copy. So an access
//!   holds the gate for at most [`PIECE`] bytes.
//! * **A dead importer blocks nobody.** Its slot is locked by its own open file description
//!   (`F_OFD_SETLK`), which ends with it; a slot nobody has locked is void.
//! * **A hostile importer** can hold a slot for ever, or scribble on the page. It can write the
//!   memory itself, too, for a gate is only given to processes that get the memory. The worst for
//!   the mover is to wait: after [`PATIENCE`] it gives up and says who holds the gate
//!   ([`GateError::Held`]).
//!
//! A gate needs `/proc`, by which a slot's owner gets an open file description of its own. The
//! gate's owner enters by a slot that is locked by his, for as long as the gate lives.

mod owner;
mod page;
mod protocol;
mod slot;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;

pub use owner::{Closed, Gate, GateError, PATIENCE};
pub use slot::{ClaimError, GateGuard, GateSlot, GateState, OwnedGateGuard, Stale};

/// Most bytes that an access copies before it leaves the gate and enters again.
pub const PIECE: u64 = 256 << 10;

/// Processes that can use one buffer at a time. Everybody in a process shares one slot.
pub const SLOTS: usize = 64;

/// Marks the layout of the page.
const MAGIC: u64 = 0x7065_6572_6761_7401;
/// Length of the file: a line for the epoch and one for each slot, in whole pages.
const LENGTH: u64 = 8192;
/// The byte that the gate's owner has locked, as others have the number of their slot.
const OWNER: u64 = SLOTS as u64;

/// Index of the first word of why the memory was taken away: the length in bytes, then the text. It
/// is behind the slots.
const WHY_AT: usize = 8 * (SLOTS + 2);
/// Longest such text in bytes.
const WHY_MAX: usize = 512;

/// Index of the word that says who we are.
const MAGIC_AT: usize = 1;
