//! What strangers send.

use cm::{Event, Ignored, ListenAddr, Peer, PortSpace, RejReason, State};
use iba::{Gid, Guid};
use proptest::prelude::*;
use wire::cm::{Drep, Dreq, Mad, Mra, Rej, Rep, Req, Rtu};

use crate::rig::{PORT, Rig, peer, rep, req};

fn stranger() -> Peer {
    Peer { remote: Gid::from(std::net::IpAddr::from([10, 0, 0, 66])), ..peer(1) }
}

fn mad(message: impl Into<wire::cm::Message>) -> [u8; 256] {
    Mad::new(1, message).to_bytes()
}

#[test]
fn a_stranger_cannot_speak_for_a_peer() {
    let mut rig = Rig::new().with_listener();
    let (active, passive) = rig.connected();
    let (local_comm_id, remote_comm_id) = (active, passive);
    let messages = [
        mad(Rep { local_comm_id, remote_comm_id, ..Rep::default() }),
        mad(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }),
        mad(Rej { local_comm_id, remote_comm_id, reason: 28, ..Rej::default() }),
        mad(Mra { local_comm_id, remote_comm_id, ..Mra::default() }),
        mad(Dreq { local_comm_id, remote_comm_id, ..Dreq::default() }),
        mad(Drep { local_comm_id, remote_comm_id, ..Drep::default() }),
    ];
    for message in messages {
        let ignored = rig.sides[1].handle(rig.now, stranger(), &message);
        assert!(matches!(ignored, Err(Ignored::WrongSource(_))), "{ignored:?}");
    }
    assert_eq!(rig.sides[1].state(passive), Some(State::Established));
    assert!(rig.take(1).is_empty());
    assert_eq!(rig.said(), "");
}

#[test]
fn another_process_of_the_peers_host_is_a_stranger_too() {
    let mut rig = Rig::new().with_listener();
    let (active, passive) = rig.connected();
    rig.sides[1].set_via(passive, 3);
    let dreq = mad(Dreq {
        local_comm_id: active,
        remote_comm_id: passive,
        remote_qpn: rep().qpn,
        ..Dreq::default()
    });
    let other = Peer { via: Some(4), ..peer(1) };
    let ignored = rig.sides[1].handle(rig.now, other, &dreq);
    assert_eq!(ignored, Err(Ignored::WrongSource("DREQ")));
    let own = Peer { via: Some(3), ..peer(1) };
    assert_eq!(rig.sides[1].handle(rig.now, own, &dreq), Ok(()));
}

/// A REQ that claims to be from the active side's host: with the channel adapter and the QP of its
/// connection.
fn forged(from: Peer, local_comm_id: u32) -> [u8; 256] {
    let request = req();
    let mut forged = Req {
        local_comm_id,
        service_id: request.service_id,
        local_ca_guid: crate::rig::local(0).ca_guid,
        local_qpn: request.qpn,
        path_mtu: 3,
        primary_local_gid: from.remote,
        primary_remote_gid: from.local,
        ..Req::default()
    };
    let take = request.private_data.len().min(forged.private_data.len());
    forged.private_data[..take].copy_from_slice(&request.private_data[..take]);
    mad(forged)
}

#[test]
fn a_request_that_names_anothers_qp_or_id_does_not_affect_its_connection() {
    let elsewhere = Peer { via: Some(4), ..peer(1) };
    for (other, names_id) in
        [(stranger(), false), (stranger(), true), (elsewhere, false), (elsewhere, true)]
    {
        let mut rig = Rig::new().with_listener();
        let (active, passive) = rig.connected();
        let id = if names_id { active } else { 0x7777 };
        assert_eq!(rig.sides[1].handle(rig.now, other, &forged(other, id)), Ok(()));
        rig.settle();
        // It is an ordinary request.
        let Event::Req { from, .. } = rig.one(1) else { panic!("a REQ") };
        assert_eq!((from, rig.said().as_str()), (other, ""));
        assert_eq!(rig.sides[1].state(passive), Some(State::Established));
        // The peer's own request with that QP still shows that it has forgotten the connection.
        assert_eq!(rig.sides[1].handle(rig.now, peer(1), &forged(peer(1), 0x8888)), Ok(()));
        assert_eq!(rig.sides[1].state(passive), Some(State::DreqSent));
    }
}

