//! Memory that cannot be misused: registered memory that somebody owns.
//!
//! A NIC reads and writes memory at a moment of its own. Rust forbids that for memory that has a
//! reference, so each kind of memory here says who may touch it, and when:
//!
//! | type | who may touch it | what the program has |
//! |---|---|---|
//! | [`Buffer`] | its owner; while a request of [`aio`](crate::aio) has it, the NIC alone | `&mut [u8]` |
//! | [`ConstBuffer`] | everybody, and all only read | `&[u8]` |
//! | [`Shared`] | this process and its peers, at any moment | copies of values, and atomics |
//! | [`Range`] | as the region that it is of: GPU memory, device memory | a place for requests |
//!
//! A [`Buffer`] is moved into a request and comes back with the result. While the request is in
//! flight no safe code can read, write or drop it, even if the future is dropped or forgotten: the
//! completion queue has it then. Buffers, pools and the regions below them grant peers no access,
//! so that it does not matter to a peer what their memory is; of [`Shared`] memory it does
//! ([`Shared::in_file`]).
//!
//! A [`Window`] is a key for some values of [`Shared`] memory, or of any other region, that one
//! peer has for a while.
//!
//! A [`RemoteSlice`] is memory of a peer, with the type and the number of its values. A request
//! that leaves its bounds is refused here, before anything is sent.
//!
//! # A buffer in flight is out of reach
//!
//! ```compile_fail,E0382
//! # async fn f(qp: verbs::aio::Qp, mut buffer: verbs::owned::Buffer) {
//! let sending = qp.send(buffer);
//! buffer[0] = 1; // the request has it
//! sending.await;
//! # }
//! ```
//!
//! ```compile_fail,E0382
//! # fn f(qp: &verbs::aio::Qp, buffer: verbs::owned::Buffer) {
//! std::mem::forget(qp.send(buffer));
//! drop(buffer); // forgotten, and still the request's
//! # }
//! ```
//!
//! A slice of a buffer cannot live on while the buffer is sent:
//!
//! ```compile_fail,E0505
//! # async fn f(qp: verbs::aio::Qp, buffer: verbs::owned::Buffer) {
//! let first = &buffer[0];
//! qp.send(buffer).await;
//! println!("{first}");
//! # }
//! ```
//!
//! What is read-only cannot be received into:
//!
//! ```compile_fail,E0308
//! # async fn f(qp: verbs::aio::Qp, text: verbs::owned::ConstBuffer, from: verbs::owned::RemoteSlice<u8>) {
//! qp.read(text, from).await;
//! # }
//! ```
//!
//! A window that is being bound cannot be bound again:
//!
//! ```compile_fail,E0382
//! # async fn f(qp: verbs::aio::Qp, window: verbs::owned::Window<u64>) {
//! let binding = qp.bind(window, .., verbs::Access::REMOTE_WRITE);
//! qp.bind(window, .., verbs::Access::REMOTE_READ).await;
//! # binding.await;
//! # }
//! ```
//!
//! The bytes of a message are there until its buffer is posted again:
//!
//! ```compile_fail,E0505
//! # async fn f(srq: verbs::aio::Srq) -> Result<(), verbs::aio::Error> {
//! let message = srq.recv().await.1?;
//! let first = &message[0];
//! drop(message);
//! println!("{first}");
//! # Ok(()) }
//! ```
//!
//! Atomics work on words of 64 bits alone:
//!
//! ```compile_fail,E0308
//! # async fn f(qp: verbs::aio::Qp, at: verbs::owned::RemoteSlice<u32>) {
//! qp.fetch_add(at, 1).await;
//! # }
//! ```

mod backing;
mod buffer;
mod local;
mod pool;
mod raw;
mod remote;
mod shared;
mod stable;
mod window;

pub use buffer::{Buffer, ConstBuffer};
pub(crate) use local::Held;
pub use local::{Local, LocalMut, Range};
pub use pool::Pool;
pub(crate) use raw::Owner;
pub use remote::RemoteSlice;
pub use shared::Shared;
pub use stable::{Stable, StableMut};
pub use window::Window;
