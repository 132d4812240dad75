//! Time as an argument: the transport never reads a clock.

pub use iba::Time;
