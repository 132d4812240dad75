//! The transport services of InfiniBand, RC, UC and UD, as state machines without input or output.
//!
//! A [`Qp`] holds the send queue, the receive queue and the three machines that the standard
//! describes: the *requester* turns work requests into packets, the *responder* carries out the
//! requests of the peer, the *completer* takes the answers and retires work requests. It has no
//! clock, no socket, no lock and no thread, and it never touches the memory that a work request
//! names: its owner, a device or a simulator, passes in packets and the time, and lends an [`Env`]
//! through which everything else happens.
//!
//! ```text
//!   post_send ---> [ send queue ]                       [ receive queue ] <--- post_recv
//!                        |                                     |
//!                   requester                              responder <--- requests --+
//!                        |                                     |                     |
//!                        |    +------- answers ----------------+                handle_packet
//!                        v    v                                                      |
//!                    poll_transmit ---> Env::transmit       completer <-- answers ---+
//!                                                              |
//!              Env::complete  <--------------------------------+
//! ```
//!
//! Four kinds of method, in the order in which a device calls them:
//!
//! | kind | methods | what they may do |
//! |---|---|---|
//! | commands | [`Qp::modify`], [`Qp::post_send`], [`Qp::post_recv`] | change state, complete |
//! | input | [`Qp::handle_packet`], [`Qp::handle_timeout`] | change state, touch memory, complete |
//! | output | [`Qp::poll_transmit`] | send packets: the only method that does |
//! | getters | [`Qp::poll_timeout`], [`Qp::query`], [`Qp::state`], ... | nothing |
//!
//! After any command or input, call [`Qp::poll_transmit`] until it returns [`Poll::Idle`] or
//! [`Poll::Blocked`]; [`Qp::poll_timeout`] then says when to call again. Time must never run
//! backwards between calls.
//!
//! ```
//! # use transport::{Env, Poll, Qp, Time};
//! fn progress<E: Env>(qp: &mut Qp, env: &mut E, now: Time) -> Option<Time> {
//!     if qp.poll_timeout().is_some_and(|due| due <= now) {
//!         qp.handle_timeout(env, now);
//!     }
//!     while qp.poll_transmit(env, now, 32) == Poll::More {}
//!     qp.poll_timeout()
//! }
//! ```
//!
//! An acknowledgement may wait for a request to travel with, if the [`AckPolicy`] of the QP says
//! so. That changes nothing above: an acknowledgement that waits is not yet ready to be sent, and
//! has a deadline.
//!
//! A device may post by [`Qp::post_fast`], followed by [`Qp::watch`], and try [`Qp::handle_fast`]
//! before it parses the headers of a packet that arrived: the fast path of small messages, which
//! does what the others would have done, or leaves it to them.
//!
//! On a wire the owner of a QP may keep packets that overtook a lost one ([`Early`]), so that the
//! peer need not send them again.
//!
//! This crate does not parse packets (`wire`), find a QP by its number, check partition keys and
//! source addresses, look up memory keys, or keep completion queues (`device`); nor does it migrate
//! paths, which no RoCE device does. For raw packets, the device finds the QP of a frame, and for
//! XRC, the shared queue that a request names.
//!
//! On a carrier that is [reliable](PathCaps::reliable) one packet may carry many path MTUs. It then
//! uses as many packet sequence numbers as it would on a wire, so counters, queries and fault plans
//! agree everywhere.
#![forbid(unsafe_code)]

mod account;
mod ack_delay;
mod ask;
pub mod env;
pub mod error;
pub mod path;
pub mod time;
pub mod tm;
pub mod wr;

mod answer;
mod comp;
mod congestion;
mod count;
mod direct;
mod early;
mod fast_path;
mod gaps;
mod join;
mod modify;
mod outcome;
mod pace;
mod packet;
mod post;
mod qp;
mod ranges;
mod rate_limit;
pub mod raw;
mod repair;
mod req;
mod resp;
mod retry;
mod window;
mod wqe;

pub use account::Account;
pub use ack_delay::AckPolicy;
pub use count::Ended;
pub use direct::RUN;
pub use early::{Early, EarlyPacket};
pub use env::{Completion, Counter, Env, Reason, Rx, Side, Skipped};
pub use error::{ModifyError, PostError};
pub use fast_path::{AckWay, FastPacket};
pub use pace::RateLimit;
pub use path::PathCaps;
pub use qp::{Poll, Qp, QpInit};
pub use resp::{Step, consumes_receive};
pub use time::Time;
pub use wr::{Data, RecvWr, SendWr, SgList, Sge, UdDest};
