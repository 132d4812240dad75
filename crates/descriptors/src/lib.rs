//! Descriptors of a library in another program.
//!
//! Their numbers belong to the program, which may close them all, put files of its own there, fork
//! and execute; and descriptors that come by a socket may be another user's, whose files take as
//! long to close as that user likes.
//!
//! * [`Known`] knows which file it is of, and closes no other.
//! * [`PrivateFd`] is closed in the child of a fork before anything else happens there.
//! * [`peer_cred`] tells which process is at the other end of a Unix socket, and [`is_same_user`]
//!   whether it is our user's. This is the one place that decides it.
//! * [`strangers`] has sockets whose other end is another user's.
//! * [`fork`] keeps all of it consistent across a fork, with what other crates add.
//!
//! What it does not do: it knows nothing of memory, of messages, or of what a descriptor is for.
//!
//! ```
//! use descriptors::Known;
//! use std::os::fd::OwnedFd;
//!
//! let file = Known::new(OwnedFd::from(std::fs::File::open("/dev/null")?));
//! assert!(file.is_ours(), "until the program puts a file of its own there");
//! # Ok::<(), std::io::Error>(())
//! ```

mod cred;
mod fdinfo;
pub mod fork;
mod known;
mod private;
pub mod strangers;

pub use self::cred::{PeerCred, SameUser, is_same_user, peer_cred};
pub use self::fdinfo::eventfd;
pub use self::known::{Inherited, Known};
pub use self::private::{PrivateFd, generation};
