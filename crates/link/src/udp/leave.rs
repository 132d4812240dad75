//! Leaving: closing a socket loses no packet for another process.
//!
//! Packets that wait in a socket are lost when it is closed. In a socket that shares the port they
//! may be for another process: one that the steering program does not know yet, or whose socket
//! moved to another index of the array ([`crate::steer`]). So before a socket is closed, no new
//! packets may reach it, and then it is read until it is empty.
//!
//! The kernel looks up the socket of a packet without a lock, and may add the packet after the
//! socket has left the group: milliseconds later on a busy machine. So there is a grace period
//! between the two steps.
//!
//! A connected socket gets only packets from its peer. When a socket that was bound to every
//! address is connected, the kernel also removes it from its reuseport group (`udp_lib_rehash`), so
//! that neither the program nor the hash chooses it any more.

use threads::barrier;

use super::open::turn_away;
use super::{Train, UdpLink};

/// After this many reads a socket's buffer is empty; packets to groups keep coming.
const LOOKS: u32 = 1024;

impl UdpLink {
    /// Lets no new packets arrive, except to multicast groups, of which every process gets a copy.
    /// Packets that wait are received as before, by [`UdpLink::drain`]; nothing can be sent any
    /// more. Where the kernel refuses that, as when `lo` is down, nothing changes.
    pub fn leave_port(&mut self) {
        self.has_left = true;
        for socket in self.v4.iter().chain(&self.v6).chain(self.rx_sockets.sockets()) {
            if let Err(error) = turn_away(socket) {
                tracing::debug!(%error, "packets still arrive while the port is left");
            }
        }
        barrier::grace();
    }

    /// Passes everything that waits to `each`, once the port is left. The number of packets bounds
    /// that, and not the time, which may be over before the first read on a busy machine.
    pub fn drain(&mut self, each: &mut dyn FnMut(Train<'_>)) {
        // A receive socket may have waited for the shared socket.
        let mut empty = 0;
        for _ in 0..LOOKS {
            self.had_some = false;
            if let Err(error) = self.recv_trains(each) {
                // An error of one socket, reported once.
                tracing::debug!(%error, "while draining a socket");
            } else if self.had_some {
                empty = 0;
            } else {
                empty += 1;
            }
            if empty == 2 {
                return;
            }
        }
        tracing::debug!("the port was left, and packets still arrive");
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

    use super::super::Options;
    use super::super::sys::BATCH;
    use super::*;

    /// Receives until nothing more comes.
    fn received(link: &mut UdpLink) -> usize {
        let mut count = 0;
        link.drain(&mut |train| count += train.len());
        count
    }

    /// New processes ask all others for their indexes. A process that is leaving also takes packets
    /// that wait behind the questions, and answers none: another process may have its index by now.
    #[test]
    fn packets_behind_questions_are_received_and_the_questions_not_answered() {
        let asker = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("lo is up");
        let mut leaves = UdpLink::bind(0, Options::default()).expect("a free port");
        let to = (Ipv4Addr::LOCALHOST, leaves.port());
        for _ in 0..8 * BATCH {
            asker.send_to(&crate::steer::question::question(0), to).expect("lo is up");
        }
        asker.send_to(b"x", to).expect("lo is up");
        leaves.leave_port();
        assert_eq!(received(&mut leaves), 1);
        asker.set_nonblocking(true).expect("it can");
        let answered = asker.recv(&mut [0; 64]).expect_err("nobody answers");
        assert_eq!(answered.kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn earlier_packets_are_received_and_later_ones_go_to_others() {
        for here in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            // The hash sends about half to each.
            let senders: Vec<UdpSocket> =
                (0..64).filter_map(|_| UdpSocket::bind((here, 0)).ok()).collect();
            let mut leaves = UdpLink::bind(0, Options::default()).expect("a free port");
            let mut stays = UdpLink::bind(leaves.port(), Options::default()).expect("it is shared");
            let to = SocketAddr::new(here, leaves.port());
            let send = || senders.iter().for_each(|s| _ = s.send_to(b"x", to).expect("lo is up"));
            send();
            leaves.leave_port();
            send();
            let (first, second) = (received(&mut leaves), received(&mut stays));
            assert!(senders.is_empty() || first > 0 && first < senders.len(), "{first}");
            assert_eq!(first + second, 2 * senders.len());
        }
    }
}
