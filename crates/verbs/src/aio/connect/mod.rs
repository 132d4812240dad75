//! Connections by address, as futures.

mod connection;
mod error;
mod events;
mod listener;
mod nic;
mod off;

pub use connection::{Closed, Connection};
pub use error::ConnectError;
pub use listener::{ConnectRequest, Listener};
pub use nic::{ConnectionOptions, Drive, Nic};
