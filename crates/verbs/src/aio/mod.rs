//! Requests as futures, for any executor.
//!
//! A [`Cq`] is a completion queue that knows its requests. A [`Qp`] on it sends, writes and reads
//! by functions that return when the request has completed, and gives the messages of its peer one
//! by one. A [`Connection`] is a QP that is connected by address. No thread is started for a queue
//! pair, and none at all in some of the ways to be told of completions:
//!
//! | way | who looks at the queue | for |
//! |---|---|---|
//! | [`Cq::polled`] | the tasks that wait, each time they are polled, which is always | latency |
//! | [`Cq::with_driver`] | a future that the program spawns; an event wakes it | any executor |
//! | [`Cq::driven`] | the same on a thread of this library | programs that spawn nothing |
//! | `Cq::spawn`, with the feature `tokio` | the same as a task of tokio | programs of tokio |
//!
//! A [`Driver`] waits by what its program has for descriptors ([`Readiness`]), or by a thread of
//! this library, one for the process.
//!
//! ```no_run
//! use verbs::aio::{Connection, Listener};
//!
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = Listener::bind("0.0.0.0:7471").await?; // one program
//! let peer = listener.accept().await?;
//! println!("{}", String::from_utf8_lossy(&peer.recv().await?));
//!
//! let peer = Connection::connect("host:7471").await?; // the other
//! let hello = peer.pd().register(b"hello".to_vec())?;
//! let (result, _hello) = peer.send(hello).await;
//! # result?;
//! # Ok(()) }
//! ```
//!
//! The same piece by piece, for programs that meet in another way:
//!
//! ```no_run
//! use verbs::aio::{self, QpOptions};
//! use verbs::owned::Pool;
//!
//! # fn exchange(here: verbs::Endpoint) -> verbs::Endpoint { here }
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let context = verbs::devices()?[0].open()?;
//! let pd = context.alloc_pd()?;
//! let cq = aio::Cq::polled(&context, 256)?;
//! let qp = cq.create_qp(&pd, &QpOptions::default())?;
//! qp.connect(&exchange(qp.endpoint()?))?;
//!
//! let pool = Pool::new(&pd, 4096, 16)?;
//! let mut buffer = pool.take().await;
//! buffer.fill_with(b"hello");
//! let (result, _buffer) = qp.send(buffer).await;
//! result?;
//! let message = qp.recv().await?;
//! println!("{}", String::from_utf8_lossy(&message));
//! # Ok(()) }
//! ```
//!
//! # Many peers, one queue of buffers
//!
//! An [`Srq`] is a receive queue that many QPs share. [`Srq::recv`] gives the next message of any
//! of them, with the number of the QP, and [`Qp::recv`] those of one:
//!
//! ```no_run
//! use verbs::aio::{self, QpOptions, SrqOptions};
//!
//! # async fn f(context: verbs::Context, pd: verbs::Pd) -> Result<(), Box<dyn std::error::Error>> {
//! let cq = aio::Cq::polled(&context, 4096)?;
//! let srq = cq.create_srq(&pd, &SrqOptions { receives: 256, receive_length: 4096 })?;
//! let over = QpOptions { srq: Some(srq.clone()), ..QpOptions::default() };
//! let clients = [cq.create_qp(&pd, &over)?, cq.create_qp(&pd, &over)?];
//! # drop(clients);
//! match srq.recv().await {
//!     (qpn, Ok(message)) => println!("{qpn} sent {} bytes", message.len()),
//!     (qpn, Err(end)) => println!("{qpn} sends nothing more: {end}"),
//! }
//! # Ok(()) }
//! ```
//!
//! # What can be relied on
//!
//! * **A future that is dropped or forgotten frees no memory.** A request that is posted goes on;
//!   its buffer is the queue's until it completes, and goes where a dropped buffer goes then.
//!   [`Qp::recv`] loses no message: what has arrived waits for the next call.
//! * **A full queue is waited for.** Requests take their turn in the order in which they came
//!   (`ibv_post_send` says ENOMEM). The queues of a [`Cq`] can never overrun it: it refuses a QP
//!   that it has no room for.
//! * **A dropped QP** goes to the error state, and what is in flight is flushed. The QP, its
//!   regions and buffers exist until the last completion is here; if nobody looks at the queue any
//!   more, they are never given back. One with a shared queue exists until the device says that it
//!   took its last receive.
//! * **An error has its reason**: [`Error`] says which request failed and, with the software
//!   device, the sentence of [`soft::explain`](crate::soft::explain).

mod async_events;
mod batch;
mod connect;
mod cq;
mod driver;
mod error;
mod handle;
mod inbox;
mod inner;
mod last;
mod members;
mod message;
mod op;
mod qp;
mod reactor;
mod readiness;
mod receives;
mod request;
mod shared;
mod srq;
mod table;
mod tasks;
#[cfg(feature = "tokio")]
mod tokio;
mod wakers;
mod window;

pub use async_events::AsyncEvents;
pub use batch::Batch;
pub use connect::{
    Closed, ConnectError, ConnectRequest, Connection, ConnectionOptions, Drive, Listener, Nic,
};
pub use cq::Cq;
pub use driver::Driver;
pub use error::{Error, Failure, Outcome};
pub use inner::QpOptions;
pub use message::{Message, Messages};
pub use qp::{Qp, WorkRequest};
pub use reactor::Watch;
pub use readiness::Readiness;
pub use shared::{Srq, SrqOptions};
