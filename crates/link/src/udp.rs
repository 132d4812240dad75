//! RoCEv2 packets in and out of UDP sockets, many at a time.
//!
//! ```text
//!   send(Transmit { contents = | seg | seg | seg | sg | })           recv(|datagram| ...)
//!            |  one sendmsg, UDP_SEGMENT                                 ^  split again
//!            v                                                           |  recvmmsg, UDP_GRO
//!   +------------------------+                                +------------------------+
//!   | 0.0.0.0:4791 | [::]:4791 |  --- DF, IPv4 id 0, 1, 2 -->  | 0.0.0.0:4791 | [::]:4791 |
//!   +------------------------+                                +------------------------+
//! ```
//!
//! Bytes in, bytes out: only the headers of UDP and IP are handled here, and the kernel builds
//! those. The ICRC of RoCEv2 covers some of their fields (RoCEv2 Annex A17.3), so the sockets are
//! configured to make these predictable:
//!
//! * DF is set (`IP_PMTUDISC_DO`) and these sockets are never connected; then Linux sends the IPv4
//!   id 0. The segments of one [`Transmit`] carry 0, 1, 2, ... when the stack or the NIC splits
//!   them. A [transmit socket](UdpLink::open_tx_socket) is connected, and reports the id with which
//!   it begins.
//! * Type of service, hop limit and flow label are masked in the ICRC, so they may have any value.
//! * An IPv6 packet without a UDP checksum, as some NICs and the kernel's rxe send, is accepted.
//!
//! Several processes of one user share the port; see [`crate::steer`] for how a packet finds its
//! process.

mod holder;
mod leave;
mod open;
mod options;
mod receive;
mod rx_socket;
mod send;
mod sys;
mod tx_socket;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicBool;

use descriptors::{Inherited, Known};
use socket2::Socket;

pub use holder::{Holder, holders, may_receive};
pub use open::BindError;
use open::{Sharing, free_port, has_gso, local_port, open, open_shared, unspecified};
pub use options::Options;
pub use receive::{Datagram, Payloads, Train};
use rx_socket::RxSockets;
pub use send::{SendError, Transmit};
use sys::BATCH;
pub(crate) use sys::{ControlMessages, attach_reuseport_cbpf, set_option};
use tx_socket::TxSockets;
pub use tx_socket::{NewTxSocket, TxSocketError, TxSocketId, TxSocketTo};

use crate::steer::question;

/// The UDP port of RoCEv2 (RoCEv2 Annex A17.3.1).
#[doc(alias = "ROCE_V2_UDP_DPORT")]
pub const PORT: u16 = 4791;
/// How many ports that the kernel chose for IPv4 to try, until one is free for IPv6, too.
const SOURCE_PORTS: u32 = 32;

/// The size of one buffer of coalesced datagrams, which are never longer than an IP packet.
const BUFFER: usize = 64 << 10;

/// An IPv4 and an IPv6 socket on the port of RoCEv2, as far as the host has them.
///
/// Nothing blocks. Sending needs only a shared reference; receiving uses the link's buffers.
#[derive(Debug)]
pub struct UdpLink {
    v4: Option<Known<Socket>>,
    v6: Option<Known<Socket>>,
    /// A socket for each multicast group.
    groups: Vec<(IpAddr, Known<Socket>)>,
    tx_sockets: TxSockets,
    rx_sockets: RxSockets,
    /// The destination port of everything sent.
    port: u16,
    /// The port that everything leaves from. Asking the kernel each time costs a system call, which
    /// the door of `peerdma run` watches.
    source_port: u16,
    options: Options,
    gso: AtomicBool,
    buffer: Vec<u8>,
    /// Calls of [`UdpLink::recv_likely`], and the last one in which each socket had something.
    looks: u32,
    last_full: [u32; 2],
    /// Whether a socket filled all the buffers it was offered.
    may_hold_more: bool,
    /// Whether a socket had something, if only a question of [`steer`].
    had_some: bool,
    truncated: u64,
    /// Whether the port was left: questions for this VF's index are not answered any more.
    has_left: bool,
    /// Whether a process to which nothing is forwarded asked for steering.
    asked_to_steer: bool,
    /// Simulates a netdev without checksum offload, over which the kernel splits nothing.
    #[cfg(test)]
    refuses_trains: bool,
}

