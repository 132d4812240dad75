//! Two hosts: RoCEv2 on UDP 4791, decoded by tshark, with the ICRC verified independently.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use interop::need::Need;
use interop::{
    Capture, Captured, DROPS, Mode, Netns, Output, Pair, Port, Program, Running, RunningPair,
    Scratch, Veth, compile, icrc, needs, perftest,
};

/// The requirements of a test with two hosts.
macro_rules! two_hosts {
    ($($more:expr),*) => {
        needs!(
            Need::Root, Need::Namespaces, Need::Program("ip"), Need::Program("nsenter"),
            Need::Program("setpriv"), Need::Program("ethtool")
            $(, $more)*
        )
    };
}

fn pingpong(program: &str, size: &str) -> Pair {
    Pair::new(program).args(["-g", "0", "-c", "-n", "100", "-s", size])
}

#[test]
fn each_transport_crosses() {
    two_hosts!(Need::Program("ibv_rc_pingpong"));
    let veth = Veth::new();
    for (program, size) in [
        ("ibv_rc_pingpong", "70000"),
        ("ibv_uc_pingpong", "70000"),
        ("ibv_ud_pingpong", "1000"),
        ("ibv_srq_pingpong", "12345"),
    ] {
        let done = pingpong(program, size).across(&veth).run();
        done.client.says("100 iters in").never_says("invalid data");
        done.server.never_says("invalid data");
    }
}

#[test]
fn events_cross() {
    two_hosts!(Need::Program("ibv_rc_pingpong"));
    let veth = Veth::new();
    pingpong("ibv_rc_pingpong", "4096").args(["-e"]).across(&veth).run();
}

#[test]
fn perftest_crosses() {
    two_hosts!(Need::Program("ib_write_bw"));
    let veth = Veth::new();
    for program in
        ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_bw", "ib_write_lat", "ib_send_lat"]
    {
        let done = Pair::new(program).args(["-F", "-n", "200"]).across(&veth).run();
        assert_eq!(perftest::rows(&done.client).len(), 1, "{}", done.client);
    }
}

#[test]
fn perftest_crosses_in_all_sizes() {
    two_hosts!(Need::Program("ib_write_bw"));
    // A jumbo frame takes every path MTU, an ordinary one 1,024 bytes.
    for (mtu, sizes) in [("1500", &["1", "5001", "1048576"][..]), ("9000", &["1048576"])] {
        let veth = Veth::new();
        for host in [&veth.left, &veth.right] {
            host.ip(&["link", "set", Veth::INTERFACE, "mtu", mtu]);
        }
        for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
            for size in sizes {
                let args = ["-F", "-n", "50", "-s", size];
                let done = Pair::new(program).args(args).across(&veth).run();
                assert_eq!(perftest::rows(&done.client).len(), 1, "{}", done.client);
            }
        }
        // The pingpong compares every byte.
        pingpong("ibv_rc_pingpong", "1048576").args(["-n", "20"]).across(&veth).run();
    }
}

#[test]
fn hosts_without_ipv4() {
    two_hosts!(Need::Ipv6, Need::Program("ibv_rc_pingpong"));
    let veth = Veth::new();
    let (left, right) = (("10.77.0.1", "fd77::1"), ("10.77.0.2", "fd77::2"));
    for (host, own, peer) in [(&veth.left, left, right), (&veth.right, right, left)] {
        host.ip(&["-4", "addr", "flush", "dev", Veth::INTERFACE]);
        host.ip(&["route", "add", "default", "via", peer.1]);
        // The pingpongs exchange their addresses only over IPv4: it gets an address that does not
        // belong to the NIC.
        host.ip(&["addr", "add", &format!("{}/32", own.0), "dev", "lo"]);
        host.ip(&["route", "add", peer.0, "via", "inet6", peer.1, "src", own.0]);
    }
    for (program, size) in [("ibv_rc_pingpong", "70000"), ("ibv_ud_pingpong", "1000")] {
        let done = pingpong(program, size).across(&veth).run();
        done.client.says("GID fd77::2").never_says("invalid data");
        done.server.never_says("invalid data");
    }
}

