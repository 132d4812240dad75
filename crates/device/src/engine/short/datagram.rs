//! The short way of what goes over a wire.

use iba::{Av, Gid, Qpn};
use transport::Short;
use transport::env::{Source, TransmitError};
use wire::Opcode;
use wire::aeth::RawAeth;
use wire::bth::RawBth;
use zerocopy::{FromBytes, IntoBytes};

use super::super::core::Core;
use super::super::env::QpEnv;
use super::headers;
use crate::carrier::About;
use crate::ids::QpId;
use crate::payload::{InPayload, fill};
use crate::qp::QpTable;

/// The packet that a datagram without its ICRC is, to whom it is, and where its payload lies, if it
/// goes the short way.
#[inline]
fn read_datagram(datagram: &[u8]) -> Option<(Short, Qpn, &[u8])> {
    let (bth, rest) = RawBth::ref_from_prefix(datagram).ok()?;
    let psn = bth.psn();
    let (packet, payload) = match bth.opcode() {
        Opcode::RcSendOnly if rest.len().is_multiple_of(4) => {
            let length = rest.len().checked_sub(bth.pad().into())?;
            (Short::Send { psn, se: bth.se() }, &rest[..length])
        }
        Opcode::RcAck => {
            let aeth = RawAeth::ref_from_bytes(rest).ok()?;
            (Short::Ack { psn, msn: aeth.msn() }, &rest[..0])
        }
        _ => return None,
    };
    let dest = bth.dest_qp();
    let (expected, size) = headers(packet, dest, payload.len() as u32);
    // Word by word: a call that compares costs more.
    let (words, _) = datagram.get(..size)?.as_chunks();
    let differs = |(word, expected): (&[u8; 4], &u32)| u32::from_ne_bytes(*word) ^ expected;
    let difference = words.iter().zip(&expected).map(differs).fold(0, |all, one| all | one);
    (difference == 0).then_some((packet, dest, payload))
}

/// Gives a datagram of which the ICRC is right to its QP, if it goes the short way. If not, nothing
/// happened.
///
/// Whoever records packets or tampers with them is not asked: the caller sees to that, and that it
/// was neither marked nor forwarded.
#[inline]
pub(in super::super) fn deliver_short(
    core: &mut Core,
    qps: &mut QpTable,
    about: &About,
    datagram: &[u8],
) -> Option<QpId> {
    let (packet, dest, payload) = read_datagram(datagram)?;
    let entry = qps.by_number(dest)?;
    let context = &mut entry.context;
    let is_from_peer = context.route.is_udp() && context.av.dgid == Gid::from(about.src.ip());
    if !is_from_peer || about.dst.ip().is_multicast() {
        return None;
    }
    let (id, now, length) = (context.id, core.now, payload.len() as u32);
    let env = &mut QpEnv::new(core, context);
    let is_taken = entry.qp.handle_short(env, now, packet, &InPayload::Bytes(payload), length);
    is_taken.then_some(id)
}