impl UdpLink {
    /// Opens `port`, normally [`PORT`], on every address of the host. Port 0 takes any free port
    /// and is for tests.
    pub fn bind(port: u16, options: Options) -> Result<Self, BindError> {
        if port != 0 {
            return Self::bind_shared(port, options);
        }
        // Another process may take the free port in between.
        let mut result = Self::bind_shared(free_port(options)?, options);
        while let Err(BindError::InUse { .. }) = result {
            result = Self::bind_shared(free_port(options)?, options);
        }
        result
    }

    /// A link that sends to `port` from a port of its own and receives nothing but, on that port,
    /// stray answers: the only way for a user whose [`UdpLink::bind`] found the port taken. The
    /// source port of RoCEv2 is free (RoCEv2 Annex A17.9.2), so receivers do not mind.
    pub fn send_only(port: u16, options: Options) -> Result<Self, BindError> {
        let mut tries = 0;
        loop {
            let v4 = open(unspecified(true), 0, Sharing::None, options)?;
            // One port for both families: the ICRC covers it, and is computed before the
            // destination of a packet is known.
            let own = v4.as_deref().map_or(0, local_port);
            tries += 1;
            match open(unspecified(false), own, Sharing::None, options) {
                Err(BindError::InUse { .. }) if tries < SOURCE_PORTS => {}
                v6 => return Self::new(v4, v6?, port, options),
            }
        }
    }

    /// Takes the port if it has become free, for a link that [only sent](Self::send_only): its
    /// packets then leave from that port, too. Nothing changes if it is not free.
    pub fn take_port(&mut self) -> Result<(), BindError> {
        (self.v4, self.v6) = open_shared(self.port, self.options)?;
        self.source_port = self.port;
        Ok(())
    }

    /// Asks the processes that hold the port to determine again which of them respond
    /// ([`crate::steer`]): for a link that only sends, and to which nothing is forwarded any more.
    pub fn ask_to_steer(&self) {
        let loopbacks =
            [(&self.v4, Ipv4Addr::LOCALHOST.into()), (&self.v6, Ipv6Addr::LOCALHOST.into())];
        for (socket, ip) in loopbacks {
            let Some(socket) = socket else { continue };
            let to = SocketAddr::new(ip, self.port).into();
            for request in question::requests_to_steer() {
                // A process that cannot be asked now is asked again, or does not exist.
                let _ = socket.send_to(&request, &to);
            }
        }
    }

    /// Whether a request to steer again has come since the last call.
    pub fn was_asked_to_steer(&mut self) -> bool {
        std::mem::take(&mut self.asked_to_steer)
    }

    fn bind_shared(port: u16, options: Options) -> Result<Self, BindError> {
        let (v4, v6) = open_shared(port, options)?;
        Self::new(v4, v6, port, options)
    }

    fn new(
        v4: Option<Known<Socket>>,
        v6: Option<Known<Socket>>,
        port: u16,
        options: Options,
    ) -> Result<Self, BindError> {
        if v4.is_none() && v6.is_none() {
            return Err(BindError::NoIp);
        }
        let source_port = v4.as_deref().or(v6.as_deref()).map_or(port, local_port);
        let gso = options.gso && v4.iter().chain(&v6).all(|socket| has_gso(socket));
        Ok(Self {
            v4,
            v6,
            groups: Vec::new(),
            tx_sockets: TxSockets::default(),
            rx_sockets: RxSockets::default(),
            port,
            source_port,
            options,
            gso: AtomicBool::new(gso),
            // The kernel provides zeroed pages when they are first written.
            buffer: vec![0; BATCH * BUFFER],
            looks: 0,
            last_full: [0; 2],
            may_hold_more: false,
            had_some: false,
            truncated: 0,
            has_left: false,
            asked_to_steer: false,
            #[cfg(test)]
            refuses_trains: false,
        })
    }

