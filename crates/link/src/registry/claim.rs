//! Claiming a VF, and connecting to others.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use descriptors::strangers::Listener;
use descriptors::{Inherited, Known, PeerCred};
use rustix::event::epoll;
use rustix::io::Errno;

use super::accept::{Fetched, Pending};
use super::directory::Occupant;
use super::fetch::Post;
use super::message::{Hello, Message};
use super::name::{NIC_NAME_MAX, address, sockets, squatted, valid_nic};
use super::quota::Quotas;
use super::socket::{dial, new_socket, own_uid, spare_fd};
use super::{NicIdentity, Probe, VF_COUNT};
use crate::shm::{Doorbell, Outbound, Producer};

/// Connections that wait to be accepted; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Why no VF could be claimed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The name of the nic cannot be part of a socket name.
    #[error(
        "the nic name {0:?} cannot name a socket: printable characters without / and blanks, \
         at most {NIC_NAME_MAX}"
    )]
    BadName(String),
    /// Every number is taken.
    #[error(
        "all {VF_COUNT} virtual functions of {nic} are taken: {}{}",
        holders_in_words(.holders),
        in_words(.squatters)
    )]
    NoFreeVf {
        /// The nic.
        nic: String,
        /// The processes that listen on the names, and on how many each, those with most first.
        holders: Vec<(PeerCred, usize)>,
        /// Names that are held, but not by an engine.
        squatters: Vec<Squatter>,
    },
    /// The system refused.
    #[error("claiming a virtual function: {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The error.
        source: io::Error,
    },
}

/// A name that is held by a process that is not an engine, seen when claiming.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Squatter {
    /// The VF whose name it is.
    pub vf: u16,
    /// What is wrong, in words.
    pub reason: String,
}

/// Why there is no connection to a VF.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nobody holds that VF: its process is gone, or never was.
    #[error("no process holds VF {vf} of {nic}")]
    NoSuchVf {
        /// The nic.
        nic: String,
        /// The VF.
        vf: u16,
    },
    /// Its queue of connections is full; try again.
    #[error("VF {vf} does not accept connections at the moment")]
    Busy {
        /// The VF.
        vf: u16,
    },
    /// Its user already has as many of our resources as another user may have.
    #[error("not connecting to VF {vf}: {reason}")]
    Quota {
        /// The VF.
        vf: u16,
        /// Which limit it is, in words.
        reason: String,
    },
    /// The system refused.
    #[error("connecting to VF {vf}: {what}: {source}")]
    System {
        /// The VF.
        vf: u16,
        /// What was tried.
        what: &'static str,
        /// The error.
        source: io::Error,
    },
}

/// A claimed VF: a listening socket that other engines on this host find by its name.
///
/// Dropping it gives the VF back; peers with a connection see that we are gone when the
/// [`Outbound`] and [`Inbound`](crate::shm::Inbound) ends are dropped too.
///
/// [`AsFd`] gives a descriptor that is readable when [`poll_events`](Self::poll_events) has
/// something to do.
#[derive(Debug)]
pub struct Claim {
    pub(super) nic: String,
    pub(super) identity: NicIdentity,
    pub(super) vf: u16,
    pub(super) listener: Listener,
    /// Whether connections wait to be taken in until there is room.
    pub(super) is_paused: bool,
    /// Watches the listener, and the accepted sockets that have not sent a Hello.
    pub(super) epoll: Known,
    /// Closed for a moment to tell a peer that we have no descriptors left.
    pub(super) spare: Option<Known>,
    pub(super) pending: Vec<Pending>,
    /// Where the threads that receive from other users leave their results.
    pub(super) post: Arc<Post<Fetched>>,
    pub(super) quotas: Quotas,
    pub(super) doorbell: Arc<Doorbell>,
    pub(super) table: Option<Known>,
    /// The processes that held the VFs that we connected to.
    pub(super) dialled: BTreeMap<u16, PeerCred>,
    probe: Box<u64>,
    squatters: Vec<Squatter>,
}

