//! The transport services as sans-IO state machines.
#![forbid(unsafe_code)]

pub mod env;
pub mod time;
pub mod wr;

pub use env::Env;
pub use time::Time;
