//! The sending half: the claim on our VF, and the rings to other processes of this host.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use iba::RKey;
use link::registry::Claim;
use link::shm::{Doorbell, Outbound, OutboundState, PushError as RingError};
use transport::Time;
use transport::env::{Direct, OneSided};
use umem::Foreign;

use super::direct::{self, DirectPeer, Parties};
use super::record::{MAX_PREFIX, Record, datagram_prefix, write_prefix};
use super::table::Table;
use crate::carrier::About;
use crate::memory::mr::MrTable;
use crate::waits::Waits;

/// The part of a ring that is reserved for packets without payload.
const ANSWERS: usize = 16;
/// The outcome of forwarding a datagram to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forwarded {
    Yes,
    NoRoom,
    NoSuchProcess,
}

/// Where in a ring a record ends. A later process with the same VF reads another ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RingPosition {
    /// The nonce of the connection.
    ring: u64,
    at: u64,
}

/// Why a record was not pushed.
pub(crate) enum PushError<E> {
    /// No room now.
    Full,
    /// No such process.
    Gone,
    /// The payload could not be taken.
    Fill(E),
}

/// The claim on this process's VF, and the rings to others.
#[derive(Debug)]
pub(crate) struct Peers {
    ring_size: usize,
    /// The memory that peers may access without our engine; `None` where the configuration forbids
    /// it.
    table: Option<Table>,
    waits: Arc<Waits>,
    peers: Vec<Option<Peer>>,
    /// Rings written to since their readers were last woken.
    unrung: Vec<u16>,
    /// Since when failed lookups of processes are counted, and how many there were.
    looks: (Time, u32),
    /// For each process, where the last datagram that was forwarded to it ends.
    passed_on: Vec<(u16, RingPosition)>,
    /// Processes that were found gone when something was to be forwarded to them.
    gone: Vec<u16>,
    /// Processes that were logged as unreachable since they were last reachable. There are at most
    /// 1024 VFs.
    unreachable: HashSet<u16>,
    /// `None` only in a forked child. Dropped last.
    pub(crate) claim: Option<Claim>,
}

/// The connection to one peer.
#[derive(Debug)]
struct Peer {
    outbound: Outbound,
    reach: Reach,
    /// Whether its socket wakes us.
    is_watched: bool,
    /// Since when the ring has been full without the peer reading anything, and how far it had read
    /// then.
    full_since: Option<(Time, u64)>,
}

/// A peer that reads nothing from a full ring for this long is stalled: packets that may be dropped
/// are dropped. Longer than a peer waits for its program to post a receive.
const STALL: Duration = Duration::from_millis(300);

/// Strangers on the network can name any process, as often as they like: this many failed lookups
/// are allowed per period. Each lookup is a system call or two.
const LOOKS: u32 = 16;
const LOOKS_IN: Duration = Duration::from_millis(1);

/// Whether a peer's memory can be accessed without its engine.
#[derive(Debug)]
enum Reach {
    /// Not known before it answers.
    Unknown,
    /// No, for a reason that was logged.
    Ring,
    /// Yes.
    Direct(Box<DirectPeer>),
}

impl Peer {
    /// Determines the path of one-sided operations once the peer has answered, and logs it with the
    /// reason.
    fn find_reach(&mut self, vf: u16, direct: bool) {
        let Reach::Unknown = self.reach else { return };
        if *self.outbound.state() == OutboundState::Connecting {
            return;
        }
        let probed = if direct {
            direct::probe(&mut self.outbound)
        } else {
            Err("the configuration forbids it".to_owned())
        };
        self.reach = match probed {
            Ok(direct) => {
                tracing::info!(target: "peerdma::path", vf, "one-sided operations go directly");
                Reach::Direct(Box::new(direct))
            }
            Err(reason) => {
                tracing::info!(
                    target: "peerdma::path", vf,
                    "one-sided operations go through the ring: {reason}"
                );
                Reach::Ring
            }
        };
    }
}