impl Claim {
    /// Claims the lowest free VF of `nic` in this network namespace.
    ///
    /// # Errors
    /// See [`ClaimError`]. Names that others hold are skipped.
    pub fn new(nic: &str, identity: NicIdentity) -> Result<Self, ClaimError> {
        if !valid_nic(nic) {
            return Err(ClaimError::BadName(nic.to_owned()));
        }
        let system = |what| move |e: Errno| ClaimError::System { what, source: e.into() };
        let listener = Listener::new(new_socket().map_err(system("socket"))?);
        let mut vf = 0;
        while let Err(e) = address(nic, vf).and_then(|a| rustix::net::bind(&listener, &a)) {
            if e != Errno::ADDRINUSE {
                return Err(system("bind")(e));
            }
            vf += 1;
            if vf == VF_COUNT {
                return Err(ClaimError::NoFreeVf {
                    nic: nic.to_owned(),
                    holders: holders(nic),
                    squatters: squatters(nic, vf),
                });
            }
        }
        rustix::net::listen(&listener, BACKLOG).map_err(system("listen"))?;
        let squatters = squatters(nic, vf);
        for s in &squatters {
            tracing::warn!(nic, vf = s.vf, "skipped a virtual function: {}", s.reason);
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create"))?;
        let epoll = Known::new(epoll);
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, &listener, data, epoll::EventFlags::IN).map_err(system("epoll_ctl"))?;
        let post = Post::new().map_err(system("eventfd"))?;
        let data = epoll::EventData::new_u64(2);
        epoll::add(&epoll, &*post, data, epoll::EventFlags::IN).map_err(system("epoll_ctl"))?;
        let doorbell = Doorbell::new()
            .map_err(|source| ClaimError::System { what: "making a doorbell", source })?;
        Ok(Self {
            nic: nic.to_owned(),
            identity,
            vf,
            listener,
            is_paused: false,
            spare: spare_fd(&epoll),
            epoll,
            pending: Vec::new(),
            post,
            quotas: Quotas::default(),
            doorbell: Arc::new(doorbell),
            table: None,
            dialled: BTreeMap::new(),
            probe: Box::new(random()),
            squatters,
        })
    }

    /// The VF we hold: the high 10 bits of our QPNs.
    pub fn vf(&self) -> u16 {
        self.vf
    }

    /// The name of the nic.
    pub fn nic(&self) -> &str {
        &self.nic
    }

    /// Names below ours that are held by processes that are not engines.
    pub fn squatters(&self) -> &[Squatter] {
        &self.squatters
    }

    /// The doorbell that all peers of this VF ring.
    pub fn doorbell(&self) -> &Arc<Doorbell> {
        &self.doorbell
    }

    /// The word by which peers probe whether they may read our memory.
    pub fn probe(&self) -> Probe {
        Probe { addr: (&raw const *self.probe).addr() as u64, value: *self.probe }
    }

    /// From now on, passes a descriptor of ours (the key table) to peers, on connections in both
    /// directions. Only peers with our uid get it.
    pub fn set_table(&mut self, table: OwnedFd) {
        self.table = Some(Known::new(table));
    }

