//! The engine's parts by themselves: records, tables, queues.

mod asleep;
mod forwarded;
mod late_acks;
mod lines;
mod moderated;
mod multicast;
mod overdue;
mod receives;
mod reused;
mod starved;
mod strangers;
mod trains;
mod turns;

use std::collections::HashSet;
use std::net::IpAddr;

use iba::{Access, Av, Psn, QpType, Qpn};
use transport::env::Skipped;
use umem::{HostBuf, Umem};
use wire::{Headers, Opcode};

use super::events::EventQueue;
use super::mr::{Mr, MrKind, MrTable};
use super::peers::{self, Incoming, Record};
use super::qp::{QpTable, vf_of};
use super::udp::UdpQueue;
use crate::ids::{MrId, PdId};
use crate::rig;

/// A generator that needs no crate: numbers that look random and repeat with the seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn headers() -> Headers {
    Headers::new(Opcode::RcSendOnly, Qpn::new(0x1234), Psn::new(77))
}

/// A record as it lies in a ring.
fn record(skipped: Skipped, grh: Option<[u8; 40]>, payload: &[u8]) -> (HostBuf, usize) {
    let headers = headers();
    let record = Record {
        headers: &headers,
        length: payload.len() as u32,
        skipped,
        grh: grh.as_ref(),
        source: Qpn::new(0xabcd),
    };
    let prefix = peers::prefix_of(&record);
    let buffer = HostBuf::anonymous(4096).unwrap();
    buffer.write(0, &prefix).unwrap();
    buffer.write(prefix.len(), payload).unwrap();
    (buffer, prefix.len() + payload.len())
}

#[test]
fn a_record_says_what_was_put_in() {
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
            peers::parse(foreign, &mut got)
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
fn an_eight_byte_message_and_its_record_fit_a_cache_line() {
    let (_buffer, length) = record(Skipped::default(), None, &[0; 8]);
    assert!(link::shm::record_size(length) <= 64, "{length} bytes");
}

#[test]
fn no_bytes_of_a_peer_make_parsing_panic() {
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
            peers::parse(foreign, &mut Headers::default())
        {
            assert_eq!(payload.len(), length as usize);
        }
    }
}

fn region(key: u32, pd: u32, access: Access) -> Mr {
    let umem = Umem::host(&HostBuf::anonymous(4096).unwrap());
    Mr {
        pd: PdId(pd),
        key,
        access,
        iova: 0x1000,
        length: 4096,
        umem,
        offset: 0,
        kind: MrKind::User,
        import: None,
        peer: None,
        odp: None,
        is_revoked: false,
        pinned: 0,
        is_writable: true,
    }
}

#[test]
fn a_key_is_not_given_out_again_at_once() {
    let mut table = MrTable::default();
    let mut seen = HashSet::new();
    for _ in 0..255 {
        let (id, key) = table.insert(|key| region(key, 0, Access::empty()));
        assert!(seen.insert(key) && key != 0, "{key:#x} again");
        table.remove(id);
    }
}

#[test]
fn a_region_is_used_only_within_its_range_domain_and_rights() {
    let mut table = MrTable::default();
    let (_, key) = table.insert(|key| region(key, 3, Access::LOCAL_WRITE | Access::REMOTE_READ));
    let remote = |pd, key, addr, length, access| {
        table.remote(PdId(pd), iba::RKey(key), addr, length, access).is_ok()
    };
    let read = Access::REMOTE_READ;
    assert!(remote(3, key, 0x1000, 4096, read) && remote(3, key, 0x1fff, 1, read));
    assert!(!remote(4, key, 0x1000, 8, read), "another protection domain");
    assert!(!remote(3, key ^ 1, 0x1000, 8, read), "another key");
    assert!(!remote(3, key, 0x1000, 8, Access::REMOTE_WRITE), "another right");
    assert!(!remote(3, key, 0xfff, 8, read) && !remote(3, key, 0x1ff9, 8, read), "out of range");
    assert!(
        !remote(3, key, u64::MAX - 3, 8, read) && !remote(3, key, 0x1000, u64::MAX, read),
        "wraps"
    );
    assert!(!remote(3, key | 0xff00_0000, 0x1000, 8, read), "an index that was never used");
}

