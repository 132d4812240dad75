//! Receive sockets: sockets connected to senders of much traffic.
//!
//! To find the socket for a datagram from anywhere, the kernel looks up the route, then the
//! sockets, and then runs the steering program ([`crate::steer`]). For a datagram from the peer of
//! a connected socket it need not run the program; unless another socket was bound to the address
//! since, it finds the socket at once, together with the route of the last packet
//! (`udp_v4_early_demux`).
//!
//! The port of a [transmit socket](UdpLink::open_tx_socket) sends to one process alone, so packets
//! from there need no steering. If a sender uses one port for several processes of this host after
//! all, as hardware may, the receive socket is closed when a packet for another process arrives,
//! and the packet is forwarded as every wrongly steered one is.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use descriptors::Known;
use socket2::{Domain, Socket};

use super::open::{configure, scope, turn_away};
use super::{UdpLink, set_option};

/// The most receive sockets: each is a descriptor and a socket's memory.
const MOST: usize = 16;
/// The kernel may still add a packet to a socket that was left ([`super::leave`]). Here nobody
/// waits for that.
const GRACE: Duration = Duration::from_millis(100);
/// For this many reads, packets from before the receive socket was opened go first. A flood of the
/// shared socket must not hold up those of the receive socket.
const FIRST: u32 = 64;

/// From where, and to which address of this host.
pub(super) type Between = (SocketAddr, IpAddr);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before it was connected, datagrams from anywhere could reach it. They may still wait there.
    New,
    /// All datagrams are from one sender.
    Open,
    /// It is closed when it is empty, and has been left for [`GRACE`].
    Leaving(Instant),
}

#[derive(Debug)]
struct RxSocket {
    between: Between,
    socket: Known<Socket>,
    state: State,
    /// For how many more reads packets at the shared socket go first.
    behind: u32,
    /// The last read in which it had something.
    last_full: u32,
    /// Whether it had something since the last sweep.
    used: bool,
}

impl RxSocket {
    /// Sends later packets to the shared socket, so that nothing can arrive between the read that
    /// finds it empty and its close.
    fn leave(&mut self) {
        if let Err(error) = turn_away(&self.socket) {
            tracing::debug!(%error, "packets still arrive at a receive socket that is being closed");
        }
        self.state = State::Leaving(Instant::now());
    }
}

/// The receive sockets of a link.
#[derive(Debug, Default)]
pub(super) struct RxSockets {
    open: Vec<RxSocket>,
    /// The last ones at which packets for other processes arrived.
    refused: Vec<Between>,
}

