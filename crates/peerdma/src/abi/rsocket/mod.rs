//! rsockets (`rsocket(7)`): the socket calls of `librdmacm.so.1`, over the connection manager and
//! the verbs of this library.
//!
//! ```text
//!   rsend, rrecv, rpoll, ...      lifecycle, io, poll, option, map, epoll: one file for each
//!        |                        kind of call
//!   socket::Socket                what a descriptor stands for, found in a table
//!     |        |
//!   stream   datagram             connecting and accepting              UDP socket and UD queue pairs
//!     |   \    |   \
//!     |    common  service        number, flags, options                the thread
//!     |        |
//!   conn::Conn |                  a connected stream: queue pair and memory
//!     |    \   |
//!     |     rdmacm::handle        identifiers and objects of the verbs, safe
//!   rsocket::Stream               the protocol: messages, credits (crate `rsocket`)
//! ```
//!
//! # Who does what
//!
//! Programs call from any thread, and data moves in their calls. One thread ([`service`]) does what
//! must happen while a program does something else: it takes connections for listeners, continues
//! the connections of non-blocking sockets, learns that a connection has ended, sends probes, and
//! answers over UDP which queue pair a datagram socket has.
//!
//! # Descriptors
//!
//! A socket is known by a descriptor that it owns as long as it lives: that of its event channel,
//! or of its UDP socket. It means nothing to `poll(2)`, so programs use [`poll::rpoll`].
//! Descriptors that are kept are [`descriptors::Known`]: the program may close them, or put files
//! of its own at their numbers.
//!
//! # Forks
//!
//! A child has the sockets of its parent in name only: the queue pairs are the parent's. It can
//! close them, which the peer does not notice. The original does the same; `librspreload` with
//! `RDMAV_FORK_SAFE` connects after the fork instead.

mod ask;
mod common;
mod conn;
mod datagram;
pub(crate) mod epoll;
pub(crate) mod io;
pub(crate) mod lifecycle;
pub(crate) mod map;
mod mappings;
mod memory;
mod names;
pub(crate) mod option;
pub(crate) mod poll;
mod route;
mod service;
mod settings;
mod socket;
mod stream;
mod transfer;
mod waker;

use std::ffi::c_int;

use super::boundary::{self, control};
use super::errno;
use super::rdmacm::Answer;

/// Runs a call that returns a number, or -1 with errno.
fn call<T: From<i8> + boundary::Answer>(name: &'static str, body: impl FnOnce() -> Answer<T>) -> T {
    control(name, T::from(-1), || match body() {
        Ok(answer) => answer,
        Err(failure) => {
            errno::set(failure.errno());
            T::from(-1)
        }
    })
}

/// Runs a call that returns 0, or -1 with errno.
fn done(name: &'static str, body: impl FnOnce() -> Answer) -> c_int {
    call(name, || body().map(|()| 0))
}
