use super::*;
use crate::netdev::netns::{Netns, has_ipv6_loopback, join_by_veth, not_run, with_namespaces};
use crate::udp::{BindError, Options, Transmit};

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Links on one free port, for the given VFs in their order of binding.
fn share_port(vfs: &[u16]) -> Vec<UdpLink> {
    let mut links: Vec<UdpLink> = Vec::new();
    for vf in vfs {
        let port = links.first().map_or(0, UdpLink::port);
        let options = Options { vf: *vf, ..Options::default() };
        links.push(UdpLink::bind(port, options).expect("one user may share a port"));
    }
    links
}

/// Lets the last link determine the order while all of them make progress, until it finds
/// `expected`.
///
/// It may take more than one attempt: when a test beside this one forks, its child holds our
/// sockets until it execs, and a socket that is closed here stays in its group until then.
fn settle(links: &mut [UdpLink], expected: &[(u16, u16)]) {
    let expected = Table::new(expected.iter().copied());
    let last = links.len() - 1;
    let mut steering = Steering::new(&links[last]);
    let families = if has_ipv6_loopback() { 2 } else { 1 };
    while steering.tables().take(families).any(|table| *table != expected) {
        steering.start(Instant::now());
        while steering.deadline().is_some() {
            for link in links.iter_mut() {
                link.recv(&mut |datagram| panic!("nobody sent {datagram:?}")).expect("works");
            }
            steering.poll(&links[last], Instant::now());
        }
    }
}

/// The first bytes of a RoCE packet for `qpn`, as far as steering reads it, and a little more.
fn bth(qpn: u32) -> [u8; 12] {
    let mut bth = [0; 12];
    bth[0] = 4;
    bth[4..8].copy_from_slice(&(0x8000_0000 | qpn).to_be_bytes());
    bth
}

fn qpn(vf: u16) -> u32 {
    u32::from(vf) << 14 | 0x155
}

/// Sends `bytes` to `dst` from a separate socket, and returns which of `links` got it.
fn receiver(links: &mut [UdpLink], dst: IpAddr, bytes: &[u8]) -> usize {
    let sender = UdpLink::send_only(links[0].port(), Options::default()).expect("a free port");
    let src = if dst.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    };
    sender
        .send(Transmit {
            dst,
            src,
            traffic_class: 0,
            hop_limit: 0,
            contents: bytes,
            segment_size: None,
        })
        .expect("lo is up");
    // Delivery over lo is mostly finished when the send returns; a busy kernel leaves it to a
    // thread.
    let mut found = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(10);
    while found.is_empty() && Instant::now() < deadline {
        for (index, link) in links.iter_mut().enumerate() {
            link.recv(&mut |datagram| {
                assert_eq!(datagram.bytes, bytes);
                found.push(index);
            })
            .expect("sockets work");
        }
    }
    assert_eq!(found.len(), 1, "exactly one socket receives");
    found[0]
}

fn assert_steered(links: &mut [UdpLink], dst: IpAddr) {
    let vfs: Vec<u16> = links.iter().map(UdpLink::vf).collect();
    for (index, vf) in vfs.into_iter().enumerate() {
        // Several times, since the hash would sometimes be right.
        for _ in 0..4 {
            assert_eq!(receiver(links, dst, &bth(qpn(vf))), index, "VF {vf}");
        }
    }
}

#[test]
fn the_qpn_decides_whatever_the_order_of_binding() {
    let mut links = share_port(&[5, 0, 1023, 17]);
    settle(&mut links, &[(5, 0), (0, 1), (1023, 2), (17, 3)]);
    assert_steered(&mut links, LOCALHOST);
    if has_ipv6_loopback() {
        assert_steered(&mut links, Ipv6Addr::LOCALHOST.into());
    } else {
        not_run("ipv6", "this host has no ::1");
    }
}

