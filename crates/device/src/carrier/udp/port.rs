//! Whether the kernel gives us the datagrams that are ours: one port belongs to all processes of a
//! user, and perhaps to another user.

use std::time::{Duration, Instant};

use link::steer::Steering;
use link::udp::UdpLink;
use transport::Time;

/// How long a process with connections over UDP may hear nothing before it makes sure that the
/// kernel still gives it its datagrams, or the processes of another user forward them; shorter than
/// a peer's retries with the usual ACK timeout of 67 ms. Doubled while nothing comes, up to the
/// second.
pub(crate) const SILENCE: Duration = Duration::from_millis(200);
const LONG_SILENCE: Duration = Duration::from_secs(4);
/// How long after a process is gone its UDP port may still be taken; doubled up to the second, and
/// then it was not the one.
const LINGERS: Duration = Duration::from_millis(5);
const LINGERS_AT_MOST: Duration = Duration::from_secs(1);

/// Our share of the port.
#[derive(Debug)]
pub(super) struct Port {
    /// Which socket the kernel gives a packet to, by the VF of its QPN.
    steering: Option<Steering>,
    /// When a datagram last came, or its absence was last acted upon, and how long the next absence
    /// may be.
    heard: (Time, Duration),
    /// When to try whether the port is free, and how long to wait then for the next time.
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

    /// Whether the question which process has which socket is open, so that upkeep cannot wait.
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

    /// When the silence of the socket becomes suspicious, if another process shares the port, or
    /// has it.
    pub(super) fn silence_until(&self, is_deaf: bool) -> Option<Time> {
        let shared =
            |steering: &&Steering| is_deaf || steering.tables().any(|table| table.len() > 1);
        self.steering.as_ref().filter(shared).map(|_| self.heard.0 + self.heard.1)
    }

    /// The silence is acted upon; the next may be longer.
    pub(super) fn silence_is_over(&mut self, now: Time) {
        let (_, silence) = self.heard;
        self.heard = (now, (2 * silence).min(LONG_SILENCE));
    }

    /// When to try whether the port is free.
    pub(super) fn try_at(&self) -> Option<Time> {
        self.try_again.map(|(at, _)| at)
    }

    /// A process is gone that may have had the port.
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
