//! Messages of communication management: known bytes, round trips, and arbitrary bytes.

use std::net::IpAddr;

use iba::{Gid, Guid, PKey, Psn, QKey, Qpn};
use proptest::prelude::*;
use wire::cm::{CmaError, CmaHeader, Mad, MadError, Message, Rej, Rep, Req, SidrRep};
use wire::mad::{self, MadHeader};

#[test]
fn the_fields_of_a_request_are_where_the_standard_says() {
    let mut req = Req {
        local_comm_id: 0x0102_0304,
        vendor_id: 0x0c42a1,
        service_id: 0x0106_1c06,
        local_ca_guid: Guid(0x1122_3344_5566_7788),
        local_qpn: Qpn::new(0xabcdef),
        responder_resources: 0x16,
        initiator_depth: 0x17,
        remote_cm_response_timeout: 20,
        transport_service_type: 1,
        flow_control: true,
        starting_psn: Psn::new(0x123456),
        local_cm_response_timeout: 21,
        retry_count: 7,
        pkey: PKey(0xffff),
        path_mtu: 3,
        rnr_retry_count: 5,
        max_cm_retries: 15,
        srq: true,
        primary_local_lid: 0xffff,
        primary_local_gid: Gid::from(IpAddr::from([10, 0, 0, 1])),
        primary_flow_label: 0xabcde,
        primary_traffic_class: 0x68,
        primary_hop_limit: 64,
        primary_subnet_local: true,
        primary_local_ack_timeout: 17,
        ..Req::default()
    };
    req.private_data[91] = 0x5a;
    let bytes = Mad { tid: 0x0a0b, attr_mod: 0x1122_3344, message: req.into() }.to_bytes();
    assert_eq!(bytes[..4], [1, 7, 2, 3], "version, class, version, method");
    assert_eq!(bytes[8..18], [0, 0, 0, 0, 0, 0, 0x0a, 0x0b, 0, 0x10], "transaction, attribute");
    assert_eq!(bytes[20..24], [0x11, 0x22, 0x33, 0x44], "the vendor's options");
    let body = &bytes[24..];
    assert_eq!(body[..8], [1, 2, 3, 4, 0, 0x0c, 0x42, 0xa1], "name, vendor");
    assert_eq!(body[8..16], [0, 0, 0, 0, 1, 6, 0x1c, 6]);
    assert_eq!(body[32..36], [0xab, 0xcd, 0xef, 0x16], "QPN, responder resources");
    assert_eq!(body[39], 0x17);
    assert_eq!(body[43], 20 << 3 | 1 << 1 | 1, "timeout, service, flow control");
    assert_eq!(body[44..48], [0x12, 0x34, 0x56, 21 << 3 | 7], "PSN, timeout, retries");
    assert_eq!(body[48..52], [0xff, 0xff, 3 << 4 | 5, 15 << 4 | 8], "P_Key, MTU, RNR, SRQ");
    assert_eq!(body[66..72], [0xff, 0xff, 10, 0, 0, 1], "GID");
    assert_eq!(body[88..96], [0xab, 0xcd, 0xe0, 0, 0x68, 64, 1 << 3, 17 << 3]);
    assert_eq!(body[231], 0x5a, "private data ends the datagram");
}

#[test]
fn the_fields_of_a_reply_are_where_the_standard_says() {
    let mut rep = Rep {
        local_comm_id: 1,
        remote_comm_id: 2,
        local_qkey: QKey(3),
        local_qpn: Qpn::new(4),
        starting_psn: Psn::new(5),
        responder_resources: 6,
        initiator_depth: 7,
        target_ack_delay: 15,
        failover_accepted: 1,
        flow_control: true,
        rnr_retry_count: 7,
        srq: true,
        ..Rep::default()
    };
    rep.set_vendor_id(0xff0c_42a1);
    assert_eq!(rep.vendor_id(), 0x0c42a1, "24 bits");
    let body = rep.to_bytes();
    assert_eq!(body[..16], [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 4, 0x0c]);
    assert_eq!(body[19], 0x42);
    assert_eq!(body[20..28], [0, 0, 5, 0xa1, 6, 7, 15 << 3 | 1 << 1 | 1, 7 << 5 | 1 << 4]);
}