/// All that share the port, as the one that would forward may be stopped.
#[test]
fn a_process_that_depends_on_forwarding_asks_the_others_to_steer_again() {
    let mut links = share_port(&[3, 4]);
    settle(&mut links, &[(3, 0), (4, 1)]);
    let outsider = UdpLink::send_only(links[0].port(), Options::default()).expect("a free port");
    assert!(!links.iter_mut().any(UdpLink::was_asked_to_steer));
    outsider.ask_to_steer();
    for link in &mut links {
        assert_eq!(link.recv(&mut |datagram| panic!("no packet: {datagram:?}")).expect("works"), 0);
        assert!(link.was_asked_to_steer());
        assert!(!link.was_asked_to_steer(), "it was told once");
    }
}

#[test]
fn a_closed_socket_leaves_its_index_to_the_last_one() {
    let mut links = share_port(&[10, 11, 12, 13, 14]);
    settle(&mut links, &[(10, 0), (11, 1), (12, 2), (13, 3), (14, 4)]);
    links.remove(1);
    // The program still says that VF 14 is at index 4, which no longer exists; VF 11 is gone.
    settle(&mut links, &[(10, 0), (14, 1), (12, 2), (13, 3)]);
    assert_steered(&mut links, LOCALHOST);
}

#[test]
fn without_a_loopback_address_there_is_nothing_to_do_until_there_is() {
    with_namespaces(|[ns]: [Netns; 1]| {
        let mut links = share_port(&[8]);
        let mut steering = Steering::new(&links[0]);
        steering.start(Instant::now());
        assert_eq!(steering.deadline(), None);
        ns.ip("link set lo up");
        settle(&mut links, &[(8, 0)]);
    });
}

#[test]
fn more_vfs_than_one_wave_of_questions() {
    let vfs: Vec<u16> = (0..40).map(|n| n * 25).collect();
    let mut links = share_port(&vfs);
    let expected: Vec<_> = vfs.into_iter().zip(0..).collect();
    settle(&mut links, &expected);
    assert_steered(&mut links, LOCALHOST);
}

#[test]
fn packets_of_no_vf_go_to_the_first_of_the_table() {
    let mut links = share_port(&[3, 4, 5]);
    settle(&mut links, &[(3, 0), (4, 1), (5, 2)]);
    for _ in 0..4 {
        assert_eq!(receiver(&mut links, LOCALHOST, &bth(1)), 0);
        assert_eq!(receiver(&mut links, LOCALHOST, &bth(0xff_ffff)), 0);
        assert_eq!(receiver(&mut links, LOCALHOST, &bth(0)), 0);
        assert_eq!(receiver(&mut links, LOCALHOST, &[0x64; 7]), 0, "too short for a QPN");
        assert_eq!(receiver(&mut links, LOCALHOST, &[]), 0);
    }
}

#[test]
fn an_unknown_vf_goes_to_one_that_answered() {
    let mut links = share_port(&[3, 4, 5]);
    settle(&mut links, &[(3, 0), (4, 1), (5, 2)]);
    assert_eq!(receiver(&mut links, LOCALHOST, &bth(qpn(900))), 0);
}

#[test]
fn a_vf_that_does_not_answer_is_left_out() {
    let mut links = share_port(&[1, 2, 3]);
    let mut steering = Steering::new(&links[2]);
    let start = Instant::now();
    steering.start(start);
    let mut now = start;
    while let Some(deadline) = steering.deadline() {
        for link in [0, 2] {
            links[link].recv(&mut |_| ()).expect("sockets work");
        }
        steering.poll(&links[2], now);
        if steering.deadline() == Some(deadline) {
            now = deadline;
        }
    }
    let table = steering.tables().next().expect("IPv4");
    assert_eq!(*table, Table::new([(1, 0), (3, 2)]));
    // Its packets, and those for nobody, are left to the VFs that answered.
    for qpn in [qpn(2), qpn(900), 1] {
        assert_eq!(receiver(&mut links, LOCALHOST, &bth(qpn)), 0);
    }
    // Soon after, a start is postponed.
    steering.start(now);
    assert_eq!(steering.deadline(), Some(now + REST));
}

