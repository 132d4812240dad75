//! Rings to other processes of this host, and the records that travel in them.
//!
//! A record, in native byte order since both ends are one machine:
//!
//! | bytes | what |
//! |---|---|
//! | 0 | kind: 1 a packet, 2 a datagram that the kernel gave to the wrong process |
//! | 1 | flags: 1 skipped counts follow, 2 a GRH follows |
//! | 2 | length of the packet's headers |
//! | 3 | zero |
//! | 4..8 | length of the payload |
//! | 8..12 | the sending QP |
//! | then | skipped counts (8 bytes) if flagged, GRH (40 bytes) if flagged, headers, payload |
//!
//! An eight-byte message and its record fit one cache line.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use iba::Qpn;
use link::registry::Claim;
use link::shm::{Doorbell, Outbound, OutboundState, PushError as RingError};
use transport::Time;
use transport::env::{Direct, OneSided, Skipped};
use umem::Foreign;
use wire::Headers;

use super::direct::{self, DirectPeer, Parties};
use super::mr::MrTable;
use crate::waits::Waits;

const PACKET: u8 = 1;
const DATAGRAM: u8 = 2;
const HAS_SKIPPED: u8 = 1;
const HAS_GRH: u8 = 2;
const FIXED: usize = 12;
/// The fixed part, skipped counts, a GRH, and the longest headers.
const MAX_PREFIX: usize = FIXED + 8 + 40 + 64;
/// Two addresses with their ports before a forwarded datagram.
const ADDRESSES: usize = 2 * ADDRESS;
const ADDRESS: usize = 18;

/// What a packet's record says beside its payload.
pub(crate) struct Record<'a> {
    pub(crate) headers: &'a Headers,
    pub(crate) length: u32,
    pub(crate) skipped: Skipped,
    pub(crate) grh: Option<&'a [u8; 40]>,
    pub(crate) source: Qpn,
}

/// A record that arrived.
pub(crate) enum Incoming<'a> {
    Packet {
        headers: Headers,
        payload: Foreign<'a>,
        length: u32,
        skipped: Skipped,
        grh: Option<[u8; 40]>,
        source: Qpn,
    },
    Datagram {
        src: SocketAddr,
        dst: SocketAddr,
        bytes: Vec<u8>,
    },
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
    /// `None` only in the child of a fork.
    pub(crate) claim: Option<Claim>,
    ring_size: usize,
    waits: Arc<Waits>,
    peers: Vec<Option<Peer>>,
    /// Rings written to since their readers were last woken.
    unrung: Vec<u16>,
}

/// The way to one peer.
#[derive(Debug)]
struct Peer {
    outbound: Outbound,
    reach: Reach,
    /// Since when the ring has been full without the peer taking anything, and how far it had read then.
    full_since: Option<(Time, u64)>,
}

/// A peer that takes nothing from a full ring for so long is stalled: what may be dropped is.
const STALL: Duration = Duration::from_millis(100);

/// Whether a peer's memory can be touched without its engine.
#[derive(Debug)]
enum Reach {
    /// Not known before it answers.
    Unknown,
    /// No, for a reason that was logged.
    Ring,
    /// Yes.
    Direct(Box<DirectPeer>),
}

impl Peers {
    pub(crate) fn new(claim: Claim, ring_size: usize, waits: Arc<Waits>) -> Self {
        waits.add_always(&claim);
        waits.add_always(claim.doorbell().fd());
        Self { claim: Some(claim), ring_size, waits, peers: Vec::new(), unrung: Vec::new() }
    }

    /// The ring to a VF, connecting first if there is none.
    fn peer(&mut self, vf: u16) -> Option<&mut Peer> {
        let index = usize::from(vf);
        if index >= self.peers.len() {
            self.peers.resize_with(index + 1, || None);
        }
        if self.peers[index].is_none() {
            match self.claim.as_ref()?.connect(vf, self.ring_size) {
                Ok(outbound) => {
                    self.waits.add_always(&outbound);
                    self.peers[index] =
                        Some(Peer { outbound, reach: Reach::Unknown, full_since: None });
                }
                Err(error) => {
                    tracing::info!(target: "peerdma::peer", vf, "cannot reach the process: {error}");
                }
            }
        }
        self.peers[index].as_mut()
    }

