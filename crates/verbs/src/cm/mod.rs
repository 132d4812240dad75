//! Connections by address and port: what `rdma_cm` is for C programs.
//!
//! An [`Id`] is one end: a listener, or one side of a connection. Its calls do not wait. Their
//! outcome is an [`Event`] of its [`EventChannel`], which has a descriptor for `poll` and serves
//! any number of identifiers.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use verbs::cm::{ConnParam, EventChannel, EventKind};
//! use verbs::QpSpec;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = verbs::devices()?[0].open()?;
//! let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
//! let channel = EventChannel::new(&context)?;
//! let listener = channel.create_id()?;
//! listener.bind("0.0.0.0:7471".parse()?)?;
//! listener.listen(16)?;
//! while let Some(event) = channel.event(Duration::from_secs(60))? {
//!     match event.kind {
//!         EventKind::ConnectRequest { param } if param.private_data.starts_with(b"friend") => {
//!             let qp = pd.create_qp(&QpSpec::rc(&cq))?;
//!             event.id.accept(&qp, &ConnParam::default())?; // and keep the identifier
//!         }
//!         EventKind::ConnectRequest { .. } => event.id.reject(b"friends only")?,
//!         EventKind::Disconnected { .. } => event.id.disconnect()?,
//!         _ => {}
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! | C | here |
//! |---|---|
//! | `rdma_create_event_channel`, `rdma_get_cm_event` | [`EventChannel::new`], [`EventChannel::event`]; there is nothing to acknowledge |
//! | `rdma_create_id` | [`EventChannel::create_id`] |
//! | `rdma_bind_addr`, `rdma_listen` | [`Id::bind`], [`Id::listen`] |
//! | `rdma_resolve_addr`, `rdma_resolve_route` | [`Id::resolve`], which is done when it returns |
//! | `rdma_create_qp` | [`Pd::create_qp`](crate::Pd::create_qp); pass the QP when you connect it |
//! | `rdma_connect`, `rdma_accept`, `rdma_reject`, `rdma_disconnect` | [`Id::connect`], [`Id::accept`], [`Id::reject`], [`Id::disconnect`] |
//! | `rdma_destroy_id` | dropping the last clone |
//! | `rdma_migrate_id`, `rdma_notify` | [`Id::migrate`], [`Id::notify_established`] |
//! | `rdma_join_multicast`, `rdma_leave_multicast` | [`Group::join`], dropping the last clone |
//!
//! A channel is of one device. For a NIC of a library, the connections are those of the
//! `librdmacm.so.1` that belongs to it, and the QPs are still of the [`Context`](crate::Context)
//! that the program opened: memory and queues need not be those of rdma_cm's own context. A
//! listener at all addresses refuses what comes to another NIC.
//!
//! The QP of an identifier follows its connection: to RTS when it is accepted, on either side, and
//! to the error state when it is disconnected or the identifier is dropped.

mod channel;
mod event;
mod group;
mod id;

pub use channel::EventChannel;
pub use device::rdma_cm::{RejReason, private_data};
pub use event::{ConnParam, Event, EventKind, MOST};
pub use group::{Group, MULTICAST_QPN};
pub use id::Id;
