//! Records in a ring.

mod ends;

use iba::{Psn, Qpn};
use transport::env::Skipped;
use umem::HostBuf;
use wire::{Headers, Opcode};

use crate::rig::Numbers;

use super::record::{Incoming, Record, parse, prefix_of};

fn headers() -> Headers {
    Headers::new(Opcode::RcSendOnly, Qpn::new(0x1234), Psn::new(77))
}

/// A record as it is stored in a ring.
fn record(skipped: Skipped, grh: Option<[u8; 40]>, payload: &[u8]) -> (HostBuf, usize) {
    let headers = headers();
    let record = Record {
        headers: &headers,
        length: payload.len() as u32,
        skipped,
        grh: grh.as_ref(),
        source: Qpn::new(0xabcd),
    };
    let prefix = prefix_of(&record);
    let buffer = HostBuf::anonymous(4096).unwrap();
    buffer.write(0, &prefix).unwrap();
    buffer.write(prefix.len(), payload).unwrap();
    (buffer, prefix.len() + payload.len())
}

#[test]
fn a_record_survives_a_round_trip() {
    let skipped = Skipped { psns: 5, messages: 2 };
    for (skipped, grh) in [
        (Skipped::default(), None),
        (skipped, None),
        (Skipped::default(), Some([7; 40])),
        (skipped, Some([9; 40])),
    ] {
        let (buffer, length) = record(skipped, grh, b"payload");
        let foreign = buffer.foreign().slice(0, length).unwrap();
        let mut got = Headers::default();
        let Ok(Incoming::Packet { payload, length, skipped: s, grh: g, source }) =
            parse(foreign, &mut got)
        else {
            panic!("a packet was put in");
        };
        assert_eq!((got, length, s, g, source), (headers(), 7, skipped, grh, Qpn::new(0xabcd)));
        let mut bytes = [0; 7];
        payload.copy_to(&mut bytes).unwrap();
        assert_eq!(&bytes, b"payload");
    }
}

#[test]
fn a_record_with_an_eight_byte_message_fits_in_a_cache_line() {
    let (_buffer, length) = record(Skipped::default(), None, &[0; 8]);
    assert!(link::shm::record_size(length) <= 64, "{length} bytes");
}

#[test]
fn parsing_never_panics_whatever_a_peer_wrote() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let (buffer, length) = record(Skipped { psns: 1, messages: 1 }, Some([1; 40]), b"some payload");
    let mut good = vec![0; length];
    buffer.read(0, &mut good).unwrap();
    for round in 0..200_000 {
        let mut bytes = good.clone();
        for _ in 0..=numbers.next() % 4 {
            let at = numbers.next() as usize % bytes.len();
            bytes[at] = numbers.next() as u8;
        }
        bytes.truncate(numbers.next() as usize % (good.len() + 1));
        if round % 8 == 0 {
            bytes.iter_mut().for_each(|byte| *byte = numbers.next() as u8);
        }
        buffer.write(0, &bytes).unwrap();
        let foreign = buffer.foreign().slice(0, bytes.len()).unwrap();
        if let Ok(Incoming::Packet { payload, length, .. }) =
            parse(foreign, &mut Headers::default())
        {
            assert_eq!(payload.len(), length as usize);
        }
    }
}
