//! Runs of packets: cut from a message into a train, and one payload where they arrive.

use std::net::IpAddr;

use iba::Av;
use transport::env::{LocalError, TransmitError};
use umem::{HostBuf, Umem};
use wire::icrc::{self, Flow};

use super::super::payload::{Cut, InPayload};
use super::super::udp::UdpQueue;
use super::headers;

#[test]
fn a_run_is_what_its_packets_would_be_one_by_one() {
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
    // Their ICRCs are what a receiver computes, who sees each packet by itself.
    let flow = Flow::new((here, 4791).into(), (av.dgid.to_ip(), 4791).into()).unwrap();
    for (id, datagram) in bytes.chunks(bytes.len() / most as usize).enumerate() {
        let packet = &datagram[..datagram.len() - icrc::LEN];
        assert_eq!(icrc::verify(&flow, datagram), Ok((packet, id as u16)));
    }

    // Memory that ends in the middle of a run: what went before goes, and the next attempt finds it first.
    let gone = TransmitError::Memory(LocalError::Fault);
    let ends = |at: u32, room: &mut [u8], crc: Option<&mut u32>| {
        if at < 3 * 1024 { part(at, room, crc) } else { Err(gone) }
    };
    assert_eq!(run.push_run(here.into(), &av, &headers(), 1024, 8, ends), Ok(3));
    assert_eq!(run.push_run(here.into(), &av, &headers(), 1024, 8, |_, _, _| Err(gone)), Err(gone));
    // A shorter packet ends a batch, so it is alone.
    assert_eq!(run.push_run(here.into(), &av, &headers(), 512, 2, part), Ok(1));
}

#[test]
fn packets_that_are_cut_from_a_message_are_one_payload() {
    let datagram =
        |start: u8| [[0xff; 12].as_slice(), &[start, start + 1, start + 2], &[0; 5]].concat();
    let train: Vec<u8> = [1, 4, 7].into_iter().flat_map(datagram).collect();
    let cut = Cut { bytes: &train, stride: 20, range: 12..15, packets: 3 };
    let payload = InPayload::Train(cut);
    assert_eq!(payload.len(), 9);
    assert_eq!(payload.to_vec(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let mut head = [0; 5];
    assert_eq!(payload.head(&mut head), 5);
    assert_eq!(head, [1, 2, 3, 4, 5]);
    let mut whole = [0; 9];
    assert!(payload.read(&mut whole) && !payload.read(&mut head));
    let umem = Umem::host(&HostBuf::anonymous(16).unwrap());
    payload.copy_to(2, 6, &umem, 1).unwrap();
    let mut bytes = [0; 8];
    umem.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0, 3, 4, 5, 6, 7, 8, 0]);
    assert!(payload.copy_to(2, 8, &umem, 0).is_err(), "there are only nine");
}
