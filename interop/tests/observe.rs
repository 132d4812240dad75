//! What the field's own tools see of all processes, and `peerdma top`.

use std::cell::RefCell;

use interop::need::Need;
use interop::{Artefacts, Mode, Output, Place, Program, Running, Scratch, compile_with, needs};

const PORT: &str = "/sys/class/infiniband/peerdma0/ports/1";

/// Two hosts, on which `rping` sends without end, and nothing else has the device.
struct Traffic {
    place: Place,
    server: RefCell<Running>,
    client: RefCell<Running>,
}

impl Traffic {
    fn start() -> Self {
        let place = Place::wire();
        let (host, port) = (place.host(), place.port());
        let rping =
            |args: &[&str]| Program::new("rping").args(["-p", &port, "-a", &host]).args(args);
        let server = place.serve(rping(&["-s"]), Place::LISTENS);
        let client = place.client(rping(&["-c", "-C", "1000000000"])).start();
        let traffic = Self { place, server: server.into(), client: client.into() };
        traffic.wait("a connection", || {
            traffic.rdma(&["resource", "show", "qp"]).stdout.contains("state RTS")
        });
        traffic
    }

    /// Waits while the server lives.
    #[track_caller]
    fn wait(&self, what: &str, ready: impl Fn() -> bool) {
        self.server.borrow_mut().wait_until(what, |_| ready());
    }

    /// A program on the server's host.
    fn beside(&self, name: &str, args: &[&str]) -> Program {
        self.place.server(Program::new(name).args(args))
    }

    #[track_caller]
    fn rdma(&self, args: &[&str]) -> Output {
        let out = self.beside("rdma", args).output();
        out.success();
        out
    }

    fn end(self) {
        for running in [&self.client, &self.server] {
            running.borrow().kill();
        }
    }
}

#[test]
fn rdma_lists_devices_and_the_objects_of_all_processes() {
    needs!(Need::Program("rdma"), Need::Program("rping"), Need::Namespaces);
    let traffic = Traffic::start();
    traffic.rdma(&["dev"]).says("peerdma0").says("node_type ca");
    traffic.rdma(&["link"]).says("link peerdma0/1 state ACTIVE physical_state LINK_UP");
    traffic.rdma(&["system"]).says("netns exclusive");
    traffic.rdma(&["resource", "show"]).says("peerdma0: pd").says("cq 1 qp 1 cm_id 2");
    traffic.rdma(&["resource", "show", "qp"]).says("state RTS").says("comm rping");
    traffic.rdma(&["statistic"]).says("peerdma0/1").says("out_of_buffer");
    traffic.end();
}

#[test]
fn rdma_writes_json_that_others_read() {
    needs!(Need::Program("rdma"), Need::Program("rping"), Need::Namespaces);
    let traffic = Traffic::start();
    let code = "import json, subprocess\n\
                def show(*args):\n\
                \x20   return json.loads(subprocess.check_output(['rdma', '-j', *args]))\n\
                assert [d['ifname'] for d in show('dev')] == ['peerdma0']\n\
                assert show('link')[0]['state'] == 'ACTIVE'\n\
                [qp] = show('resource', 'show', 'qp')\n\
                assert (qp['type'], qp['state'], qp['comm']) == ('RC', 'RTS', 'rping'), qp\n\
                assert open(f\"/proc/{qp['pid']}/comm\").read() == 'rping\\n'\n\
                assert show('statistic')[0]['rx_udp_packets'] > 0\n\
                print('all there')\n";
    let out = traffic.beside("/usr/bin/python3", &["-c", code]).output();
    out.success().says("all there");
    traffic.end();
}

#[test]
fn rdma_lists_the_same_by_the_preload_library() {
    needs!(Need::Program("rdma"), Need::Program("rping"), Need::Namespaces);
    let traffic = Traffic::start();
    let rdma = |args: &[&str]| {
        let out = traffic.beside("rdma", args).env("PEERDMA_DOOR", "preload").output();
        out.success();
        out
    };
    rdma(&["dev"]).says("peerdma0").says("node_type ca");
    rdma(&["link"]).says("link peerdma0/1 state ACTIVE physical_state LINK_UP");
    rdma(&["resource", "show", "qp"]).says("state RTS").says("comm rping");
    rdma(&["statistic"]).says("peerdma0/1").says("out_of_buffer");
    let ibv_devices = traffic.beside("ibv_devices", &[]).env("PEERDMA_DOOR", "preload").output();
    ibv_devices.success().says("peerdma0");
    traffic.end();
}

#[test]
fn a_static_program_has_the_same_socket_as_a_dynamic_one() {
    needs!(Need::Header("rdma/rdma_netlink.h"), Need::Program("rping"), Need::Namespaces);
    let traffic = Traffic::start();
    for options in [&["-static"][..], &[]] {
        let scratch = Scratch::new();
        let program = compile_with("netlink_dump", &scratch, options, &[]);
        let out = traffic.beside(program.to_str().expect("text"), &[]).output();
        out.success().says("DEVICE 0 peerdma0").says("QPS 1");
    }
    traffic.end();
}

