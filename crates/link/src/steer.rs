//! Which process gets a packet that arrives on the shared UDP port.
//!
//! Every VF of a host binds the port of RoCEv2 with `SO_REUSEPORT`, and the kernel keeps the
//! sockets of one user and one address family in a *group*: an array, in the order of binding. A
//! classic BPF program, which any member may attach without privilege, reads the destination QPN of
//! each packet and returns an index into that array:
//!
//! ```text
//!   BTH:  | opcode | flags | P_Key | resv | destination QPN |   QPN = VF (10 bits) | index (14 bits)
//!         0        1       2       4      5                 8           |
//!                                                                       v
//!                          table: VF 0 -> 0, VF 1 -> 2, VF 4 -> 1    socket[index]
//!   no entry, QPN 0, 1, 0xffffff -> the first VF of the table
//! ```
//!
//! **A VF's index is not its number.** When a socket is closed, the last one takes its place in the
//! array, nobody is notified, and a process can be killed at any time. So the table cannot be kept
//! by agreement, and nobody keeps it: it is determined by asking. The program delivers a *question*
//! to the index that the question names; the process there answers with its VF. [`Steering`] asks
//! index by index, builds the table from the answers and attaches it. Any VF does so whenever it
//! has reason to; the last table wins, and any table built after the last change is right.
//!
//! **Steering is an optimisation.** A packet can still reach the wrong VF: while the table is
//! stale, when one flow mixes VFs and GRO joins their datagrams, or when the VF belongs to another
//! user. The receiver forwards it over the ring of the VF it is for, and calls [`Steering::start`]
//! if this happens between VFs that share the port.
//!
//! A socket is closed when its last descriptor is. A child that keeps one after a fork keeps its
//! place in the array, and packets that are steered or hashed there are lost: children close them
//! (`UdpLink::abandon_in_child`), and so does exec.
//!
//! Reasons to start: the device was opened; a packet reached the wrong VF; nothing arrived for a
//! while, as when another process ended and a third, which is stopped, now gets our packets; a
//! *request to steer again* came. Starting too often is harmless ([`REST`]).
//!
//! **A process without a socket in the group** belongs to another user. Its packets go to one of
//! the VFs that answered, and if that one is stopped, the others do not notice, as their own
//! packets arrive. So a process that hears nothing for a while requests steering
//! ([`UdpLink::ask_to_steer`]), by a question that wants no answer: the VF that receives it starts
//! to ask.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use descriptors::Known;
use socket2::{Domain, Protocol, Socket, Type};

use crate::udp::{self, UdpLink};

mod program;
pub(crate) mod question;

pub use program::Table;
use question::{ANSWER, LENGTH, WAVE, number, question};

/// The highest number of VFs that a QPN can name.
const MAX_INDEX: u16 = 1024;
/// How long answers may take. The packets of a VF that is stopped, or busy for longer, go to
/// another VF, which forwards them.
pub const PATIENCE: Duration = Duration::from_millis(50);
/// The least time between attaching a table and building the next one.
pub const REST: Duration = Duration::from_millis(100);

/// Finds out the order of the sockets and attaches the table.
///
/// It never blocks, and answers come only while every VF calls [`UdpLink::recv`], this one
/// included:
///
/// ```
/// use std::time::Instant;
/// use link::{steer::Steering, udp::{Options, UdpLink}};
///
/// let mut link = UdpLink::bind(0, Options { vf: 7, ..Options::default() })?;
/// let mut steering = Steering::new(&link);
/// steering.start(Instant::now());
/// while steering.deadline().is_some() {
///     // A device would wait here, for the fds of both and for the deadline.
///     link.recv(&mut |_| ())?;
///     steering.poll(&link, Instant::now());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Steering {
    groups: Vec<Group>,
    attached_at: Option<Instant>,
    /// Whether a start came during the rest.
    postponed: bool,
}

