//! The carriers: how bytes get from one engine to another, and how engines find each other.
//!
//! ```text
//!            engine (crate device)                        engine of another process
//!      push |        ^ pop      ^ packets                      ^
//!           v        |          |                              |
//!   +-------------------+   +----------+                       |
//!   | shm: a ring each  |   | udp 4791 |---- RoCEv2, any host--+
//!   | way, and doorbells|   +----------+                       |
//!   +-------------------+                                      |
//!           |  sealed memfd, mapped by both ends               |
//!           +--------------------------------------------------+
//!   registry: who is VF n on this host (abstract sockets)
//!   netdev:   which addresses (GIDs) the nic has
//!   ether:    whole frames out of and into the netdev
//!   neighbour: whether the next hop to a host is known
//! ```
//!
//! * [`registry`] claims the number (VF) of this process, lists the others, and connects to them.
//! * [`shm`] is the carrier on one host: reliable, ordered, with room for records of up to half
//!   the ring.
//!
//! This crate knows no packet headers, no QPs and no keys; it starts no threads, and nothing in it
//! waits (except [`registry::list`], which is for people). Records are bytes, and a peer's data is
//! passed on as memory that may change ([`umem::Foreign`]).
//!
//! # The loop of an engine
//!
//! ```no_run
//! use link::registry::{Claim, Event, NicIdentity};
//! use link::shm::{DEFAULT_CAPACITY, InboundState, PushError};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let nothing_else_to_do = true;
//! let mut claim = Claim::new("peerdma0", NicIdentity { guid: 1, ifindex: 2, settings: 0 })?;
//! let mut peers = Vec::new();
//!
//! // Sending to VF 7: the first record may be pushed before VF 7 noticed us.
//! let mut to_seven = claim.connect(7, DEFAULT_CAPACITY)?;
//! match to_seven.push(5, |record| record.copy_from(b"hello")) {
//!     Ok(()) => to_seven.ring_doorbell_if_sleeping(),
//!     Err(PushError::Full) => { /* later; `ring().want_space(5)` asks to be woken */ }
//!     Err(e) => return Err(format!("{e:?}").into()),
//! }
//!
//! loop {
//!     for event in claim.poll_events() {
//!         if let Event::NewInbound(inbound) = event {
//!             peers.push(inbound);
//!         }
//!     }
//!     let mut bytes = [0; 64];
//!     peers.retain_mut(|peer| loop {
//!         let take = |record: umem::Foreign<'_>| {
//!             let len = record.len().min(bytes.len());
//!             record.slice(0, len).map(|r| r.copy_to(&mut bytes[..len]).is_ok())
//!         };
//!         match peer.pop(take) {
//!             Ok(Some(_)) => { /* look at `bytes` */ }
//!             Ok(None) => break peer.poll() == InboundState::Up,
//!             Err(corrupt) => break { eprintln!("{}: {corrupt}", peer.peer()); false },
//!         }
//!     });
//!     if nothing_else_to_do {
//!         claim.doorbell().set_sleeping();
//!         // ... everything once more, then poll(2) on the claim, the doorbell and all sockets ...
//!         claim.doorbell().set_awake();
//!         claim.doorbell().drain();
//!     }
//! #   break;
//! }
//! # Ok(())
//! # }
//! ```

pub mod ether;
mod fork;
pub mod neighbour;
pub mod netdev;
mod owners;
pub mod registry;
pub mod shm;
pub mod steer;
mod sync;
pub mod udp;
