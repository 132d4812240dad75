//! Inlets: connected sockets of their own, for those whom much comes from.
//!
//! To find the socket for a datagram from anywhere, the kernel looks the way up, then for sockets, and then asks the program that
//! steers ([`crate::steer`]). One from a peer that has a connected socket is found at once (`udp_v4_early_demux`), together with
//! the way it took the last time.
//!
//! Who sends by a [line](UdpLink::open_line) sends from a port that leads to this process alone, and so what comes from there
//! needs no steering. If a sender uses one port for several processes of this host after all, as hardware may, the inlet is closed
//! when the first packet for another one comes, and the packet is passed on as all are that are steered wrongly.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{Domain, Socket};

use super::{Train, UdpLink, configure, scope, set_option};
use crate::steer;

/// So many trains, more than from others, make somebody one whom much comes from.
const BUSY: u32 = 256;
/// So many looks what came before an inlet goes first. Who floods the shared socket is not to hold up what comes by the inlet.
const FIRST: u32 = 64;
/// The most inlets: each is a descriptor and a socket's memory.
const MOST: usize = 16;

/// From where, and to which address of this host.
pub(super) type Between = (SocketAddr, IpAddr);

#[derive(Debug)]
struct Inlet {
    between: Between,
    socket: Socket,
    /// In which look it last had something.
    last_full: u32,
    /// Whether it had something since the last sweep.
    used: bool,
}

/// The inlets of a link.
#[derive(Debug, Default)]
pub(super) struct Inlets {
    open: Vec<Inlet>,
    /// Who may be next, and how many more trains came from there than from others.
    next: Option<(Between, u32)>,
    /// The shared socket where what came before the newest was open may still wait, and in how many more looks it goes first.
    behind: Option<(usize, u32)>,
    /// Where packets for other processes came from, too: there is no inlet for them again.
    refused: Vec<Between>,
}

impl Inlets {
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.open.iter().map(|inlet| inlet.socket.as_fd())
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn get(&self, index: usize) -> Option<(&Socket, Between)> {
        let Inlet { socket, between, .. } = self.open.get(index)?;
        Some((socket, *between))
    }

    pub(super) fn last_full(&self) -> impl Iterator<Item = &u32> {
        self.open.iter().map(|inlet| &inlet.last_full)
    }

    /// Takes note that one had something.
    pub(super) fn found(&mut self, index: usize, looks: u32) {
        if let Some(inlet) = self.open.get_mut(index) {
            (inlet.last_full, inlet.used) = (looks, true);
        }
    }

    /// Whether they are not to be looked at yet. Asked once for each look.
    #[inline]
    pub(super) fn wait(&mut self) -> bool {
        let left = self.behind.as_mut().map(|(_, left)| {
            *left = left.saturating_sub(1);
            *left
        });
        if left == Some(0) {
            self.behind = None;
        }
        self.behind.is_some()
    }

    /// The socket at this place has nothing more.
    #[inline]
    pub(super) fn drained(&mut self, place: usize) {
        if self.behind.is_some_and(|(behind, _)| behind == place) {
            self.behind = None;
        }
    }

    /// Closes one where something for another process came in: it belongs where all is steered.
    #[cold]
    pub(super) fn refuse(&mut self, index: usize) {
        if index < self.open.len() {
            let Inlet { between, .. } = self.open.swap_remove(index);
            if self.refused.len() >= MOST {
                self.refused.remove(0);
            }
            self.refused.push(between);
        }
    }

    /// Counts a train that came by a shared socket to a process of this VF.
    #[inline]
    pub(super) fn count(&mut self, train: &Train<'_>, vf: u16) {
        if !steer::leads_to(vf, train.bytes) {
            return;
        }
        let between = (train.src, train.dst);
        match &mut self.next {
            Some((known, count)) if *known == between => *count = count.saturating_add(1),
            Some((_, count)) if *count > 0 => *count -= 1,
            _ => self.next = Some((between, 1)),
        }
    }
}

impl UdpLink {
    /// Whether somebody is there whom an inlet is to be opened for.
    #[inline]
    pub fn wants_inlet(&self) -> bool {
        self.inlets.next.is_some_and(|(_, count)| count >= BUSY)
    }

    /// Opens an inlet for who is next. It is one of [`UdpLink::fds`], and [`UdpLink::recv`] takes from it.
    pub fn open_inlet(&mut self) -> io::Result<()> {
        let Some((between, _)) = self.inlets.next.take() else { return Ok(()) };
        let (from, to) = between;
        let may_be = from.port() != self.port
            && self.inlets.open.len() < MOST
            && self.source_port(to) == self.port
            && !self.inlets.refused.contains(&between)
            && self.inlets.open.iter().all(|inlet| inlet.between != between);
        if !may_be || to.is_multicast() || scope(to, self.options) != 0 {
            return Ok(());
        }
        let socket = configure(Domain::for_address(from), self.options)?;
        set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        // It is known without asking, and each answer costs.
        let (level, name) = match from {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
        };
        set_option(socket.as_fd(), level, name, 0)?;
        socket.bind(&SocketAddr::new(to, self.port).into())?;
        socket.connect(&from.into())?;
        self.inlets.open.push(Inlet { between, socket, last_full: self.looks, used: true });
        self.inlets.behind = Some((usize::from(from.is_ipv6()), FIRST));
        Ok(())
    }

