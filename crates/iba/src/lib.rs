//! The vocabulary of InfiniBand: the numbers, states and tables that every other crate uses.
//!
//! Nothing here performs I/O, holds a lock or has a side effect. A type exists where a bare integer
//! would let two different things be confused: a [`Psn`] is not a [`Qpn`], an [`LKey`] is not an
//! [`RKey`], and none of them has an ordering that wraps wrongly.
//!
//! | module | what it names |
//! |---|---|
//! | [`access`] | what a memory region or a QP permits |
//! | [`addr`] | GIDs, GUIDs and the address vector of a path |
//! | [`comp_cntr`] | what a completion counter counts |
//! | [`event`] | asynchronous events |
//! | [`ids`] | numbers of queue pairs and shared queues, and the keys of memory, partitions and datagrams |
//! | [`mtu`] | the five path MTUs |
//! | [`psn`] | 24-bit sequence numbers and their arithmetic |
//! | [`qp`] | QP types, states, attributes, and the transition table |
//! | [`time`] | points in time, as they are handed to state machines |
//! | [`timer`] | how timeouts are written in five bits |
//! | [`wc`] | what a completion reports |
//! | [`wr`] | what a work request asks |
//! | [`hash`] | what receive side scaling hashes |
//!
//! Names are those of the InfiniBand Architecture Specification, of the kernel and of libibverbs,
//! without their prefixes; each item carries its C name as a documentation alias. Numeric values
//! are those of `<infiniband/verbs.h>` where that header gives one.
#![forbid(unsafe_code)]

pub mod access;
pub mod addr;
pub mod comp_cntr;
pub mod event;
pub mod hash;
pub mod ids;
pub mod mtu;
pub mod psn;
pub mod qp;
pub mod time;
pub mod timer;
pub mod wc;
pub mod wr;

pub use access::Access;
pub use addr::{Av, Gid, Guid};
pub use comp_cntr::CompCntrOps;
pub use event::{EventType, QpEvent};
pub use hash::HashFields;
pub use ids::{LKey, PKey, QKey, Qpn, RKey, Srqn};
pub use mtu::Mtu;
pub use psn::{Msn, Psn};
pub use qp::{AttrMask, QpAttr, QpCap, QpState, QpType, TransitionError};
pub use time::Time;
pub use timer::{AckTimeout, RnrTimer};
pub use wc::{WcFlags, WcOpcode, WcStatus};
pub use wr::{SendFlags, WrOpcode};
