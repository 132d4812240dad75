//! Shared memory between two processes on one host: the byte ring, its doorbells, and the two
//! ends of a connection.
//!
//! Everything a peer can write is checked before it is used, and each word is read once. A peer can
//! corrupt what it sends, and nothing else.
//!
//! * `layout`: the memory layout, and its version.
//! * `cursor`: the ring as arithmetic on positions; `ring`: the same with memory.
//! * `bell`: sleeping and waking.
//! * `guard`: copying into a peer's memory, and waiting for such copies before memory is withdrawn.
//! * `memfd`: sealed memory files, mapped; the only unsafe code here.
//! * `outbound`, `inbound`: a ring with its socket.

mod bell;
mod cursor;
mod guard;
mod inbound;
pub(crate) mod layout;
mod memfd;
mod outbound;
mod ring;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;

pub use bell::Doorbell;
pub(crate) use bell::PeerBell;
pub use cursor::RingCorrupt;
pub use guard::Held;
pub use inbound::{Inbound, InboundState};
pub use layout::{
    DEFAULT_CAPACITY, MAX_CAPACITY, MIN_CAPACITY, SCRATCH_LEN, VERSION, max_payload, record_size,
};
pub use outbound::{CopyGuard, Outbound, OutboundState};
pub use ring::{Consumer, Producer, PushError};