impl QpEnv<'_, '_> {
    /// Puts a packet to the peer into the next train.
    #[inline]
    pub(in super::super) fn send_datagram(
        &mut self,
        packet: Short,
        dest: Qpn,
        source: Source<'_>,
        length: u32,
    ) -> Result<(), TransmitError> {
        let pd = self.context.pd;
        let (words, size) = headers(packet, dest, length);
        let traffic_class = self.traffic_class_of_any(self.context.av.traffic_class);
        let av = Av { traffic_class, ..self.context.av };
        let Core { out, memory, nic, .. } = &mut *self.core;
        let (mrs, port) = (&memory.mrs, &nic.port);
        // The long way says what becomes of it.
        let sgid = port.gids.get(usize::from(av.sgid_index)).ok_or(TransmitError::Blocked)?;
        let headers = &words.as_bytes()[..size];
        out.udp
            .push_short(*sgid, &av, dest, headers, length, |room| fill(mrs, pd, source, room, None))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use iba::{Msn, Psn};
    use wire::icrc;

    use super::*;
    use crate::carrier::udp::queue::UdpQueue;

    const DEST: Qpn = Qpn::new(0x8012);
    const PAYLOAD: [u8; 8] = *b"payload!";

    fn packets() -> [(Short, u32); 5] {
        let psn = Psn::new(0xab_cdef);
        [
            (Short::Send { psn, se: false }, 8),
            (Short::Send { psn, se: true }, 3),
            (Short::Send { psn, se: false }, 0),
            (Short::Send { psn, se: false }, 5),
            (Short::Ack { psn, msn: Msn::new(0x12_3456) }, 0),
        ]
    }

    /// A train of the packet, put together by the way given.
    fn train(put: impl FnOnce(&mut UdpQueue, Gid, &Av)) -> Vec<u8> {
        let mut queue = UdpQueue::new(4, 4791, 4791);
        let av = Av { dgid: IpAddr::from([10, 0, 0, 2]).into(), ..Av::default() };
        put(&mut queue, IpAddr::from([10, 0, 0, 1]).into(), &av);
        queue.front().expect("a train").bytes().to_vec()
    }

    fn datagram(packet: Short, length: u32) -> Vec<u8> {
        let (words, size) = headers(packet, DEST, length);
        let fill = |room: &mut [u8]| {
            room.copy_from_slice(&PAYLOAD[..length as usize]);
            Ok(())
        };
        train(|queue, here, av| {
            let headers = &words.as_bytes()[..size];
            queue.push_short(here, av, DEST, headers, length, fill).expect("there is room");
        })
    }

    #[test]
    fn a_datagram_is_the_same_whichever_way_its_packet_goes() {
        for (packet, length) in packets() {
            let long = train(|queue, here, av| {
                let fill = |room: &mut [u8]| {
                    room.copy_from_slice(&PAYLOAD[..length as usize]);
                    Ok(())
                };
                let headers = packet.headers(DEST, length);
                queue.push(here, av, &headers, length, fill).expect("there is room");
            });
            assert_eq!(datagram(packet, length), long, "{packet:?}");
        }
    }

    #[test]
    fn a_datagram_with_anything_else_in_it_goes_the_long_way() {
        for (packet, length) in packets() {
            let sealed = datagram(packet, length);
            let bytes = &sealed[..sealed.len() - icrc::LEN];
            let payload = &PAYLOAD[..length as usize];
            assert_eq!(read_datagram(bytes), Some((packet, DEST, payload)));
            for short in 0..bytes.len() {
                let is_whole = read_datagram(&bytes[..short]).is_none_or(|(_, _, payload)| {
                    // Four bytes less are a shorter message, if they were all payload.
                    payload.len() + 4 * ((bytes.len() - short) / 4) == length as usize
                });
                assert!(is_whole, "{packet:?}, {short} bytes of it");
            }

            // What may differ: numbers, and whether the receiver is to raise an event.
            let may_differ = |at: usize| matches!(at, 5..=7 | 9..=11 | 13..=15);
            let (_, size) = headers(packet, DEST, length);
            for at in (0..size).filter(|at| !may_differ(*at)) {
                for bit in 0..8 {
                    let mut bytes = bytes.to_vec();
                    bytes[at] ^= 1 << bit;
                    let is_send = matches!(packet, Short::Send { .. });
                    // Another padding is another length.
                    let is_allowed = at == 1 && (bit == 7 || bit == 4 || bit == 5) && is_send;
                    let read = read_datagram(&bytes);
                    assert!(read.is_none() || is_allowed, "{packet:?}, byte {at}, bit {bit}");
                }
            }
        }
    }

    #[test]
    fn nothing_is_left_in_a_train_of_a_packet_whose_memory_is_gone() {
        let gone = TransmitError::Memory(transport::env::LocalError::Fault);
        let mut queue = UdpQueue::new(4, 4791, 4791);
        let av = Av { dgid: IpAddr::from([10, 0, 0, 2]).into(), ..Av::default() };
        let here = IpAddr::from([10, 0, 0, 1]).into();
        let (words, size) = headers(Short::Send { psn: Psn::new(1), se: false }, DEST, 8);
        let headers = &words.as_bytes()[..size];
        let refused = queue.push_short(here, &av, DEST, headers, 8, |_| Err(gone));
        assert_eq!(refused, Err(gone));
        assert!(queue.front().is_none());
    }
}
