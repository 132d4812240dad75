//! The receiving half: the sockets. They also send what the queue has gathered.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use link::udp::{BindError, SendError, Train, Transmit, TxSocketError, UdpLink};
use transport::Time;

use super::intake::Intake;
use super::port::Port;
use super::queue::{Batch, UdpQueue};
use crate::carrier::About;
use crate::counters::PortCounters;
use crate::thresholds::LOOKS_UNTIL_SILENT;
use crate::waits::Waits;

/// The sockets, the checks for what arrives through them, and our share of the port.
#[derive(Debug)]
pub(crate) struct Receiver {
    link: Option<UdpLink>,
    intake: Intake,
    port: Port,
    /// Whether datagrams wake the background thread.
    is_watched: bool,
    /// How many more times the sockets are checked before they are checked only occasionally.
    heat: u32,
}

/// Which sockets to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// All.
    Everywhere,
    /// Those that had something recently, and the others occasionally.
    Likely,
}

impl Receiver {
    /// `port` is that of UDP, whether or not we hold it.
    pub(crate) fn new(link: Option<UdpLink>, port: u16) -> Self {
        let share = Port::new(link.as_ref());
        Self { link, intake: Intake::new(port), port: share, is_watched: false, heat: 0 }
    }

    /// The checks for forwarded datagrams.
    pub(crate) fn intake(&mut self) -> &mut Intake {
        &mut self.intake
    }

    /// Whether the program left us the descriptors of our sockets.
    pub(crate) fn has_descriptors(&self) -> bool {
        self.link.iter().all(|link| link.look().is_ok())
    }

    /// Lets datagrams wake the background thread. Returns whether all of them can.
    pub(crate) fn watch(&mut self, waits: &Waits) -> bool {
        self.is_watched = true;
        let fds = self.link.iter().flat_map(UdpLink::fds);
        fds.filter(|fd| !waits.add_datagrams(fd)).count() == 0
    }

