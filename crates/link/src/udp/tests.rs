use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Type};

use super::*;
use crate::netdev::netns::{
    Netns, has_ipv6, has_ipv6_loopback, join_by_veth, not_run, with_namespaces,
};

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// A received datagram, copied.
#[derive(Debug)]
struct Got {
    src: SocketAddr,
    dst: IpAddr,
    traffic_class: u8,
    hop_limit: u8,
    bytes: Vec<u8>,
}

fn link() -> UdpLink {
    UdpLink::bind(0, Options::default()).expect("a free port")
}

fn transmit(dst: IpAddr, contents: &[u8]) -> Transmit<'_> {
    let src = if dst.is_ipv4() { ANY } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    Transmit { dst, src, traffic_class: 0, hop_limit: 0, contents, segment_size: None }
}

/// Receives until `count` datagrams came.
fn receive(link: &mut UdpLink, count: usize) -> VecDeque<Got> {
    let mut all = VecDeque::new();
    while all.len() < count {
        link.recv(&mut |got| {
            let Datagram { src, dst, traffic_class, hop_limit, bytes, .. } = got;
            all.push_back(Got { src, dst, traffic_class, hop_limit, bytes: bytes.to_vec() });
        })
        .expect("sockets work");
    }
    assert_eq!(all.len(), count);
    all
}

fn receive_one(link: &mut UdpLink) -> Got {
    receive(link, 1).pop_front().expect("one came")
}

/// Bytes in which every segment differs.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 251 + at % 251) as u8).collect()
}

#[test]
fn a_datagram_arrives_with_its_addresses_class_and_hop_limit() {
    let mut link = link();
    link.send(Transmit { traffic_class: 0x6a, hop_limit: 7, ..transmit(LOCALHOST, b"packet") })
        .expect("lo is up");
    let got = receive_one(&mut link);
    assert_eq!(got.src, SocketAddr::new(LOCALHOST, link.port()));
    assert_eq!((got.dst, got.traffic_class, got.hop_limit), (LOCALHOST, 0x6a, 7));
    assert_eq!(got.bytes, b"packet");
    assert_eq!(link.recv(&mut |_| ()).expect("sockets work"), 0, "nothing waits");
}

#[test]
fn an_ipv6_datagram_arrives_with_its_addresses_class_and_hop_limit() {
    let mut link = link();
    if !has_ipv6_loopback() {
        return not_run("ipv6", "this host has no ::1");
    }
    let localhost = IpAddr::V6(Ipv6Addr::LOCALHOST);
    link.send(Transmit { traffic_class: 3, hop_limit: 9, ..transmit(localhost, b"packet") })
        .expect("lo is up");
    let got = receive_one(&mut link);
    assert_eq!(got.src, SocketAddr::new(localhost, link.port()));
    assert_eq!((got.dst, got.traffic_class, got.hop_limit), (localhost, 3, 9));
}

#[test]
fn a_train_with_a_short_tail_arrives_in_its_pieces() {
    let contents = pattern(10 * 1024 + 100);
    let pieces: Vec<_> = contents.chunks(1024).collect();
    for (gso, gro) in [(true, true), (true, false), (false, true), (false, false)] {
        let options = Options { gso, gro, ..Options::default() };
        let mut link = UdpLink::bind(0, options).expect("a free port");
        link.send(Transmit { segment_size: Some(1024), ..transmit(LOCALHOST, &contents) })
            .expect("lo is up");
        let all = receive(&mut link, pieces.len());
        assert!(all.iter().map(|got| &got.bytes).eq(&pieces), "gso {gso}, gro {gro}");
    }
}

#[test]
fn a_long_train_is_sent_as_several() {
    let mut link = link();
    // 64 segments of 1 KiB are more than a datagram of IPv4 holds, and 200 of 100 bytes are more
    // than 64.
    for (segment, count) in [(1024, 64), (100, 200), (4096, 40)] {
        let contents = pattern(segment * count);
        link.send(Transmit { segment_size: Some(segment), ..transmit(LOCALHOST, &contents) })
            .expect("buffers are large enough");
        let all = receive(&mut link, count);
        assert!(all.iter().map(|got| &got.bytes[..]).eq(contents.chunks(segment)));
    }
}