#[test]
fn ipv6_crosses() {
    two_hosts!(Need::Ipv6, Need::Program("ibv_rc_pingpong"));
    let veth = Veth::new();
    // The GID table has IPv4 first; ibv_devinfo tells the index of the global IPv6 address.
    let out = Program::new("ibv_devinfo").args(["-v"]).in_netns(&veth.left).output();
    let index = out
        .success()
        .stdout
        .lines()
        .filter_map(|line| line.trim().strip_prefix("GID["))
        .find(|line| line.contains("fd77:"))
        .and_then(|line| line.split(']').next())
        .unwrap_or_else(|| panic!("no GID of fd77::/64 in:\n{out}"))
        .trim()
        .to_owned();
    Pair::new("ibv_rc_pingpong").args(["-c", "-n", "100", "-g", &index]).across(&veth).run();
}

#[test]
fn several_processes_share_the_udp_port() {
    two_hosts!(Need::Program("ibv_rc_pingpong"));
    let veth = Veth::new();
    let pairs: Vec<_> = (0..4)
        .map(|_| pingpong("ibv_rc_pingpong", "9000").args(["-e"]).across(&veth).start())
        .collect();
    for pair in pairs {
        let done = pair.finish();
        done.client.success().says("100 iters in").never_says("invalid data");
        done.server.success();
    }
}

/// With `force_udp` the processes of one host treat each other as remote: all packets go through
/// the one port.
#[test]
fn processes_of_one_host_can_use_the_wire() {
    two_hosts!(Need::Program("ibv_rc_pingpong"));
    let scratch = Scratch::new();
    let config = scratch.file("force_udp.toml");
    std::fs::write(&config, "[[nic]]\nforce_udp = true\n").expect("a writable scratch");
    let veth = Veth::new();
    for pairs in [1, 2] {
        let running: Vec<_> = (0..pairs)
            .map(|_| {
                pingpong("ibv_rc_pingpong", "9000")
                    .args(["-e"])
                    .both(|program| {
                        program
                            .in_netns(&veth.left)
                            .env("PEERDMA_CONFIG", &config)
                            .env("PEERDMA_LOG", "info")
                    })
                    .host(veth.left_address())
                    .start()
            })
            .collect();
        for pair in running {
            let done = pair.finish();
            done.client.success().says("100 iters in").never_says("invalid data");
            done.server.success().never_says("invalid data");
            let counted = counters(&done.client);
            // Nine packets each way for each message.
            assert!(counted["tx_udp_packets"] >= 900, "{counted:?}");
            assert!(!counted.contains_key("tx_shm_packets"), "{counted:?}");
        }
    }
}

/// Captures the traffic of `pairs`, segmented into the packets of a real wire.
#[track_caller]
fn captured(pairs: Vec<Pair>) -> Captured {
    let veth = Veth::new();
    veth.without_offloads();
    let capture = Capture::start(&veth.left);
    for pair in pairs {
        pair.across(&veth).run();
    }
    let captured = capture.stop();
    assert!(captured.frames.len() > 200, "only {} packets", captured.frames.len());
    captured
}

/// Every kind of request and response: SEND, WRITE, READ, atomics; RC, UC, UD; one packet and many.
fn every_kind() -> Vec<Pair> {
    let perf =
        |program: &str, args: &[&str]| Pair::new(program).args(["-F", "-n", "20"]).args(args);
    vec![
        pingpong("ibv_rc_pingpong", "5003"),
        pingpong("ibv_uc_pingpong", "5001"),
        pingpong("ibv_ud_pingpong", "1001"),
        perf("ib_write_bw", &["-s", "10001"]),
        perf("ib_read_bw", &["-s", "10002"]),
        perf("ib_atomic_bw", &[]),
        perf("ib_atomic_bw", &["-A", "CMP_AND_SWAP"]),
    ]
}