impl RxSockets {
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.open.iter().map(|rx_socket| rx_socket.socket.as_fd())
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &Known<Socket>> {
        self.open.iter().map(|rx_socket| &rx_socket.socket)
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// The socket, and the two addresses of all its datagrams, if those are certain.
    pub(super) fn get(&self, index: usize) -> Option<(&Known<Socket>, Option<Between>)> {
        let RxSocket { socket, between, state, .. } = self.open.get(index)?;
        Some((socket, (*state != State::New).then_some(*between)))
    }

    pub(super) fn last_full(&self) -> impl Iterator<Item = &u32> {
        self.open.iter().map(|rx_socket| &rx_socket.last_full)
    }

    /// Notes that one had something.
    pub(super) fn found(&mut self, index: usize, looks: u32) {
        if let Some(rx_socket) = self.open.get_mut(index) {
            (rx_socket.last_full, rx_socket.used) = (looks, true);
        }
    }

    /// Whether one must not be read yet. Asked once for each read.
    #[inline]
    pub(super) fn waits(&mut self, index: usize) -> bool {
        let Some(rx_socket) = self.open.get_mut(index).filter(|rx_socket| rx_socket.behind > 0)
        else {
            return false;
        };
        rx_socket.behind -= 1;
        true
    }

    /// A shared socket was found empty.
    #[inline]
    pub(super) fn found_shared_empty(&mut self, is_v6: bool) {
        for rx_socket in &mut self.open {
            if rx_socket.between.0.is_ipv6() == is_v6 {
                rx_socket.behind = 0;
            }
        }
    }

    /// One was found empty: if it was new it is open from now on, and if it was leaving it is
    /// closed.
    #[inline]
    pub(super) fn found_empty(&mut self, index: usize) {
        match self.open.get(index).map(|rx_socket| rx_socket.state) {
            Some(State::New) => self.settle(index),
            Some(State::Leaving(since)) if since.elapsed() >= GRACE => {
                drop(self.open.swap_remove(index));
            }
            Some(State::Leaving(_) | State::Open) | None => {}
        }
    }

    #[cold]
    fn settle(&mut self, index: usize) {
        let rx_socket = &mut self.open[index];
        // From now on the address is known without asking, and each answer has a cost.
        let (level, name) = match rx_socket.between.0 {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
        };
        let _ = set_option(rx_socket.socket.as_fd(), level, name, 0);
        rx_socket.state = State::Open;
    }

    /// A packet for another process arrived: it belongs to the shared socket, which is steered.
    #[cold]
    pub(super) fn refuse(&mut self, index: usize) {
        let Some(rx_socket) = self.open.get_mut(index).filter(|i| i.state == State::Open) else {
            return;
        };
        rx_socket.leave();
        if self.refused.len() >= MOST {
            self.refused.remove(0);
        }
        self.refused.push(rx_socket.between);
    }
}

impl UdpLink {
    /// Opens a receive socket for packets from `from`, whose port is not the link's, to an address
    /// of this host. It is one of [`UdpLink::fds`], and [`UdpLink::recv`] reads it, and closes it
    /// when it finds a packet for another VF. Returns false if one would be of no use.
    pub fn open_rx_socket(&mut self, from: SocketAddr, to: IpAddr) -> io::Result<bool> {
        let between = (from, to);
        let may_be = from.port() != self.port
            && self.rx_sockets.open.len() < MOST
            && self.source_port() == self.port
            && !self.rx_sockets.refused.contains(&between)
            && self.rx_sockets.open.iter().all(|rx_socket| rx_socket.between != between);
        if !may_be || to.is_multicast() || scope(to, self.options) != 0 {
            return Ok(false);
        }
        let socket = configure(Domain::for_address(from), self.options)?;
        set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        socket.bind(&SocketAddr::new(to, self.port).into())?;
        socket.connect(&from.into())?;
        let (state, behind, last_full) = (State::New, FIRST, self.looks);
        self.rx_sockets.open.push(RxSocket {
            between,
            socket,
            state,
            behind,
            last_full,
            used: true,
        });
        Ok(true)
    }

    /// Closes the receive sockets that had nothing since the last call, which should be long ago,
    /// at their next read.
    pub fn sweep_rx_sockets(&mut self) {
        for rx_socket in &mut self.rx_sockets.open {
            if !std::mem::take(&mut rx_socket.used) {
                rx_socket.leave();
            }
        }
    }

    /// How many receive sockets are open.
    pub fn rx_sockets(&self) -> usize {
        let is_open = |rx_socket: &&RxSocket| !matches!(rx_socket.state, State::Leaving(_));
        self.rx_sockets.open.iter().filter(is_open).count()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::{Options, TxSocketTo};
    use super::*;

    const MANY: u32 = 40;
    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// A packet to QPN 1 of a VF, with a number.
    fn packet(vf: u16, number: u32) -> [u8; 20] {
        let mut packet = [0; 20];
        let qpn = u32::from(vf) << 14 | 1;
        packet[4..8].copy_from_slice(&qpn.to_be_bytes());
        packet[12..16].copy_from_slice(&number.to_be_bytes());
        packet
    }

    /// Receives until nothing more comes; returns the numbers.
    fn numbers(link: &mut UdpLink) -> Vec<u32> {
        let mut numbers = Vec::new();
        let mut each = |datagram: super::super::Datagram<'_>| {
            if let Some(number) = datagram.bytes.get(12..16) {
                numbers.push(u32::from_be_bytes(number.try_into().expect("four bytes")));
            }
        };
        for _ in 0..3 {
            while link.recv(&mut each).expect("sockets work") > 0 {}
        }
        numbers
    }

    /// A link, and another one with a transmit socket to it.
    fn pair() -> (UdpLink, UdpLink, super::super::NewTxSocket) {
        let vf = 5;
        let link = UdpLink::bind(0, Options { vf, ..Options::default() }).expect("a free port");
        let mut sender = UdpLink::send_only(link.port(), Options::default()).expect("sockets");
        let to = TxSocketTo { src: HERE, dst: HERE, traffic_class: 0, hop_limit: 64 };
        let tx_socket = sender.open_tx_socket(to).expect("a transmit socket");
        (link, sender, tx_socket)
    }

