//! Two communication managers, a virtual clock, and a network that loses, duplicates and reorders
//! by seed.

mod connect;
mod hostile;
mod rig;
mod seeds;
mod sidr;
