//! Transmit sockets: sockets connected to destinations of much traffic.
//!
//! For each datagram of an unconnected socket, the kernel looks up the route and reads the control
//! messages: source, class, hop limit. A connected socket knows all that.
//!
//! The difficulty is the ICRC, which covers the identification of the IPv4 header. Linux sends 0
//! from an unconnected socket. For a connected one it counts up by one with each call, from a
//! random number that it does not reveal (`ip_select_ident_segs`); the segments of a train count up
//! from that of the call. But a socket can have its packets looped back to it as they leave, with
//! all headers (`SOF_TIMESTAMPING_TX_SCHED`; `Documentation/networking/timestamping.rst`). So a new
//! transmit socket first sends two empty datagrams, which are no RoCE packets and which every
//! receiver drops, reads their identifications, and counts along from there. IPv6 has no
//! identification, and needs none of this.
//!
//! Where packets are not looped back, because of an old kernel, a sandbox or the administrator
//! (`net.core.tstamp_allow_data`), there are no transmit sockets over IPv4. After any error except
//! that of a full buffer, it is unknown whether the kernel counted, and the transmit socket must be
//! closed.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use descriptors::Known;
use rustix::net::RecvFlags;
use socket2::{Domain, Socket};

use super::open::{configure, local_port, scope};
use super::{Options, UdpLink, set_option, sys};

/// `SOF_TIMESTAMPING_TX_SCHED` and `SOF_TIMESTAMPING_SOFTWARE` of `<linux/net_tstamp.h>`: each
/// packet comes back when it enters the queue of the netdev.
const SHOW_PACKETS: i32 = 1 << 8 | 1 << 4;
/// How many netdevs may be stacked.
const MOST_SHOWN: usize = 8;
/// Bytes of the headers of an empty datagram over IPv4, which are the last bytes of what comes
/// back.
const EMPTY: usize = 20 + 8;

/// A transmit socket of a [`UdpLink`], until it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TxSocketId(u32);

/// The addresses of a transmit socket, and the fields of all its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct TxSocketTo {
    /// The address to send from: one of this host.
    pub src: IpAddr,
    /// The address to send to, of the same family; neither a group nor one that needs a netdev.
    pub dst: IpAddr,
    /// The IP type of service.
    pub traffic_class: u8,
    /// The IP time to live, not 0.
    pub hop_limit: u8,
}

/// A transmit socket that was opened.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NewTxSocket {
    /// Its handle.
    pub id: TxSocketId,
    /// The port that packets leave from.
    pub source_port: u16,
    /// The IPv4 identification of the first datagram of the next [`UdpLink::send_on`]; that of each
    /// further call is one more.
    pub identification: u16,
}

/// Why something was not sent on a transmit socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TxSocketError {
    /// The socket's buffer is full. Nothing was sent or counted.
    #[error("the socket has no room")]
    WouldBlock,
    /// Anything else. The transmit socket must be closed.
    #[error("the transmit socket is broken: {0}")]
    Broken(#[from] io::Error),
}

/// The transmit sockets of a link.
#[derive(Debug, Default)]
pub(super) struct TxSockets {
    open: Vec<(TxSocketId, Known<Socket>)>,
    next: u32,
}

impl TxSockets {
    pub(super) fn sockets(&self) -> impl Iterator<Item = &Known<Socket>> {
        self.open.iter().map(|(_, socket)| socket)
    }
}

impl UdpLink {
    /// Opens a transmit socket. Errors are those of the kernel; `Unsupported` if it does not loop
    /// packets back, or counts in another way than Linux.
    pub fn open_tx_socket(&mut self, to: TxSocketTo) -> io::Result<NewTxSocket> {
        let (socket, source_port) = connect(to, self.port, self.options)?;
        let identification =
            if to.dst.is_ipv4() { identification(&socket, source_port)? } else { 0 };
        let id = TxSocketId(self.tx_sockets.next);
        self.tx_sockets.next = self.tx_sockets.next.wrapping_add(1);
        self.tx_sockets.open.push((id, socket));
        Ok(NewTxSocket { id, source_port, identification })
    }

    /// Closes a transmit socket; what was sent is not affected.
    pub fn close_tx_socket(&mut self, id: TxSocketId) {
        self.tx_sockets.open.retain(|(known, _)| *known != id);
    }

    /// The port that packets on a transmit socket leave from, while it is open.
    pub fn tx_socket_port(&self, id: TxSocketId) -> Option<u16> {
        let (_, socket) = self.tx_sockets.open.iter().find(|(known, _)| *known == id)?;
        Some(local_port(socket))
    }

    /// Sends one datagram, or several of `segment_size` bytes of which the last may be shorter, in
    /// one call: at most [`UdpLink::max_gso_segments`].
    pub fn send_on(
        &self,
        id: TxSocketId,
        contents: &[u8],
        segment_size: Option<u16>,
    ) -> Result<(), TxSocketError> {
        let tx_socket = self.tx_sockets.open.iter().find(|(known, _)| *known == id);
        let (_, socket) = tx_socket.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
        match sys::send_connected(socket.as_fd(), contents, segment_size) {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                Err(TxSocketError::WouldBlock)
            }
            sent => Ok(sent?),
        }
    }
}

