//! The communication manager of InfiniBand (IBA chapter 12) as state machines without input or
//! output.
//!
//! A [`Cm`] acts for one channel adapter. It has no socket, no clock and no thread: its owner, a
//! device or a test, passes in datagrams and the time, and takes events and datagrams.
//!
//! ```text
//!   active                              passive
//!   connect ------------ REQ ---------> Event::Req
//!                                       accept | reject | delay (MRA)
//!   Event::Rep <-------- REP ----------
//!   ready   ------------ RTU ---------> Event::Rtu
//!   ...                                 ...
//!   disconnect --------- DREQ --------> Event::Dreq
//!   Event::Drep <------- DREP --------- confirm_disconnect
//!   Event::TimewaitExit                 Event::TimewaitExit
//! ```
//!
//! | kind | methods | what they do |
//! |---|---|---|
//! | commands | [`Cm::listen`], [`Cm::connect`], [`Cm::accept`], [`Cm::ready`], [`Cm::reject`], [`Cm::disconnect`], [`Cm::destroy`], ... | change state, send |
//! | input | [`Cm::handle`], [`Cm::handle_timeout`] | change state, report, send |
//! | output | [`Cm::poll_event`], [`Cm::poll_transmit`], [`Cm::poll_timeout`] | return what there is |
//!
//! After any command or input, take all events and all datagrams, then ask [`Cm::poll_timeout`]
//! when to call again.
//!
//! **Lost messages.** REQ, REP, DREQ and SIDR_REQ are repeated until they are answered, at most as
//! often as the active side says in its REQ; RTU, MRA and DREP are sent again when the message that
//! they answer comes again. A duplicate of a REQ is recognised by the peer's channel adapter and
//! communication id.
//!
//! **Forgotten connections.** A REQ or REP that names a QP of the peer that is in a connection here
//! is refused (stale connection), and that connection is ended: the peer must have forgotten it
//! (IBA 12.9.8.3.1).
//!
//! **Many processes behind one address.** Communication ids carry a prefix that leads a message to
//! its process ([`Local::prefix`]); a first message names a service instead ([`Route`]).
//!
//! **Strangers.** A message counts for a connection only if it comes from the address of its peer.
//! Their listener's backlog and a total limit the requests that wait; nothing else that a stranger
//! sends is kept.
//!
//! Alternate paths and their migration (LAP, APR), which no RoCE device has, and redirection are
//! not supported. Addresses and ports are up to the owner, except for the RDMA-CM header of a
//! request, which distinguishes listeners on one port and different addresses.
#![forbid(unsafe_code)]

mod active;
mod conn;
mod ending;
mod error;
mod event;
mod listen_id;
mod manager;
mod param;
mod passive;
mod port_space;
mod reason;
mod sidr;
mod table;
pub mod time;

pub use conn::{QpInfo, State};
pub use error::{CmError, Ignored};
pub use event::{Event, Route, Transmit, Unanswered};
pub use listen_id::ListenId;
pub use manager::{Cm, ListenAddr};
pub use param::{
    Ece, Local, PathParam, Patience, Peer, RepParam, ReqParam, SidrRepParam, SidrReqParam,
};
pub use port_space::PortSpace;
pub use reason::{RejReason, SidrStatus};

/// A program's bytes, padded with zeros to the size of their field.
fn fit<const N: usize>(what: &'static str, bytes: &[u8]) -> Result<[u8; N], CmError> {
    let mut field = [0; N];
    let room = field.get_mut(..bytes.len());
    let room = room.ok_or(CmError::TooLong { what, length: bytes.len(), room: N })?;
    room.copy_from_slice(bytes);
    Ok(field)
}