#[test]
fn tshark_decodes_every_packet() {
    two_hosts!(Need::Program("tshark"), Need::Program("ib_write_bw"));
    let captured = captured(every_kind());
    let file = captured.file.to_str().expect("our own path");
    let count = |filter: &str| {
        let out = Program::new("tshark")
            .args(["-r", file, "-Y", filter, "-T", "fields", "-e", "frame.number"])
            .mode(Mode::Plain)
            .limit(Duration::from_secs(60))
            .output();
        out.success().stdout.lines().count()
    };
    assert_eq!(count("infiniband.bth"), captured.frames.len(), "every packet has a BTH");
    assert_eq!(count("udp.port == 4791 && (_ws.malformed || _ws.short)"), 0, "malformed packets");
    assert_eq!(count("udp.length.bad"), 0, "bad lengths");
    // The opcodes that must have been on the wire, by the numbers of IBA table 38.
    for (name, opcode) in [
        ("RC SEND First", 0x00),
        ("RC SEND Last", 0x02),
        ("RC WRITE First", 0x06),
        ("RC READ Request", 0x0c),
        ("RC READ response", 0x0d),
        ("RC Acknowledge", 0x11),
        ("RC Atomic Acknowledge", 0x12),
        ("RC CmpSwap", 0x13),
        ("RC FetchAdd", 0x14),
        ("UC SEND First", 0x20),
        ("UD SEND Only", 0x64),
    ] {
        assert!(count(&format!("infiniband.bth.opcode == {opcode}")) > 0, "no {name} was seen");
    }
}

#[test]
fn every_icrc_is_right() {
    two_hosts!(Need::Program("dumpcap"), Need::Program("ib_write_bw"));
    let captured = captured(every_kind());
    for (n, frame) in captured.frames.iter().enumerate() {
        let (carried, computed) = (frame.carried_icrc(), icrc(frame));
        assert_eq!(carried, computed, "packet {n}: {:02x?}", frame.ip);
    }
}

/// Heavy traffic to one destination uses a transmit socket, on which the kernel counts the IPv4
/// identification up from an unknown number.
#[test]
fn every_icrc_on_a_transmit_socket_is_right() {
    two_hosts!(
        Need::Program("dumpcap"),
        Need::Program("ib_send_lat"),
        Need::Program("ib_write_bw")
    );
    let long =
        |program: &str, args: &[&str]| Pair::new(program).args(["-F", "-n", "600"]).args(args);
    let pairs = vec![
        long("ib_send_lat", &["-s", "8"]),
        long("ib_write_bw", &["-s", "65536", "-m", "1024"]),
    ];
    let captured = captured(pairs);
    let of_line = |frame: &&interop::Frame| frame.ports() != [4791; 2];
    // An IPv4 and a UDP header.
    let is_empty = |frame: &&interop::Frame| frame.ip.len() == 28;
    let (empty, packets): (Vec<_>, Vec<_>) = captured.frames.iter().partition(is_empty);
    // Both sides of the first pair, and at least the writer of the second.
    assert!(empty.len() >= 6 && empty.len().is_multiple_of(2), "{}", empty.len());
    assert!(empty.iter().all(of_line));
    for frame in &packets {
        assert_eq!(frame.carried_icrc(), icrc(frame), "{:02x?}", frame.ip);
    }
    let on_lines = packets.iter().filter(|frame| of_line(frame)).count();
    assert!(2 * on_lines > packets.len(), "{on_lines} of {}", packets.len());
}

/// The lower two bits of the type of service or traffic class.
fn ecn(frame: &interop::Frame) -> u8 {
    if frame.is_v6() { frame.ip[1] >> 4 & 3 } else { frame.ip[1] & 3 }
}