impl Steering {
    /// Prepares to ask; nothing is attached yet. A link that only sends shares no port, and has
    /// nothing to steer.
    pub fn new(link: &UdpLink) -> Self {
        let loopbacks = [
            (link.v4_fd(), Ipv4Addr::LOCALHOST.into()),
            (link.v6_fd(), Ipv6Addr::LOCALHOST.into()),
        ];
        let groups = loopbacks
            .into_iter()
            .filter(|(fd, _)| fd.is_some() && link.source_port() == link.port())
            .map(|(_, ip)| Group::new(ip, link.port()))
            .collect();
        Self { groups, attached_at: None, postponed: false }
    }

    /// Begins to ask, unless that is under way; within [`REST`] of the last table, begins when that
    /// time is over.
    ///
    /// Nobody can be asked over an address family that has no loopback address, as when `lo` is
    /// down or a container has IPv6 switched off: that family stays with the hash.
    pub fn start(&mut self, now: Instant) {
        if self.attached_at.is_some_and(|at| now < at + REST) {
            self.postponed = true;
            return;
        }
        self.postponed = false;
        for group in &mut self.groups {
            if matches!(group.state, State::Idle) {
                group.begin(Round::First, now);
            }
        }
    }

    /// The latest time to call [`Steering::poll`], or `None` if it has nothing to do.
    pub fn deadline(&self) -> Option<Instant> {
        let asking = self.groups.iter().filter_map(|group| match group.state {
            State::Idle => None,
            State::Asking { until, .. } => Some(until),
        });
        let rested = self.attached_at.filter(|_| self.postponed).map(|at| at + REST);
        asking.chain(rested).min()
    }

    /// Handles the answers that arrived, asks the next questions, and attaches the tables that are
    /// complete. Errors are logged: the hash and the forwarding VFs remain.
    pub fn poll(&mut self, link: &UdpLink, now: Instant) {
        if self.postponed {
            self.start(now);
        }
        for group in &mut self.groups {
            let fd = if group.to.is_ipv4() { link.v4_fd() } else { link.v6_fd() };
            if let Some(fd) = fd
                && group.poll(fd, link.vf(), now)
            {
                self.attached_at = Some(now);
            }
        }
    }

    /// The sockets on which answers come; readable is a reason to call [`Steering::poll`].
    /// [`Steering::start`] can open them.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.groups.iter().filter_map(|group| group.socket.as_ref().map(AsFd::as_fd))
    }

    /// The last tables that were attached, that of IPv4 first.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.groups.iter().map(|group| &group.table)
    }
}

/// One reuseport group: the sockets of one address family.
#[derive(Debug)]
struct Group {
    /// Asks, and receives the answers; `None` until there is a loopback address.
    socket: Option<Known<Socket>>,
    /// The shared port on the loopback address.
    to: SocketAddr,
    nonce: u64,
    state: State,
    table: Table,
}

#[derive(Debug)]
enum State {
    Idle,
    Asking {
        round: Round,
        until: Instant,
        /// The answer of each index asked about so far.
        answers: Vec<Option<u16>>,
    },
}

/// A program that knows questions may not be attached yet, and then the hash delivers them all to
/// one socket. The result of a first round is therefore trusted only if it found several VFs, this
/// one among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    First,
    Second,
}

impl Group {
    fn new(loopback: IpAddr, port: u16) -> Self {
        let to = (loopback, port).into();
        Self { socket: None, to, nonce: 0, state: State::Idle, table: Table::default() }
    }

    fn begin(&mut self, round: Round, now: Instant) {
        if self.socket.is_none() {
            match self.open() {
                Ok(socket) => self.socket = Some(socket),
                Err(error) => {
                    tracing::debug!(to = %self.to, %error, "the order of the sockets cannot be determined");
                    return;
                }
            }
        }
        // Late answers of an earlier round carry its number. It need not be secret: only this host
        // can answer.
        self.nonce = self.nonce.wrapping_add(1);
        self.state = State::Asking { round, until: now + PATIENCE, answers: Vec::new() };
        self.ask_wave(now);
    }