    /// Closes the inlets that had nothing since the last call, which should be long ago: what comes meanwhile is lost.
    pub fn sweep_inlets(&mut self) {
        self.inlets.open.retain_mut(|inlet| std::mem::take(&mut inlet.used));
    }

    /// How many inlets are open.
    pub fn inlets(&self) -> usize {
        self.inlets.len()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::{LineTo, Options};
    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// A packet to QPN 1 of a VF, with a number.
    fn packet(vf: u16, number: u32) -> [u8; 20] {
        let mut packet = [0; 20];
        let qpn = u32::from(vf) << 14 | 1;
        packet[4..8].copy_from_slice(&qpn.to_be_bytes());
        packet[12..16].copy_from_slice(&number.to_be_bytes());
        packet
    }

    /// Receives until nothing more comes; gives the numbers.
    fn numbers(link: &mut UdpLink) -> Vec<u32> {
        let mut numbers = Vec::new();
        let mut each = |datagram: super::super::Datagram<'_>| {
            if let Some(number) = datagram.bytes.get(12..16) {
                numbers.push(u32::from_be_bytes(number.try_into().expect("four bytes")));
            }
        };
        // A shared socket may be looked at in one of 16 calls only.
        for _ in 0..32 {
            while link.recv(&mut each).expect("sockets work") > 0 {}
        }
        numbers
    }

    /// A link, and a line to it of another one.
    fn pair() -> (UdpLink, UdpLink, super::super::NewLine) {
        let vf = 5;
        let link = UdpLink::bind(0, Options { vf, ..Options::default() }).expect("a free port");
        let mut sender = UdpLink::send_only(link.port(), Options::default()).expect("sockets");
        let to = LineTo { src: HERE, dst: HERE, traffic_class: 0, hop_limit: 64 };
        let line = sender.open_line(to).expect("a line");
        (link, sender, line)
    }

    #[test]
    fn what_comes_by_an_inlet_comes_after_what_came_before() {
        let (mut link, sender, line) = pair();
        let send = |number| sender.send_on(line.id, &packet(5, number), None).expect("lo is up");
        for number in 0..BUSY {
            send(number);
        }
        assert_eq!(numbers(&mut link), (0..BUSY).collect::<Vec<_>>());
        assert!(link.wants_inlet());
        // More wait at the shared socket than one call takes.
        (0..30).for_each(send);
        link.open_inlet().expect("it opens");
        assert_eq!((link.inlets(), link.wants_inlet()), (1, false));
        (30..60).for_each(send);
        assert_eq!(numbers(&mut link), (0..60).collect::<Vec<_>>());
        // From elsewhere it still comes by the shared one.
        let other = UdpLink::send_only(link.port(), Options::default()).expect("sockets");
        let transmit = super::super::Transmit {
            dst: HERE,
            src: HERE,
            traffic_class: 0,
            hop_limit: 0,
            contents: &packet(5, 77),
            segment_size: None,
        };
        other.send(transmit).expect("lo is up");
        assert_eq!(numbers(&mut link), [77]);
    }

    #[test]
    fn an_inlet_that_had_nothing_is_closed_and_the_shared_socket_takes_over() {
        let (mut link, sender, line) = pair();
        let send = |number| sender.send_on(line.id, &packet(5, number), None).expect("lo is up");
        (0..BUSY).for_each(send);
        numbers(&mut link);
        link.open_inlet().expect("it opens");
        link.sweep_inlets();
        assert_eq!(link.inlets(), 1, "it was just opened");
        link.sweep_inlets();
        assert_eq!(link.inlets(), 0);
        send(9);
        assert_eq!(numbers(&mut link), [9]);
    }

    #[test]
    fn an_inlet_where_something_for_another_process_comes_is_closed_for_good() {
        let (mut link, sender, line) = pair();
        let send =
            |vf, number| sender.send_on(line.id, &packet(vf, number), None).expect("lo is up");
        (0..BUSY).for_each(|number| send(5, number));
        numbers(&mut link);
        link.open_inlet().expect("it opens");
        send(6, 1000);
        assert_eq!(numbers(&mut link), [1000], "somebody has to pass it on");
        assert_eq!(link.inlets(), 0);
        (0..BUSY).for_each(|number| send(5, number));
        assert_eq!(numbers(&mut link).len(), BUSY as usize);
        link.open_inlet().expect("nothing to do");
        assert_eq!(link.inlets(), 0);
    }

    #[test]
    fn an_inlet_does_not_wait_for_a_shared_socket_that_is_never_empty() {
        let (mut link, sender, line) = pair();
        let send = |number| sender.send_on(line.id, &packet(5, number), None).expect("lo is up");
        (0..BUSY).for_each(send);
        numbers(&mut link);
        let other = UdpLink::send_only(link.port(), Options::default()).expect("sockets");
        let flood = || {
            let transmit = super::super::Transmit {
                dst: HERE,
                src: HERE,
                traffic_class: 0,
                hop_limit: 0,
                contents: &packet(5, 77),
                segment_size: None,
            };
            (0..16).for_each(|_| other.send(transmit).expect("lo is up"));
        };
        flood();
        link.open_inlet().expect("it opens");
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

    #[test]
    fn what_is_for_another_process_has_no_inlet_here() {
        let (mut link, sender, line) = pair();
        for number in 0..2 * BUSY {
            sender.send_on(line.id, &packet(6, number), None).expect("lo is up");
        }
        numbers(&mut link);
        assert!(!link.wants_inlet());
    }
}