/// Who made no region and no QP cannot tell the numbers of one: they begin anywhere.
#[test]
fn the_numbers_of_two_processes_do_not_begin_alike() {
    let first_key = || MrTable::default().insert(|key| region(key, 0, Access::empty())).1;
    let keys: HashSet<u32> = std::iter::repeat_with(first_key).take(64).collect();
    assert!(keys.len() > 8, "of 256: {keys:?}");

    let nic = rig::nic("numbers");
    let index_of_first = || rig::Process::new(&nic, QpType::Rc).qpn.value() & 0x3FFF;
    let indices: HashSet<u32> = std::iter::repeat_with(index_of_first).take(8).collect();
    assert!(indices.len() > 4, "of 16384: {indices:?}");
}

#[test]
fn rekeying_kills_the_old_key() {
    let mut table = MrTable::default();
    let (id, old): (MrId, u32) = table.insert(|key| region(key, 0, Access::REMOTE_READ));
    let new = table.rekey(id).unwrap();
    let lives = |key| table.remote(PdId(0), iba::RKey(key), 0x1000, 8, Access::REMOTE_READ).is_ok();
    assert!(lives(new) && !lives(old));
}

#[test]
fn qp_numbers_carry_the_vf_and_leave_out_the_special_ones() {
    for vf in [0, 1023] {
        let mut table = QpTable::new(vf, 0x3ff0);
        let mut count = 0;
        while let Some((_, qpn)) = table.reserve() {
            assert_eq!(vf_of(qpn), vf);
            assert!(qpn.value() > 1 && qpn != Qpn::MULTICAST);
            count += 1;
        }
        assert!(count >= 16_000, "{count} numbers");
    }
}

#[test]
fn an_event_is_a_count_on_the_descriptor_and_a_removed_one_is_not() {
    let mut queue = EventQueue::new().unwrap();
    for event in 0..5 {
        queue.push(event);
    }
    queue.remove(|event| event % 2 == 1);
    for expected in [0, 2, 4] {
        assert_eq!(rustix::io::read(&queue, &mut [0u8; 8]), Ok(8));
        assert_eq!(queue.pop(), Some(expected));
    }
    let mut poll = [rustix::event::PollFd::new(&queue, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut poll, Some(&now)), Ok(0));
}

#[test]
fn datagrams_are_batched_by_size_and_place() {
    let mut queue = UdpQueue::new(64, 4791, 4791);
    let (here, there) = (
        IpAddr::from([10, 0, 0, 1]),
        Av { dgid: IpAddr::from([10, 0, 0, 2]).into(), ..Av::default() },
    );
    let mut push = |length: u32, av: &Av| {
        queue.push(here.into(), av, &headers(), length, |room| {
            room.fill(0x5a);
            Ok(())
        })
    };
    // Three of one size, a shorter one that ends the batch, then another batch.
    for length in [1024, 1024, 1024, 100, 1024] {
        assert!(push(length, &there).is_ok());
    }
    let first = queue.front().unwrap();
    assert_eq!((first.count, first.segment), (4, 12 + 1024 + 4));
    assert_eq!(first.bytes().len(), 3 * 1040 + 12 + 100 + 4);
    queue.pop();
    assert_eq!(queue.front().unwrap().count, 1);
    queue.pop();
    assert!(queue.front().is_none());
}