/// Packets of connections announce support for congestion marks (ECT, 2). For marked packets (CE,
/// 3), the receiver sends CNPs, which must not be marked themselves, and the sender slows down.
/// Here the sender itself sets the marks, by its traffic class; no switch is needed.
#[test]
fn marks_of_congestion_are_answered_with_notifications() {
    two_hosts!(Need::Program("tshark"), Need::Program("ib_write_bw"));
    for (traffic_class, expected) in [("0", 2), ("3", 3)] {
        let veth = Veth::new();
        let capture = Capture::start(&veth.left);
        let done = Pair::new("ib_write_bw")
            .args(["-F", "-n", "200", "-s", "65536", "--tclass", traffic_class])
            .both(|program| program.env("PEERDMA_LOG", "info"))
            .across(&veth)
            .run();
        let captured = capture.stop();
        // Behind IP and UDP: the BTH; in a CNP then sixteen reserved bytes and the ICRC.
        let is_cnp = |frame: &&interop::Frame| frame.ip.get(28) == Some(&0x81);
        let cnps: Vec<_> = captured.frames.iter().filter(is_cnp).collect();
        // Empty datagrams are not packets: a transmit socket begins with one.
        for frame in captured.frames.iter().filter(|frame| frame.ip.len() > 28) {
            let expected = if is_cnp(&frame) { 0 } else { expected };
            assert_eq!(ecn(frame), expected, "{:02x?}", frame.ip);
        }
        let sum = |name: &str| -> u64 {
            [&done.client, &done.server]
                .iter()
                .map(|out| counters(out).get(name).copied().unwrap_or(0))
                .sum()
        };
        assert_eq!(sum("np_cnp_sent"), cnps.len() as u64, "{} {}", done.client, done.server);
        assert_eq!(sum("rp_cnp_ignored"), 0);
        if expected == 2 {
            assert_eq!((cnps.len(), sum("np_ecn_marked_roce_packets")), (0, 0));
            continue;
        }
        assert!(!cnps.is_empty() && sum("rp_cnp_handled") > 0);
        assert!(sum("np_ecn_marked_roce_packets") >= sum("np_cnp_sent"));
        let count = cnps.len();
        for frame in cnps {
            let bth = &frame.ip[28..];
            // PSN 0, no request for an acknowledgement, BECN, and nothing else but the partition
            // and the QP.
            assert_eq!((bth[1], bth[4], &bth[8..28]), (0, 0x40, &[0; 20][..]), "{bth:02x?}");
            assert_eq!((bth.len(), frame.carried_icrc()), (32, icrc(frame)));
        }
        // tshark decodes the BTH; it has no name for the opcode.
        let file = captured.file.to_str().expect("our own path");
        let filter = "infiniband.bth.opcode == 0x81 && infiniband.bth.psn == 0 && !_ws.malformed";
        let seen = Program::new("tshark")
            .args(["-r", file, "-Y", filter, "-T", "fields", "-e", "frame.number"])
            .mode(Mode::Plain)
            .limit(Duration::from_secs(60))
            .output();
        assert_eq!(seen.success().stdout.lines().count(), count, "{seen}");
    }
}

/// A client that writes all the time, and loses its server. Only the client sends requests, so it
/// is the client's timer that expires.
#[track_caller]
fn the_client_of_a_lost_server(lose: impl FnOnce(&mut RunningPair, &Veth)) {
    let veth = Veth::new();
    let mut pair = Pair::new("ib_write_bw")
        .args(["-F", "-D", "60", "-s", "65536"])
        .limit(Duration::from_secs(90))
        .across(&veth)
        .start();
    pair.client.wait_busy(Duration::from_millis(300));
    lose(&mut pair, &veth);
    pair.client.finish().failure().says("Failed status 12");
}

#[test]
fn the_client_of_a_host_that_vanished_gets_retry_exceeded() {
    two_hosts!(Need::Program("ib_write_bw"));
    the_client_of_a_lost_server(|_, veth| {
        veth.left.ip(&["link", "set", Veth::INTERFACE, "down"]);
    });
}

#[test]
fn the_client_of_a_killed_server_gets_retry_exceeded() {
    two_hosts!(Need::Program("ib_write_bw"));
    the_client_of_a_lost_server(|pair, _| pair.server.kill());
}