#[test]
fn a_segment_size_larger_than_the_contents_means_one_datagram() {
    let mut link = link();
    for size in [5, 6, 100_000] {
        link.send(Transmit { segment_size: Some(size), ..transmit(LOCALHOST, b"12345") })
            .expect("lo is up");
        assert_eq!(receive_one(&mut link).bytes, b"12345");
    }
}

/// A caller that polls often asks for one train, and for many only after that one came: none is
/// lost or overtaken.
#[test]
fn a_caller_that_looks_often_gets_everything_in_its_order() {
    let mut link = link();
    for round in 0..3 {
        let numbers = 0..(2 * BATCH as u8 + 3);
        for number in numbers.clone() {
            link.send(transmit(LOCALHOST, &[round, number])).expect("lo is up");
        }
        let mut got = Vec::new();
        while got.len() < numbers.len() {
            let mut each = |train: Train<'_>| got.extend(train.payloads().map(<[u8]>::to_vec));
            link.recv_likely_trains(&mut each).expect("sockets work");
        }
        assert!(got.iter().map(Vec::as_slice).eq(numbers.map(|number| [round, number])));
        assert_eq!(link.recv_likely_trains(&mut |_| ()).expect("sockets work"), 0);
    }
}

#[test]
fn an_empty_datagram_is_one() {
    let mut link = link();
    link.send(transmit(LOCALHOST, b"")).expect("lo is up");
    assert_eq!(receive_one(&mut link).bytes, b"");
}

#[test]
fn the_source_is_the_requested_address() {
    let mut link = link();
    let src = IpAddr::from([127, 0, 0, 5]);
    link.send(Transmit { src, ..transmit(LOCALHOST, b"x") }).expect("all of 127/8 is ours");
    assert_eq!(receive_one(&mut link).src.ip(), src);

    for src in ["198.51.100.1", "::1"] {
        let src = src.parse().expect("a literal address");
        let error = link.send(Transmit { src, ..transmit(LOCALHOST, b"x") });
        assert!(matches!(error, Err(SendError::Source { .. })), "{error:?}");
    }
}

#[test]
fn a_datagram_too_long_for_its_buffer_is_counted_and_dropped() {
    let mut link = link();
    link.buffer.truncate(BATCH * 100);
    link.send(transmit(LOCALHOST, &[1; 101])).expect("lo is up");
    link.send(transmit(LOCALHOST, &[2; 100])).expect("lo is up");
    assert_eq!(receive_one(&mut link).bytes, [2; 100]);
    assert_eq!(link.truncated(), 1);
}

#[test]
fn a_datagram_that_does_not_fit_is_too_big() {
    let link = link();
    let error = link.send(transmit(LOCALHOST, &vec![0; 70_000]));
    assert!(matches!(error, Err(SendError::TooBig { length: 70_000, .. })), "{error:?}");
}

/// Each datagram that is sent alone has the IPv4 id 0, and its ICRC must match: the sender must
/// compute it again.
#[test]
fn a_train_that_the_kernel_does_not_split_comes_back_except_its_first_datagram() {
    let mut link = link();
    link.refuses_trains = true;
    let contents = pattern(5 * 1000);
    let train = |contents| Transmit { segment_size: Some(1000), ..transmit(LOCALHOST, contents) };
    assert!(link.max_gso_segments(1000) > 1);
    let error = link.send(train(&contents));
    assert!(matches!(error, Err(SendError::NotSplit { sent: 1000 })), "{error:?}");
    assert_eq!(link.max_gso_segments(1000), 1);
    assert_eq!(receive_one(&mut link).bytes, contents[..1000]);
    assert_eq!(link.recv(&mut |_| ()).expect("sockets work"), 0, "nothing else went out");

    link.send(train(&contents[1000..])).expect("one by one from now on");
    let all = receive(&mut link, 4);
    assert!(all.iter().map(|got| &got.bytes[..]).eq(contents[1000..].chunks(1000)));
}

