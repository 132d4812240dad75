//! The short way of small messages (`transport::Short`).
//!
//! A record of the ring is the same whichever way it goes at either end, and so is a datagram. Here
//! they are written without headers in between, and recognised by comparing them with what would
//! have been written. All that is not simply so goes the long way: packets that are recorded or
//! tampered with, several that come at once by a ring (which one acknowledgement answers), packets
//! within a process.

pub(super) mod datagram;

use iba::Qpn;
use transport::{Qp, Short, ShortSend};
use umem::Foreign;
use wire::aeth::RawAeth;
use wire::bth::RawBth;
use wire::{Aeth, Bth, Opcode, Syndrome};
use zerocopy::{FromBytes, IntoBytes};

use super::Engine;
use super::acks::End;
use super::env::QpEnv;
use crate::carrier::shm::record::{FIXED, PACKET};
use crate::ids::QpId;
use crate::payload::InPayload;

/// What stands before the payload of a record: the fixed part and a BTH.
const SEND: usize = FIXED + wire::bth::LEN;
/// The same of an acknowledgement.
const ACK: usize = SEND + wire::aeth::LEN;
/// Bytes of the longest headers of a packet.
const HEADERS: usize = wire::bth::LEN + wire::aeth::LEN;

/// What stands before the payload of a record that goes the short way, in words of the machine:
/// what was just stored in small pieces cannot be read in large ones before those stores are done,
/// and they stand behind one to a line of the peer's.
pub(super) struct Prefix {
    words: [u32; ACK / 4],
    length: usize,
}

impl Prefix {
    /// Of a packet from one QP to another.
    #[inline]
    pub(super) fn new(packet: Short, source: Qpn, dest: Qpn, length: u32) -> Self {
        let ([first, second, third, aeth], size) = headers(packet, dest, length);
        let fixed = u32::from_ne_bytes([PACKET, 0, size as u8, 0]);
        let words = [fixed, length, source.value(), first, second, third, aeth];
        Self { words, length: FIXED + size }
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.words.as_bytes()[..self.length]
    }

    /// Whether a record begins like this.
    #[inline]
    fn begins(&self, bytes: &[u8; ACK]) -> bool {
        // What a SEND has behind it is payload.
        let mask = if self.length == SEND { 0 } else { u32::MAX };
        let differs = |at: usize| word(bytes, 4 * at) ^ self.words[at];
        let before = (0..SEND / 4).fold(0, |before, at| before | differs(at));
        before | differs(SEND / 4) & mask == 0
    }
}

/// The headers of a packet, in words of the machine, and how many bytes they are.
#[inline]
fn headers(packet: Short, dest: Qpn, length: u32) -> ([u32; HEADERS / 4], usize) {
    let (bth, aeth, size) = match packet {
        Short::Send { psn, se } => {
            let pad = wire::bth::pad_for(length as usize);
            let bth = Bth { se, ackreq: true, pad, ..Bth::new(Opcode::RcSendOnly, dest, psn) };
            (bth, 0, wire::bth::LEN)
        }
        Short::Ack { psn, msn } => {
            let aeth = Aeth { syndrome: Syndrome::ACK, msn }.to_raw();
            (Bth::new(Opcode::RcAck, dest, psn), word(aeth.as_bytes(), 0), HEADERS)
        }
    };
    let bth = bth.to_raw();
    let bth = bth.as_bytes();
    ([word(bth, 0), word(bth, 4), word(bth, 8), aeth], size)
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// A record that may go the short way.
struct Arrived<'a> {
    packet: Short,
    source: Qpn,
    dest: Qpn,
    payload: Foreign<'a>,
}

