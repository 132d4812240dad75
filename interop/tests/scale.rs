//! Many hosts and many QPs at once.

use std::time::Duration;

use interop::need::Need;
use interop::{Lan, Netns, Output, Pair, Port, Program, Running, Scratch, compile, needs};

const HOSTS: usize = 8;
/// QPs to each other host: 70 in all.
const QPS: &str = "10";
/// Messages on each QP.
const MESSAGES: u64 = 150;
/// The limit of memory per QP, in KiB. Measured are 4.4 to 6.4, mostly outstanding messages.
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

/// Every host sends to every other over 70 QPs, and one host is cut off until the others are done
/// with each other: nothing is lost, duplicated or out of order.
#[test]
fn eight_hosts_and_one_that_is_cut_off() {
    needs!(Need::Namespaces, Need::Root, Need::Header("infiniband/verbs.h"));
    const LONELY: usize = 5;
    let outs = everybody_to_everybody(Some(LONELY));
    let lost = counter(&outs[LONELY], "local_ack_timeout_err");
    assert!(lost > 0, "nobody noticed: {}", outs[LONELY]);
}

/// QPs to the same host share the process there and the wire: when the first is done, every other
/// has done at least half. `--nocapture` shows the figures (bench/README.md).
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
    let mut hosts = mesh(&lan, &scratch, &port);
    if let Some(lonely) = lonely {
        lan.cut_off(lonely);
        // One ACK timeout of 2.1 s. The eighth retry ends after 58 s, and the others need only a
        // few.
        std::thread::sleep(Duration::from_millis(2500));
        let others = hosts.iter_mut().enumerate().filter(|(index, _)| *index != lonely);
        others.for_each(|(_, host)| host.wait_says(&format!("all but host {lonely}")));
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

/// One in this many short-lived processes may lose a message, since a machine may stop a process
/// for long (docs/DIFFERENCES.md). Losses by closed sockets would be one in twenty; losses by
/// steering queries, and by rings that outlive a VF's name, one in some hundreds.
const ONE_IN: u64 = 320;

/// Processes come and go on one host, with all traffic on the one UDP port: the others lose no
/// packets. The ACK timeout is infinite, and datagrams are not retransmitted.
#[test]
fn processes_that_come_and_go_cost_the_others_no_packets() {
    needs!(Need::Namespaces, Need::Root, Need::Header("infiniband/verbs.h"));
    let (lan, scratch) = (Lan::new(1), Scratch::new());
    let config = scratch.file("force_udp.toml");
    std::fs::write(&config, "[[nic]]\nforce_udp = true\n").expect("a writable scratch");
    let out = Program::new(compile("churn", &scratch))
        .args(["320", "6"])
        .env("PEERDMA_CONFIG", &config)
        .env("LOOP_TIMEOUT", "0")
        .limit(Duration::from_secs(150))
        .in_netns(&lan.hosts[0])
        .output();
    out.success().says("lost a message");
    let words: Vec<&str> = out.stdout.split_whitespace().collect();
    let [all, _, lost, ..] = words[..] else { panic!("{out}") };
    let count = |word: &str| word.parse::<u64>().expect("a count");
    assert!(count(lost) * ONE_IN <= count(all), "{out}");
}

/// Pairs of `ib_write_bw` from one host to another, each of which writes for some seconds.
struct Writers {
    lan: Lan,
    ports: Vec<Port>,
}

/// How long a pair writes, and its ACK timeout, of which there are eight.
#[derive(Clone, Copy)]
struct How {
    seconds: &'static str,
    timeout: &'static str,
}

/// 134 ms: the retries are over long before the five seconds.
const USUAL: How = How { seconds: "5", timeout: "15" };
/// 537 ms, which is enough on a loaded machine.
const PATIENT: How = How { seconds: "5", timeout: "17" };
/// Runs until it is ended.
const ENDLESS: How = How { seconds: "80", timeout: "17" };
/// 34 ms, less than a second in all.
const IMPATIENT: How = How { seconds: "80", timeout: "13" };

impl Writers {
    fn new() -> Self {
        Self { lan: Lan::new(2), ports: Vec::new() }
    }

    /// Starts one more pair, whose server is modified by `change`. The client has the ACK timeout
    /// of `how`.
    #[track_caller]
    fn start(&mut self, how: How, change: impl FnOnce(Program) -> Program) -> Pairing {
        let How { seconds, timeout } = how;
        let port = Port::lease();
        let number = port.number().to_string();
        let program = Program::new("ib_write_bw")
            .args(["-F", "-x", "0", "-s", "65536", "-D", seconds, "-u", timeout, "-p", &number])
            .env("PEERDMA_LOG", "warn,peerdma::udp=info,peerdma::counters=info")
            .limit(Duration::from_secs(90));
        let server = change(program.clone().in_netns(&self.lan.hosts[0]));
        let mut server = server.start();
        server.wait_listening(port.number());
        let client = program.in_netns(&self.lan.hosts[1]).args([Lan::address(0)]).start();
        self.ports.push(port);
        let mut pair = Pairing { server, client };
        // In this order, so that the first process has the port.
        pair.client.wait_busy(Duration::from_millis(100));
        pair
    }
}

struct Pairing {
    server: Running,
    client: Running,
}

impl Pairing {
    /// Requires that both ends succeed. Returns the server's output.
    #[track_caller]
    fn succeeds(self) -> Output {
        self.client.finish().success().says("65536");
        let server = self.server.finish();
        server.success().says("65536");
        server
    }

    /// Ends it in any state. Returns the server's output.
    fn end(self) -> Output {
        self.server.resume();
        for running in [&self.server, &self.client] {
            running.kill();
        }
        self.client.finish();
        self.server.finish()
    }
}

const TAKEN: &str = "UDP port 4791 is taken in this network namespace";
const TAKEN_OVER: &str = "took UDP port 4791, which has become free";

macro_rules! two_users {
    () => {
        needs!(Need::Namespaces, Need::Root, Need::Program("setpriv"), Need::Program("ib_write_bw"))
    };
}

/// The process that has the UDP port belongs to another user and dies under load: the dependent
/// processes take the port, and their traffic continues.
#[test]
fn the_port_of_a_dead_process_of_another_user_is_taken_over() {
    two_users!();
    for holder_is_root in [false, true] {
        let user = |program: Program, is_root| if is_root { program } else { program.as_nobody() };
        let mut writers = Writers::new();
        let holder = writers.start(ENDLESS, |program| user(program, holder_is_root));
        let endless = writers.start(ENDLESS, |program| user(program, !holder_is_root));
        let other = writers.start(USUAL, |program| user(program, !holder_is_root));
        holder.server.kill();
        let other = other.succeeds();
        // One of them is enough: it forwards.
        let both = format!("{}{}", other.says(TAKEN).stderr, endless.end().stderr);
        assert!(both.contains(TAKEN_OVER), "{both}");
        holder.end();
    }
}

/// One of several processes of the user that has the UDP port is stopped or dies: processes of
/// other users get their packets through another one.
#[test]
fn a_process_that_depends_on_another_user_depends_on_no_single_process_of_it() {
    two_users!();
    for is_stopped in [true, false] {
        let mut writers = Writers::new();
        let first = writers.start(ENDLESS, Program::as_nobody);
        let second = writers.start(ENDLESS, Program::as_nobody);
        let other = writers.start(USUAL, |program| program);
        if is_stopped {
            first.server.stop();
        } else {
            first.server.kill();
        }
        other.succeeds().says(TAKEN).never_says(TAKEN_OVER);
        second.end();
        first.end();
    }
}

/// A user whose only process is stopped keeps the port. Processes of other users receive nothing
/// from other hosts until it continues, as over a cut wire: QPs with longer retries are not
/// affected, others get an error. On their own host they continue.
#[test]
fn a_stopped_process_with_the_port_is_a_cut_wire_for_other_users() {
    two_users!();
    let mut writers = Writers::new();
    let holder = writers.start(ENDLESS, Program::as_nobody);
    let impatient = writers.start(IMPATIENT, |program| program);
    let patient = writers.start(PATIENT, |program| program);
    assert!(!impatient.client.printed().contains("Failed"), "{}", impatient.client.printed());
    holder.server.stop();
    impatient.client.finish().failure().says("Failed status 12");
    holder.server.resume();
    patient.succeeds().says(TAKEN).never_says(TAKEN_OVER);

    holder.server.stop();
    let pingpong = Pair::new("ibv_rc_pingpong").args(["-g", "0", "-c", "-n", "100"]);
    let here = pingpong.both(|program| program.in_netns(&writers.lan.hosts[0]));
    here.host(&Lan::address(0)).run().client.says("100 iters in");
    impatient.server.kill();
    impatient.server.finish();
    holder.end();
}

/// Of several processes of one host the first one dies under load, the one that got most datagrams
/// from the kernel: the traffic of the others continues. A stopped one does not block the others.
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
