//! Multicast: datagrams to groups, on one host and on two.

use interop::need::Need;
use interop::{Capture, Netns, Pair, Program, Scratch, Veth, compile, icrc, needs, perftest};

const V4: &str = "239.77.0.1";
const V6: &str = "ff12::77:1";
/// Messages to a group in each test.
const MESSAGES: u32 = 40;

macro_rules! two_hosts {
    ($($more:expr),*) => {
        needs!(
            Need::Root, Need::Namespaces, Need::Program("ip"), Need::Program("nsenter"),
            Need::Program("setpriv"), Need::Header("infiniband/verbs.h") $(, $more)*
        )
    };
}

#[test]
fn the_kernels_rules_hold() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    Program::new(compile("mcast", &scratch)).args(["rules"]).output().success().says("rules hold");
}

/// Two members on each host, with two queue pairs each, and a sender that is a member, too. Every
/// message reaches every member once and in order, which the program checks. The eight others
/// answer each message, so that the sender does not outrun them.
#[track_caller]
fn everyone_receives(hosts: [&Netns; 2], group: &str) {
    let scratch = Scratch::new();
    let path = compile("mcast", &scratch);
    let program = Program::new(&path);
    let messages = MESSAGES.to_string();
    let receiver = program.clone().args(["receive", group, &messages]);
    let mut receivers: Vec<_> =
        [0, 0, 1, 1].map(|host: usize| receiver.clone().in_netns(hosts[host]).start()).into();
    receivers.iter_mut().for_each(|receiver| receiver.wait_says("ready"));
    // `timeout` instead of the rig's own limit, so that a failure also shows the output of the
    // receivers.
    let sender = Program::new("timeout").args(["40"]).args([&path]);
    let sent = sender.args(["send", group, &messages, "8"]).in_netns(hosts[1]).output();
    if !sent.status.success() {
        let receivers = receivers.into_iter().map(|receiver| {
            receiver.kill();
            receiver.finish().to_string()
        });
        panic!("{sent}\n=== receivers\n{}", receivers.collect::<Vec<_>>().join("\n"));
    }
    sent.says(&format!("sent {MESSAGES}"));
    for receiver in receivers {
        receiver.finish().success().says(&format!("received {MESSAGES} and {MESSAGES}"));
    }
}

/// A plan applies to the datagrams of a group at each member.
#[test]
fn a_fault_plan_applies_to_members_of_groups() {
    needs!(Need::Header("infiniband/verbs.h"), Need::Root, Need::Namespaces, Need::Program("ip"));
    let (veth, scratch) = (Veth::new(), Scratch::new());
    let plan = scratch.file("late.toml");
    let text = "[[fault]]\ndo = 'delay'\nway = 'in'\nopcode = 'send'\nby = '5ms'\n";
    std::fs::write(&plan, text).expect("a file of our own");
    let path = compile("mcast", &scratch);
    let messages = MESSAGES.to_string();
    let mut receiver = Program::new(&path)
        .args(["receive", V4, &messages])
        .env("PEERDMA_FAULT", &plan)
        .in_netns(&veth.left)
        .start();
    receiver.wait_says("ready");
    let sent =
        Program::new(&path).args(["send", V4, &messages, "2"]).in_netns(&veth.right).output();
    sent.success().says(&format!("sent {MESSAGES}"));
    let received = receiver.finish();
    received.success().says(&format!("received {MESSAGES} and {MESSAGES}"));
    received.says(&format!("delay: fired {} times", 2 * MESSAGES));
}

#[test]
fn every_member_of_two_hosts_receives() {
    two_hosts!();
    let veth = Veth::new();
    everyone_receives([&veth.left, &veth.right], V4);
}

#[test]
fn a_group_of_ipv6() {
    two_hosts!(Need::Ipv6);
    let veth = Veth::new();
    everyone_receives([&veth.left, &veth.right], V6);
}

#[test]
fn every_icrc_is_right() {
    two_hosts!(Need::Program("dumpcap"), Need::Program("ethtool"));
    let veth = Veth::new();
    veth.without_offloads();
    let capture = Capture::start(&veth.left);
    everyone_receives([&veth.left, &veth.right], V4);
    let captured = capture.stop();
    assert!(captured.frames.len() >= MESSAGES as usize, "only {} packets", captured.frames.len());
    for (n, frame) in captured.frames.iter().enumerate() {
        assert_eq!(frame.carried_icrc(), icrc(frame), "packet {n}: {:02x?}", frame.ip);
    }
}

#[test]
fn perftest_sends_to_a_group() {
    two_hosts!(Need::Ipv6, Need::Program("ib_send_lat"));
    // Its default group is an IPv6 group of node-local scope, and `-M`, which selects another,
    // overflows a buffer in Debian's build.
    let veth = Veth::new();
    let args = ["-F", "-c", "UD", "-g", "-x", "1", "-n", "200", "-s", "64"];
    let on_left = |program: Program| program.in_netns(&veth.left).env("PEERDMA_LOG", "info");
    let done = Pair::new("ib_send_lat").args(args).both(on_left).host(veth.left_address()).run();
    assert_eq!(perftest::rows(&done.client).len(), 1, "{}", done.client);
    done.client.says("tx_multicast_packets=200").says("rx_multicast_packets=200");
}