    /// Sends a packet with number 77 from elsewhere.
    fn send_stray(other: &UdpLink) {
        let transmit = super::super::Transmit {
            dst: HERE,
            src: HERE,
            traffic_class: 0,
            hop_limit: 0,
            contents: &packet(5, 77),
            segment_size: None,
        };
        other.send(transmit).expect("lo is up");
    }

    fn open(link: &mut UdpLink, tx_socket: super::super::NewTxSocket) -> bool {
        let from = SocketAddr::new(HERE, tx_socket.source_port);
        link.open_rx_socket(from, HERE).expect("sockets")
    }

    #[test]
    fn packets_of_a_receive_socket_come_after_earlier_ones() {
        let (mut link, sender, tx_socket) = pair();
        let send =
            |number| sender.send_on(tx_socket.id, &packet(5, number), None).expect("lo is up");
        for number in 0..MANY {
            send(number);
        }
        assert_eq!(numbers(&mut link), (0..MANY).collect::<Vec<_>>());
        // More packets wait at the shared socket than one call takes.
        (0..30).for_each(send);
        assert!(open(&mut link, tx_socket));
        assert!(!open(&mut link, tx_socket), "there is one");
        (30..60).for_each(send);
        assert_eq!(numbers(&mut link), (0..60).collect::<Vec<_>>());
        // Packets from elsewhere still come through the shared socket.
        let other = UdpLink::send_only(link.port(), Options::default()).expect("sockets");
        send_stray(&other);
        assert_eq!(numbers(&mut link), [77]);
    }

    #[test]
    fn an_idle_receive_socket_is_closed_and_the_shared_socket_takes_over() {
        let (mut link, sender, tx_socket) = pair();
        let send =
            |number| sender.send_on(tx_socket.id, &packet(5, number), None).expect("lo is up");
        (0..MANY).for_each(send);
        numbers(&mut link);
        assert!(open(&mut link, tx_socket));
        link.sweep_rx_sockets();
        assert_eq!(link.rx_sockets(), 1, "it was just opened");
        send(8);
        link.sweep_rx_sockets();
        assert_eq!(numbers(&mut link), [8], "earlier packets are taken");
        assert_eq!(link.rx_sockets(), 0);
        send(9);
        assert_eq!(numbers(&mut link), [9]);
    }

    #[test]
    fn a_receive_socket_with_a_packet_for_another_process_is_closed_for_good() {
        let (mut link, sender, tx_socket) = pair();
        let send =
            |vf, number| sender.send_on(tx_socket.id, &packet(vf, number), None).expect("lo is up");
        (0..MANY).for_each(|number| send(5, number));
        numbers(&mut link);
        assert!(open(&mut link, tx_socket));
        numbers(&mut link);
        send(6, 1000);
        send(5, 1001);
        assert_eq!(numbers(&mut link), [1000, 1001], "somebody has to pass it on");
        assert_eq!(link.rx_sockets(), 0);
        (0..MANY).for_each(|number| send(5, number));
        assert_eq!(numbers(&mut link).len(), MANY as usize);
        assert!(!open(&mut link, tx_socket));
    }

    #[test]
    fn a_receive_socket_does_not_wait_for_a_shared_socket_that_is_never_empty() {
        let (mut link, sender, tx_socket) = pair();
        let send =
            |number| sender.send_on(tx_socket.id, &packet(5, number), None).expect("lo is up");
        (0..MANY).for_each(send);
        numbers(&mut link);
        let other = UdpLink::send_only(link.port(), Options::default()).expect("sockets");
        let flood = || (0..16).for_each(|_| send_stray(&other));
        flood();
        assert!(open(&mut link, tx_socket));
        send(1000);
        let mut looks = 0;
        let mut found = false;
        while !found {
            flood();
            let mut each = |datagram: super::super::Datagram<'_>| {
                found |= datagram.bytes.get(12..16) == Some(&1000_u32.to_be_bytes());
            };
            link.recv(&mut each).expect("sockets work");
            looks += 1;
            assert!(looks <= FIRST + 1, "it waits for ever");
        }
        assert!(looks > 1, "it waited");
    }
}
