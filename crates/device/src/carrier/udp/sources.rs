//! Busy senders over UDP, which get a receive socket ([`UdpLink::open_rx_socket`]).

use std::net::{IpAddr, SocketAddr};

use link::udp::UdpLink;
use transport::Time;

use crate::carrier::udp::tx_sockets::{BUSY, MOST, SWEEP};

/// Sources, and how many trains with valid packets for this process came from each through a shared
/// socket since the last sweep.
#[derive(Debug, Default)]
pub(super) struct Sources {
    known: Vec<(SocketAddr, IpAddr, u32)>,
    /// A source that has become busy.
    asks: Option<(SocketAddr, IpAddr)>,
    swept: Time,
}

impl Sources {
    /// Counts a train.
    #[inline]
    pub(super) fn count(&mut self, from: SocketAddr, to: IpAddr) {
        let known = self.known.iter_mut().find(|known| (known.0, known.1) == (from, to));
        if let Some((.., trains)) = known {
            *trains = trains.saturating_add(1);
            if *trains == BUSY {
                self.asks = Some((from, to));
            }
        } else if self.known.len() < MOST {
            self.known.push((from, to, 1));
        }
    }

    /// Takes the sender that should get a receive socket.
    #[inline]
    pub(super) fn take(&mut self) -> Option<(SocketAddr, IpAddr)> {
        self.asks.take()
    }

    /// Restarts the counts, and closes receive sockets that have become idle.
    pub(super) fn sweep(&mut self, now: Time, udp: &mut UdpLink) {
        if now.since(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        self.known.clear();
        udp.sweep_rx_sockets();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_many_busy_sources_asks_once() {
        let mut sources = Sources::default();
        let to = IpAddr::from([10, 0, 0, 1]);
        let from = |port| SocketAddr::from(([10, 0, 0, 2], port));
        let mut asked = Vec::new();
        for _ in 0..2 * BUSY {
            for port in 1..=5 {
                sources.count(from(port), to);
                asked.extend(sources.take());
            }
        }
        assert_eq!(asked, [1, 2, 3, 4, 5].map(|port| (from(port), to)));
        for port in 100..200 {
            sources.count(from(port), to);
        }
        assert_eq!(sources.known.len(), MOST, "a stranger cannot make it grow");
    }
}