#[test]
fn a_full_socket_reports_how_much_it_took() {
    let options = Options { buffer_bytes: 1, gso: false, ..Options::default() };
    with_namespaces(move |[left, right]: [Netns; 2]| {
        join_by_veth(&left, &right);
        // A queue that passes on almost nothing keeps its contents charged to the sender.
        let slow = left.enter(|| {
            let arguments = "qdisc add dev veth0 root tbf rate 8kbit burst 1600 limit 1000000";
            std::process::Command::new("tc").args(arguments.split(' ')).output()
        });
        if !slow.is_ok_and(|slow| slow.status.success()) {
            return not_run("tc", "there is no token bucket filter");
        }
        let link = left.enter(|| UdpLink::bind(PORT, options)).expect("an empty namespace");
        let contents = pattern(200 * 1000);
        let error = link.send(Transmit {
            segment_size: Some(1000),
            ..transmit(IpAddr::from([10, 77, 0, 2]), &contents)
        });
        let Err(SendError::WouldBlock { sent }) = error else { panic!("{error:?}") };
        assert!(sent < contents.len() && sent % 1000 == 0, "{sent}");
    });
}

#[test]
fn two_hosts_exchange_trains() {
    with_namespaces(|[left, right]: [Netns; 2]| {
        join_by_veth(&left, &right);
        let near = left.enter(|| UdpLink::bind(PORT, Options::default())).expect("free");
        let mut far = right.enter(|| UdpLink::bind(PORT, Options::default())).expect("free");
        let contents = pattern(20 * 1024 + 1);
        let mut ways = vec![("10.77.0.1", "10.77.0.2")];
        if has_ipv6() {
            ways.push(("fd77::1", "fd77::2"));
        }
        for (src, dst) in ways {
            let (src, dst) =
                (src.parse().expect("a literal address"), dst.parse().expect("likewise"));
            near.send(Transmit {
                src,
                segment_size: Some(1024),
                traffic_class: 2,
                ..transmit(dst, &contents)
            })
            .expect("the veth is up");
            let all = receive(&mut far, 21);
            assert!(all.iter().map(|got| &got.bytes[..]).eq(contents.chunks(1024)));
            assert!(all.iter().all(|got| got.src == SocketAddr::new(src, PORT) && got.dst == dst));
            assert!(all.iter().all(|got| got.traffic_class == 2));

            let error = near.send(transmit(dst, &[0; 1500]));
            assert!(matches!(error, Err(SendError::TooBig { length: 1500, .. })), "{error:?}");
            let error =
                near.send(Transmit { segment_size: Some(1500), ..transmit(dst, &pattern(9000)) });
            assert!(matches!(error, Err(SendError::TooBig { length: 1500, .. })), "{error:?}");
            assert!(near.max_gso_segments(1024) > 1, "splitting was not at fault");
        }
        let error = near.send(transmit(IpAddr::from([10, 99, 0, 1]), b"x"));
        assert!(matches!(error, Err(SendError::Unreachable { .. })), "{error:?}");
    });
}

/// The ICRC is computed over these fields before the kernel writes them.
#[test]
fn packets_have_df_and_count_their_id_from_zero() {
    with_namespaces(|[left, right]: [Netns; 2]| {
        join_by_veth(&left, &right);
        let near = left.enter(|| UdpLink::bind(PORT, Options::default())).expect("free");
        // Without offloads of the veth, the train is split in transit, as before most NICs.
        for end in [&left, &right] {
            let done = end.enter(|| {
                let arguments = "-K veth0 tx-udp-segmentation off gro off";
                std::process::Command::new("ethtool").args(arguments.split(' ')).output()
            });
            if !done.is_ok_and(|done| done.status.success()) {
                return not_run("ethtool", "ethtool cannot switch segmentation off here");
            }
        }
        // A raw socket sees the IP header. Protocol 17 is UDP.
        let raw = right
            .enter(|| Socket::new(Domain::IPV4, Type::from(libc::SOCK_RAW), Some(Protocol::UDP)));
        let raw = raw.expect("root has raw sockets");
        let ids = |count: usize| -> Vec<u16> {
            let read = || {
                let mut packet = [0; 2048];
                rustix::net::recv(&raw, &mut packet[..], rustix::net::RecvFlags::empty())
                    .expect("packets come");
                assert_eq!(packet[6] & 0xe0, 0x40, "DF and no fragment");
                u16::from_be_bytes([packet[4], packet[5]])
            };
            (0..count).map(|_| read()).collect()
        };
        let dst = IpAddr::from([10, 77, 0, 2]);
        for _ in 0..3 {
            near.send(transmit(dst, b"alone")).expect("the veth is up");
            assert_eq!(ids(1), [0]);
        }
        near.send(Transmit { segment_size: Some(1000), ..transmit(dst, &pattern(3500)) })
            .expect("the veth is up");
        assert_eq!(ids(4), [0, 1, 2, 3]);
    });
}

