//! Busy destinations over UDP. They get a transmit socket ([`UdpLink::open_tx_socket`]): the same
//! datagrams, with less work for the kernel.

use std::net::SocketAddr;
use std::time::Duration;

use iba::Gid;
use link::udp::{NewTxSocket, TxSocketId, TxSocketTo, UdpLink};
use transport::Time;
use wire::icrc::Flow;

/// After this many trains, a destination or a source is busy.
pub(super) const BUSY: u32 = 256;
/// How many of each are counted, and the most transmit sockets: each is a descriptor and a socket's
/// memory.
pub(super) const MOST: usize = 16;
/// The interval of the search for idle destinations. A destination that was refused a transmit
/// socket may ask again then.
pub(super) const SWEEP: Duration = Duration::from_secs(10);

/// What all datagrams of a transmit socket have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) src: Gid,
    pub(crate) dst: Gid,
    /// The VF at the destination, so that a transmit socket leads to one process.
    pub(super) vf: u16,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

/// The next train on a transmit socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) tx_socket: TxSocketId,
    /// The part of its packets' addresses that the ICRC covers.
    pub(crate) flow: Flow,
    /// The identification of its first datagram.
    pub(super) first_id: u16,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// It has no socket yet.
    Counting,
    /// It has a socket; this is its next train.
    Open(Place),
    /// It cannot get a socket, or the socket broke.
    Refused,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    to: Destination,
    /// Trains since the last sweep.
    trains: u32,
    state: State,
}

impl Known {
    fn tx_socket(&self) -> Option<TxSocketId> {
        match self.state {
            State::Open(place) => Some(place.tx_socket),
            State::Counting | State::Refused => None,
        }
    }
}

/// The destinations, and their transmit sockets.
#[derive(Debug, Default)]
pub(crate) struct TxSockets {
    known: Vec<Known>,
    /// Whether transmit sockets are used at all.
    allowed: bool,
    /// Whether a destination has become a busy one.
    asked: bool,
    swept: Time,
}

impl TxSockets {
    /// With transmit sockets, or without any.
    pub(crate) fn new(allowed: bool) -> Self {
        Self { allowed, ..Self::default() }
    }

    /// Counts a train, and returns its place on the transmit socket, if there is one.
    #[inline]
    pub(super) fn take(&mut self, to: Destination) -> Option<Place> {
        if !self.allowed {
            return None;
        }
        let Some(known) = self.known.iter_mut().find(|known| known.to == to) else {
            if self.known.len() < MOST {
                self.known.push(Known { to, trains: 1, state: State::Counting });
            }
            return None;
        };
        known.trains = known.trains.saturating_add(1);
        match &mut known.state {
            State::Open(next) => {
                let place = *next;
                next.first_id = next.first_id.wrapping_add(1);
                Some(place)
            }
            State::Counting => {
                self.asked |= known.trains >= BUSY;
                None
            }
            State::Refused => None,
        }
    }

    /// The open transmit sockets.
    #[cfg(test)]
    pub(super) fn open(&self) -> impl Iterator<Item = TxSocketId> {
        self.known.iter().filter_map(Known::tx_socket)
    }

    /// The last place that was returned is not used.
    pub(super) fn put_back(&mut self, tx_socket: TxSocketId) {
        for known in &mut self.known {
            if let State::Open(next) = &mut known.state
                && next.tx_socket == tx_socket
            {
                next.first_id = next.first_id.wrapping_sub(1);
            }
        }
    }

    /// The transmit sockets that lead to a process.
    pub(super) fn leading_to(&self, dst: Gid, vf: u16) -> Vec<TxSocketId> {
        let leads = |known: &&Known| known.to.dst == dst && known.to.vf == vf;
        self.known.iter().filter(leads).filter_map(Known::tx_socket).collect()
    }

    /// A transmit socket broke.
    pub(super) fn broke(&mut self, tx_socket: TxSocketId) {
        for known in &mut self.known {
            if known.tx_socket() == Some(tx_socket) {
                known.state = State::Refused;
            }
        }
    }

    /// Whether [`TxSockets::open_asked`] has something to do.
    #[inline]
    pub(super) fn are_asked_for(&self) -> bool {
        self.asked
    }

    /// Opens transmit sockets to destinations that have become busy.
    #[cold]
    pub(super) fn open_asked(&mut self, udp: &mut UdpLink) {
        self.asked = false;
        for known in &mut self.known {
            if known.trains < BUSY || !matches!(known.state, State::Counting) {
                continue;
            }
            known.state = match open(udp, &known.to) {
                Ok(place) => {
                    tracing::debug!(target: "peerdma::udp", dst = %known.to.dst, "opened a transmit socket");
                    State::Open(place)
                }
                Err(error) => {
                    tracing::debug!(target: "peerdma::udp", dst = %known.to.dst, "no transmit socket: {error}");
                    State::Refused
                }
            };
        }
    }

    /// Closes transmit sockets that are not used any more. No train must be waiting for one.
    pub(super) fn sweep(&mut self, now: Time, udp: &mut UdpLink) {
        if self.known.is_empty() || now.since(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        // The counts of destinations without a transmit socket start again, so that quiet ones do
        // not use up the entries.
        self.known.retain_mut(|known| {
            let is_used = std::mem::take(&mut known.trains) > 0;
            let State::Open(place) = known.state else { return false };
            if !is_used {
                udp.close_tx_socket(place.tx_socket);
            }
            is_used
        });
    }
}

fn open(udp: &mut UdpLink, to: &Destination) -> std::io::Result<Place> {
    let (src, dst) = (to.src.to_ip(), to.dst.to_ip());
    let Destination { traffic_class, hop_limit, .. } = *to;
    let NewTxSocket { id: tx_socket, source_port, identification: first_id, .. } =
        udp.open_tx_socket(TxSocketTo { src, dst, traffic_class, hop_limit })?;
    let ends = [(src, source_port), (dst, udp.port())].map(SocketAddr::from);
    match Flow::new(ends[0], ends[1]) {
        Some(flow) => Ok(Place { tx_socket, flow, first_id }),
        None => {
            udp.close_tx_socket(tx_socket);
            Err(std::io::ErrorKind::InvalidInput.into())
        }
    }
}
