//! Where packets come in, and whether they still do.

use std::time::{Duration, Instant};

use link::netdev::Watch;
use link::shm::Inbound;
use link::steer::Steering;
use link::udp::UdpLink;
use transport::Time;
use wire::icrc::Verifier;

use super::forwarders::Forwarders;
use super::raw::Frames;
use crate::waits::Waits;

/// Where packets come in.
#[derive(Debug)]
pub(crate) struct Receivers {
    pub(crate) inbounds: Vec<Inbound>,
    pub(crate) udp: Option<UdpLink>,
    pub(crate) watch: Option<Watch>,
    /// Ethernet frames, while a rule gives some to a QP.
    pub(crate) frames: Option<Box<Frames>>,
    /// Which socket the kernel gives a packet to, by the VF of its QPN.
    pub(super) steering: Option<Steering>,
    pub(super) verifier: Verifier,
    /// Whose forwarded datagrams are taken.
    pub(super) forwarders: Forwarders,
    /// Whether datagrams wake the background thread.
    pub(super) watched: bool,
    /// Polls of the socket left before it is looked at only now and then.
    pub(super) udp_heat: u32,
    /// When a datagram last came, or its absence was last acted upon, and how long the next absence
    /// may be.
    pub(super) heard: (Time, Duration),
    /// When to try whether the port is free, and how long to wait then for the next time.
    pub(super) try_port: Option<(Time, Duration)>,
}

/// Which sockets to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// All.
    Everywhere,
    /// Those that had something lately, and the others now and then.
    Likely,
}

/// How long a process with connections over UDP may hear nothing before it makes sure that the
/// kernel still gives it its datagrams, or the processes of another user forward them; shorter than
/// a peer's retries with the usual ACK timeout of 67 ms. Doubled while nothing comes, up to the
/// second.
pub(super) const SILENCE: Duration = Duration::from_millis(200);
pub(super) const LONG_SILENCE: Duration = Duration::from_secs(4);
/// How long after a process is gone its UDP port may still be taken; doubled up to the second, and
/// then it was not the one.
const LINGERS: Duration = Duration::from_millis(5);
const LINGERS_AT_MOST: Duration = Duration::from_secs(1);

impl Receivers {
    /// `port` is that of UDP, whether or not we hold it.
    pub(crate) fn new(
        udp: Option<UdpLink>,
        port: u16,
        watch: Option<Watch>,
        waits: &Waits,
    ) -> Self {
        let mut steering = None;
        if let Some(udp) = &udp {
            let mut fresh = Steering::new(udp);
            fresh.start(Instant::now());
            steering = Some(fresh);
        }
        if let Some(watch) = &watch {
            waits.add_idle(watch);
        }
        Self {
            inbounds: Vec::new(),
            udp,
            watch,
            frames: None,
            steering,
            verifier: Verifier::new(),
            forwarders: Forwarders::new(port),
            watched: false,
            udp_heat: 0,
            heard: (Time::ZERO, SILENCE),
            try_port: None,
        }
    }

    /// Lets datagrams wake the background thread. Says whether all of them can.
    pub(crate) fn watch_datagrams(&mut self, waits: &Waits) -> bool {
        self.watched = true;
        let fds = self.udp.iter().flat_map(UdpLink::fds);
        fds.filter(|fd| !waits.add_datagrams(fd)).count() == 0
    }

    /// No longer lets them, as the program looks for them itself.
    pub(crate) fn ignore_datagrams(&mut self, waits: &Waits) {
        self.watched = false;
        self.udp.iter().flat_map(UdpLink::fds).for_each(|fd| waits.remove_datagrams(fd));
    }

    /// When the silence of the socket becomes suspicious, if anybody shares the port, or has it.
    pub(crate) fn silence_until(&self, is_deaf: bool) -> Option<Time> {
        let shared =
            |steering: &&Steering| is_deaf || steering.tables().any(|table| table.len() > 1);
        self.steering.as_ref().filter(shared).map(|_| self.heard.0 + self.heard.1)
    }

    /// A process is gone that may have had the UDP port.
    pub(super) fn port_may_be_free(&mut self, now: Time) {
        self.try_port = Some((now, LINGERS));
    }

    /// It was not free.
    pub(super) fn try_port_later(&mut self, now: Time) {
        let tried = self.try_port.filter(|(_, wait)| *wait < LINGERS_AT_MOST);
        self.try_port = tried.map(|(_, wait)| (now + wait, 2 * wait));
    }

    /// Takes the UDP port if the other user, who had it, has it no longer. Says from which port
    /// packets leave then.
    pub(super) fn take_port(&mut self, waits: &Waits) -> Option<u16> {
        let udp = self.udp.as_mut()?;
        udp.take_port().ok()?;
        tracing::info!(target: "peerdma::udp", "UDP port {} is free, and taken", udp.port());
        if self.watched {
            udp.fds().for_each(|fd| _ = waits.add_datagrams(fd));
        }
        let mut fresh = Steering::new(udp);
        fresh.start(Instant::now());
        self.steering = Some(fresh);
        Some(udp.port())
    }

    /// Closes, in the child of a fork, what is the parent's.
    pub(crate) fn abandon_in_child(&mut self) {
        for inbound in self.inbounds.drain(..) {
            inbound.abandon_in_child();
        }
        if let Some(udp) = self.udp.take() {
            udp.abandon_in_child();
        }
        if let Some(frames) = self.frames.take() {
            frames.listener.abandon_in_child();
        }
        self.watch = None;
        self.steering = None;
    }

    /// Hangs up on every peer and closes the socket. The pages that peers share stay, for their
    /// guard slots.
    pub(crate) fn close(&mut self) {
        for inbound in &mut self.inbounds {
            inbound.hang_up();
        }
        self.udp = None;
        self.frames = None;
        self.watch = None;
        self.steering = None;
    }

    /// Whether the question which process has which socket is open, so that housekeeping cannot
    /// wait.
    pub(crate) fn is_steering(&self) -> bool {
        self.steering.as_ref().is_some_and(|steering| steering.deadline().is_some())
    }

    pub(super) fn steer(&mut self) {
        if let (Some(steering), Some(udp)) = (&mut self.steering, &self.udp)
            && steering.deadline().is_some()
        {
            steering.poll(udp, Instant::now());
        }
    }

    /// Whether no ring holds a record.
    #[inline]
    pub(crate) fn rings_are_idle(&mut self) -> bool {
        self.inbounds.iter_mut().all(Inbound::is_idle)
    }

    /// Whether packets came over UDP lately, so that each poll should look.
    pub(crate) fn udp_is_hot(&self) -> bool {
        self.udp_heat > 0
    }

    /// Whether frames came lately, so that each poll should look.
    pub(crate) fn frames_are_hot(&self) -> bool {
        self.frames.as_ref().is_some_and(|frames| frames.is_hot())
    }
}