#[test]
fn a_stopped_process_holds_nobody_up() {
    needs!(Need::Program("rdma"), Need::Program("rping"), Need::Namespaces);
    let traffic = Traffic::start();
    traffic.server.borrow().stop();
    traffic.rdma(&["resource", "show", "qp"]).never_says("comm rping");
    let top = traffic.beside(&peerdma(), &["top", "--once", "--json"]).mode(Mode::Plain).output();
    top.success().says("it did not answer in time");
    traffic.end();
}

#[test]
fn another_user_sees_devices_and_no_objects() {
    needs!(Need::Program("rdma"), Need::Program("rping"), Need::Namespaces, Need::Root);
    let traffic = Traffic::start();
    let rdma = |args: &[&str]| traffic.beside("rdma", args).as_nobody().output();
    rdma(&["dev"]).success().says("peerdma0");
    rdma(&["resource", "show"]).success().says("qp 0");
    rdma(&["resource", "show", "qp"]).success().never_says("comm");
    traffic.end();
}

#[test]
fn counters_are_those_of_the_port_by_the_preload_library() {
    needs!(Need::Program("rping"), Need::Namespaces);
    let traffic = Traffic::start();
    let sent = format!("{PORT}/counters/port_xmit_packets");
    let received = format!("{PORT}/hw_counters/rx_udp_packets");
    // One program that looks again and again: what it reads are not the values of its start.
    let code = format!(
        "import os, time\n\
         def read(name): return int(open(name).read())\n\
         first = read('{sent}')\n\
         assert first > 0 and read('{received}') > 0\n\
         end = time.time() + 60\n\
         while read('{sent}') <= first: assert time.time() < end\n\
         assert os.listdir('{PORT}').count('counters') == 1\n\
         assert read('{PORT}/counters/VL15_dropped') == 0\n\
         print('it counts')\n"
    );
    let python = traffic.beside("/usr/bin/python3", &["-c", &code]);
    python.env("PEERDMA_DOOR", "preload").output().success().says("it counts");
    let cat = traffic.beside("cat", &[&sent]).env("PEERDMA_DOOR", "preload").output();
    assert_ne!(cat.success().stdout, "0\n");
    traffic.end();
}

#[test]
fn counters_are_those_of_the_port_for_every_kind_of_program() {
    needs!(Need::Program("busybox"), Need::Program("rping"), Need::Namespaces);
    let traffic = Traffic::start();
    let read = |program: &str, args: &[&str]| -> u64 {
        let out = traffic.beside(program, args).output();
        let text =
            out.success().stdout.trim_end().rsplit(':').next().unwrap_or_default().to_owned();
        text.parse().unwrap_or_else(|_| panic!("no number\n{out}"))
    };
    let sent = format!("{PORT}/counters/port_xmit_packets");
    let received = format!("{PORT}/hw_counters/rx_udp_packets");
    let first = read("cat", &[&sent]);
    traffic.wait("more packets", || read("cat", &[&sent]) > first);
    assert!(read("busybox", &["cat", &sent]) > first, "a static program");
    assert!(read("cat", &[&received]) > 0);
    // By a descriptor of the directory.
    let code = format!(
        "import os; d = os.open('{PORT}/counters', os.O_RDONLY); \
         print(os.read(os.open('port_xmit_packets', os.O_RDONLY, dir_fd=d), 99).decode())"
    );
    assert!(read("/usr/bin/python3", &["-c", &code]) > first, "relative to a descriptor");
    let out = traffic.beside("cat", &[&format!("{PORT}/counters/VL15_dropped")]).output();
    assert_eq!(out.success().stdout, "0\n", "nothing counts it");
    traffic.end();
}

/// What two processes of a host count that send 100 messages of 4096 bytes to each other.
const MESSAGES: &str = "ibv_rc_pingpong -g 0 -n 100 -s 4096 > /dev/null & server=$!; \
                        until ibv_rc_pingpong -g 0 -n 100 -s 4096 127.0.0.1 > /dev/null 2>&1; \
                        do kill -0 $server || exit 1; done; wait $server";

