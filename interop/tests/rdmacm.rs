//! The connection manager: the programs of rdmacm-utils and perftest with `-R`, on one host and
//! over a wire, and failures.

use interop::need::Need;
use interop::{Mode, Place, Port, Program, Running, Scratch, compile, needs, own_address};

/// Starts a server and waits until its log reports that it listens.
#[track_caller]
fn serve(place: &Place, program: &str, args: &[&str]) -> Running {
    place.serve(Program::new(program).args(args), Place::LISTENS)
}

fn ask(place: &Place, program: &str, args: &[&str]) -> Program {
    place.client(Program::new(program).args(args))
}

/// Each test once on one host and once over a wire.
macro_rules! here_and_over_a_wire {
    ($($(#[$doc:meta])* $here:ident, $wire:ident: $program:literal => $body:expr;)+) => {$(
        $(#[$doc])*
        #[test]
        fn $here() {
            needs!(Need::Program($program));
            $body(Place::here());
        }

        $(#[$doc])*
        #[test]
        fn $wire() {
            needs!(Need::Program($program), Need::Namespaces);
            $body(Place::wire());
        }
    )+};
}

here_and_over_a_wire! {
    rping, rping_wire: "rping" => rping_once;
    rping_persistent, rping_persistent_wire: "rping" => rping_again;
    ucmatose, ucmatose_wire: "ucmatose" => ucmatose_all;
    udaddy, udaddy_wire: "udaddy" => udaddy_all;
    mckey, mckey_wire: "mckey" => mckey_both;
    rdma_client, rdma_client_wire: "rdma_client" => rdma_client_once;
    rdma_xclient, rdma_xclient_wire: "rdma_xclient" => rdma_xclient_both;
    a_thousand_connections, a_thousand_connections_wire: "cmtime" => a_thousand;
    a_recording, a_recording_wire: "rping" => recorded;
    perftest_bandwidth, perftest_bandwidth_wire: "ib_send_bw" => |place| perftest(&place, "ib_send_bw", &["-n", "200"]);
    perftest_latency, perftest_latency_wire: "ib_write_lat" => |place| perftest(&place, "ib_write_lat", &["-n", "200"]);
    perftest_reads, perftest_reads_wire: "ib_read_bw" => |place| perftest(&place, "ib_read_bw", &["-n", "200"]);
    perftest_datagrams, perftest_datagrams_wire: "ib_send_lat" => |place| perftest(&place, "ib_send_lat", &["-n", "200", "-c", "UD"]);
}

fn rping_once(place: Place) {
    let (host, port) = (place.host(), place.port());
    let args = ["-p", &port, "-C", "50", "-S", "1000", "-v", "-V", "-a", &host];
    let server = serve(&place, "rping", &[&["-s"], &args[..]].concat());
    let client = ask(&place, "rping", &[&["-c"], &args[..]].concat()).output();
    client.success().says("ping data: rdma-ping-49");
    server.finish().success().says("server ping data: rdma-ping-49");
}

/// The server keeps running; each client has its own thread and identifier there.
fn rping_again(place: Place) {
    let (host, port) = (place.host(), place.port());
    let mut server = serve(&place, "rping", &["-s", "-P", "-p", &port, "-a", "0.0.0.0"]);
    let rping = ["-oL", "rping", "-c", "-a", &host, "-p", &port, "-V"];
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let args = [&rping[..], &["-v", "-C", "2000"]].concat();
            let mut client = ask(&place, "stdbuf", &args).start();
            // The server of rdma-core before 57 mixes up two clients that connect at the same time.
            client.wait_says("rdma-ping-0:");
            client
        })
        .collect();
    for client in clients {
        client.finish().success();
    }
    ask(&place, "stdbuf", &[&rping[..], &["-C", "20"]].concat()).output().success();
    assert!(server.is_alive(), "it serves until it is stopped");
    server.kill();
    server.finish();
}

fn ucmatose_all(place: Place) {
    for more in [&[][..], &["-m"], &["-t", "16", "-a", "14"]] {
        let args = [&["-c", "4", "-C", "20", "-S", "1000"], more].concat();
        let (server, client) = place.pair("ucmatose", &args);
        client.success().says("return status 0");
        server.success().says("return status 0");
    }
}

fn udaddy_all(place: Place) {
    // It has a fixed port, 7174.
    let args = ["-c", "4", "-C", "20", "-S", "1000"];
    let server = serve(&place, "udaddy", &args);
    let host = place.host();
    let client = ask(&place, "udaddy", &[&args[..], &["-s", &host]].concat()).output();
    client.success().says("data transfers complete").says("return status 0");
    server.finish().success().says("return status 0");
}

/// Members that receive, and one that sends.
fn mckey_both(place: Place) {
    if place.host().starts_with("127.") {
        // The netdev beside lo has no address.
        needs!(Need::Netdev);
    }
    let group = "239.77.1.1";
    let (host, peer) = (place.host(), place.peer());
    let receiver = Program::new("mckey")
        .args(["-m", group, "-b", &host, "-C", "10", "-S", "500"])
        .env("PEERDMA_LOG", "peerdma::cm=info");
    let mut receiver = place.server(receiver).start();
    receiver.wait_says("attached to");
    for more in [&[][..], &["-o"]] {
        let args = [&["-m", group, "-b", &peer, "-s", "-C", "10", "-S", "500"], more].concat();
        let sender = ask(&place, "mckey", &args).output();
        sender.success().says("return status 0");
        if more.is_empty() {
            receiver.end().success().says("return status 0");
        }
    }
}

fn rdma_client_once(place: Place) {
    let (host, port) = (place.host(), place.port());
    let server = serve(&place, "rdma_server", &["-p", &port]);
    let client = ask(&place, "rdma_client", &["-s", &host, "-p", &port]).output();
    client.success().says("rdma_client: end 0");
    server.finish().success().says("rdma_server: end 0");
}

fn rdma_xclient_both(place: Place) {
    let (host, port) = (place.host(), place.port());
    for kind in ["r", "x"] {
        let server = serve(&place, "rdma_xserver", &["-p", &port, "-c", kind]);
        let client = ask(&place, "rdma_xclient", &["-s", &host, "-p", &port, "-c", kind]).output();
        client.success().says("rdma_xclient: end 0");
        server.finish().success().says("rdma_xserver: end 0");
    }
}

fn perftest(place: &Place, program: &str, args: &[&str]) {
    let (host, port) = (place.host(), place.port());
    let args = [&["-R", "-F", "-p", &port], args].concat();
    let server = serve(place, program, &args);
    let client = ask(place, program, &[&args[..], &[&host]].concat()).output();
    client.success();
    assert_eq!(interop::perftest::rows(&client).len(), 1, "{client}");
    server.finish().success();
}

#[test]
fn ipv6() {
    needs!(Need::Program("rping"), Need::Namespaces, Need::Ipv6);
    let place = Place::wire();
    let port = place.port();
    let args = ["-p", &port, "-C", "20", "-V", "-a", "fd77::1"];
    let server = serve(&place, "rping", &[&["-s"], &args[..]].concat());
    ask(&place, "rping", &[&["-c"], &args[..]].concat()).output().success();
    server.finish().success();
}

#[test]
fn this_host_by_its_loopback_address() {
    needs!(Need::Program("rping"));
    let place = Place::here();
    let port = place.port();
    let args = ["-p", &port, "-C", "20", "-V", "-a", "127.0.0.1"];
    let server = serve(&place, "rping", &[&["-s"], &args[..]].concat());
    ask(&place, "rping", &[&["-c"], &args[..]].concat()).output().success();
    server.finish().success();
}

/// Two descriptors per connection and side for the completion channels that `rdma_create_qp` makes.
const DESCRIPTORS: &str = "--nofile=8192:8192";

fn a_thousand(place: Place) {
    needs!(Need::Program("prlimit"));
    let (host, port) = (place.host(), place.port());
    let server = serve(&place, "prlimit", &[DESCRIPTORS, "cmtime", "-p", &port]);
    let args = [DESCRIPTORS, "cmtime", "-p", &port, "-c", "1000", "-s", &host];
    let client = ask(&place, "prlimit", &args).output();
    client.success().says("disconnect").never_says("error").never_says("fail");
    server.kill();
    server.finish().never_says("fail");
}

/// Each message of a connection in the network analyser: once where it was sent, and once where it
/// arrived.
fn recorded(place: Place) {
    needs!(Need::Program("tshark"));
    let scratch = Scratch::new();
    let file = scratch.file("cm.pcapng");
    let file = file.to_str().expect("a path of ASCII");
    let (host, port, record) = (place.host(), place.port(), format!("PEERDMA_PCAP={file}"));
    let args = [&record, "rping", "-C", "2", "-p", &port, "-a", &host];
    let server = serve(&place, "env", &[&args[..], &["-s"]].concat());
    ask(&place, "env", &[&args[..], &["-c"]].concat()).output().success();
    server.finish().success();
    let count = |filter: &str| {
        let tshark = Program::new("tshark").args(["-r", file, "-Y", filter]).mode(Mode::Plain);
        tshark.limit(Place::LIMIT).output().success().stdout.lines().count()
    };
    // The side that ends first may not wait for the answer to its DREQ.
    for (attribute, least) in [("0x0010", 2), ("0x0013", 2), ("0x0014", 2), ("0x0015", 1)] {
        let found = count(&format!("infiniband.mad.attributeid == {attribute}"));
        assert!(found >= least, "{attribute}: {found}");
    }
    assert_eq!(count("infiniband.mad && (_ws.malformed || _ws.expert.severity >= 0x600000)"), 0);
    // REQ: the service is a TCP port, and it has the addresses.
    let service = format!("infiniband.cm.req.serviceid.dport == {port}");
    assert!(count(&service) >= 2, "{service}");
}

#[test]
fn two_thousand_connections_leave_nothing_behind() {
    needs!(Need::Program("gcc"), Need::Header("rdma/rdma_cma.h"));
    let scratch = Scratch::new();
    let storm = compile("cm_storm", &scratch);
    let storm = storm.to_str().expect("a path of ASCII");
    let place = Place::here();
    let (host, port) = (place.host(), place.port());
    let server = serve(&place, storm, &["server", &port, "2000"]);
    let client = ask(&place, storm, &["client", &port, "2000", &host]).output();
    client.success().says("ok");
    server.finish().success().says("ok");
}

#[test]
fn every_state_and_wrong_calls() {
    needs!(Need::Program("gcc"), Need::Header("rdma/rdma_cma.h"), Need::Netdev);
    let scratch = Scratch::new();
    let program = compile("cm_states", &scratch);
    Program::new(program).args([own_address()]).output().success().says("ok");
}

#[test]
fn a_host_that_is_switched_off() {
    needs!(Need::Program("rping"), Need::Namespaces);
    let place = Place::wire();
    // The next hop does not answer; rping gives it two seconds.
    let args = ["-c", "-a", "10.77.0.99", "-C", "1"];
    let client = ask(&place, "rping", &args).output();
    client.failure().says("RDMA_CM_EVENT_ADDR_ERROR, error -110");
    let client = ask(&place, "rping", &["-c", "-a", "203.0.113.1", "-C", "1"]);
    // An address behind the default route: the connection manager retries in vain, for longer than
    // the test waits.
    let mut client = client.start();
    client.wait_idle();
    assert!(client.is_alive());
    client.kill();
    client.finish();
}

#[test]
fn a_port_in_use() {
    needs!(Need::Program("rping"));
    let place = Place::here();
    let port = place.port();
    let server = serve(&place, "rping", &["-s", "-P", "-p", &port, "-a", "0.0.0.0"]);
    let second = ask(&place, "rping", &["-s", "-p", &port, "-a", "0.0.0.0"]).output();
    // The kernel's error for the wildcard address (EADDRNOTAVAIL).
    second.failure().says("Cannot assign requested address");
    server.kill();
    server.finish();
}

#[test]
fn a_service_without_a_listener() {
    needs!(Need::Program("rping"), Need::Program("rdma_client"), Need::Namespaces);
    for place in [Place::here(), Place::wire()] {
        let (host, port) = (place.host(), place.port());
        // A server at another port, whose host answers with the rejection.
        let other = Port::lease();
        let other = other.number().to_string();
        let server = serve(&place, "rping", &["-s", "-P", "-p", &other, "-a", "0.0.0.0"]);
        let client = ask(&place, "rping", &["-c", "-a", &host, "-p", &port, "-C", "1"]).output();
        client.failure().says("RDMA_CM_EVENT_REJECTED, error 8");
        let client = ask(&place, "rdma_client", &["-s", &host, "-p", &port]).output();
        client.failure().says("rdma_connect: Connection refused");
        server.kill();
        server.finish();
    }
}

/// A server that is killed with open connections: its clients end by themselves.
#[test]
fn a_peer_killed_midway() {
    needs!(Need::Program("rping"));
    let place = Place::here();
    let (host, port) = (place.host(), place.port());
    let server = serve(&place, "rping", &["-s", "-P", "-p", &port, "-a", "0.0.0.0"]);
    let args = ["-c", "-a", &host, "-p", &port, "-v", "-C", "100000000"];
    let mut client = ask(&place, "rping", &args).start();
    client.wait_says("rdma-ping-100:");
    server.kill();
    server.finish();
    // It gets one of two errors first: the end of the connection, or RETRY_EXC on its QP.
    let client = client.finish();
    assert!(client.status.code().is_some(), "{client}");
    let ends = ["client DISCONNECT EVENT", "cq completion failed status 12"];
    assert!(ends.iter().any(|end| client.stderr.contains(end)), "{client}");
}