    /// The destination port of everything sent, and that of everything received.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port that packets leave from, whatever the family; their ICRC covers it.
    pub fn source_port(&self) -> u16 {
        self.source_port
    }

    /// The VF that packets are received for.
    pub fn vf(&self) -> u16 {
        self.options.vf
    }

    /// The IPv4 socket, if the host has IPv4: writable when a send that would have blocked can be
    /// tried again.
    pub fn v4_fd(&self) -> Option<BorrowedFd<'_>> {
        self.v4.as_ref().map(AsFd::as_fd)
    }

    /// The IPv6 socket, likewise.
    pub fn v6_fd(&self) -> Option<BorrowedFd<'_>> {
        self.v6.as_ref().map(AsFd::as_fd)
    }

    /// All sockets: when one is readable, [`UdpLink::recv`] has work. [`UdpLink::join`],
    /// [`UdpLink::leave`], [`UdpLink::open_rx_socket`] and a receive that closes receive sockets
    /// change them.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let groups = self.groups.iter().map(|(_, socket)| socket);
        let all = self.v4.iter().chain(&self.v6).chain(groups).map(AsFd::as_fd);
        all.chain(self.rx_sockets.fds())
    }

    /// All descriptors. While a child keeps them, packets can go to sockets that nobody reads.
    pub(crate) fn inherited(&self, out: &mut Vec<Inherited>) {
        out.extend(self.sockets().map(Known::inherited));
    }

    /// Checks that its descriptors are still its sockets ([`Known::look`]).
    ///
    /// # Errors
    ///
    /// EBADF if one is not.
    pub fn look(&self) -> std::io::Result<()> {
        Ok(self.sockets().try_for_each(Known::look)?)
    }

    fn sockets(&self) -> impl Iterator<Item = &Known<Socket>> {
        let groups = self.groups.iter().map(|(_, socket)| socket);
        let all = self.v4.iter().chain(&self.v6).chain(groups).chain(self.rx_sockets.sockets());
        all.chain(self.tx_sockets.sockets())
    }

    /// For the child after a fork: closes the sockets and touches nothing else.
    pub fn abandon_in_child(self) {
        crate::fork::abandon(self);
    }

    /// Joins a multicast group on the link's netdev; joining again changes nothing. Every process
    /// of the host that joined receives a copy: multicast is not steered.
    ///
    /// Each group has a socket bound to its address. The shared socket cannot serve: the kernel
    /// looks a single member up early (`udp_v4_early_demux`), and then gives the packet to any
    /// socket of the member's reuseport group.
    pub fn join(&mut self, group: IpAddr) -> Result<(), BindError> {
        if self.groups.iter().any(|(joined, _)| *joined == group) {
            return Ok(());
        }
        let socket = open(group, self.port, Sharing::OneUser, self.options)?;
        let socket = socket.ok_or(BindError::NoIp)?;
        let index = self.options.ifindex;
        let joined = match group {
            IpAddr::V4(group) => {
                socket.join_multicast_v4_n(&group, &socket2::InterfaceIndexOrAddress::Index(index))
            }
            IpAddr::V6(group) => socket.join_multicast_v6(&group, index),
        };
        joined.map_err(|source| BindError::Io { port: self.port, source })?;
        self.groups.push((group, socket));
        Ok(())
    }

    /// Leaves a multicast group; packets of it that wait are lost.
    pub fn leave(&mut self, group: IpAddr) {
        self.groups.retain(|(joined, _)| *joined != group);
    }
}

#[cfg(test)]
mod tests;