    /// The sockets, if datagrams wake the background thread.
    pub(crate) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.link.iter().filter(|_| self.is_watched).flat_map(UdpLink::fds)
    }

    /// Stops them from doing so, as the program polls for them itself.
    pub(crate) fn ignore(&mut self, waits: &Waits) {
        self.is_watched = false;
        self.link.iter().flat_map(UdpLink::fds).for_each(|fd| waits.remove_datagrams(fd));
    }

    /// Whether datagrams came recently, so that each poll should check.
    #[inline]
    pub(crate) fn is_hot(&self) -> bool {
        self.heat > 0
    }

    /// Takes what arrived, train by train, and returns the number of trains. This may open a socket
    /// for a busy sender, which then wakes the thread as the others do.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        look: Look,
        mut each: impl FnMut(&About, &Train<'_>, &mut Intake),
    ) -> usize {
        let Self { link: Some(link), intake, heat, .. } = self else { return 0 };
        let port = link.port();
        let mut seen = 0;
        let mut each = |train: Train<'_>| {
            seen += 1;
            each(&about(&train, port), &train, intake);
        };
        let received = match look {
            Look::Everywhere => link.recv_trains(&mut each),
            Look::Likely => link.recv_likely_trains(&mut each),
        };
        let count = received.unwrap_or_else(|error| {
            tracing::warn!(target: "peerdma::udp", "receive: {error}");
            seen
        });
        if link.was_asked_to_steer() {
            intake.was_missteered();
        }
        *heat = if count > 0 { LOOKS_UNTIL_SILENT } else { heat.saturating_sub(1) };
        count
    }

    /// The same for everything that waits, once the port is left.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(&About, &Train<'_>, &mut Intake)) {
        let Self { link: Some(link), intake, .. } = self else { return };
        let port = link.port();
        link.drain(&mut |train| each(&about(&train, port), &train, intake));
    }

    /// Notes that datagrams arrived: no check is needed whether they still do, and a busy sender
    /// gets a socket.
    #[inline]
    pub(crate) fn heard(&mut self, now: Time, waits: &Waits) {
        self.port.heard(now);
        if let (Some((from, to)), Some(link)) = (self.intake.sources.take(), &mut self.link) {
            open_rx_socket(link, from, to, self.is_watched.then_some(waits));
        }
    }

    /// A datagram of ours was forwarded.
    pub(crate) fn heard_by_forwarding(&mut self, now: Time) {
        self.port.heard(now);
    }

    /// Sends the batches that are due; what the sockets do not take now keeps waiting. Each batch
    /// that was sent is passed to `sent`, with the port that it left from.
    #[inline]
    pub(crate) fn flush(
        &mut self,
        queue: &mut UdpQueue,
        is_due: impl Fn(&UdpQueue) -> bool,
        counters: &mut PortCounters,
        mut sent: impl FnMut(&Batch, u16),
    ) {
        let Some(link) = self.link.as_mut() else {
            while queue.front().is_some() {
                queue.pop();
                counters.first.dropped_packets += 1;
            }
            return;
        };
        while is_due(queue)
            && let Some(batch) = queue.front()
        {
            let (to, dst) = (batch.to, batch.to.dst.to_ip());
            let segment_size = (batch.count > 1).then_some(batch.segment);
            let gone = if let Some(tx_socket) = batch.tx_socket {
                // CAST: a batch is no longer than a datagram can be.
                match link.send_on(tx_socket, batch.bytes(), segment_size.map(|size| size as u16)) {
                    Ok(()) => Ok(()),
                    Err(TxSocketError::WouldBlock) => return,
                    Err(error) => {
                        tracing::debug!(target: "peerdma::udp", %dst, "{error}");
                        link.close_tx_socket(tx_socket);
                        queue.tx_socket_broke(tx_socket);
                        continue;
                    }
                }
            } else {
                link.send(Transmit {
                    dst,
                    src: to.src.to_ip(),
                    traffic_class: to.traffic_class,
                    hop_limit: to.hop_limit,
                    contents: batch.bytes(),
                    segment_size,
                })
            };
            let counters = counters.of(batch.port_num);
            match gone {
                Ok(()) => {
                    counters.tx_udp_packets += batch.count as u64;
                    counters.tx_bytes += batch.bytes().len() as u64;
                    sent(batch, link.source_port());
                }
                Err(SendError::WouldBlock { sent }) => {
                    counters.tx_udp_packets += (sent / batch.segment) as u64;
                    counters.tx_bytes += sent as u64;
                    queue.sent(sent);
                    return;
                }
                Err(SendError::NotSplit { sent }) => {
                    counters.tx_udp_packets += (sent / batch.segment) as u64;
                    counters.tx_bytes += sent as u64;
                    queue.set_max_segments(1);
                    queue.sent(sent);
                    continue;
                }
                Err(error) => {
                    counters.dropped_packets += batch.count as u64;
                    tracing::info!(target: "peerdma::udp", %dst, "send: {error}");
                }
            }
            queue.pop();
        }
        queue.set_max_segments(link.max_gso_segments(UdpQueue::TYPICAL));
        if queue.tx_sockets.are_asked_for() {
            queue.tx_sockets.open_asked(link);
        }
    }

    /// Closes the transmit sockets to a silent process of another host.
    #[cold]
    pub(crate) fn leave_tx_sockets(&mut self, queue: &mut UdpQueue, peer: iba::Gid, vf: u16) {
        for tx_socket in queue.tx_sockets.leading_to(peer, vf) {
            tracing::info!(target: "peerdma::udp", dst = %peer, "silence: its transmit socket is closed");
            if let Some(link) = &mut self.link {
                link.close_tx_socket(tx_socket);
            }
            queue.tx_socket_broke(tx_socket);
        }
    }

    /// When there is something to do even if nothing arrives.
    pub(crate) fn deadline(&self, queue: &UdpQueue) -> Option<Time> {
        self.silence_until(queue).into_iter().chain(self.port.try_at()).min()
    }

    /// Whether there is something to do without a known time.
    pub(crate) fn wants_upkeep(&self) -> bool {
        self.port.is_asking() || self.intake.is_missteered()
    }

    /// Does periodic work: closes unused sockets, takes the port when it is free, and checks
    /// whether the kernel gives us our datagrams.
    pub(crate) fn upkeep(&mut self, queue: &mut UdpQueue, now: Time, waits: &Waits) {
        if queue.front().is_none()
            && let Some(link) = &mut self.link
        {
            queue.tx_sockets.sweep(now, link);
            self.intake.sources.sweep(now, link);
        }
        if self.port.try_at().is_some_and(|at| at <= now) && !self.take_port(queue, waits) {
            self.port.try_later(now);
        }
        if self.silence_until(queue).is_some_and(|at| at <= now) {
            self.port.silence_is_over(now);
            if !queue.is_deaf() {
                self.intake.was_missteered();
            } else if !self.take_port(queue, waits)
                && let Some(link) = &self.link
            {
                link.ask_to_steer();
            }
        }
        if self.intake.take_missteered() {
            // A process has come or gone: determine again which socket is whose.
            self.port.ask();
        }
        self.port.steer(self.link.as_ref());
    }

    /// Whether [`Receiver::upkeep`] would take the port if it is free, and nothing waits.
    pub(crate) fn may_take_port(&self, queue: &UdpQueue, now: Time) -> bool {
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        queue.is_deaf() && (is_due(self.port.try_at()) || is_due(self.silence_until(queue)))
    }

    /// A process that may have had the port is gone; the kernel frees the port a little later.
    pub(crate) fn port_may_be_free(&mut self, queue: &UdpQueue, now: Time) {
        if queue.is_deaf() {
            self.port.may_be_free(now);
        }
    }

    /// When silence becomes suspicious. A process without the port does not hear of new
    /// connections, either.
    fn silence_until(&self, queue: &UdpQueue) -> Option<Time> {
        let matters = queue.is_used() || queue.is_deaf();
        self.port.silence_until(queue.is_deaf()).filter(|_| matters)
    }

    /// Takes the port if it was another user's and is free now. Not while a datagram waits to be
    /// sent: its ICRC covers the port that it leaves from.
    fn take_port(&mut self, queue: &mut UdpQueue, waits: &Waits) -> bool {
        if !queue.is_deaf() || queue.front().is_some() {
            return false;
        }
        let Some(link) = &mut self.link else { return false };
        if link.take_port().is_err() {
            return false;
        }
        tracing::info!(target: "peerdma::udp", "took UDP port {}, which has become free", link.port());
        if self.is_watched {
            watch(link, waits);
        }
        self.port.steer_anew(link);
        self.port.is_ours();
        queue.leave_from(link.port());
        true
    }

    /// Lets no new datagrams arrive. Returns false if there is no socket.
    pub(crate) fn leave_port(&mut self) -> bool {
        let Some(link) = &mut self.link else { return false };
        link.leave_port();
        true
    }

    /// Joins a group. Its socket always wakes the thread.
    pub(crate) fn join(&mut self, group: IpAddr, waits: &Waits) -> Result<(), JoinError> {
        let Some(link) = &mut self.link else { return Err(JoinError::NoSocket) };
        if link.source_port() != link.port() {
            return Err(JoinError::PortTaken(link.port()));
        }
        link.join(group).map_err(JoinError::Refused)?;
        if let Some(newest) = link.fds().last() {
            waits.add_datagrams(newest);
        }
        Ok(())
    }

    /// Leaves a group.
    pub(crate) fn leave(&mut self, group: IpAddr) {
        if let Some(link) = &mut self.link {
            link.leave(group);
        }
    }

    /// Closes the sockets.
    pub(crate) fn close(&mut self) {
        self.link = None;
        self.port.close();
    }

    /// In a forked child, closes what belongs to the parent.
    pub(crate) fn abandon_in_child(&mut self) {
        if let Some(link) = self.link.take() {
            link.abandon_in_child();
        }
        self.port.close();
    }

    #[cfg(test)]
    pub(crate) fn link(&mut self) -> Option<&mut UdpLink> {
        self.link.as_mut()
    }
}

