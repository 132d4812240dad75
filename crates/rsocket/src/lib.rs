//! rsockets (`rsocket(7)`): sockets over RDMA, as state machines without input or output.
//!
//! The protocol is that of rdma-core's `librdmacm/docs/rsocket`, so it interoperates with
//! rdma-core. This crate has the messages and the flow control; the owner of a [`Stream`] has the
//! queue pair, the memory and the waiting.
//!
//! **Streams.** Each side exposes a receive buffer in two halves, and a *target list* of two
//! entries. The peer writes into that list which half of its own buffer may be filled next. Data
//! goes there by RDMA WRITE, and 32 bits of immediate data say how many bytes came ([`Message`]).
//! Two things are counted:
//!
//! ```text
//!   bytes      a sender may write as many as the entries of its target list allow; a receiver offers the next half
//!              when the program has read half a buffer
//!   credits    immediate data consumes a receive request of the peer: a sender may use as many as
//!              the last credit message allowed; a few more are left for control messages, which may also get RNR NAKs
//! ```
//!
//! | step | calls | gets |
//! |---|---|---|
//! | connecting | [`Stream::hello`], [`Stream::meet`] | 40 bytes of private data ([`Hello`]) |
//! | sending | [`Stream::may_send`], [`Stream::send`] | a [`Write`] to post, and the rest of the target |
//! | any completion | [`Stream::received`], [`Stream::sent`] | |
//! | after it | [`Stream::credit`] | the credit message that is due |
//! | receiving | [`Stream::data`], [`Stream::consume`] | the place of the data in the receive buffer |
//! | ending | [`Stream::shutdown`] | the control message to send |
//!
//! **Mapped memory** (`riomap(3)`): the peer also has a table of mappings. This side writes the
//! addresses of its memory there ([`Mapping`]), so that the peer can write to it without a copy on
//! either side.
//!
//! **Datagrams** travel over queue pairs of type UD, with a header that carries the sender's UDP
//! address ([`datagram::Header`]). Looking up the queue pair of a UDP address works over UDP
//! ([`datagram::Ask`]).
//!
//! **A peer is not trusted.** It may claim to have written more than it was offered, or send more
//! messages than it has credits for: that ends the connection ([`Violation`]). False statements
//! about its own memory harm only the peer itself.
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
