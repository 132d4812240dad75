//! Raw packets: frames by rules, work queues, receive side scaling, and perftest's programs for
//! them.

use std::time::Duration;

use interop::need::Need;
use interop::perftest::{self, Row};
use interop::{Netns, Program, Running, Scratch, Veth, compile, needs};

/// The number of frames from one process to another: no more than the receiver posts before it
/// reports that it is ready.
const FRAMES: &str = "30";
/// The MAC addresses of the two hosts; the left one is the server.
const LEFT: &str = "02:00:00:00:00:01";
const RIGHT: &str = "02:00:00:00:00:02";

macro_rules! namespaces {
    ($($more:expr),*) => {
        needs!(
            Need::Root, Need::Namespaces, Need::Program("ip"), Need::Program("nsenter"),
            Need::Program("setpriv") $(, $more)*
        )
    };
}

/// A host with one netdev besides `lo`, without traffic of its own.
fn quiet_host() -> Netns {
    let host = Netns::new();
    host.ip(&["link", "add", "eth0", "type", "veth", "peer", "name", "far0"]);
    for netdev in ["eth0", "far0"] {
        host.ip(&["link", "set", netdev, "addrgenmode", "none"]);
        host.ip(&["link", "set", netdev, "up"]);
    }
    host.ip(&["addr", "add", "10.77.0.1/24", "dev", "eth0"]);
    host.ip(&["route", "add", "default", "via", "10.77.0.2"]);
    host
}

/// Two hosts with fixed MAC addresses, for the arguments of programs.
fn two_hosts() -> Veth {
    let veth = Veth::new();
    veth.left.ip(&["link", "set", Veth::INTERFACE, "address", LEFT]);
    veth.right.ip(&["link", "set", Veth::INTERFACE, "address", RIGHT]);
    veth
}

/// Waits until a program has a rule: then its second packet socket is bound to all protocols.
fn wait_for_a_rule(program: &mut Running) {
    let sockets = format!("/proc/{}/net/packet", program.pid());
    program.wait_until("a rule", |_| {
        let listed = std::fs::read_to_string(&sockets).unwrap_or_default();
        listed.lines().any(|line| line.split_whitespace().nth(3) == Some("0003"))
    });
}

#[test]
fn the_rules_hold() {
    namespaces!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let (host, program) = (Netns::new(), Program::new(compile("raw", &scratch)));
    program.args(["rules"]).in_netns(&host).output().success().says("rules hold");
}

#[test]
fn without_the_capability_there_are_no_raw_packets() {
    namespaces!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let (host, path) = (Netns::new(), compile("raw", &scratch));
    // The program keeps all other capabilities, for example to read the files of this test.
    let capabilities = ["--bounding-set", "-net_raw", "--inh-caps", "-net_raw"];
    let program = Program::new("setpriv").args(capabilities).args([&path]).args(["denied"]);
    let words = "packet socket needs CAP_NET_RAW";
    let output = program.in_netns(&host).env("PEERDMA_LOG", "peerdma::refusal=info").output();
    output.success().says("denied").says(words).says("`peerdma doctor`");
}

#[test]
fn every_frame_goes_where_the_rules_say() {
    namespaces!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = Program::new(compile("raw", &scratch)).args(["loop"]);
    let program = program.env("PEERDMA_LOG", "peerdma::completion=warn");
    for host in [Netns::new(), quiet_host()] {
        let output = program.clone().in_netns(&host).output();
        output.success().says("every frame went where it should");
        output.says("LOC_LEN_ERR (1): receive with room for 100 bytes, wr_id 0x1, QP 0x");
        output.says("the message is longer than the receive that it matched");
    }
}

#[test]
fn a_checksum_that_the_kernel_left_to_the_netdev_is_filled_in() {
    namespaces!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = Program::new(compile("raw", &scratch)).args(["kernel", "10.77.0.1"]);
    program.in_netns(&quiet_host()).output().success().says("finished");
}

/// One process sends to others: each receives every frame, in order and byte by byte, which the
/// program checks.
#[track_caller]
fn frames_arrive(receivers: &[&Netns], sender: &Netns, to: Option<&str>) {
    let scratch = Scratch::new();
    let program = Program::new(compile("raw", &scratch));
    let receiver = program.clone().args(["receive", FRAMES]).args(to);
    let start = |host: &&Netns| receiver.clone().in_netns(host).start();
    let mut receivers: Vec<_> = receivers.iter().map(start).collect();
    receivers.iter_mut().for_each(|receiver| receiver.wait_says("ready"));
    let sent = program.args(["send", FRAMES]).args(to).in_netns(sender).output();
    sent.success().says(&format!("sent {FRAMES}"));
    for receiver in receivers {
        receiver.finish().success().says(&format!("received {FRAMES}"));
    }
}

#[test]
fn a_frame_to_a_group_reaches_processes_of_both_hosts() {
    namespaces!(Need::Header("infiniband/verbs.h"));
    let veth = two_hosts();
    frames_arrive(&[&veth.left, &veth.right, &veth.right], &veth.right, None);
}

#[test]
fn a_frame_to_an_address_reaches_its_host() {
    namespaces!(Need::Header("infiniband/verbs.h"));
    let veth = two_hosts();
    frames_arrive(&[&veth.left], &veth.right, Some(LEFT));
    // Loopback within the NIC.
    frames_arrive(&[&veth.right], &veth.right, Some(RIGHT));
}

/// Runs a program of perftest on two hosts, with fewer messages than the receives that are posted
/// at first, since it would wait for a lost frame for ever. It uses no TCP port. The client has
/// extra options; its results are returned.
#[track_caller]
fn measure(name: &str, args: &[&str], of_client: &[&str]) -> Vec<Row> {
    let veth = two_hosts();
    let program = Program::new(name).args(["-F"]).args(args);
    let program = program.env("PEERDMA_LOG", "peerdma::counters=info,peerdma::refusal=info");
    let server = program.clone().args(["--server", "-B", LEFT, "-E", RIGHT]);
    let mut server = server.in_netns(&veth.left).start();
    wait_for_a_rule(&mut server);
    // It posts its receives after it has created the rule, and then polls.
    server.wait_busy(Duration::from_millis(500));
    let client = program.args(["--client", "-B", RIGHT, "-E", LEFT]).args(of_client);
    let client = client.in_netns(&veth.right).output();
    client.success();
    let sides = [client, server.finish()];
    let rows = sides.each_ref().map(|side| {
        let rows = perftest::rows(side.success());
        assert_eq!(rows.len(), 1, "{side}");
        side.says("_raw_packets=");
        rows
    });
    rows.into_iter().next().expect("the client's")
}

#[test]
fn raw_ethernet_bw() {
    namespaces!(Need::Program("raw_ethernet_bw"));
    measure("raw_ethernet_bw", &["-n", "400", "-s", "1000"], &[]);
}

#[test]
fn raw_ethernet_lat() {
    namespaces!(Need::Program("raw_ethernet_lat"));
    measure("raw_ethernet_lat", &["-n", "100"], &[]);
}

/// `ibv_qp_attr.rate_limit`.
#[test]
fn raw_ethernet_bw_with_packet_pacing() {
    namespaces!(Need::Program("raw_ethernet_bw"));
    // The program sets 10 * 8,192 kbit/s, which is 9.77 MiB/s. A first burst of a millisecond, one
    // part in forty, is sent at once.
    let limit = ["--rate_limit_type=PP", "--rate_units=M", "--rate_limit=10"];
    let rows = measure("raw_ethernet_bw", &["-n", "400", "-s", "1000"], &limit);
    assert!(rows[0].value < 10.1, "{rows:?}");
}