#[test]
fn every_datagram_of_a_batch_has_the_icrc_of_its_place() {
    let mut queue = UdpQueue::new(64, 4791, 4791);
    let (src, dst) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let av = Av { dgid: dst.into(), ..Av::default() };
    for length in [8, 8, 5] {
        assert!(
            queue
                .push(src.into(), &av, &headers(), length, |room| {
                    room.fill(3);
                    Ok(())
                })
                .is_ok()
        );
    }
    let batch = queue.front().unwrap();
    let flow = wire::icrc::Flow::new((src, 4791).into(), (dst, 4791).into()).unwrap();
    for (index, datagram) in batch.bytes().chunks(batch.segment).enumerate() {
        let (packet, id) = wire::icrc::verify(&flow, datagram).unwrap();
        assert_eq!(usize::from(id), index);
        let (parsed, payload) = Headers::parse(packet).unwrap();
        assert_eq!(parsed.bth.dest_qp, headers().bth.dest_qp);
        assert_eq!(payload.len(), [8, 8, 5][index]);
    }
}

/// Pushes messages of eight bytes to one place.
fn push_eight(queue: &mut UdpQueue, count: usize) {
    let (src, dst) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let av = Av { dgid: dst.into(), ..Av::default() };
    for _ in 0..count {
        let pushed = queue.push(src.into(), &av, &headers(), 8, |room| {
            room.fill(3);
            Ok(())
        });
        assert!(pushed.is_ok());
    }
}

/// The IPv4 ids that the ICRCs of the first batch are for.
fn ids_of_front(queue: &UdpQueue) -> Vec<u16> {
    let (src, dst) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let flow = wire::icrc::Flow::new((src, 4791).into(), (dst, 4791).into()).unwrap();
    let batch = queue.front().unwrap();
    let datagrams = batch.bytes().chunks(batch.segment);
    datagrams.map(|datagram| wire::icrc::verify(&flow, datagram).unwrap().1).collect()
}

#[test]
fn what_was_left_by_a_full_socket_counts_from_zero_again() {
    let mut queue = UdpQueue::new(64, 4791, 4791);
    push_eight(&mut queue, 5);
    assert_eq!(ids_of_front(&queue), [0, 1, 2, 3, 4]);
    let two = 2 * queue.front().unwrap().segment;
    queue.sent(two);
    assert_eq!(ids_of_front(&queue), [0, 1, 2]);
    assert_eq!(queue.front().unwrap().count, 3);
}

/// The kernel refuses to split: what waits now goes one by one, and each has the id 0.
#[test]
fn batches_that_will_not_go_as_trains_are_sealed_anew() {
    let mut queue = UdpQueue::new(3, 4791, 4791);
    push_eight(&mut queue, 5);
    assert_eq!(ids_of_front(&queue), [0, 1, 2]);
    queue.set_max_segments(1);
    let one = queue.front().unwrap().segment;
    queue.sent(one);
    assert_eq!(ids_of_front(&queue), [0, 0]);
    queue.pop();
    assert_eq!(ids_of_front(&queue), [0, 0], "those that waited behind it, too");
    queue.pop();
    push_eight(&mut queue, 2);
    assert_eq!(ids_of_front(&queue), [0]);
}

/// The log names the reason; whether peers take the direct path at all is found out by each of
/// them.
#[test]
fn a_region_that_peers_cannot_reach_directly_has_a_reason() {
    let mut nic = rig::nic("regions");
    let mut engine = rig::engine(&nic);
    let objects = rig::Objects::new(&mut engine);
    let mr = engine.core.mrs.get(objects.mr.id).unwrap();
    assert_eq!(engine.only_by_ring(objects.mr.id, mr), None);
    let reason = engine.only_by_ring(MrId(1 << 16), mr).unwrap();
    assert!(reason.contains("full"), "{reason}");

    nic.config.direct = false;
    let mut engine = rig::engine(&nic);
    let objects = rig::Objects::new(&mut engine);
    let mr = engine.core.mrs.get(objects.mr.id).unwrap();
    let reason = engine.only_by_ring(objects.mr.id, mr).unwrap();
    assert!(reason.contains("configuration"), "{reason}");
}