impl Peers {
    pub(crate) fn new(
        claim: Claim,
        ring_size: usize,
        table: Option<Table>,
        waits: Arc<Waits>,
    ) -> Self {
        waits.add_always(&claim);
        waits.add_doorbell(claim.doorbell().fd());
        Self {
            claim: Some(claim),
            ring_size,
            table,
            waits,
            peers: Vec::new(),
            unrung: Vec::new(),
            looks: (Time::ZERO, 0),
            passed_on: Vec::new(),
            gone: Vec::new(),
            unreachable: HashSet::new(),
        }
    }

    /// The ring to a VF, connecting first if there is none.
    fn peer(&mut self, vf: u16) -> Option<&mut Peer> {
        let index = usize::from(vf);
        if index >= self.peers.len() {
            self.peers.resize_with(index + 1, || None);
        }
        if self.peers[index].is_none() {
            match self.claim.as_mut()?.connect(vf, self.ring_size) {
                Ok(outbound) => {
                    self.waits.add_always(&outbound);
                    self.unreachable.remove(&vf);
                    self.peers[index] = Some(Peer {
                        outbound,
                        reach: Reach::Unknown,
                        is_watched: true,
                        full_since: None,
                    });
                }
                // Every packet for it comes here; one line in the log is enough.
                Err(error) if self.unreachable.insert(vf) => {
                    tracing::info!(target: "peerdma::peer", vf, "cannot reach the process: {error}");
                }
                Err(_) => {}
            }
        }
        self.peers[index].as_mut()
    }

    /// Announces that a packet for a process will be pushed very soon; see
    /// [`link::shm::Producer::expect_push`].
    #[inline]
    pub(crate) fn expect_push(&mut self, vf: u16) {
        if let Some(Some(peer)) = self.peers.get_mut(usize::from(vf)) {
            peer.outbound.ring().expect_push();
        }
    }

