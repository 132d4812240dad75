//! The gate: how an exporter stops every access to a buffer, in every process, without anyone's
//! cooperation.
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
//! An importer that maps a buffer gets the epoch in which the addresses are valid
//! ([`SgTable::epoch`](crate::SgTable::epoch)), and enters the gate with it for each piece of an
//! access. Of a concurrent enter and close, at least one sees the other. So once [`Gate::close`]
//! returns, nothing accesses the buffer, and nothing will again through old addresses.
//!
//! To move a buffer, an exporter holds its reservation lock and takes these steps: wait for the
//! fences of all classes, whose work needs an open gate; close; copy; make the new addresses
//! effective; [`invalidate_mappings`](crate::DmaBuf::invalidate_mappings), so that importers drop
//! their maps; open. To take the buffer away for good, it calls [`Gate::revoke`] instead of close.
//!
//! An importer that finds its map stale may drop it at once if it holds the exporter's own lock,
//! since the mover holds that too. Dropping a map that is *not* stale while another thread is
//! inside is the importer's own mistake: the guard keeps the buffer in place, but not the map.
//!
//! * **A stopped importer blocks nobody**, unless it stopped in the middle of a copy. So an access
//!   holds the gate for at most [`PIECE`] bytes.
//! * **A dead importer blocks nobody.** Its slot is locked by its own open file description
//!   (`F_OFD_SETLK`), which ends with it; a slot that nobody has locked does not count.
//! * **A hostile importer** can hold a slot for ever, or overwrite the page. It can also write the
//!   memory itself, since only processes that get the memory get the gate. At worst the mover
//!   waits: after [`PATIENCE`] it gives up and reports who holds the gate ([`GateError::Held`]).
//!
//! A gate needs `/proc`, through which a slot's owner gets an open file description of its own. The
//! gate's owner enters by a slot that its open file description locks for the gate's whole life.

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

/// The most bytes that an access copies before it leaves the gate and enters again.
pub const PIECE: u64 = 256 << 10;

/// How many processes can use one buffer at a time. All threads of a process share one slot.
pub const SLOTS: usize = 64;

/// Marks the layout of the page.
const MAGIC: u64 = 0x7065_6572_6761_7401;
/// Length of the file: a cache line for the epoch and one for each slot, in whole pages.
const LENGTH: u64 = 8192;
/// The byte that the gate's owner locks. Others lock the byte with the number of their slot.
const OWNER: u64 = SLOTS as u64;

/// Index of the first word of the reason why the memory was taken away: the length in bytes, then
/// the text. It is behind the slots.
const WHY_AT: usize = 8 * (SLOTS + 2);
/// Longest such text in bytes.
const WHY_MAX: usize = 512;

/// Index of the word with the layout mark.
const MAGIC_AT: usize = 1;
