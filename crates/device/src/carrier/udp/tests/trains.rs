//! Runs of packets: cut from a message into a train, and joined to one payload where they arrive.

use std::net::IpAddr;

use iba::{Av, Psn};
use transport::env::{LocalError, TransmitError};
use umem::{HostBuf, Pieces, Umem};
use wire::icrc::{self, Flow};

use super::headers;
use crate::carrier::udp::queue::{Fill, UdpQueue};
use crate::payload::{Cut, InPayload};

#[test]
fn a_run_is_the_same_as_its_packets_one_by_one() {
    let av = Av { dgid: IpAddr::from([10, 0, 0, 2]).into(), ..Av::default() };
    let here = IpAddr::from([10, 0, 0, 1]);
    let message: Vec<u8> = (0..40 * 1024_u32).map(|at| (at * 7 + at / 256) as u8).collect();
    let part = |at: u32, room: &mut [u8], crc: Option<&mut u32>| {
        room.copy_from_slice(&message[at as usize..][..room.len()]);
        if let Some(crc) = crc {
            *crc = icrc::go_on(*crc, room);
        }
        Ok(())
    };
    let [mut run, mut single] = [(); 2].map(|()| UdpQueue::new(32, 4791, 4791));
    let most = run.push_run(here.into(), &av, &headers(), 1024, 40, part).unwrap();
    assert_eq!(most, 32, "a train is full");
    let mut each = headers();
    for index in 0..most {
        single.push(here.into(), &av, &each, 1024, |room| part(index * 1024, room, None)).unwrap();
        each.bth.psn = each.bth.psn.add(1);
    }
    let bytes = run.front().unwrap().bytes();
    assert_eq!(bytes, single.front().unwrap().bytes());
    // Their ICRCs are what a receiver computes that sees each packet by itself.
    let flow = Flow::new((here, 4791).into(), (av.dgid.to_ip(), 4791).into()).unwrap();
    for (id, datagram) in bytes.chunks(bytes.len() / most as usize).enumerate() {
        let packet = &datagram[..datagram.len() - icrc::LEN];
        assert_eq!(icrc::verify(&flow, datagram), Ok((packet, id as u16)));
    }

    // Memory that ends in the middle of a run: the packets before that are sent, and the next
    // attempt fails with the first one.
    let gone = TransmitError::Memory(LocalError::Fault);
    let ends = |at: u32, room: &mut [u8], crc: Option<&mut u32>| {
        if at < 3 * 1024 { part(at, room, crc) } else { Err(gone) }
    };
    assert_eq!(run.push_run(here.into(), &av, &headers(), 1024, 8, ends), Ok(3));
    let is_gone = |_: u32, _: &mut [u8], _: Option<&mut u32>| Err(gone);
    assert_eq!(run.push_run(here.into(), &av, &headers(), 1024, 8, is_gone), Err(gone));
    // A shorter packet ends a batch, so it is alone.
    assert_eq!(run.push_run(here.into(), &av, &headers(), 512, 2, part), Ok(1));
}

/// A message in memory, part of which is missing.
struct InMemory {
    umem: Umem,
    there: u64,
}

impl Fill for InMemory {
    fn one(
        &mut self,
        at: u32,
        room: &mut [u8],
        crc: Option<&mut u32>,
    ) -> Result<(), TransmitError> {
        if u64::from(at) + room.len() as u64 > self.there {
            return Err(TransmitError::Memory(LocalError::Fault));
        }
        let read = self.umem.read_crc32(at.into(), room, crc.as_deref().copied().unwrap_or(0));
        let sum = read.map_err(|_| TransmitError::Memory(LocalError::Fault))?;
        if let Some(crc) = crc {
            *crc = sum;
        }
        Ok(())
    }

    fn several(&mut self, at: u32, train: &mut [u8], pieces: Pieces, crcs: &mut [u32]) -> bool {
        u64::from(at) + (pieces.len * pieces.count) as u64 <= self.there
            && self.umem.read_pieces_crc32(at.into(), train, pieces, crcs)
    }
}

#[test]
fn packets_that_are_written_together_are_the_same() {
    let av = Av { dgid: IpAddr::from([10, 0, 0, 2]).into(), ..Av::default() };
    let here = IpAddr::from([10, 0, 0, 1]);
    let message: Vec<u8> = (0..40 * 1024_u32).map(|at| (at * 7 + at / 256) as u8).collect();
    let memory = HostBuf::anonymous(message.len()).unwrap();
    let umem = Umem::host(&memory);
    umem::guard::recheck();
    umem.write(0, &message).unwrap();
    // All of it is present, or it ends in the first pass, between the two passes, or in the second.
    for there in [40_u32, 9, 16, 17, 0] {
        for begun in [0_u32, 1, 5] {
            let [mut run, mut single] = [(); 2].map(|()| UdpQueue::new(64, 4791, 4791));
            let mut each = headers();
            each.bth.psn = Psn::new(0xff_fff0);
            let first = each;
            for index in 0..begun + there {
                let part = |room: &mut [u8]| {
                    let at = index.saturating_sub(begun) as usize * 1024;
                    room.copy_from_slice(&message[at..][..room.len()]);
                    Ok(())
                };
                single.push(here.into(), &av, &each, 1024, part).unwrap();
                if index < begun {
                    run.push(here.into(), &av, &each, 1024, part).unwrap();
                }
                each.bth.psn = each.bth.psn.add(1);
            }
            let mut rest = first;
            rest.bth.psn = first.bth.psn.add(begun);
            let fill = InMemory { umem: umem.clone(), there: u64::from(there) * 1024 };
            let pushed = run.push_run(here.into(), &av, &rest, 1024, 40, fill);
            let bytes = |queue: &UdpQueue| queue.front().map(|batch| batch.bytes().to_vec());
            assert_eq!(bytes(&run), bytes(&single), "{there} of 40 behind {begun}");
            match there {
                0 => assert_eq!(pushed, Err(TransmitError::Memory(LocalError::Fault))),
                _ => assert_eq!(pushed, Ok(there)),
            }
        }
    }
}

#[test]
fn packets_that_are_cut_from_a_message_are_one_payload() {
    let datagram =
        |start: u8| [[0xff; 12].as_slice(), &[start, start + 1, start + 2], &[0; 5]].concat();
    let train: Vec<u8> = [1, 4, 7].into_iter().flat_map(datagram).collect();
    let cut = Cut { bytes: &train, pieces: Pieces { first: 12, len: 3, stride: 20, count: 3 } };
    let payload = InPayload::Train(cut);
    assert_eq!(payload.len(), 9);
    assert_eq!(payload.to_vec(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let mut head = [0; 5];
    assert_eq!(payload.head(&mut head), 5);
    assert_eq!(head, [1, 2, 3, 4, 5]);
    let mut whole = [0; 9];
    assert!(payload.read(&mut whole) && !payload.read(&mut head));
    let umem = Umem::host(&HostBuf::anonymous(16).unwrap());
    payload.copy_to(0, 9, &umem, 3).unwrap();
    umem.read(3, &mut whole).unwrap();
    assert_eq!(whole, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    umem.fill(0, 0, 16).unwrap();
    payload.copy_to(2, 6, &umem, 1).unwrap();
    let mut bytes = [0; 8];
    umem.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0, 3, 4, 5, 6, 7, 8, 0]);
    assert!(payload.copy_to(2, 8, &umem, 0).is_err(), "there are only nine");
}