    /// Connects to VF `vf` and returns the sending end of a new ring to it, of `capacity` bytes
    /// (a power of two). Records may be pushed at once; the peer finds them when it accepts.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(&mut self, vf: u16, capacity: usize) -> Result<Outbound, ConnectError> {
        let system = |what, source: io::Error| ConnectError::System { vf, what, source };
        // Its Welcome brings descriptors.
        let (socket, cred) = dial(&self.nic, vf, true).map_err(|e| match e {
            Errno::CONNREFUSED => ConnectError::NoSuchVf { nic: self.nic.clone(), vf },
            Errno::AGAIN => ConnectError::Busy { vf },
            e => system("connect", e.into()),
        })?;
        let share = if socket.is_ours() {
            None
        } else {
            let share = self.quotas.take(cred.uid, 0);
            Some(share.map_err(|reason| ConnectError::Quota { vf, reason })?)
        };
        let (producer, ring) =
            Producer::create(capacity).map_err(|e| system("making a ring", e))?;
        let nonce = random();
        let hello = Message::Hello(Hello {
            vf: self.vf,
            pid: std::process::id(),
            uid: own_uid(),
            nic: self.identity,
            nonce,
            probe: self.probe(),
            capacity: capacity as u64,
        });
        let mut fds = vec![ring.as_fd()];
        fds.extend(self.fds_for(cred));
        hello.send(&socket, &fds).map_err(|e| system("sending Hello", e))?;
        self.dialled.insert(vf, cred);
        let post = Arc::clone(&self.post);
        Ok(Outbound::new(vf, socket, producer, nonce, cred, post, share))
    }

    /// All descriptors of the claim.
    pub(crate) fn inherited(&self, out: &mut Vec<Inherited>) {
        out.extend([self.listener.inherited(), self.post.inherited()]);
        let own = [&self.epoll].into_iter().chain(&self.spare).chain(&self.table);
        out.extend(own.map(Known::inherited));
        out.extend(self.pending.iter().map(Pending::inherited));
        out.extend(self.doorbell.inherited());
    }

    /// Checks that its descriptors are still the same files ([`Known::look`]).
    ///
    /// # Errors
    ///
    /// EBADF if one is not.
    pub fn look(&self) -> io::Result<()> {
        self.listener.look()?;
        self.epoll.look()?;
        self.post.look()?;
        Ok(self.doorbell.look()?)
    }

    /// For the child after a fork: closes the descriptors and touches nothing else, since the
    /// VF belongs to the parent, and the mappings were not inherited.
    pub fn abandon_in_child(self) {
        crate::fork::abandon(self);
    }

    /// The descriptors that a peer gets from us: the doorbell's page, and if the peer is our
    /// user's, the doorbell's eventfd and the table. A stranger could make the eventfd block.
    pub(super) fn fds_for(&self, cred: PeerCred) -> Vec<BorrowedFd<'_>> {
        let mut fds = vec![self.doorbell.page_fd()];
        if cred.is_same_user() {
            fds.push(self.doorbell.fd());
            fds.extend(self.table.as_ref().map(AsFd::as_fd));
        }
        fds
    }
}

impl AsFd for Claim {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// A number that two connections do not share by accident. Not a secret.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Names below `below` that are bound, and on which no process listens.
fn squatters(nic: &str, below: u16) -> Vec<Squatter> {
    if below == 0 {
        return Vec::new();
    }
    // Without /proc there is nothing to report.
    let table = sockets().unwrap_or_default();
    let reason = "its name is held by a socket that does not listen";
    squatted(&table, nic)
        .into_iter()
        .filter(|vf| *vf < below)
        .map(|vf| Squatter { vf, reason: reason.to_owned() })
        .collect()
}

/// The processes that listen on the names, as the kernel reports them: an engine has one name; a
/// process with many is not an engine.
pub(super) fn holders(nic: &str) -> Vec<(PeerCred, usize)> {
    let mut holders = BTreeMap::new();
    for (_, cred) in (0..VF_COUNT).filter_map(|vf| dial(nic, vf, false).ok()) {
        *holders.entry((cred.uid, cred.pid)).or_insert(0) += 1;
    }
    let mut holders: Vec<(PeerCred, usize)> =
        holders.into_iter().map(|((uid, pid), count)| (PeerCred { pid, uid }, count)).collect();
    holders.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    holders
}

/// The three with most.
fn holders_in_words(holders: &[(PeerCred, usize)]) -> String {
    let said = holders.iter().take(3).map(|(cred, count)| {
        let by = Occupant::Process(*cred);
        format!("{count} by {by}")
    });
    let rest = holders.len().saturating_sub(3);
    let rest = (rest > 0).then(|| format!("others by {rest} more processes"));
    said.chain(rest).collect::<Vec<_>>().join(", ")
}

fn in_words(squatters: &[Squatter]) -> String {
    let mut words = String::new();
    if let Some(first) = squatters.first() {
        let Squatter { vf, reason } = first;
        // Writing to a String cannot fail.
        let _ = write!(
            words,
            "; {} of them by processes that are not engines, as VF {vf}: {reason}",
            squatters.len()
        );
    }
    words
}
