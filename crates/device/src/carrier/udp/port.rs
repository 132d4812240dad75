//! Whether the kernel gives us our datagrams: all processes of a user share the port, and it may
//! belong to another user.

use std::time::{Duration, Instant};

use link::steer::Steering;
use link::udp::UdpLink;
use transport::Time;

/// How long a process with connections over UDP may hear nothing before it makes sure that the
/// kernel still gives it its datagrams, or that the processes of another user still forward them.
/// Shorter than a peer's retries with the usual ACK timeout of 67 ms. Doubles while nothing
/// arrives, up to one second.
pub(crate) const SILENCE: Duration = Duration::from_millis(200);
const LONG_SILENCE: Duration = Duration::from_secs(4);
/// How long the UDP port of a process may stay taken after the process has gone. Doubles up to one
/// second; then the port was not that process's.
const LINGERS: Duration = Duration::from_millis(5);
const LINGERS_AT_MOST: Duration = Duration::from_secs(1);

/// Our share of the port.
#[derive(Debug)]
pub(super) struct Port {
    /// Which socket the kernel gives a packet to, by the VF of its QPN.
    steering: Option<Steering>,
    /// When a datagram last came, or the silence was last handled, and how long the next silence
    /// may be.
    heard: (Time, Duration),
    /// When to check whether the port is free, and how long to wait after that.
    try_again: Option<(Time, Duration)>,
}

impl Port {
    pub(super) fn new(link: Option<&UdpLink>) -> Self {
        let mut port = Self { steering: None, heard: (Time::ZERO, SILENCE), try_again: None };
        if let Some(link) = link {
            port.steer_anew(link);
        }
        port
    }

    /// Determines which VF each new socket belongs to.
    pub(super) fn steer_anew(&mut self, link: &UdpLink) {
        let mut fresh = Steering::new(link);
        fresh.start(Instant::now());
        self.steering = Some(fresh);
    }

    /// Determines again which VF each socket belongs to.
    pub(super) fn ask(&mut self) {
        if let Some(steering) = &mut self.steering {
            steering.start(Instant::now());
        }
    }

    /// Whether it is being determined which process has which socket, so that upkeep cannot wait.
    pub(super) fn is_asking(&self) -> bool {
        self.steering.as_ref().is_some_and(|steering| steering.deadline().is_some())
    }

    pub(super) fn steer(&mut self, link: Option<&UdpLink>) {
        if let (Some(steering), Some(link)) = (&mut self.steering, link)
            && steering.deadline().is_some()
        {
            steering.poll(link, Instant::now());
        }
    }

    pub(super) fn close(&mut self) {
        self.steering = None;
    }

    /// A datagram of ours came.
    #[inline]
    pub(super) fn heard(&mut self, now: Time) {
        self.heard = (now, SILENCE);
    }

    /// When silence of the socket becomes suspicious, if another process shares the port, or has
    /// it.
    pub(super) fn silence_until(&self, is_deaf: bool) -> Option<Time> {
        let shared =
            |steering: &&Steering| is_deaf || steering.tables().any(|table| table.len() > 1);
        self.steering.as_ref().filter(shared).map(|_| self.heard.0 + self.heard.1)
    }

    /// The silence was handled; the next one may be longer.
    pub(super) fn silence_is_over(&mut self, now: Time) {
        let (_, silence) = self.heard;
        self.heard = (now, (2 * silence).min(LONG_SILENCE));
    }

    /// When to check whether the port is free.
    pub(super) fn try_at(&self) -> Option<Time> {
        self.try_again.map(|(at, _)| at)
    }

    /// A process that may have had the port is gone.
    pub(super) fn may_be_free(&mut self, now: Time) {
        self.try_again = Some((now, LINGERS));
    }

    /// It was not free.
    pub(super) fn try_later(&mut self, now: Time) {
        let tried = self.try_again.filter(|(_, wait)| *wait < LINGERS_AT_MOST);
        self.try_again = tried.map(|(_, wait)| (now + wait, 2 * wait));
    }

    /// It is ours now.
    pub(super) fn is_ours(&mut self) {
        self.try_again = None;
    }
}
