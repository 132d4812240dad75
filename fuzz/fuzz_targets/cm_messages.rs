//! Management datagrams at a live communication manager: a connection is established, a listener
//! listens, a request is out. Each input is a list of datagrams: where it claims to come from,
//! which ids it names, and its bytes.
#![no_main]

use std::net::IpAddr;

use cm::{Cm, Event, ListenAddr, Local, PathParam, Patience, Peer, PortSpace, ReqParam};
use iba::{Gid, Guid, Mtu, PKey, Psn, QpType, Qpn, Time};
use libfuzzer_sys::fuzz_target;
use wire::cm::{CmaHeader, Mad};
use wire::mad::{HEADER_LEN, LEN, MadHeader};

const PIECE: usize = 64;

fn req(peer: Peer) -> ReqParam {
    let header = CmaHeader { port: 1, src: peer.local.to_ip(), dst: peer.remote.to_ip() };
    ReqParam {
        peer,
        service_id: PortSpace::Tcp.service_id(7174),
        qp_type: QpType::Rc,
        qpn: Qpn::new(5),
        starting_psn: Psn::new(6),
        path: PathParam {
            mtu: Mtu::Mtu1024,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            packet_life_time: 16,
        },
        patience: Patience { response_timeout: 20, max_retries: 15 },
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: false,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        ece: cm::Ece::default(),
        private_data: header.to_bytes().to_vec(),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let local = Local {
        ca_guid: Guid(1),
        ack_delay: 15,
        pkey: PKey::DEFAULT,
        prefix: 0,
        index_bits: 22,
        start: 1,
    };
    let gid = Gid::from(IpAddr::from([10, 0, 0, 1]));
    let peer = Peer { local: gid, remote: gid, via: None };
    let mut cm = Cm::new(local);
    let mut now = Time::from_micros(1);
    cm.listen(PortSpace::Tcp.service_id(7174), u64::MAX, ListenAddr::Any, 16).expect("free");
    cm.listen(PortSpace::Udp.service_id(7174), u64::MAX, ListenAddr::Any, 16).expect("free");
    // To itself, so that both ends of a connection are there.
    cm.connect(now, &req(peer)).expect("good parameters");
    for piece in bytes.chunks(PIECE) {
        while let Some(transmit) = cm.poll_transmit() {
            assert!(Mad::parse(&transmit.mad[..]).is_ok(), "what we send can be read");
            if piece[0] & 1 == 0 {
                let _ = cm.handle(now, peer, &transmit.mad[..]);
            }
        }
        while let Some(event) = cm.poll_event() {
            match event {
                Event::Req { conn, .. } => {
                    let _ = cm.accept(
                        now,
                        conn,
                        &cm::RepParam { qpn: Qpn::new(9), ..Default::default() },
                    );
                }
                Event::Rep { conn, .. } => drop(cm.ready(conn, &[])),
                Event::Dreq { conn } => drop(cm.confirm_disconnect(now, conn, &[])),
                Event::SidrReq { conn, .. } => cm.destroy(now, conn),
                _ => {}
            }
        }
        let mut mad = [0; LEN];
        mad[..HEADER_LEN]
            .copy_from_slice(&MadHeader::cm(0x10 + u16::from(piece[0] >> 4), 1).to_bytes());
        let body = &piece[1..];
        mad[HEADER_LEN..HEADER_LEN + body.len()].copy_from_slice(body);
        // Small ids, which exist.
        mad[HEADER_LEN..HEADER_LEN + 3].fill(0);
        mad[HEADER_LEN + 4..HEADER_LEN + 7].fill(0);
        let length = if piece[0] & 2 == 0 { LEN } else { piece.len() };
        let _ = cm.handle(now, peer, &mad[..length]);
        if piece[0] & 4 != 0 {
            now = now + std::time::Duration::from_secs(5);
            cm.handle_timeout(now);
        }
        assert!(cm.len() < 16 + 16 + 2 + bytes.len() / PIECE, "nothing grows without bound");
    }
});
