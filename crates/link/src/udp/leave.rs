//! Leaving: a socket that is closed loses nothing that is for others.
//!
//! What waits in a socket is gone when that is closed. In one that shares the port it may be for
//! another process: of a process that the steering program does not know yet, or whose socket took
//! another's place in the array ([`crate::steer`]). So before a socket is closed nothing new may
//! come to it, and then it is read until it is empty.
//!
//! The kernel looks a packet's socket up without a lock, and may put the packet there when the
//! socket has been left by then: on a machine with too much to do, milliseconds later. So between
//! the two there is a grace period.
//!
//! A connected socket gets only what comes from there. When one that was bound to every address is
//! connected the kernel takes it out of its reuseport group as well (`udp_lib_rehash`), so that
//! neither the program nor the hash names it any more.

use threads::barrier;

use super::open::turn_away;
use super::{Train, UdpLink};

/// In so many looks a socket's buffer is empty; to groups, packets go on coming.
const LOOKS: u32 = 1024;

impl UdpLink {
    /// Has nothing new come, but to multicast groups, of which every process gets a copy. What
    /// waits is received as before, by [`UdpLink::drain`]; nothing can be sent any more. Where that
    /// is refused, as when `lo` is down, things stay as they are.
    pub fn leave_port(&mut self) {
        self.has_left = true;
        for socket in self.v4.iter().chain(&self.v6).chain(self.rx_sockets.sockets()) {
            if let Err(error) = turn_away(socket) {
                tracing::debug!(%error, "packets still come while the port is left");
            }
        }
        barrier::grace();
    }

    /// Hands all that waits to `each`, once the port is left. No time bounds that: on a machine
    /// with too much to do it may be over before the first look. What there is does.
    pub fn drain(&mut self, each: &mut dyn FnMut(Train<'_>)) {
        // A receive socket may have waited for the shared socket.
        let mut empty = 0;
        for _ in 0..LOOKS {
            self.had_some = false;
            if let Err(error) = self.recv_trains(each) {
                // Of one socket, and told once.
                tracing::debug!(%error, "what waits is taken");
            } else if self.had_some {
                empty = 0;
            } else {
                empty += 1;
            }
            if empty == 2 {
                return;
            }
        }
        tracing::debug!("the port was left, and packets come");
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

    /// Processes that come ask everybody for their places. A process that leaves meanwhile takes
    /// what waits behind the questions, too, and answers none: its place is another's by now.
    #[test]
    fn what_waits_behind_questions_is_received_and_those_are_not_answered() {
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
    fn what_came_before_is_received_and_what_comes_after_goes_to_others() {
        for here in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            // The hash gives each about half.
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
