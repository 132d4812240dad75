//! Two communication managers, a virtual clock, and a network that loses, doubles and reorders by
//! seed.

mod connect;
mod hostile;
mod rig;
mod seeds;
mod sidr;