/// Why a group was not joined.
#[derive(Debug)]
pub(crate) enum JoinError {
    /// There is no UDP socket.
    NoSocket,
    /// The port is another user's.
    PortTaken(u16),
    /// The kernel refuses.
    Refused(BindError),
}

/// What the kernel reports about a train.
#[inline]
fn about(train: &Train<'_>, port: u16) -> About {
    About {
        src: train.src,
        dst: SocketAddr::new(train.dst, port),
        traffic_class: train.traffic_class,
        hop_limit: train.hop_limit,
    }
}

/// Lets every socket wake the background thread.
fn watch(link: &UdpLink, waits: &Waits) {
    link.fds().for_each(|fd| _ = waits.add_datagrams(fd));
}

/// Opens a socket for a busy sender, which wakes the background thread if the others do.
#[cold]
fn open_rx_socket(link: &mut UdpLink, from: SocketAddr, to: IpAddr, waits: Option<&Waits>) {
    match link.open_rx_socket(from, to) {
        // Its packets come through the shared socket as before.
        Err(error) => tracing::debug!(target: "peerdma::udp", %from, "no receive socket: {error}"),
        Ok(false) => {}
        Ok(true) => {
            tracing::debug!(target: "peerdma::udp", %from, "opened a receive socket");
            if let Some(waits) = waits {
                watch(link, waits);
            }
        }
    }
}
