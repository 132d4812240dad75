//! Many hosts and many QPs at once.

use std::time::Duration;

use interop::need::Need;
use interop::{Lan, Netns, Output, Port, Program, Running, Scratch, compile, needs};

const HOSTS: usize = 8;
/// To each other host: 70 in all.
const QPS: &str = "10";
/// On each QP.
const MESSAGES: u64 = 150;
/// The most memory that one of them may cost, in KiB. It was 4.4 to 6.4, of which the messages under way are the most.
const MOST_KIB: f64 = 16.0;

/// Starts a host of `interop/c/mesh.c` in each namespace, and waits until all are connected.
#[track_caller]
fn mesh(lan: &Lan, scratch: &Scratch, port: &Port) -> Vec<Running> {
    let addresses: Vec<String> = (0..lan.hosts.len()).map(Lan::address).collect();
    let program = compile("mesh", scratch);
    let start = |(index, host): (usize, &Netns)| {
        Program::new(&program)
            .args([index.to_string(), port.number().to_string()])
            .args([QPS.to_owned(), MESSAGES.to_string()])
            .args(&addresses)
            .env("PEERDMA_LOG", "warn,peerdma::counters=info")
            .limit(Duration::from_secs(150))
            .in_netns(host)
            .start()
    };
    let mut hosts: Vec<Running> = lan.hosts.iter().enumerate().map(start).collect();
    for host in &mut hosts {
        host.wait_says("ready");
    }
    hosts
}

fn counter(out: &Output, name: &str) -> u64 {
    let found = out.stdout.split_whitespace().chain(out.stderr.split_whitespace());
    let found =
        found.map(|word| word.trim_end_matches(';')).filter_map(|word| word.split_once('='));
    let mut found = found.filter(|(known, _)| *known == name);
    found.next().map_or(0, |(_, count)| count.parse().expect("a count"))
}

/// Everybody sends to everybody over 70 QPs, and one host is cut off for a while: nothing is lost, doubled or out of order, and
/// the others go on.
#[test]
fn eight_hosts_and_one_that_is_cut_off() {
    needs!(Need::Namespaces, Need::Root, Need::Header("infiniband/verbs.h"));
    const LONELY: usize = 5;
    let outs = everybody_to_everybody(Some(LONELY));
    let lost = counter(&outs[LONELY], "local_ack_timeout_err");
    assert!(lost > 0, "nobody noticed: {}", outs[LONELY]);
}

/// QPs to the same host wait for the same process there and for the same wire: none is behind by more than half when the first is
/// done. `--nocapture` shows the figures (bench/README.md).
#[test]
fn qps_to_one_host_share_its_wire() {
    needs!(Need::Namespaces, Need::Root, Need::Header("infiniband/verbs.h"));
    for out in everybody_to_everybody(None) {
        let slowest = counter(&out, "slowest");
        assert!(2 * slowest >= MESSAGES, "{out}");
    }
}

#[track_caller]
fn everybody_to_everybody(lonely: Option<usize>) -> Vec<Output> {
    let (lan, scratch, port) = (Lan::new(HOSTS), Scratch::new(), Port::lease());
    let hosts = mesh(&lan, &scratch, &port);
    if let Some(lonely) = lonely {
        lan.cut_off(lonely);
        // Two ACK timeouts of 537 ms, of seven.
        std::thread::sleep(Duration::from_millis(1200));
        lan.reconnect(lonely);
    }
    let outs: Vec<Output> = hosts.into_iter().map(Running::finish).collect();
    for out in &outs {
        out.success().says("10500 sent, 10500 received");
        let words: Vec<&str> = out.stdout.split_whitespace().collect();
        let unit = words.iter().position(|word| *word == "KiB").expect("the memory of a QP");
        let each: f64 = words[unit - 1].parse().expect("a size");
        assert!(each < MOST_KIB, "{each} KiB for each QP: {out}");
        eprintln!("cut off: {lonely:?}; {}", out.stdout.lines().last().unwrap_or_default());
    }
    outs
}

/// Of several processes of one host the first one dies under load, which is the one that the kernel gave most datagrams: the
/// traffic of the others goes on. One that is stopped holds nobody up.
#[test]
fn processes_of_a_host_do_not_depend_on_each_other() {
    needs!(Need::Namespaces, Need::Root, Need::Program("ib_write_bw"));
    let lan = Lan::new(2);
    let serve = |port: &Port| {
        Program::new("ib_write_bw")
            .args(["-F", "-x", "0", "-s", "65536", "-D", "4", "-p", &port.number().to_string()])
            .in_netns(&lan.hosts[0])
            .limit(Duration::from_secs(90))
    };
    let ask = |port: &Port| serve(port).in_netns(&lan.hosts[1]).args([Lan::address(0)]);
    let ports: Vec<Port> = (0..4).map(|_| Port::lease()).collect();
    let mut pairs = Vec::new();
    for port in &ports {
        let mut server = serve(port).start();
        server.wait_listening(port.number());
        pairs.push((server, ask(port).start()));
    }
    for (_, client) in &mut pairs {
        client.wait_busy(Duration::from_millis(100));
    }
    let (dead, lost) = pairs.remove(0);
    let (stopped, waiting) = pairs.remove(0);
    dead.kill();
    stopped.stop();
    for (server, client) in pairs {
        client.finish().success().says("65536");
        server.finish().success().says("65536");
    }
    stopped.resume();
    stopped.kill();
    for running in [dead, lost, stopped, waiting] {
        running.kill();
        running.finish();
    }
}