/// A socket from the source to the destination, and its port.
fn connect(to: TxSocketTo, port: u16, options: Options) -> io::Result<(Known<Socket>, u16)> {
    let TxSocketTo { src, dst, traffic_class, hop_limit } = to;
    if src.is_ipv4() != dst.is_ipv4() || dst.is_multicast() || scope(dst, options) != 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Nothing is received.
    let options = Options { gro: false, ..options };
    let socket = configure(Domain::for_address((dst, port).into()), options)?;
    let set = |level, name, value| set_option(socket.as_fd(), level, name, value);
    let (class, hops) = (i32::from(traffic_class), i32::from(hop_limit));
    if dst.is_ipv4() {
        set(libc::IPPROTO_IP, libc::IP_TOS, class)?;
        set(libc::IPPROTO_IP, libc::IP_TTL, hops)?;
    } else {
        set(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class)?;
        set(libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, hops)?;
    }
    socket.bind(&SocketAddr::new(src, 0).into())?;
    socket.connect(&SocketAddr::new(dst, port).into())?;
    let source_port = local_port(&socket);
    Ok((socket, source_port))
}

/// The identification that the next datagram of a connected socket will have.
fn identification(socket: &Socket, port: u16) -> io::Result<u16> {
    let show = |what| set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPING, what);
    show(SHOW_PACKETS)?;
    let [first, second] = [(); 2].map(|()| shown(socket, port));
    show(0)?;
    let (first, second) = (first?, second?);
    if second != first.wrapping_add(1) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(second.wrapping_add(1))
}

/// Sends an empty datagram, and returns the identification that the kernel gave it.
fn shown(socket: &Socket, port: u16) -> io::Result<u16> {
    socket.send(&[])?;
    // Room for anything that a netdev puts before it; nothing follows it.
    let mut packet = [0; 256];
    let mut length = 0;
    // Where netdevs are stacked, each returns the packet.
    for _ in 0..MOST_SHOWN {
        let flags = RecvFlags::ERRQUEUE | RecvFlags::DONTWAIT;
        let Ok((_, shown)) = rustix::net::recv(socket, &mut packet[..], flags) else { break };
        length = shown;
    }
    let packet = packet.get(..length).and_then(|packet| packet.last_chunk::<EMPTY>());
    match packet {
        // Version 4 without options; UDP; our port.
        Some(ip) if ip[0] == 0x45 && ip[9] == 17 && ip[20..22] == port.to_be_bytes() => {
            Ok(u16::from_be_bytes([ip[4], ip[5]]))
        }
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::netdev::netns::has_ipv6_loopback;

    fn to(ip: IpAddr) -> TxSocketTo {
        TxSocketTo { src: ip, dst: ip, traffic_class: 0x6a, hop_limit: 7 }
    }

    fn link() -> UdpLink {
        UdpLink::bind(0, Options::default()).expect("a free port")
    }

    /// Receives `count` datagrams, not counting empty ones; returns port, class, hop limit and
    /// length of each.
    fn receive(link: &mut UdpLink, count: usize) -> Vec<(u16, u8, u8, usize)> {
        let mut got = Vec::new();
        while got.len() < count {
            link.recv(&mut |d| {
                if !d.bytes.is_empty() {
                    got.push((d.src.port(), d.traffic_class, d.hop_limit, d.bytes.len()));
                }
            })
            .expect("sockets work");
        }
        got
    }

    #[test]
    fn datagrams_and_trains_arrive_with_the_fields_of_the_transmit_socket() {
        let mut ips = vec![IpAddr::from(Ipv4Addr::LOCALHOST)];
        ips.extend(has_ipv6_loopback().then_some(IpAddr::from(Ipv6Addr::LOCALHOST)));
        for ip in ips {
            let mut link = link();
            let tx_socket = link.open_tx_socket(to(ip)).expect("a transmit socket");
            link.send_on(tx_socket.id, &[1; 100], None).expect("lo is up");
            link.send_on(tx_socket.id, &[2; 230], Some(100)).expect("lo is up");
            let expected =
                [100, 100, 100, 30].map(|length| (tx_socket.source_port, 0x6a, 7, length));
            assert_eq!(receive(&mut link, 4), expected);
            link.close_tx_socket(tx_socket.id);
            assert!(matches!(
                link.send_on(tx_socket.id, &[1], None),
                Err(TxSocketError::Broken(_))
            ));
        }
    }

    #[test]
    fn each_call_counts_one_identification_whatever_its_size() {
        let mut link = link();
        let tx_socket =
            link.open_tx_socket(to(Ipv4Addr::LOCALHOST.into())).expect("a transmit socket");
        for size in [1, 100, 1000, 5000] {
            link.send_on(tx_socket.id, &vec![0; size], Some(100)).expect("lo is up");
        }
        let (_, socket) = &link.tx_sockets.open[0];
        let next = identification(socket, tx_socket.source_port).expect("it is shown");
        // Two more were sent to find the identification.
        assert_eq!(next, tx_socket.identification.wrapping_add(4 + 2));
    }

    #[test]
    fn no_transmit_socket_leads_to_a_group_or_an_unroutable_address() {
        let mut link = link();
        let here = IpAddr::from(Ipv4Addr::LOCALHOST);
        for dst in ["224.0.0.251", "::1"] {
            let dst: IpAddr = dst.parse().expect("an address");
            link.open_tx_socket(TxSocketTo { dst, ..to(here) }).expect_err("there is none");
        }
        let elsewhere = IpAddr::from([192, 0, 2, 77]);
        link.open_tx_socket(TxSocketTo { src: elsewhere, ..to(here) })
            .expect_err("not of this host");
        assert!(link.tx_sockets.open.is_empty());
    }
}
