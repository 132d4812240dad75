//! Both codecs compared with what the full path writes.

mod datagram;

use iba::{Msn, Psn};
use transport::Skipped;
use umem::HostBuf;

use super::*;
use crate::carrier::shm::record::{Record, prefix_of};

const SOURCE: Qpn = Qpn::new(0x4011);
const DEST: Qpn = Qpn::new(0x8012);

fn packets() -> [(FastPacket, u32); 4] {
    let psn = Psn::new(0xab_cdef);
    [
        (FastPacket::Send { psn, se: false, ackreq: true }, 8),
        (FastPacket::Send { psn, se: true, ackreq: true }, 3),
        (FastPacket::Send { psn, se: false, ackreq: false }, 0),
        (FastPacket::Ack { psn, msn: Msn::new(0x12_3456) }, 0),
    ]
}

#[test]
fn a_record_is_the_same_whichever_path_its_packet_takes() {
    for (packet, length) in packets() {
        let headers = packet.headers(DEST, length);
        let (skipped, grh) = (Skipped::default(), None);
        let record = Record { headers: &headers, length, skipped, grh, source: SOURCE };
        assert_eq!(Prefix::new(packet, SOURCE, DEST, length).bytes(), prefix_of(&record));
    }
}

#[test]
fn a_record_with_anything_else_in_it_takes_the_full_path() {
    let memory = HostBuf::anonymous(64).expect("a line");
    for (packet, length) in packets() {
        let prefix = Prefix::new(packet, SOURCE, DEST, length);
        let size = prefix.length + length as usize;
        let room = memory.foreign().slice(0, size).expect("it fits a line");
        room.slice(0, prefix.length).expect("the start").copy_from(prefix.bytes()).expect("there");
        let arrived = read(room).expect("it is one");
        assert_eq!((arrived.packet, arrived.source, arrived.dest), (packet, SOURCE, DEST));
        assert_eq!(arrived.payload.len(), length as usize);
        assert!(read(room.slice(0, size - 1).expect("inside")).is_none(), "it ends too soon");

        // The bytes that may differ: numbers. In a SEND two bits may: whether the receiver raises
        // an event, and whether it acknowledges at once.
        let may_differ = |at: usize| matches!(at, 4..=11 | 17..=19 | 21..=23 | 25..=27);
        for at in (0..prefix.length).filter(|at| !may_differ(*at)) {
            for bit in 0..8 {
                let mut bytes = prefix.bytes().to_vec();
                bytes[at] ^= 1 << bit;
                let is_send = matches!(packet, FastPacket::Send { .. });
                let is_allowed = (at == 13 || at == 20) && bit == 7 && is_send;
                room.slice(0, prefix.length).expect("the start").copy_from(&bytes).expect("there");
                assert_eq!(read(room).is_some(), is_allowed, "{packet:?}, byte {at}, bit {bit}");
            }
        }
    }
}
