//! The host registry: which process on this host is which virtual function (VF), without a
//! server.
//!
//! A process claims VF *n* of nic *N* by listening on the abstract Unix socket `peerdma/N/vf/n`.
//! The name belongs to the network namespace and vanishes with the last descriptor of its process,
//! so nothing needs cleaning up. Abstract names have no owner: any process may take them. So
//! holding a name proves nothing; credentials come from the kernel (`SO_PEERCRED`), and a peer that
//! claims to be VF *n* must hold the name of VF *n*.
//!
//! ```text
//!  A (VF 3)                                    B (VF 5)
//!  connect to peerdma/N/vf/5 ------------->    listening
//!  Hello {ring, doorbell, table} --------->    poll_events: check, map    -> Event::NewInbound
//!  push, push, ...  (in the ring at once)      pop, pop, ...
//!  poll -> Up           <------------------    Welcome {doorbell, table} or Refused {words}
//!  EOF: B is gone       <- - - - - - - - ->    EOF: A is gone
//! ```
//!
//! The connection from B to A is another one, made by B when it has something to send.
//!
//! **Another user's descriptors** can take as long to close as that user likes. So a Hello or
//! Welcome of another user is only peeked at here; a thread for that user receives it (`fetch`),
//! maps the memory it brought and closes the rest. The resources that another user may take are
//! bounded (`quota`).

mod accept;
pub mod budget;
mod claim;
mod directory;
pub(crate) mod fetch;
mod keeper;
mod list;
mod look;
pub(crate) mod message;
mod name;
mod probe;
mod quota;
mod socket;

#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use accept::Fetched;
pub use accept::{Event, RefusedPeer};
pub use claim::{Claim, ClaimError, ConnectError, Squatter};
pub use directory::{Directory, Holder, NameError, NameKey, Occupant};
pub use keeper::{Keeper, LEFT_MAX, NewKeeper, Visit, leave};
pub use list::{Answer, VfInfo, list};
pub use look::{Asker, Seen, Shown, look};
use name::SO_ACCEPTCON;
pub(crate) use quota::Share;

use std::fmt;

/// VF numbers are below this: they are the high 10 bits of a QPN.
pub const VF_COUNT: u16 = 1024;

/// What two engines must agree on to be the same nic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicIdentity {
    /// Node GUID of the nic.
    pub guid: u64,
    /// Index of the network interface that the nic stands for.
    pub ifindex: u32,
    /// Hash of the settings that both ends must share, for example those of the configuration
    /// file that change what travels.
    pub settings: u64,
}

impl fmt::Display for NicIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { guid, ifindex, settings } = self;
        write!(f, "guid {guid:016x} on interface {ifindex} with settings {settings:016x}")
    }
}

/// A word in a process's memory that tells a peer whether it may read that memory: if
/// `process_vm_readv` at `addr` returns `value`, it may, and the process is the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Address of a `u64` in the peer's address space.
    pub addr: u64,
    /// The word there.
    pub value: u64,
}

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its VF.
    pub vf: u16,
    /// Its process id as we see it (`SO_PEERCRED`), or `None` if it is in a pid namespace that we
    /// cannot see.
    pub pid: Option<u32>,
    /// Its effective user id as we see it.
    pub uid: u32,
    /// Its process id as it sees it. It differs from `pid` in another pid namespace. A peer can lie
    /// here.
    pub own_pid: u32,
    /// Its effective user id as it sees it. It differs from `uid` in another user namespace. A peer
    /// can lie here.
    pub own_uid: u32,
    /// A random number for this connection.
    pub nonce: u64,
    /// A word in its memory. A peer can lie here.
    pub probe: Probe,
}

impl PeerInfo {
    /// Whether the peer is our user's, as the kernel reports; see [`descriptors::is_same_user`].
    pub fn same_uid(&self) -> bool {
        descriptors::is_same_user(self.uid)
    }
}

impl fmt::Display for PeerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VF {} (", self.vf)?;
        match self.pid {
            Some(pid) => write!(f, "pid {pid}")?,
            None => write!(f, "a process of another pid namespace")?,
        }
        write!(f, ", uid {})", self.uid)
    }
}

/// Entry points for fuzz targets.
#[cfg(fuzzing)]
pub mod fuzzing {
    /// Reads `bytes` as a message of a peer, and returns whether it is one.
    pub fn message(bytes: &[u8]) -> bool {
        super::message::Message::decode(bytes).is_ok()
    }
}