#[test]
fn ipv6_without_a_checksum_is_accepted() {
    let mut link = link();
    if !has_ipv6_loopback() {
        return not_run("ipv6", "this host has no ::1");
    }
    let sender = UdpSocket::bind("[::1]:0").expect("::1 is up");
    set_option(sender.as_fd(), libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, 1).expect("Linux 3.16");
    sender.send_to(b"bare", ("::1", link.port())).expect("lo is up");
    assert_eq!(receive_one(&mut link).bytes, b"bare");
}

#[test]
fn a_taken_port_is_explained_and_sending_still_works() {
    // Without SO_REUSEPORT, as other programs and the kernel's rxe open it.
    let taken = UdpSocket::bind("0.0.0.0:0").expect("a free port");
    let port = taken.local_addr().expect("bound").port();
    let error = UdpLink::bind(port, Options::default()).expect_err("taken");
    assert!(matches!(error, BindError::InUse { .. }));
    assert!(error.to_string().contains("rxe"), "{error}");

    let link = UdpLink::send_only(port, Options::default()).expect("another port is free");
    link.send(transmit(LOCALHOST, b"out")).expect("lo is up");
    let mut buffer = [0; 8];
    let (length, from) = taken.recv_from(&mut buffer).expect("it came");
    assert_eq!(&buffer[..length], b"out");
    assert_ne!(from.port(), port);
    assert_eq!(link.source_port(), from.port());
    for socket in [&link.v4, &link.v6].into_iter().flatten() {
        let name = socket.local_addr().expect("bound").as_socket().expect("of IP");
        assert_eq!(name.port(), from.port(), "the ICRC covers it, whatever the family");
    }
}

#[test]
fn every_member_of_a_group_receives_a_copy() {
    with_namespaces(|[left, right]: [Netns; 2]| {
        join_by_veth(&left, &right);
        let open = || {
            let ifindex = crate::netdev::Netdev::named("veth0").expect("it was made").index;
            UdpLink::bind(PORT, Options { ifindex, ..Options::default() }).expect("free")
        };
        let near = left.enter(open);
        let (mut one, mut two) = right.enter(|| (open(), open()));
        let mut groups = vec![IpAddr::from([239, 1, 2, 3])];
        if has_ipv6() {
            groups.push("ff12::77".parse().expect("a literal address"));
        }
        for group in groups {
            one.join(group).expect("groups are free to join");
            near.send(Transmit { hop_limit: 4, ..transmit(group, b"all") }).expect("on the link");
            assert_eq!(receive_one(&mut one).dst, group);
            assert_eq!(two.recv(&mut |_| ()).expect("sockets work"), 0, "not a member");
            two.join(group).expect("groups are free to join");
            near.send(transmit(group, b"both")).expect("on the link");
            assert_eq!(receive_one(&mut one).bytes, b"both");
            assert_eq!(receive_one(&mut two).bytes, b"both");
            one.leave(group);
            near.send(transmit(group, b"one")).expect("on the link");
            assert_eq!(receive_one(&mut two).bytes, b"one");
            assert_eq!(one.recv(&mut |_| ()).expect("sockets work"), 0, "no longer a member");
            two.leave(group);
        }
    });
}