    fn open(&self) -> io::Result<Known<Socket>> {
        let socket = Socket::new(Domain::for_address(self.to), Type::DGRAM, Some(Protocol::UDP))?;
        let socket = Known::new(socket);
        socket.set_nonblocking(true)?;
        socket.bind(&SocketAddr::from((self.to.ip(), 0)).into())?;
        Ok(socket)
    }

    /// Asks about the next indexes.
    fn ask_wave(&mut self, now: Instant) {
        let (State::Asking { answers, until, .. }, Some(socket)) = (&mut self.state, &self.socket)
        else {
            return;
        };
        for _ in 0..WAVE {
            let mut question = question(answers.len() as u32);
            question[12..20].copy_from_slice(&self.nonce.to_be_bytes());
            if let Err(error) = socket.send_to(&question, &self.to.into()) {
                tracing::debug!(to = %self.to, %error, "the order of the sockets cannot be determined");
                // Nothing was asked yet, and nothing can be while `lo` is down.
                if answers.is_empty() {
                    self.state = State::Idle;
                    return;
                }
            }
            answers.push(None);
        }
        *until = now + PATIENCE;
    }

    /// Returns true when a table was attached.
    fn poll(&mut self, shared: BorrowedFd<'_>, vf: u16, now: Instant) -> bool {
        self.take_answers();
        let State::Asking { round, until, answers } = &self.state else { return false };
        let complete = answers.iter().all(Option::is_some);
        if !complete && now < *until {
            return false;
        }
        let table = Table::from_answers(answers);
        // Beyond the end of the array the hash answers, always with a VF that has an index already.
        let last_wave = answers.len() as u16 - WAVE;
        let goes_on = table.entries().any(|(_, index)| index >= last_wave + WAVE / 2);
        if goes_on && answers.len() < usize::from(MAX_INDEX) {
            self.ask_wave(now);
            return false;
        }
        let credible = table.len() > 1 && table.index_of(vf).is_some();
        if *round == Round::First && !credible {
            // From now on, questions reach the index that they name.
            self.attach(shared, Table::default());
            self.begin(Round::Second, now);
            return false;
        }
        self.state = State::Idle;
        self.attach(shared, table);
        true
    }

    fn attach(&mut self, shared: BorrowedFd<'_>, table: Table) {
        match udp::attach_reuseport_cbpf(shared, &table.program()) {
            Ok(()) => {
                tracing::debug!(to = %self.to, ?table, "steering");
                self.table = table;
            }
            // ENOMEM: the program is longer than net.core.optmem_max; EPERM, EINVAL: a sandbox.
            Err(error) => tracing::warn!(
                to = %self.to, %error, vfs = table.len(),
                "the kernel refuses the steering program; VFs forward what the hash gives them"
            ),
        }
    }

    fn take_answers(&mut self) {
        let mut buffer = [0; LENGTH];
        while let Some(socket) = &self.socket {
            match rustix::net::recvfrom(socket, &mut buffer, rustix::net::RecvFlags::TRUNC) {
                Ok((_, length, from)) => {
                    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                    if length == LENGTH && from == Some(self.to) {
                        self.take_answer(&buffer);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn take_answer(&mut self, answer: &[u8; LENGTH]) {
        let State::Asking { answers, .. } = &mut self.state else { return };
        let nonce = u64::from(number(answer, 12)) << 32 | u64::from(number(answer, 16));
        if number(answer, 0) != ANSWER || nonce != self.nonce {
            return;
        }
        let slot = answers.get_mut(number(answer, 8) as usize);
        let vf = u16::try_from(number(answer, 20)).ok().filter(|vf| *vf < MAX_INDEX);
        if let (Some(slot), Some(vf)) = (slot, vf) {
            *slot = Some(vf);
        }
    }
}

#[cfg(test)]
mod tests;