#[test]
fn what_a_process_counted_that_ended_before_anybody_looked_is_not_lost() {
    needs!(Need::Program("ibv_rc_pingpong"), Need::Namespaces);
    let place = Place::wire();
    let shell = |script: &str| place.server(Program::new("sh").args(["-c", script]));
    let numbers = |text: &str| -> Vec<u64> { text.lines().flat_map(str::parse).collect() };
    let look = format!("cat {PORT}/counters/port_xmit_packets {PORT}/counters/port_xmit_data");
    // Nobody looks while they are there.
    let alone = shell(&format!("{MESSAGES}; {look}")).output();
    let alone = numbers(&alone.success().stdout);
    assert!(alone[0] >= 200, "packets: {alone:?}");
    assert!(alone[1] >= 200 * 4096 / 4, "words of 4 bytes: {alone:?}");
    // Another run of peerdma is there meanwhile, from its first answer on.
    let mut witness = shell(&format!("{look}; exec sleep infinity")).start();
    witness.wait_until("it looked", |running| running.printed().lines().count() == 2);
    let before = numbers(&witness.printed());
    shell(MESSAGES).output().success();
    // And those that begin later know it, too.
    let first = numbers(&shell(&look).output().success().stdout);
    assert!(first[0] >= before[0] + 200, "{before:?} {first:?}");
    assert!(first[1] >= before[1] + 200 * 4096 / 4, "{before:?} {first:?}");
    assert_eq!(numbers(&shell(&look).output().success().stdout), first, "they do not fall");
    witness.kill();
    witness.end();
}

#[test]
fn what_the_only_process_of_a_host_counted_is_not_lost_with_it() {
    needs!(Need::Header("infiniband/verbs.h"), Need::Namespaces);
    let (place, scratch) = (Place::wire(), Scratch::new());
    let program = interop::compile("pcap_loop", &scratch);
    // It meets no other process, so at its end it reads for the first time what others are.
    let look = format!("cat {PORT}/counters/port_xmit_packets");
    let script = format!("{} > /dev/null && {look}", program.display());
    let out = place.server(Program::new("sh").args(["-c", &script])).output();
    let sent: u64 = out.success().stdout.trim_end().parse().expect("a number");
    assert!(sent > 0, "{out}");
}

#[test]
fn prometheus_node_exporter_exports_the_counters_of_the_port() {
    needs!(
        Need::Program("prometheus-node-exporter"),
        Need::Program("curl"),
        Need::Program("rping"),
        Need::Namespaces
    );
    let traffic = Traffic::start();
    // The kernel chooses the port.
    let args = [
        "--web.listen-address=127.0.0.1:0",
        "--collector.disable-defaults",
        "--collector.infiniband",
    ];
    let mut exporter = traffic.beside("prometheus-node-exporter", &args).start();
    let address = |running: &Running| {
        let errors = running.errors();
        let line = errors.lines().find(|line| line.contains("Listening on"))?.to_owned();
        let at = line.find("127.0.0.1:")?;
        let end = line[at..].find(|c: char| !c.is_ascii_digit() && !".:".contains(c));
        Some(line[at..end.map_or(line.len(), |end| at + end)].to_owned())
    };
    exporter.wait_until("its address", |running| address(running).is_some());
    let address = address(&exporter).expect("it listens");
    let scrape = || {
        let url = format!("http://{address}/metrics");
        let out = traffic.beside("curl", &["-sS", &url]).mode(Mode::Plain).output();
        out.success();
        out
    };
    let sent = || -> f64 {
        let out = scrape();
        let metric =
            "node_infiniband_port_packets_transmitted_total{device=\"peerdma0\",port=\"1\"}";
        let line = out.stdout.lines().find(|line| line.starts_with(metric));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.unwrap_or_else(|| panic!("no {metric}\n{out}"))
    };
    scrape().says("node_scrape_collector_success{collector=\"infiniband\"} 1");
    let first = sent();
    assert!(first > 0.0);
    exporter.wait_until("more packets", |_| sent() > first);
    // What has ended is not forgotten.
    traffic.client.borrow().kill();
    traffic.server.borrow().kill();
    traffic.server.borrow_mut().end();
    assert!(sent() >= first, "a counter fell");
    exporter.kill();
    exporter.end();
    traffic.client.borrow_mut().end();
}

#[test]
fn top_shows_processes_queue_pairs_rates_and_paths() {
    needs!(Need::Program("rping"), Need::Program("rdma"), Need::Namespaces);
    let traffic = Traffic::start();
    let top = |args: &[&str]| {
        let out = traffic.beside(&peerdma(), args).mode(Mode::Plain).output();
        out.success();
        out
    };
    top(&["top", "--once"])
        .says("rping: ")
        .says("RC RTS")
        .says("the address belongs to another host");
    let code = "import json, subprocess, sys\n\
                out = subprocess.check_output([sys.argv[1], 'top', '--once', '--json'])\n\
                [nic] = json.loads(out)['nics']\n\
                [process] = [p for p in nic['processes'] if p['comm'] == 'rping']\n\
                assert process['rates']['received_packets'] > 0, process\n\
                [qp] = process['qps']\n\
                assert qp['rates']['received_packets'] > 0, qp\n\
                assert (qp['state'], qp['path']['carrier']) == ('RTS', 'UDP'), qp\n\
                print('all there')\n";
    let python = traffic.beside("/usr/bin/python3", &["-c", code, &peerdma()]).mode(Mode::Plain);
    python.output().success().says("all there");
    traffic.end();
}