#[test]
fn a_dreq_must_name_the_qp() {
    let mut rig = Rig::new().with_listener();
    let (active, passive) = rig.connected();
    let dreq = mad(Dreq { local_comm_id: active, remote_comm_id: passive, ..Dreq::default() });
    assert_eq!(rig.sides[1].handle(rig.now, peer(1), &dreq), Err(Ignored::WrongQp));
}

#[test]
fn invalid_requests_are_refused_with_the_code_for_the_reason() {
    let good = Req {
        local_comm_id: 9,
        service_id: PortSpace::Tcp.service_id(PORT),
        path_mtu: 3,
        primary_remote_gid: peer(1).local,
        ..Req::default()
    };
    let mut bad_header = good;
    bad_header.private_data[0] = 1;
    let mut v4 = good;
    v4.private_data[1] = 0x40;
    for (req, reason) in [
        (bad_header, RejReason::CONSUMER_DEFINED),
        (Req { service_id: 1, ..v4 }, RejReason::INVALID_SERVICE_ID),
        (Req { transport_service_type: 2, ..v4 }, RejReason::INVALID_TRANSPORT_TYPE),
        (Req { path_mtu: 9, ..v4 }, RejReason::INVALID_MTU),
        (Req { primary_remote_gid: Gid::ZERO, ..v4 }, RejReason::INVALID_GID),
    ] {
        let mut rig = Rig::new().with_listener();
        rig.sides[1].handle(rig.now, peer(1), &mad(req)).expect("it is answered");
        let answer = rig.sides[1].poll_transmit().expect("a REJ");
        let wire::cm::Message::Rej(rej) = Mad::parse(&answer.mad[..]).expect("ours").message else {
            panic!("a REJ")
        };
        assert_eq!((RejReason(rej.reason), rej.remote_comm_id), (reason, 9));
        assert!(rig.sides[1].is_empty());
    }
}

#[test]
fn a_flood_of_requests_is_bounded() {
    let mut rig = Rig::new();
    for port in 0..64 {
        let service = PortSpace::Tcp.service_id(port);
        rig.sides[1].listen(service, u64::MAX, ListenAddr::Any, 1024).expect("free");
    }
    let mut dropped = 0;
    for id in 1..20_000_u32 {
        let mut req = Req {
            local_comm_id: id,
            local_ca_guid: Guid(u64::from(id)),
            service_id: PortSpace::Tcp.service_id((id % 64) as u16),
            path_mtu: 3,
            primary_remote_gid: peer(1).local,
            ..Req::default()
        };
        req.private_data[1] = 0x40;
        let handled = rig.sides[1].handle(rig.now, peer(1), &mad(req));
        dropped += usize::from(handled == Err(Ignored::Backlog("REQ")));
    }
    assert_eq!(rig.sides[1].len(), 4096);
    assert_eq!(dropped, 19_999 - 4096);
    let events = rig.take(1);
    for event in &events {
        let Event::Req { conn, .. } = event else { panic!("REQs") };
        rig.sides[1].destroy(rig.now, *conn);
    }
    assert!(rig.sides[1].is_empty());
}

proptest! {
    /// Arbitrary bytes among messages of a connection: nothing panics, and the tables stay small.
    #[test]
    fn any_bytes_are_handled(
        bodies in proptest::collection::vec((0x10_u16..=0x1b, any::<[u8; 16]>(), 0_u8..4), 0..40)
    ) {
        let mut rig = Rig::new().with_listener();
        let (active, passive) = rig.connected();
        rig.sides[0].connect(rig.now, &req()).expect("good parameters");
        for (attr, noise, ids) in bodies {
            let mut bytes = [0; 256];
            bytes[..24].copy_from_slice(&wire::mad::MadHeader::cm(attr, 7).to_bytes());
            for (at, byte) in bytes[24..].iter_mut().enumerate() {
                *byte = noise[at % 16];
            }
            // Existing ids, in the right order or swapped.
            let (first, second) = if ids & 1 == 0 { (active, passive) } else { (passive, active) };
            bytes[24..28].copy_from_slice(&first.to_be_bytes());
            bytes[28..32].copy_from_slice(&second.to_be_bytes());
            for side in 0..2 {
                let _ = rig.sides[side].handle(rig.now, peer(side), &bytes);
                while rig.sides[side].poll_transmit().is_some() {}
                while rig.sides[side].poll_event().is_some() {}
            }
        }
        prop_assert!(rig.sides.iter().all(|cm| cm.len() < 50));
    }
}
