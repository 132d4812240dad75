//! rsockets (`rsocket(7)`): sockets over RDMA, as state machines without input or output.
//!
//! The protocol is that of rdma-core's `librdmacm/docs/rsocket`, so that a peer with the original
//! understands us. This crate knows its messages and its accounts; whoever owns a [`Stream`] has
//! the queue pair, the memory and the waiting.
//!
//! **Streams.** Each side exposes a receive buffer in two halves, and a *target list* of two
//! entries, into which the peer writes which half it may fill next. Data is written there by RDMA
//! WRITE, and 32 bits of immediate data say how much came ([`Message`]). Two things are counted:
//!
//! ```text
//!   bytes      a sender has as many as the entries of its target list say; a receiver offers the next half
//!              when the program has read half a buffer
//!   credits    immediate data takes a receive request of the peer: of those a sender has as many as
//!              the last credit message said; a few more are left for control messages, for which RNR NAKs do the rest
//! ```
//!
//! | who | calls | gets |
//! |---|---|---|
//! | connecting | [`Stream::hello`], [`Stream::meet`] | 40 bytes of private data ([`Hello`]) |
//! | sending | [`Stream::may_send`], [`Stream::send`] | a [`Write`]: what to post, and what then is left of the target |
//! | any completion | [`Stream::received`], [`Stream::sent`] | |
//! | after it | [`Stream::credit`] | the credit message that is due |
//! | receiving | [`Stream::data`], [`Stream::consume`] | where in the receive buffer the data is |
//! | ending | [`Stream::shutdown`] | the control message that says so |
//!
//! **Mapped memory** (`riomap(3)`): the peer has a table of mappings, too, into which this side
//! writes where its memory is ([`Mapping`]), so that the peer can write there with no copy at
//! either side.
//!
//! **Datagrams** travel over queue pairs of type UD, with a header that carries the sender's UDP
//! address ([`datagram::Header`]). Which queue pair belongs to a UDP address is asked over UDP
//! ([`datagram::Ask`]).
//!
//! **A peer is not trusted.** It may claim to have written more than it was offered, or send more
//! messages than it has credits: that ends the connection ([`Violation`]). What it says about its
//! own memory harms only itself.
#![forbid(unsafe_code)]

pub mod datagram;
mod hello;
mod message;
mod sge;
mod sizes;
mod stream;

pub use hello::{Hello, Unreadable};
pub use message::{Control, Message, Sent};
pub use sge::{Mapping, Order, Sge};
pub use sizes::{SEND_LOW_WATER, Sizes, TARGETS, scale, unscale};
pub use stream::{Credit, End, How, Stream, Violation, Write};