#[test]
fn the_largest_table_is_accepted() {
    let links = share_port(&[0]);
    let table = Table::new((0..1024).map(|vf| (vf, 1023 - vf)));
    assert!(table.program().len() <= 4096, "BPF_MAXINSNS");
    let fd = links[0].v4_fd().expect("IPv4");
    match udp::attach_reuseport_cbpf(fd, &table.program()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
            not_run("optmem", "net.core.optmem_max is smaller than the program of 1,024 VFs");
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_search_finds_every_vf_and_no_other() {
    for count in [0, 1, 4, 5, 40, 341] {
        let table = Table::new((0..count).map(|n| (n * 3, n)));
        let program = table.program();
        for vf in 0..1024 {
            let other = table.entries().next().map_or(u32::MAX, |(_, index)| u32::from(index));
            let expected = table.index_of(vf).map_or(other, u32::from);
            assert_eq!(interpret(&program, &bth(qpn(vf))), expected, "{count} entries, VF {vf}");
        }
    }
}

/// Runs the few instructions that [`Table::program`] uses.
fn interpret(program: &[libc::sock_filter], packet: &[u8]) -> u32 {
    let (mut at, mut a) = (0, 0);
    loop {
        let step = program[at];
        at += 1;
        match u32::from(step.code) {
            code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                let offset = step.k as usize;
                let word = packet[offset..offset + 4].try_into().expect("four bytes");
                a = u32::from_be_bytes(word);
            }
            code if code == libc::BPF_ALU | libc::BPF_AND => a &= step.k,
            code if code == libc::BPF_ALU | libc::BPF_RSH => a >>= step.k,
            code if code == libc::BPF_JMP | libc::BPF_JA => at += step.k as usize,
            code if code == libc::BPF_JMP | libc::BPF_JEQ => {
                at += usize::from(if a == step.k { step.jt } else { step.jf });
            }
            code if code == libc::BPF_JMP | libc::BPF_JGE => {
                at += usize::from(if a >= step.k { step.jt } else { step.jf });
            }
            code if code == libc::BPF_RET | libc::BPF_K => return step.k,
            code if code == libc::BPF_RET | libc::BPF_A => return a,
            code => panic!("instruction {code:#x}"),
        }
    }
}

#[test]
fn a_question_from_afar_is_not_answered() {
    let mut question = [0; LENGTH];
    question[..4].copy_from_slice(&question::QUESTION.to_be_bytes());
    with_namespaces(move |[left, right]: [Netns; 2]| {
        join_by_veth(&left, &right);
        let near = left.enter(|| UdpLink::send_only(udp::PORT, Options::default()));
        let near = near.expect("an empty namespace");
        let mut far = right.enter(|| UdpLink::bind(udp::PORT, Options::default())).expect("free");
        near.send(Transmit {
            dst: IpAddr::from([10, 77, 0, 2]),
            src: IpAddr::from([10, 77, 0, 1]),
            traffic_class: 0,
            hop_limit: 0,
            contents: &question,
            segment_size: None,
        })
        .expect("the veth is up");
        let mut seen = 0;
        while seen == 0 {
            // It is passed on like any packet; the transport drops packets for QPN 0.
            far.recv(&mut |_| seen += 1).expect("sockets work");
        }
    });
}

/// The kernel's rule: the sockets of one user share a port, and those of another are refused.
#[test]
fn another_user_cannot_share_the_port() {
    if !rustix::process::geteuid().is_root() {
        return not_run("root", "becoming another user takes privilege");
    }
    let first = share_port(&[0]);
    let port = first[0].port();
    let outcome = std::thread::spawn(move || {
        let nobody = rustix::thread::Uid::from_raw(65534);
        // This thread alone changes its user, unlike by libc's setresuid.
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).ok()?;
        Some(UdpLink::bind(port, Options::default()))
    });
    match outcome.join().expect("no panic") {
        Some(result) => {
            let error = result.expect_err("the port belongs to the first user");
            assert!(matches!(error, BindError::InUse { uid: 65534, .. }), "{error}");
        }
        None => not_run("root", "there is no other user to become in this user namespace"),
    }
}