/// Looks whether a record is one that goes the short way. What stands before the payload is read
/// once.
#[inline]
fn read(record: Foreign<'_>) -> Option<Arrived<'_>> {
    let mut bytes = [0; ACK];
    let have = record.len().min(ACK);
    record.slice(0, have)?.copy_to(&mut bytes[..have]).ok()?;
    let bth = RawBth::ref_from_bytes(&bytes[FIXED..SEND]).ok()?;
    let psn = bth.psn();
    let packet = match bth.opcode() {
        Opcode::RcSendOnly => Short::Send { psn, se: bth.se() },
        Opcode::RcAck => {
            let aeth = RawAeth::ref_from_bytes(&bytes[SEND..]).ok()?;
            Short::Ack { psn, msn: aeth.msn() }
        }
        _ => return None,
    };
    let (length, source) = (word(&bytes, 4), Qpn::new(word(&bytes, 8)));
    let dest = bth.dest_qp();
    let expected = Prefix::new(packet, source, dest, length);
    let start = expected.length;
    if have < start || !expected.begins(&bytes) {
        return None;
    }
    let payload = record.slice(start, length as usize)?;
    Some(Arrived { packet, source, dest, payload })
}

impl Engine {
    /// Takes the first record that lies in a ring, if it goes the short way.
    pub(super) fn receive_short(&mut self) -> bool {
        if self.core.tap.is_some() || self.core.injected.is_some() {
            return false;
        }
        let Self { core, qps, receivers, clock, polls, .. } = self;
        let Some(inbound) = receivers.shm.busy() else { return false };
        let vf = inbound.peer().vf;
        let popped = inbound.pop_if(|record| {
            let Arrived { packet, source, dest, payload } = read(record)?;
            let entry = qps.by_number(dest)?;
            let context = &mut entry.context;
            if context.route.peer() != Some(vf) || context.dest_qpn != source {
                return None;
            }
            if let Short::Send { .. } = packet {
                // For the acknowledgement.
                core.out.shm.expect_push(vf);
            }
            if core.stamps {
                core.now = clock.now();
            }
            let (id, now, length) = (context.id, core.now, payload.len() as u32);
            let payload = InPayload::Ring(payload);
            let env = &mut QpEnv::new(core, context);
            if !entry.qp.handle_short(env, now, packet, &payload, length) {
                return None;
            }
            core.counters.rx_shm_packets += 1;
            polls.takes_turns = matches!(packet, Short::Ack { .. });
            Some((id, entry.qp.owes_answers()))
        });
        // A ring that broke is the long way's to close.
        let Ok(Some((id, owes))) = popped else { return false };
        if owes {
            self.transmit(id);
        }
        self.core.out.shm.ring_doorbells();
        true
    }

    /// Sends what was posted last, if it goes the short way and is all that there is to do.
    pub(super) fn kick_short(&mut self, id: QpId) -> bool {
        self.go_short(id, |qp, env| Some(qp.transmit_short(env))).unwrap_or(false)
    }

    /// Posts a SEND and sends it, if it goes the short way; if not, nothing happened.
    pub fn post_short(&mut self, id: QpId, send: &ShortSend) -> bool {
        if self.is_dead() {
            return false;
        }
        let Some(is_all) = self.go_short(id, |qp, env| qp.post_short(env, send)) else {
            return false;
        };
        if !is_all {
            self.kick(id);
        }
        true
    }

    /// Lets a QP send the short way, and sees to what that leads to if it did all that there is to
    /// do. Nothing if the QP has nothing that goes this way, and else what `send` says.
    #[inline]
    fn go_short(
        &mut self,
        id: QpId,
        send: impl FnOnce(&mut Qp, &mut QpEnv<'_, '_>) -> Option<bool>,
    ) -> Option<bool> {
        let Self { core, qps, clock, .. } = self;
        let entry = qps.get_mut(id)?;
        let route = entry.context.route;
        if entry.queued || !(route.is_udp() || route.peer().is_some()) {
            return None;
        }
        let env = &mut QpEnv::new(core, &mut entry.context);
        let is_all = send(&mut entry.qp, env)?;
        if !is_all || !route.is_udp() {
            entry.qp.watch(|| clock.now());
        }
        if !is_all {
            return Some(false);
        }
        if route.is_udp() {
            entry.context.has_received = false;
            self.send_short_train(id);
        } else {
            self.polls.takes_turns |= entry.qp.sends() == 1;
            self.note_deadline(id);
            self.core.out.shm.ring_doorbells();
        }
        Some(true)
    }

    /// Sends the train that a packet of this QP just joined by the short way, and starts its timer.
    ///
    /// The clock is read when the train is on its way, so that it does not wait for that. Whatever
    /// starts a timer or tells the time before reads it for itself: how long ago the last reading
    /// was nobody knows, and a timer that starts in the past may be over at once.
    fn send_short_train(&mut self, id: QpId) {
        let core = &mut self.core;
        core.is_behind = true;
        if core.is_observed() || !core.out.loopback.is_empty() {
            core.catch_up(&self.clock);
        }
        self.release_late_acks();
        self.after_transmit();
        self.core.is_behind = false;
        self.core.now = self.clock.now();
        self.polls.looks = 0;
        self.judge_late_acks(End::Answered);
        if let Some(entry) = self.qps.get_mut(id) {
            entry.qp.watch(|| self.core.now);
        }
        self.note_deadline(id);
    }
}

#[cfg(test)]
mod tests {
    use iba::{Msn, Psn};
    use transport::Skipped;
    use umem::HostBuf;

    use super::*;
    use crate::carrier::shm::record::{Record, prefix_of};

    const SOURCE: Qpn = Qpn::new(0x4011);
    const DEST: Qpn = Qpn::new(0x8012);

    fn packets() -> [(Short, u32); 4] {
        let psn = Psn::new(0xab_cdef);
        [
            (Short::Send { psn, se: false }, 8),
            (Short::Send { psn, se: true }, 3),
            (Short::Send { psn, se: false }, 0),
            (Short::Ack { psn, msn: Msn::new(0x12_3456) }, 0),
        ]
    }

    #[test]
    fn a_record_is_the_same_whichever_way_its_packet_goes() {
        for (packet, length) in packets() {
            let headers = packet.headers(DEST, length);
            let (skipped, grh) = (Skipped::default(), None);
            let record = Record { headers: &headers, length, skipped, grh, source: SOURCE };
            assert_eq!(Prefix::new(packet, SOURCE, DEST, length).bytes(), prefix_of(&record));
        }
    }

    #[test]
    fn a_record_with_anything_else_in_it_goes_the_long_way() {
        let memory = HostBuf::anonymous(64).expect("a line");
        for (packet, length) in packets() {
            let prefix = Prefix::new(packet, SOURCE, DEST, length);
            let size = prefix.length + length as usize;
            let room = memory.foreign().slice(0, size).expect("it fits a line");
            room.slice(0, prefix.length)
                .expect("the start")
                .copy_from(prefix.bytes())
                .expect("there");
            let arrived = read(room).expect("it is one");
            assert_eq!((arrived.packet, arrived.source, arrived.dest), (packet, SOURCE, DEST));
            assert_eq!(arrived.payload.len(), length as usize);
            assert!(read(room.slice(0, size - 1).expect("inside")).is_none(), "it ends too soon");

            // What may differ: numbers, and whether the receiver is to raise an event.
            let may_differ = |at: usize| matches!(at, 4..=11 | 17..=19 | 21..=23 | 25..=27);
            for at in (0..prefix.length).filter(|at| !may_differ(*at)) {
                for bit in 0..8 {
                    let mut bytes = prefix.bytes().to_vec();
                    bytes[at] ^= 1 << bit;
                    let is_se = at == 13 && bit == 7 && matches!(packet, Short::Send { .. });
                    room.slice(0, prefix.length)
                        .expect("the start")
                        .copy_from(&bytes)
                        .expect("there");
                    assert_eq!(read(room).is_some(), is_se, "{packet:?}, byte {at}, bit {bit}");
                }
            }
        }
    }
}
