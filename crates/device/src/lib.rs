//! The HCA: every object a verbs program creates, and the engine that moves their bytes.
//!
//! ```text
//!   peerdma (C ABI)      verbs (safe Rust API)
//!          \                /
//!           v              v
//!        Hca::lock() -> Engine -------------- transport: RC UC UD, sans-IO
//!             |           |  |
//!        background     umem  link: rings of this host, UDP, the registry
//!          thread
//! ```
//!
//! A process has one [`Hca`] per NIC, however often a program opens it. It is a virtual function
//! (VF) of the NIC: it claims a number, its QPNs carry that number, and other processes of the host
//! reach it by that number (`docs/ARCHITECTURE.md`). Inside is one [`Engine`] behind one lock.
//! Objects have ids ([`ids`]) and count their uses, so that destroying one in use is refused.
//!
//! The caller makes progress, in [`Hca::poll`] and after a post, while it calls often; otherwise a
//! background thread does, which sleeps until a doorbell, a datagram or a deadline wakes it.
//!
//! The device refuses with a [`Refusal`]: its [`Kind`], and in words which part refused what, and
//! by which rule.
//!
//! ```no_run
//! # fn main() -> Result<(), device::Refusal> {
//! let nic = &device::nics()?[0];
//! let hca = device::Hca::open(nic)?;
//! let mut engine = hca.lock();
//! let ctx = engine.open_ctx()?;
//! let pd = engine.alloc_pd(ctx)?;
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]

mod attr;
mod budget;
mod carrier;
mod clock;
pub mod config;
mod counters;
mod dm_export;
mod engine;
mod failure;
pub mod flow;
pub mod fork;
#[cfg(fuzzing)]
pub mod fuzzing;
mod guard;
mod hca;
pub mod ids;
mod mad;
mod memory;
mod next_hop;
mod nic;
mod objects;
mod observe;
mod panics;
mod payload;
mod port;
mod qp;
mod random;
pub mod rdma_cm;
mod receiver;
mod refusal;
mod register;
#[cfg(test)]
mod rig;
pub mod rss;
mod thresholds;
mod waits;
mod withdraw;

pub use attr::{DeviceAttr, GidEntry, OdpCaps, PortAttr, TmCaps};
pub use counters::Counters;
pub use engine::{
    AsyncEvent, CompCntrEntry, CompCntrType, Engine, EventSource, MrAdvice, MrInfo, MrKind, MwType,
    QpSpec, Rereg, Resources, Wc, WqState,
};
pub use engine::{TagOp, TagOpKind, Turn, set_weather};
pub use failure::fail_all;
pub use guard::EngineGuard;
pub use hca::{Begun, Hca, Waited, Waiting, counters_of_process, finish_records};
pub use nic::{NicInfo, nics};
pub use refusal::{Kind, Refusal, Result};
pub use waits::Woken;