#[test]
fn top_is_a_screen_on_a_terminal_and_a_report_elsewhere() {
    needs!(Need::Program("python3"), Need::Program("rping"), Need::Namespaces);
    let traffic = Traffic::start();
    let terminal = concat!(env!("CARGO_MANIFEST_DIR"), "/py/terminal.py");
    let program = traffic.beside("/usr/bin/python3", &[terminal, &peerdma(), "rping"]);
    program.mode(Mode::Plain).output().success().says("all shown");
    let piped = traffic.beside(&peerdma(), &["top"]).mode(Mode::Plain).output();
    piped.success().says("rping: ").says("RC RTS").never_says("\u{1b}");
    traffic.end();
}

fn peerdma() -> String {
    Artefacts::find().peerdma().to_str().expect("text").to_owned()
}

#[test]
fn ibstatus_and_ibstat_read_the_port() {
    needs!(Need::Program("ibstatus"), Need::Program("ibstat"));
    // Without a name it changes into the directory of all devices, and into that of their ports.
    let ibstatus = |args: &[&str]| Program::new("ibstatus").args(args);
    let by_preload = ibstatus(&[]).env("PEERDMA_DOOR", "preload");
    for program in [ibstatus(&[]), ibstatus(&["peerdma0:1"]), by_preload] {
        let out = program.output();
        out.success().says("Infiniband device 'peerdma0' port 1 status").says("4: ACTIVE");
        out.says("5: LinkUp").says("100 Gb/sec (4X EDR)").says("Ethernet").never_says("unknown");
        assert_eq!(out.stdout.matches("Infiniband device").count(), 1, "{out}");
    }
    let out = Program::new("ibstat").output();
    out.success().says("CA 'peerdma0'").says("State: Active").says("Link layer: Ethernet");
}

#[test]
fn each_port_has_counters_of_its_own() {
    needs!(Need::Program("rdma"), Need::Program("ibv_rc_pingpong"), Need::Namespaces);
    let (place, scratch) = (Place::wire(), Scratch::new());
    let config = scratch.file("peerdma.toml");
    std::fs::write(&config, "[[nic]]\nports = 3\n").expect("a scratch directory is writable");
    // The server is on the second port, the client on the third.
    let pingpong = "ibv_rc_pingpong -g 0 -n 100 -s 4096";
    let messages = format!(
        "{pingpong} -i 2 > /dev/null & server=$!; \
         until {pingpong} -i 3 127.0.0.1 > /dev/null 2>&1; \
         do kill -0 $server || exit 1; done; wait $server"
    );
    let look = "ports=/sys/class/infiniband/peerdma0/ports; \
                cat $ports/*/counters/port_xmit_packets $ports/*/hw_counters/tx_shm_packets \
                $ports/*/counters/port_rcv_packets; \
                for port in 1 2 3; do rdma statistic show link peerdma0/$port; done";
    for door in ["auto", "preload"] {
        let shell = Program::new("sh").args(["-c", &format!("{messages}; {look}")]);
        let shell = shell.env("PEERDMA_CONFIG", &config).env("PEERDMA_DOOR", door);
        let out = place.server(shell).output();
        let numbers: Vec<u64> = out.success().stdout.lines().flat_map(str::parse).collect();
        let [x1, x2, x3, s1, s2, s3, r1, r2, r3] = numbers[..] else { panic!("{door}: {out}") };
        assert_eq!((x1, s1, r1), (0, 0, 0), "{door}: nothing is on the first\n{out}");
        assert!([x2, x3, s2, s3, r2, r3].iter().all(|number| *number >= 100), "{door}: {out}");
        let of_link = |port: u32| {
            let link = format!("link peerdma0/{port} ");
            let line = out.stdout.lines().find(|line| line.starts_with(&link));
            let mut words = line.expect("a line for each port").split_whitespace();
            words.find(|word| *word == "tx_shm_packets");
            words.next().and_then(|number| number.parse::<u64>().ok()).expect("a number")
        };
        assert_eq!(of_link(1), 0, "{door}: {out}");
        assert!(of_link(2) >= 100 && of_link(3) >= 100, "{door}: {out}");
    }
}

#[test]
fn perfquery_is_refused() {
    needs!(Need::Program("perfquery"));
    Program::new("perfquery").output().failure();
}

#[test]
fn ucx_finds_the_device_and_complains_of_nothing() {
    needs!(Need::Program("ucx_info"));
    let out = Program::new("ucx_info").args(["-d"]).output();
    out.success().says("peerdma0:1").never_says("ERROR").never_says("netlink");
}
