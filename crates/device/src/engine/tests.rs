//! The engine's parts by themselves.

mod asleep;
mod at_hand;
mod delayed_acks;
mod forwarded;
mod full_ring;
#[cfg(target_arch = "x86_64")]
mod held;
mod moderated;
mod multicast;
mod overdue;
mod ports;
mod receives;
mod reused;
mod starved;
mod strangers;
mod trains;
mod turns;
mod tx_sockets;
mod unasked_acks;
mod view;
mod within;

use std::collections::HashSet;

use iba::{Access, QpType, Qpn};
use umem::{HostBuf, Umem};

use crate::ids::{DmId, MrId, PdId};
use crate::memory::mr::{Mr, MrKind, MrTable};
use crate::objects::bell::Bells;
use crate::objects::charges::Charge;
use crate::objects::events::EventQueue;
use crate::objects::uses::Uses;
use crate::qp::{QpTable, vf_of};
use crate::rig;

fn region(key: u32, pd: u32, access: Access) -> Mr {
    let umem = Umem::host(&HostBuf::anonymous(4096).unwrap());
    Mr {
        pd: PdId(pd),
        pd_use: Uses::default().take(),
        _dm_use: None,
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
        _charge: Charge::none(),
    }
}

#[test]
fn the_memory_of_a_region_has_a_name() {
    use super::publish::memory;
    let mut mr = region(1, 0, Access::empty());
    assert_eq!(memory(&mr), "ordinary memory");
    mr.odp = Some(Box::default());
    assert_eq!(memory(&mr), "memory that is paged on demand");
    mr.odp = None;
    mr.umem = Umem::host(&HostBuf::memfd("peerdma-test", 4096).unwrap());
    assert_eq!(memory(&mr), "a file that peers can map");
    for (kind, name) in [
        (MrKind::Dm(DmId(0)), "device memory of the NIC"),
        (MrKind::Dmabuf, "a dma-buf"),
        (MrKind::Peer, "memory of a peer device, by its address"),
    ] {
        mr.kind = kind;
        assert_eq!(memory(&mr), name);
    }
}

#[test]
fn a_key_is_not_reused_at_once() {
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

/// A program that created no region and no QP cannot predict their numbers: they begin anywhere.
#[test]
fn the_numbers_of_two_processes_begin_differently() {
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
fn an_event_counts_on_the_descriptor_until_it_is_removed() {
    let (mut queue, mut bells) = (EventQueue::new().unwrap(), Bells::default());
    for event in 0..5 {
        queue.push(event, &mut bells);
    }
    // One of them has not been told yet, another has.
    queue.remove(|event| *event == 1);
    bells.ring();
    queue.remove(|event| *event == 3);
    for expected in [0, 2, 4] {
        assert_eq!(rustix::io::read(&queue, &mut [0u8; 8]), Ok(8));
        assert_eq!(queue.pop(), Some(expected));
    }
    let mut poll = [rustix::event::PollFd::new(&queue, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut poll, Some(&now)), Ok(0));
}

/// The log names the reason; whether peers take the direct path at all is determined by each of
/// them.
#[test]
fn a_region_that_peers_cannot_reach_directly_has_a_reason() {
    let mut nic = rig::nic("regions");
    let mut engine = rig::engine(&nic);
    let objects = rig::Objects::new(&mut engine);
    let mr = engine.common.memory.mrs.get(objects.mr.id).unwrap();
    assert_eq!(engine.only_by_ring(objects.mr.id, mr), None);
    let reason = engine.only_by_ring(MrId(1 << 16), mr).unwrap();
    assert!(reason.contains("full"), "{reason}");

    nic.config.direct = false;
    let mut engine = rig::engine(&nic);
    let objects = rig::Objects::new(&mut engine);
    let mr = engine.common.memory.mrs.get(objects.mr.id).unwrap();
    let reason = engine.only_by_ring(objects.mr.id, mr).unwrap();
    assert!(reason.contains("configuration"), "{reason}");
}