#[test]
fn a_short_outage_is_survived() {
    two_hosts!(Need::Program("ibv_rc_pingpong"), Need::Program("tc"));
    let veth = Veth::new();
    let mut pair = Pair::new("ibv_rc_pingpong")
        .args(["-g", "0", "-n", "20000", "-s", "4096"])
        .across(&veth)
        .start();
    pair.client.wait_busy(Duration::from_millis(100));
    // Every packet to the client vanishes for a while, shorter than seven retries of 67 ms:
    // retransmission repairs it.
    veth.left.tool("tc", &["qdisc", "add", "dev", Veth::INTERFACE, "root", "blackhole"]);
    std::thread::sleep(Duration::from_millis(100));
    veth.left.tool("tc", &["qdisc", "del", "dev", Veth::INTERFACE, "root"]);
    let done = pair.finish();
    done.client.success().says("20000 iters in");
    done.server.success();
}

/// Two programs of `interop/c/returning.c`, whose QPs have the same numbers after each start.
struct Returning {
    veth: Veth,
    scratch: Scratch,
    program: PathBuf,
}

impl Returning {
    const RETRY_EXC: &str = "transport retry counter exceeded";

    fn new() -> Self {
        let scratch = Scratch::new();
        Self { veth: Veth::new(), program: compile("returning", &scratch), scratch }
    }

    fn start(&self, host: &Netns, args: &[&str]) -> Running {
        let program = Program::new(&self.program).args(args);
        let program = program.env("PEERDMA_LOG", "info,peerdma::drop=debug");
        program.limit(Duration::from_secs(90)).in_netns(host).start()
    }

    fn server(&self, life: &str, more: &[&str]) -> Running {
        let args = [&["serve", self.veth.right_address(), life], more].concat();
        let mut server = self.start(&self.veth.left, &args);
        server.wait_says(&format!("life {life}: ready"));
        server
    }

    /// Starts the first client, and waits until it sends.
    fn client(&self) -> Running {
        let dir = self.scratch.path().to_str().expect("our own path");
        let args = ["send", self.veth.left_address(), "1", dir, Self::NEW];
        let mut client = self.start(&self.veth.right, &args);
        client.wait_says("life 1: 50 messages");
        client
    }

    /// Signals the client by a file in their directory.
    fn tell(&self, name: &str) {
        std::fs::write(self.scratch.file(name), "").expect("a writable scratch");
    }

    /// The new address of a host that moves.
    const NEW: &str = "10.77.0.9";

    /// Replaces a host's address by another one.
    fn moves(host: &Netns, gateway: &str) {
        host.ip(&["-4", "addr", "flush", "dev", Veth::INTERFACE]);
        host.ip(&["addr", "add", &format!("{}/24", Self::NEW), "dev", Veth::INTERFACE]);
        host.ip(&["route", "add", "default", "via", gateway]);
    }
}

/// A program dies and restarts with the same QP number at the same address, while its peer still
/// retries. It is not the one that the peer was connected to: no old request reaches its receives,
/// and the peer gets RETRY_EXC. Then they connect again with the same numbers.
#[test]
fn a_peer_that_comes_back_with_its_number_is_another_peer() {
    two_hosts!(Need::Program("gcc"));
    let rig = Returning::new();
    let first = rig.server("1", &[]);
    let mut client = rig.client();
    first.kill();
    first.finish();
    let mut second = rig.server("2", &[]);
    assert!(
        !client.printed().contains(Returning::RETRY_EXC),
        "it tries no more:\n{}",
        client.printed()
    );
    rig.tell("again");
    client.wait_says(&format!("life 1: {}", Returning::RETRY_EXC));
    second.wait_says("life 2: 50 messages");
    rig.tell("enough");
    client.finish().success().says("life 2: 50 messages");
    let second = second.finish();
    second.success().says("life 2: ended with");
    let old = counters(&second).get("duplicate_request").copied();
    assert!(old.is_some_and(|count| count > 0), "nothing old reached it: {second}");
}