    /// Pushes a packet; `fill` writes its payload. Returns the ring's position after it.
    pub(crate) fn push<E>(
        &mut self,
        vf: u16,
        record: &Record<'_>,
        fill: impl FnOnce(Foreign<'_>) -> Result<(), E>,
    ) -> Result<u64, PushError<E>> {
        let mut prefix = [0u8; MAX_PREFIX];
        let size = write_prefix(&mut prefix, record);
        let payload = record.length as usize;
        let outbound = &mut self.peer(vf).ok_or(PushError::Gone)?.outbound;
        let mut fill = Some(fill);
        loop {
            let pushed = outbound.push(size + payload, |room| {
                let (head, rest) = (room.slice(0, size), room.slice(size, payload));
                match (head, rest, fill.take()) {
                    (Some(head), Some(rest), Some(fill)) => {
                        head.copy_from(&prefix[..size]);
                        fill(rest)
                    }
                    _ => Ok(()),
                }
            });
            match pushed {
                Ok(()) => break,
                // The reader rings when it has made room, unless it made room just now.
                Err(RingError::Full) => match outbound.ring().want_space(size + payload) {
                    Ok(true) => {}
                    _ => return Err(PushError::Full),
                },
                Err(RingError::Fill(error)) => return Err(PushError::Fill(error)),
                Err(_) => {
                    tracing::warn!(target: "peerdma::peer", vf, "the ring broke; closing it");
                    self.peers[usize::from(vf)] = None;
                    return Err(PushError::Gone);
                }
            }
        }
        let position = outbound.ring().position();
        if !self.unrung.contains(&vf) {
            self.unrung.push(vf);
        }
        Ok(position)
    }

    /// Carries out an operation on a peer's memory, if the peer can be reached and nothing speaks against it.
    pub(crate) fn one_sided(
        &mut self,
        vf: u16,
        mrs: &MrTable,
        parties: Parties,
        op: &OneSided<'_>,
    ) -> Direct {
        let Some(peer) = self.peer(vf) else { return Direct::Declined };
        if let Reach::Unknown = peer.reach {
            peer.outbound.poll();
            if *peer.outbound.state() == OutboundState::Connecting {
                return Direct::Declined;
            }
            peer.reach = match direct::probe(&mut peer.outbound) {
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
        match &mut peer.reach {
            Reach::Direct(direct) => direct.one_sided(&peer.outbound, mrs, parties, op),
            _ => Direct::Declined,
        }
    }

    /// Passes a datagram on to the process it is for; without room or process it is lost, as datagrams may be.
    pub(crate) fn forward(&mut self, vf: u16, src: SocketAddr, dst: SocketAddr, bytes: &[u8]) {
        let Some(Peer { outbound, .. }) = self.peer(vf) else { return };
        let size = FIXED + ADDRESSES + bytes.len();
        let pushed = outbound.push(size, |room| {
            let mut prefix = [0u8; FIXED + ADDRESSES];
            prefix[0] = DATAGRAM;
            prefix[4..8].copy_from_slice(&(bytes.len() as u32).to_ne_bytes());
            for (at, address) in [(FIXED, src), (FIXED + ADDRESS, dst)] {
                prefix[at..at + 16].copy_from_slice(&iba::Gid::from(address.ip()).0);
                prefix[at + 16..at + ADDRESS].copy_from_slice(&address.port().to_ne_bytes());
            }
            let parts = (room.slice(0, prefix.len()), room.slice(prefix.len(), bytes.len()));
            if let (Some(head), Some(rest)) = parts {
                head.copy_from(&prefix);
                rest.copy_from(bytes);
            }
            Ok::<(), ()>(())
        });
        if pushed.is_ok() && !self.unrung.contains(&vf) {
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

    /// Whether the peer has yet to take what was pushed before `position`.
    pub(crate) fn is_behind(&mut self, vf: u16, position: u64) -> bool {
        match self.peers.get_mut(usize::from(vf)) {
            Some(Some(peer)) => peer.outbound.ring().consumed_up_to() < position,
            _ => false,
        }
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

    /// Notices peers that answered, refused or went away.
    pub(crate) fn poll(&mut self) {
        for (vf, slot) in self.peers.iter_mut().enumerate() {
            let Some(peer) = slot else { continue };
            if let Reach::Direct(direct) = &mut peer.reach {
                direct.forget_dead();
            }
            match peer.outbound.poll() {
                OutboundState::Refused(words) => {
                    tracing::warn!(target: "peerdma::peer", vf, "refused: {words}");
                    *slot = None;
                }
                OutboundState::Gone => {
                    tracing::debug!(target: "peerdma::peer", vf, "the process is gone");
                    *slot = None;
                }
                _ => {}
            }
        }
    }

    /// Closes, in the child of a fork, what is the parent's, and touches nothing that is shared.
    pub(crate) fn abandon_in_child(&mut self) {
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

    pub(crate) fn waits(&self) -> &Waits {
        &self.waits
    }
}

fn write_prefix(prefix: &mut [u8; MAX_PREFIX], record: &Record<'_>) -> usize {
    prefix[0] = PACKET;
    prefix[2] = record.headers.len() as u8;
    prefix[4..8].copy_from_slice(&record.length.to_ne_bytes());
    prefix[8..12].copy_from_slice(&record.source.value().to_ne_bytes());
    let mut at = FIXED;
    if record.skipped != Skipped::default() {
        prefix[1] |= HAS_SKIPPED;
        prefix[at..at + 4].copy_from_slice(&record.skipped.psns.to_ne_bytes());
        prefix[at + 4..at + 8].copy_from_slice(&record.skipped.messages.to_ne_bytes());
        at += 8;
    }
    if let Some(grh) = record.grh {
        prefix[1] |= HAS_GRH;
        prefix[at..at + 40].copy_from_slice(grh);
        at += 40;
    }
    at + record.headers.emit(&mut prefix[at..])
}

/// What stands before the payload of a record.
#[cfg(test)]
pub(super) fn prefix_of(record: &Record<'_>) -> Vec<u8> {
    let mut prefix = [0; MAX_PREFIX];
    let length = write_prefix(&mut prefix, record);
    prefix[..length].to_vec()
}

/// Takes a record apart. Every word is read once and checked; the payload stays in the ring.
pub(crate) fn parse(record: Foreign<'_>) -> Result<Incoming<'_>, &'static str> {
    let mut prefix = [0u8; MAX_PREFIX];
    let have = record.len().min(MAX_PREFIX);
    record.slice(0, have).ok_or("empty")?.copy_to(&mut prefix[..have]);
    let prefix = &prefix[..have];
    if have < FIXED {
        return Err("shorter than its fixed part");
    }
    let word = |at: usize| {
        prefix.get(at..at + 4).map(|b| u32::from_ne_bytes(b.try_into().expect("four bytes")))
    };
    let length = word(4).ok_or("no length")?;
    if prefix[0] == DATAGRAM {
        let address = |at: usize| {
            let bytes = prefix.get(at..at + ADDRESS).ok_or("no addresses")?;
            let (gid, port) = bytes.split_at(16);
            let gid = iba::Gid(gid.try_into().expect("sixteen bytes"));
            let port = u16::from_ne_bytes(port.try_into().expect("two bytes"));
            Ok::<_, &str>(SocketAddr::new(gid.to_ip(), port))
        };
        let (src, dst) = (address(FIXED)?, address(FIXED + ADDRESS)?);
        let bytes = record.slice(FIXED + ADDRESSES, length as usize).ok_or("length lies")?;
        let mut copy = vec![0; bytes.len()];
        bytes.copy_to(&mut copy);
        return Ok(Incoming::Datagram { src, dst, bytes: copy });
    }
    if prefix[0] != PACKET {
        return Err("unknown kind");
    }
    let flags = prefix[1];
    let mut at = FIXED;
    let mut skipped = Skipped::default();
    if flags & HAS_SKIPPED != 0 {
        skipped.psns = word(at).ok_or("no skipped counts")?;
        skipped.messages = word(at + 4).ok_or("no skipped counts")?;
        at += 8;
    }
    let mut grh = None;
    if flags & HAS_GRH != 0 {
        let bytes = prefix.get(at..at + 40).ok_or("no GRH")?;
        grh = Some(bytes.try_into().expect("forty bytes"));
        at += 40;
    }
    let header_len = usize::from(prefix[2]);
    let header_bytes = prefix.get(at..at + header_len).ok_or("no headers")?;
    let (headers, end) = Headers::parse_prefix(header_bytes).map_err(|_| "malformed headers")?;
    if end != header_len {
        return Err("header length lies");
    }
    let payload = record.slice(at + header_len, length as usize).ok_or("length lies")?;
    let source = Qpn::new(word(8).ok_or("no source")?);
    Ok(Incoming::Packet { headers, payload, length, skipped, grh, source })
}