#[test]
fn the_fields_of_refusals_are_where_the_standard_says() {
    let rej = Rej { message: 1, info_length: 72, reason: 28, ..Rej::default() }.to_bytes();
    assert_eq!(rej[8..12], [1 << 6, 72 << 1, 0, 28]);
    let rep = SidrRep { status: 1, service_id: 8, qpn: Qpn::new(9), ..SidrRep::default() };
    let body = rep.to_bytes();
    assert_eq!(body[4..12], [1, 0, 0, 0, 0, 0, 9, 0]);
    assert_eq!(body[19], 8);
}

#[test]
fn the_addresses_of_a_request_are_read_and_written() {
    let v4 = CmaHeader { port: 0x1234, src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
    let raw = v4.to_bytes();
    assert_eq!(raw[..4], [0, 0x40, 0x12, 0x34]);
    assert_eq!((&raw[4..16], &raw[16..20]), (&[0; 12][..], &[10, 0, 0, 1][..]));
    assert_eq!(raw[32..], [10, 0, 0, 2]);
    assert_eq!(CmaHeader::parse(&raw), Ok(v4));
    let mut other = raw;
    other[1] = 0x50;
    assert_eq!(CmaHeader::parse(&other), Err(CmaError::IpVersion(5)));
    other[0] = 1;
    assert_eq!(CmaHeader::parse(&other), Err(CmaError::Version(1)));
}

#[test]
fn bytes_that_are_no_message_are_refused_with_the_reason() {
    let good = Mad::new(0, Req::default()).to_bytes();
    assert_eq!(Mad::parse(&good[..255]), Err(MadError::Length(255)));
    assert_eq!(Mad::parse(&[&good[..], &[0]].concat()), Err(MadError::Length(257)));
    let with = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        Mad::parse(&bytes).unwrap_err()
    };
    assert_eq!(with(0, 2), MadError::BaseVersion(2));
    assert_eq!(with(1, 3), MadError::Class(3));
    assert_eq!(with(2, 1), MadError::ClassVersion(1));
    assert_eq!(with(3, 0x81), MadError::Method(0x81));
    assert_eq!(with(17, 1), MadError::Attribute(1));
}

fn cma() -> impl Strategy<Value = CmaHeader> {
    let v4 = (any::<u16>(), any::<[u8; 4]>(), any::<[u8; 4]>())
        .prop_map(|(port, src, dst)| CmaHeader { port, src: src.into(), dst: dst.into() });
    let v6 = (any::<u16>(), any::<[u8; 16]>(), any::<[u8; 16]>())
        .prop_map(|(port, src, dst)| CmaHeader { port, src: src.into(), dst: dst.into() });
    prop_oneof![v4, v6]
}

proptest! {
    /// Anything that a stranger sends as the body of any message can be read, and is written as it
    /// was read, except reserved bits: reading that again gives the same message.
    #[test]
    fn messages_survive_a_round_trip(tid: u64, attr in 0x10_u16..=0x1a, body: [u8; 32], seed: u8) {
        let mut bytes = [0; mad::LEN];
        bytes[..mad::HEADER_LEN].copy_from_slice(&MadHeader::cm(attr, tid).to_bytes());
        for (index, byte) in bytes[mad::HEADER_LEN..].iter_mut().enumerate() {
            *byte = body[index % 32].wrapping_mul(seed).wrapping_add(index as u8);
        }
        let mad = Mad::parse(&bytes).expect("every attribute from REQ to APR is a message");
        prop_assert_eq!(mad.tid, tid);
        prop_assert_eq!(mad.message.attr_id(), attr);
        prop_assert_eq!(Mad::parse(&mad.to_bytes()), Ok(mad));
    }

    #[test]
    fn anything_parses_or_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Mad::parse(&bytes);
    }

    #[test]
    fn headers_survive_a_round_trip(raw: [u8; 24]) {
        let header = MadHeader::parse(&raw);
        prop_assert_eq!(MadHeader::parse(&header.to_bytes()), header);
    }

    #[test]
    fn addresses_survive_a_round_trip(header in cma()) {
        prop_assert_eq!(CmaHeader::parse(&header.to_bytes()), Ok(header));
    }

    #[test]
    fn any_addresses_parse_or_are_refused(raw: [u8; 36]) {
        if let Ok(header) = CmaHeader::parse(&raw) {
            prop_assert_eq!(CmaHeader::parse(&header.to_bytes()), Ok(header));
        }
    }
}

#[test]
fn messages_have_the_names_of_the_standard() {
    let name = |message: Message| message.name();
    assert_eq!(name(Req::default().into()), "REQ");
    assert_eq!(name(SidrRep::default().into()), "SIDR_REP");
}