/// The same, where the restarted program has the number but no connection.
#[test]
fn a_peer_that_comes_back_without_a_connection_answers_nothing() {
    two_hosts!(Need::Program("gcc"));
    let rig = Returning::new();
    let first = rig.server("1", &[]);
    let client = rig.client();
    first.kill();
    first.finish();
    let second = rig.server("2", &["deaf"]);
    assert!(
        !client.printed().contains(Returning::RETRY_EXC),
        "it tries no more:\n{}",
        client.printed()
    );
    client.finish().success().says(&format!("life 1: {}", Returning::RETRY_EXC));
    assert!(!second.printed().contains("messages"));
    second.kill();
    second.finish();
}

/// A host that gets another address during a connection is lost to its peer, unless the peer is
/// told before its retries end.
#[test]
fn a_host_that_moves_is_followed_in_time_or_lost() {
    two_hosts!(Need::Program("gcc"));
    for is_told in [true, false] {
        let rig = Returning::new();
        let (server, client) = (rig.server("1", &[]), rig.client());
        Returning::moves(&rig.veth.left, rig.veth.right_address());
        rig.tell("enough");
        if is_told {
            rig.tell("moved");
            client.finish().success().says("followed").never_says(Returning::RETRY_EXC);
            server.finish().success().says("life 1: ended with");
        } else {
            client.finish().success().says(&format!("life 1: {}", Returning::RETRY_EXC));
            // The side that only answers does not notice it.
            server.kill();
            server.finish().never_says(Returning::RETRY_EXC);
        }
    }
}

/// Packets from a new address do not come from the peer, whatever their numbers are.
#[test]
fn a_host_that_sends_from_a_new_address_is_not_the_peer() {
    two_hosts!(Need::Program("gcc"));
    let rig = Returning::new();
    let (mut server, client) = (rig.server("1", &[]), rig.client());
    Returning::moves(&rig.veth.right, rig.veth.left_address());
    client.finish().success().says(&format!("life 1: {}", Returning::RETRY_EXC));
    server.wait_says("not the peer of this QP");
    server.kill();
    server.finish();
}

/// The counters that a program logged when it closed its device.
#[track_caller]
fn counters(out: &Output) -> HashMap<&str, u64> {
    assert!(out.stderr.contains("peerdma::counters"), "it was logged: {out}");
    out.counters()
}

/// Unknown QPNs, wrong ICRCs, PSNs, keys and lengths: dropped or refused by the rule, counted and
/// logged, and the attacked QP continues. The forger checks every answer.
#[test]
fn forged_packets_are_dropped_or_refused_and_counted() {
    two_hosts!(Need::Program("gcc"), Need::Program("python3"));
    let veth = Veth::new();
    // Another host on the same wire, and an address of the victim's host that does not belong to
    // its port.
    veth.right.ip(&["addr", "add", "10.77.0.3/24", "dev", Veth::INTERFACE]);
    veth.left.ip(&["addr", "add", "10.78.0.1/32", "dev", "lo"]);
    let scratch = Scratch::new();
    let mut victim = Program::new(compile("victim", &scratch))
        .args(["10.77.0.2"])
        .env("PEERDMA_LOG", "info,peerdma::drop=debug")
        .in_netns(&veth.left)
        .start();
    victim.wait_says("mr ");
    let printed = victim.printed();
    let words = |head: &str| -> Vec<String> {
        let lines = printed.lines().filter_map(|line| line.strip_prefix(head));
        lines.flat_map(|line| line.split(' ').map(str::to_owned)).collect()
    };
    let forger = concat!(env!("CARGO_MANIFEST_DIR"), "/py/forger.py");
    let forged = Program::new("/usr/bin/python3")
        .args([forger])
        .args(words("mr "))
        .args(words("qp "))
        .mode(Mode::Plain)
        .in_netns(&veth.right)
        .start()
        .finish();
    if !forged.status.success() {
        victim.kill();
        panic!("{forged}\n=== victim {}", victim.finish());
    }
    let out = victim.finish();
    out.success().says("status local length error");
    let counted = counters(&out);
    for line in forged.stdout.lines() {
        let (name, count) = line.split_once(' ').expect("a name and a count");
        let (count, seen) =
            (count.parse::<u64>().expect("a count"), counted.get(name).copied().unwrap_or(0));
        // Noise may be anything.
        let is_noisy =
            ["rx_unknown_qpn", "rx_malformed_packets", "rx_wrong_source"].contains(&name);
        assert!(
            seen == count || is_noisy && seen > count,
            "{name}: {seen}, {count} were made\n{out}"
        );
    }
    out.names_its_drops();
    for (name, _) in DROPS {
        assert!(counted.get(name).is_some_and(|count| *count > 0), "{name}: none\n{out}");
    }
}