    /// Pushes a packet; `fill` writes its payload. Returns where in the ring it ends.
    pub(crate) fn push<E>(
        &mut self,
        vf: u16,
        record: &Record<'_>,
        fill: impl FnOnce(Foreign<'_>) -> Result<(), E>,
    ) -> Result<RingPosition, PushError<E>> {
        let mut prefix = [0u8; MAX_PREFIX];
        let size = write_prefix(&mut prefix, record);
        self.push_after(vf, &prefix[..size], record.length as usize, fill)
    }

    /// The same, with the prefix of the record, and the length of its payload.
    #[inline]
    pub(crate) fn push_after<E>(
        &mut self,
        vf: u16,
        prefix: &[u8],
        payload: usize,
        fill: impl FnOnce(Foreign<'_>) -> Result<(), E>,
    ) -> Result<RingPosition, PushError<E>> {
        let size = prefix.len();
        let outbound = &mut self.peer(vf).ok_or(PushError::Gone)?.outbound;
        if payload > 0 && !has_room(outbound, size + payload) {
            return Err(PushError::Full);
        }
        let mut fill = Some(fill);
        loop {
            let pushed = outbound.push(size + payload, |room| {
                let (head, rest) = (room.slice(0, size), room.slice(size, payload));
                match (head, rest, fill.take()) {
                    (Some(head), Some(rest), Some(fill)) => {
                        // If a page of the ring itself is absent, there is no room now.
                        head.copy_from(prefix).map_err(|_| None)?;
                        fill(rest).map_err(Some)
                    }
                    _ => Ok(()),
                }
            });
            match pushed {
                Ok(()) => break,
                // The reader rings when it has made room, unless it has made some just now.
                Err(RingError::Full) => match outbound.ring().want_space(size + payload) {
                    Ok(true) => {}
                    _ => return Err(PushError::Full),
                },
                Err(RingError::Fill(Some(error))) => return Err(PushError::Fill(error)),
                Err(RingError::Fill(None)) => return Err(PushError::Full),
                Err(_) => {
                    tracing::warn!(target: "peerdma::peer", vf, "the ring broke; closing it");
                    self.peers[usize::from(vf)] = None;
                    return Err(PushError::Gone);
                }
            }
        }
        let position = RingPosition { ring: outbound.nonce(), at: outbound.ring().position() };
        self.ring_later(vf);
        Ok(position)
    }

    /// Carries out an operation on a peer's memory, if the peer can be reached and nothing prevents
    /// it.
    pub(crate) fn one_sided(
        &mut self,
        vf: u16,
        mrs: &MrTable,
        parties: Parties,
        op: &OneSided<'_>,
    ) -> Direct {
        let is_direct = self.table.is_some();
        let Some(peer) = self.peer(vf) else { return Direct::Declined };
        if let Reach::Unknown = peer.reach {
            peer.outbound.poll();
            peer.find_reach(vf, is_direct);
        }
        match &mut peer.reach {
            Reach::Direct(direct) => direct.one_sided(&mut peer.outbound, mrs, parties, op),
            _ => Direct::Declined,
        }
    }

    /// Carries a WRITE or READ out, if all that it needs is at hand
    /// ([`transport::Env::one_sided_at_hand`]).
    #[inline]
    pub(crate) fn one_sided_at_hand(
        &mut self,
        vf: u16,
        mrs: &MrTable,
        parties: Parties,
        op: &OneSided<'_>,
    ) -> bool {
        match self.peers.get_mut(usize::from(vf)) {
            Some(Some(Peer { reach: Reach::Direct(direct), outbound, .. })) => {
                direct.one_sided_at_hand(outbound, mrs, parties, op)
            }
            _ => false,
        }
    }

    /// Carries several operations out together ([`Peers::one_sided`]). Returns how many.
    pub(crate) fn one_sided_run(
        &mut self,
        vf: u16,
        mrs: &MrTable,
        parties: Parties,
        ops: &[OneSided<'_>],
    ) -> usize {
        match self.peer(vf) {
            Some(Peer { reach: Reach::Direct(direct), outbound, .. }) => {
                direct.one_sided_run(outbound, mrs, parties, ops)
            }
            _ => 0,
        }
    }

    /// Whether operations on a region of a peer cost less together than one by one.
    pub(crate) fn gathers(&self, vf: u16, rkey: RKey) -> bool {
        self.direct(vf).is_some_and(|direct| direct.gathers(rkey))
    }

    /// Whether a region of a peer is now one that can be reached without its engine.
    pub(crate) fn is_direct(&self, vf: u16, rkey: RKey) -> bool {
        self.direct(vf).is_some_and(|direct| direct.is_published(rkey))
    }

    /// A peer whose memory is known to be in reach.
    fn direct(&self, vf: u16) -> Option<&DirectPeer> {
        let peer = self.peers.get(usize::from(vf)).and_then(Option::as_ref);
        match &peer.filter(|_| self.table.is_some())?.reach {
            Reach::Direct(direct) => Some(direct),
            Reach::Unknown | Reach::Ring => None,
        }
    }

    /// Begins a copy that does not end by itself (for tests).
    #[cfg(test)]
    pub(crate) fn hold(&mut self, vf: u16, key: u32) {
        let peer = self.peers[usize::from(vf)].as_mut().expect("there is a ring to it");
        std::mem::forget(peer.outbound.hold(key));
    }

    /// Ends such a copy.
    #[cfg(test)]
    pub(crate) fn free(&mut self, vf: u16) {
        let peer = self.peers[usize::from(vf)].as_mut().expect("there is a ring to it");
        peer.outbound.ring().free();
    }

    /// Connects to a process that a QP is going to send to, so that the path is known by then.
    pub(crate) fn prepare(&mut self, vf: u16) {
        let _ = self.peer(vf);
    }

    /// Forwards a datagram to its process. Without room it is lost, as datagrams may be.
    pub(crate) fn forward(&mut self, now: Time, vf: u16, about: &About, bytes: &[u8]) -> Forwarded {
        let index = usize::from(vf);
        self.notice(vf);
        if !self.has(vf) {
            if now.since(self.looks.0) >= LOOKS_IN {
                self.looks = (now, 0);
            }
            if self.looks.1 >= LOOKS {
                return Forwarded::NoSuchProcess;
            }
            if self.peer(vf).is_none() {
                self.looks.1 += 1;
                return Forwarded::NoSuchProcess;
            }
        }
        let Some(Some(Peer { outbound, .. })) = self.peers.get_mut(index) else {
            return Forwarded::NoSuchProcess;
        };
        let prefix = datagram_prefix(about, bytes.len());
        let pushed = outbound.push(prefix.len() + bytes.len(), |room| {
            let parts = (room.slice(0, prefix.len()), room.slice(prefix.len(), bytes.len()));
            if let (Some(head), Some(rest)) = parts {
                head.copy_from(&prefix)?;
                rest.copy_from(bytes)?;
            }
            Ok::<(), umem::Fault>(())
        });
        if pushed.is_err() {
            return Forwarded::NoRoom;
        }
        let end = RingPosition { ring: outbound.nonce(), at: outbound.ring().position() };
        self.passed_on.retain(|(known, _)| *known != vf);
        self.passed_on.push((vf, end));
        self.ring_later(vf);
        Forwarded::Yes
    }

    /// Whether a process has not yet taken what was forwarded to it.
    pub(crate) fn passes_on(&mut self) -> bool {
        let passed_on = std::mem::take(&mut self.passed_on);
        let has_unread = |(vf, end): &(u16, RingPosition)| self.has_unread(*vf, *end);
        let unread = passed_on.into_iter().filter(has_unread).collect();
        self.passed_on = unread;
        !self.passed_on.is_empty()
    }

    /// Notices whether the process at the other end of a ring is gone: another one may have its VF
    /// by now.
    fn notice(&mut self, vf: u16) {
        let Some(slot) = self.peers.get_mut(usize::from(vf)) else { return };
        match slot.as_mut().map(|peer| peer.outbound.poll()) {
            Some(OutboundState::Gone) => {
                *slot = None;
                self.gone.push(vf);
            }
            Some(OutboundState::Refused(_)) => *slot = None,
            _ => {}
        }
    }

    /// Marks the reader of the ring to a VF to be woken by the next [`Peers::ring_doorbells`], if
    /// it sleeps.
    #[inline]
    pub(crate) fn ring_later(&mut self, vf: u16) {
        if !self.unrung.contains(&vf) {
            self.unrung.push(vf);
        }
    }

    /// Wakes the readers of rings that were written to, where they sleep.
    pub(crate) fn ring_doorbells(&mut self) {
        while let Some(vf) = self.unrung.pop() {
            if let Some(Some(peer)) = self.peers.get_mut(usize::from(vf)) {
                peer.outbound.ring_doorbell_if_sleeping();
            }
        }
    }

    /// Where in the ring to a peer the next record begins.
    pub(crate) fn position(&mut self, vf: u16) -> RingPosition {
        match self.peers.get_mut(usize::from(vf)) {
            Some(Some(Peer { outbound, .. })) => {
                RingPosition { ring: outbound.nonce(), at: outbound.ring().position() }
            }
            _ => RingPosition::default(),
        }
    }

    /// Whether the peer has not yet taken what was pushed before `position`.
    ///
    /// A peer that is gone takes nothing any more, and a later process with its VF owes nothing.
    pub(crate) fn has_unread(&mut self, vf: u16, position: RingPosition) -> bool {
        match self.peers.get_mut(usize::from(vf)) {
            Some(Some(Peer { outbound, .. })) => {
                outbound.nonce() == position.ring && outbound.ring().consumed_up_to() < position.at
            }
            _ => false,
        }
    }

    /// Whether there is a ring to a process.
    pub(crate) fn has(&self, vf: u16) -> bool {
        matches!(self.peers.get(usize::from(vf)), Some(Some(_)))
    }

    /// Whether a peer whose ring is full has taken nothing from it for a while.
    pub(crate) fn is_stalled(&mut self, vf: u16, now: Time) -> bool {
        let Some(Some(peer)) = self.peers.get_mut(usize::from(vf)) else { return false };
        let read = peer.outbound.ring().consumed_up_to();
        match peer.full_since {
            Some((since, then)) if then == read => now.since(since) >= STALL,
            _ => {
                peer.full_since = Some((now, read));
                false
            }
        }
    }

    /// Notices peers that answered, refused or went away. Returns those that went away.
    pub(crate) fn poll(&mut self) -> Vec<u16> {
        let mut gone = std::mem::take(&mut self.gone);
        for (vf, slot) in self.peers.iter_mut().enumerate() {
            let Some(peer) = slot else { continue };
            if let Reach::Direct(direct) = &mut peer.reach {
                direct.forget_dead();
            }
            peer.outbound.poll();
            // A message that another thread receives would wake us all the time.
            if peer.outbound.is_elsewhere() == peer.is_watched {
                peer.is_watched = !peer.is_watched;
                if peer.is_watched {
                    self.waits.add_always(&peer.outbound);
                } else {
                    self.waits.remove_always(&peer.outbound);
                }
            }
            match peer.outbound.state() {
                OutboundState::Refused(words) => {
                    tracing::warn!(target: "peerdma::peer", vf, "refused: {words}");
                    *slot = None;
                }
                OutboundState::Gone => {
                    tracing::debug!(target: "peerdma::peer", vf, "the process is gone");
                    *slot = None;
                    gone.push(vf as u16);
                }
                _ => peer.find_reach(vf as u16, self.table.is_some()),
            }
        }
        gone
    }

    /// Closes every ring and gives up the VF.
    pub(crate) fn close(&mut self) {
        self.peers.clear();
        self.unrung.clear();
        self.claim = None;
    }

    /// In a forked child, closes what belongs to the parent, and touches nothing that is shared.
    pub(crate) fn abandon_in_child(&mut self) {
        // Its pages were not inherited.
        self.table = None;
        for peer in self.peers.drain(..).flatten() {
            peer.outbound.abandon_in_child();
        }
        if let Some(claim) = self.claim.take() {
            claim.abandon_in_child();
        }
    }

    /// Tells peers whether to wake us.
    pub(crate) fn doorbell(&self) -> Option<&Doorbell> {
        self.claim.as_ref().map(|claim| &**claim.doorbell())
    }

    /// The memory that peers may access without our engine, unless the configuration forbids it.
    #[inline]
    pub(crate) fn table(&self) -> Option<&Table> {
        self.table.as_ref()
    }

    /// The rings to others.
    pub(crate) fn outbounds(&self) -> impl Iterator<Item = &Outbound> {
        self.peers.iter().flatten().map(|peer| &peer.outbound)
    }

    pub(crate) fn waits(&self) -> &Arc<Waits> {
        &self.waits
    }
}

/// Whether there is room for a record with payload, and some is left: an acknowledgement that had
/// to wait until the data of others is taken would be as good as lost. If not, the reader rings
/// when it has made room.
#[inline]
fn has_room(outbound: &mut Outbound, size: usize) -> bool {
    let ring = outbound.ring();
    let wanted = (size + ring.capacity() / ANSWERS).min(ring.max_payload());
    // A wrap may waste as many bytes as the record takes.
    ring.free_hint() > 2 * wanted || !matches!(ring.want_space(wanted), Ok(false))
}
