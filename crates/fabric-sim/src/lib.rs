//! A fabric to test the transport in: hosts with memory, a virtual clock and a network as bad as
//! the test asks for.
//!
//! Nothing here is shipped, and the rules of the protocol are the transport's: a [`Host`] does what
//! an [`Env`](transport::Env) must do, on memory it owns, and remembers everything.
//!
//! Three ways to use it:
//!
//! * [`Station`] holds one QP. The test plays the peer, packet by packet, with [`send!`], [`recv!`]
//!   and [`recv_nothing!`], so that it reads like a transcript with time stamps in microseconds.
//! * [`Net`] holds several QPs and carries their packets over a [`Link`] that loses, duplicates,
//!   reorders and delays as its seed decides. [`Net::drive`] moves the clock from event to event
//!   until there are no more events.
//! * [`Tree`] is a data centre: hosts behind switches in a fat tree, with queues, marks and PFC. In
//!   place of the transport, models of other devices may send there.
//!
//! ```
//! use fabric_sim::{Net, Options};
//!
//! let mut net = Net::pair(Options::rc());
//! net.recv(1, 7, 0x1000, 64);
//! net.write_memory(0, 0x1000, b"hello");
//! net.send(0, 9, 0x1000, 5);
//! net.drive();
//! assert_eq!(net.completions(1)[0].wr_id, 7);
//! assert_eq!(net.read_memory(1, 0x1000, 5), b"hello");
//! ```
#![forbid(unsafe_code)]

pub mod build;
mod corrupt;
pub mod host;
pub mod link;
pub mod memory;
pub mod net;
pub mod options;
mod queue;
pub mod station;
pub mod tree;

pub use host::{Host, Sent};
pub use link::{Line, Link, Rate, Rng};
pub use memory::{Memory, Region};
pub use net::Net;
pub use options::Options;
pub use station::Station;
pub use tree::Tree;