/// As by the kernel's rxe in a namespace with an rxe device.
#[test]
fn a_udp_port_in_use_by_another_program_is_reported() {
    two_hosts!(Need::Program("ibv_rc_pingpong"), Need::Program("python3"));
    const HOLD: &str = "import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); \
                        s.bind(('', 4791)); print('held', flush=True); time.sleep(600)";
    let (veth, port) = (Veth::new(), Port::lease());
    let number = port.number().to_string();
    let holder = Program::new("python3").mode(Mode::Plain).args(["-c", HOLD]);
    let mut holder = holder.in_netns(&veth.right).start();
    holder.wait_says("held");
    let pingpong = Program::new("ibv_rc_pingpong").args(["-g", "0", "-p", &number]);
    let mut server = pingpong.clone().in_netns(&veth.left).start();
    server.wait_listening(port.number());
    let client = pingpong.args([veth.left_address()]).in_netns(&veth.right);
    let client = client.env("PEERDMA_LOG", "peerdma::udp=warn,peerdma::completion=warn").output();
    client.failure().says("UDP port 4791 was taken when the NIC was opened");
    client.says(" at 10.77.0.1 (UDP port 4791 from 10.77.0.2, sgid_index 0): ");
    client.says("no acknowledgement came within the timeout");
    client.says("the kernel's rxe, or any other program, keeps them");
    server.kill();
    server.finish();
    holder.kill();
    holder.finish();
}

/// The kernel resolves the next hop before a driver sees an address (`ib_resolve_eth_dmac`): a
/// second for an unused address, no time for its own and the peer's, and an immediate error without
/// a route.
#[test]
fn the_next_hop_is_resolved_before_a_qp_is_connected() {
    two_hosts!(Need::Program("gcc"));
    let (veth, scratch) = (Veth::new(), Scratch::new());
    veth.left.ip(&["route", "del", "default"]);
    veth.left.ip(&["route", "add", "198.51.100.0/24", "via", veth.right_address()]);
    veth.left.ip(&["route", "add", "203.0.113.0/24", "via", "10.77.0.99"]);
    let program = compile("next_hop", &scratch);
    let to = [
        "10.77.0.1",
        "10.77.0.2",
        "198.51.100.7",
        "10.77.0.99",
        "203.0.113.7",
        "192.0.2.1",
        "239.1.2.3",
    ];
    let said = Program::new(program).args(to).in_netns(&veth.left).output();
    for (address, rc, ah) in [
        ("10.77.0.1", "0", "0"),
        ("10.77.0.2", "0", "0"),
        ("198.51.100.7", "0", "0"),
        ("10.77.0.99", "ETIMEDOUT", "ETIMEDOUT"),
        ("203.0.113.7", "ETIMEDOUT", "ETIMEDOUT"),
        ("192.0.2.1", "ENETUNREACH", "ENETUNREACH"),
        ("239.1.2.3", "0", "0"),
    ] {
        said.success().says(&format!("{address}: rc {rc} uc {rc} ah {ah}."));
    }
}
