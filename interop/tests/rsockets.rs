//! rsockets: the programs of rdmacm-utils, programs of plain sockets, and the promises of the
//! manual.

use interop::need::Need;
use interop::{Place, Program, Scratch, compile, needs, own_address};

/// Each test once on one host and once over a wire.
macro_rules! here_and_over_a_wire {
    ($($(#[$doc:meta])* $here:ident, $wire:ident: [$($program:literal),*] => $body:expr;)+) => {$(
        $(#[$doc])*
        #[test]
        fn $here() {
            needs!($(Need::Program($program)),*);
            $body(Place::here());
        }

        $(#[$doc])*
        #[test]
        fn $wire() {
            needs!($(Need::Program($program),)* Need::Namespaces);
            $body(Place::wire());
        }
    )+};
}

here_and_over_a_wire! {
    /// With their defaults, which run every test that they have.
    rstream, rstream_wire: ["rstream"] => |place: Place| defaults(&place, "rstream");
    rstream_options, rstream_options_wire: ["rstream"] => |place: Place| options(&place, "rstream");
    riostream_options, riostream_options_wire: ["riostream"] => |place: Place| options(&place, "riostream");
    rstream_sizes, rstream_sizes_wire: ["rstream"] => rstream_sizes_all;
    rcopy, rcopy_wire: ["rcopy", "cmp"] => rcopy_once;
    udpong, udpong_wire: ["udpong"] => udpong_all;
    plain_sockets, plain_sockets_wire: ["rstream"] => preload_rstream;
    forking_server, forking_server_wire: ["rstream"] => preload_fork;
    http, http_wire: ["curl", "python3", "cmp"] => preload_http;
    iperf, iperf_wire: ["iperf3"] => preload_iperf;
    netcat, netcat_wire: ["nc", "cmp", "sh"] => preload_netcat;
    asyncio, asyncio_wire: ["python3"] => preload_asyncio;
}

fn defaults(place: &Place, program: &str) {
    let (server, client) = place.pair(program, &[]);
    for name in ["64_lat", "1m_lat", "64_bw", "1m_bw"] {
        client.success().says(name);
        server.success().says(name);
    }
}

/// Blocking calls, non-blocking calls, `rpoll`, addresses by the connection manager, small buffers,
/// inline data, keepalive; all with verified data.
fn options(place: &Place, program: &str) {
    let transfers = ["-I", "2", "-C", "20", "-S", "100000"];
    let mut all: Vec<&[&str]> = vec![
        &["-T", "a"],
        &["-T", "b"],
        &["-T", "n"],
        &["-B", "4096"],
        &["-B", "4096", "-T", "b"],
        &["-i", "0"],
        &["-i", "400"],
    ];
    if program == "rstream" {
        all.extend([&["-T", "r"][..], &["-k", "1"]]);
    }
    for more in all {
        let (server, client) = place.pair(program, &[&transfers[..], &["-T", "v"], more].concat());
        client.success().says("custom").never_says("data verification failed");
        server.success().says("custom").never_says("data verification failed");
    }
}

fn rstream_sizes_all(place: Place) {
    for size in ["1", "63", "65", "2047", "2049", "65537", "131073", "6291456"] {
        for how in ["b", "n"] {
            let args = ["-I", "2", "-C", "3", "-S", size, "-T", "v", "-T", how];
            let (server, client) = place.pair("rstream", &args);
            client.success().never_says("data verification failed");
            server.success().never_says("data verification failed");
        }
    }
}

/// The program's own series of all its sizes. Over a wire it takes half a minute.
#[test]
fn rstream_series() {
    needs!(Need::Program("rstream"));
    let (server, client) = Place::here().pair("rstream", &["-S", "all"]);
    for name in ["64_lat", "6m_lat", "64_bw", "6m_bw"] {
        client.success().says(name);
        server.success().says(name);
    }
}

/// A file of bytes with a long period.
fn file(scratch: &Scratch, name: &str) -> String {
    let path = scratch.file(name);
    let mut state = 1_u32;
    let byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let bytes: Vec<u8> = std::iter::repeat_with(byte).take(5_000_003).collect();
    std::fs::write(&path, bytes).expect("a scratch directory is writable");
    path.to_str().expect("a path of ASCII").to_owned()
}

fn rcopy_once(place: Place) {
    let scratch = Scratch::new();
    let (from, to) = (file(&scratch, "from"), scratch.file("to"));
    let to = to.to_str().expect("a path of ASCII");
    let port = place.port();
    let server = place.serve(Program::new("rcopy").args(["-p", &port]), Place::LISTENS);
    let target = format!("{}:{to}", place.host());
    let client = place.client(Program::new("rcopy").args([&*from, &target, "-p", &port])).output();
    client.success().says("5000003 bytes");
    // It serves until it is stopped.
    server.kill();
    server.finish();
    Program::new("cmp").args([&*from, to]).output().success();
}

fn udpong_all(place: Place) {
    let (host, port) = (place.host(), place.port());
    for how in ["b", "n", "a"] {
        for more in [&["-S", "64"][..], &["-S", "900", "-T", "e"], &["-S", "2000", "-T", "e"]] {
            let args = [&["-p", &port, "-C", "500", "-T", how], more].concat();
            let server = Program::new("udpong").args(["-b", &host, "-p", &port, "-T", how]);
            let server = place.serve(server, "bound to");
            let client =
                place.client(Program::new("udpong").args(&args).args(["-s", &host])).output();
            client.success().says("custom");
            server.kill();
            server.finish();
        }
    }
}

/// `rstream` over sockets that it takes for TCP.
fn preload_rstream(place: Place) {
    let (host, port) = (place.host(), place.port());
    for how in ["a", "b", "n"] {
        let args =
            ["-p", &port, "-I", "2", "-C", "20", "-S", "100000", "-T", "s", "-T", "v", "-T", how];
        let server = place.serve(Program::new("rstream").args(args).rsockets(), Place::LISTENS);
        let client = Program::new("rstream").args(args).args(["-s", &host]).rsockets();
        place.client(client).output().success().never_says("failed");
        server.finish().success().never_says("failed");
    }
}

/// A server that forks for each connection, with `RDMAV_FORK_SAFE`.
fn preload_fork(place: Place) {
    let (host, port) = (place.host(), place.port());
    let args = ["-p", &port, "-I", "2", "-C", "20", "-S", "100000", "-T", "v"];
    let server = Program::new("rstream").args(args).args(["-T", "f"]).rsockets();
    let server = server.env("RDMAV_FORK_SAFE", "1").env("PEERDMA_LOG", "peerdma::cm=info");
    let mut server = place.server(server).start();
    server.wait_listening(place.port.number());
    let client = Program::new("rstream").args(args).args(["-T", "s", "-s", &host]).rsockets();
    let client = place.client(client.env("RDMAV_FORK_SAFE", "1")).output();
    client.success().never_says("failed");
    server.finish().success().says(Place::LISTENS).never_says("failed");
}

fn preload_http(place: Place) {
    let scratch = Scratch::new();
    let (from, to) = (file(&scratch, "from"), scratch.file("to"));
    let to = to.to_str().expect("a path of ASCII");
    let (host, port) = (place.host(), place.port());
    let directory = scratch.path().to_str().expect("a path of ASCII");
    let args = ["-u", "-m", "http.server", &port, "--bind", &host, "--directory", directory];
    let server = place.serve(Program::new("python3").args(args).rsockets(), Place::LISTENS);
    let url = format!("http://{host}:{port}");
    for _ in 0..2 {
        let client =
            Program::new("curl").args(["-sSf", "-o", to, &format!("{url}/from")]).rsockets();
        place.client(client).output().success();
        Program::new("cmp").args([&*from, to]).output().success();
    }
    let client = Program::new("curl").args(["-sSf", &format!("{url}/nothing")]).rsockets();
    place.client(client).output().failure().says("404");
    // Not by SIGINT: it may be ignored if the tests run in the background.
    server.kill();
    server.finish().says("GET /from");
}

fn preload_iperf(place: Place) {
    let (host, port) = (place.host(), place.port());
    let server = Program::new("iperf3").args(["-s", "-1", "-p", &port]).rsockets();
    let server = place.serve(server, Place::LISTENS);
    // It writes to a non-blocking socket ten times between two calls of `select`, and checks before
    // each write except the tenth whether enough was written. A write in two pieces, as TCP also
    // does, counts as two: then the last block may be the ninth of its ten, and a tenth follows.
    // With a burst of one it checks after each write.
    let args = ["-c", &host, "-p", &port, "-n", "20M", "-b", "0/1"];
    let output = place.client(Program::new("iperf3").args(args).rsockets()).output();
    output.success();
    server.finish().success();
    // The receiver reports what it had read when it was asked.
    let line = output.stdout.lines().find(|line| line.trim_end().ends_with("sender"));
    let sent = line.and_then(|line| line.split_once(" MBytes")?.0.split(' ').next_back());
    assert_eq!(sent, Some("20.0"), "MBytes:\n{output}");
}

fn preload_netcat(place: Place) {
    let scratch = Scratch::new();
    let (from, to) = (file(&scratch, "from"), scratch.file("to"));
    let to = to.to_str().expect("a path of ASCII");
    let (host, port) = (place.host(), place.port());
    let shell = |line: String| Program::new("sh").args(["-c", &line]).rsockets();
    let server =
        place.serve(shell(format!("exec nc -l {port} < /dev/null > {to}")), Place::LISTENS);
    place.client(shell(format!("exec nc -q 0 {host} {port} < {from}"))).output().success();
    server.finish().success();
    Program::new("cmp").args([&*from, to]).output().success();
}

/// `epoll`, and half-closed connections.
fn preload_asyncio(place: Place) {
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("py/echo.py");
    let (host, port) = (place.host(), place.port());
    let python =
        |role: &str| Program::new("python3").args([&script]).args([role, &host, &port]).rsockets();
    let server = place.serve(python("server"), Place::LISTENS);
    place.client(python("client")).output().success().says("ok");
    server.kill();
    server.finish();
}

/// Only on one host: it spins on memory that its peer writes, 200,000 times. Over a wire, each
/// write needs a turn of the engine's thread on a processor on which the program spins: a fraction
/// of a millisecond.
#[test]
fn riostream() {
    needs!(Need::Program("riostream"));
    defaults(&Place::here(), "riostream");
}

/// A program whose peer has no rsockets continues with TCP.
#[test]
fn a_peer_without_rsockets() {
    needs!(Need::Program("python3"));
    let place = Place::here();
    let (host, port) = (place.host(), place.port());
    let server = Program::new("python3").args(["-u", "-m", "http.server", &port, "--bind", &host]);
    let mut server = server.start();
    server.wait_listening(place.port.number());
    // A program with a blocking connect; with a non-blocking one the connection is already in
    // progress.
    let fetch =
        format!("import urllib.request as u; print(u.urlopen('http://{host}:{port}/').read())");
    let client = Program::new("python3").args(["-c", &fetch]).rsockets();
    client.output().success().says("Directory listing");
    server.kill();
    server.finish();
}

#[test]
fn ipv6() {
    needs!(Need::Program("rstream"), Need::Program("udpong"), Need::Namespaces, Need::Ipv6);
    let place = Place::wire();
    let port = place.port();
    let args = ["-p", &port, "-I", "2", "-C", "20", "-S", "5000", "-T", "v"];
    let server = Program::new("rstream").args(args).args(["-b", "fd77::1"]);
    let server = place.serve(server, Place::LISTENS);
    place.client(Program::new("rstream").args(args).args(["-s", "fd77::1"])).output().success();
    server.finish().success();
    let args = ["-p", &port, "-C", "100", "-S", "500", "-T", "e"];
    let server =
        place.serve(Program::new("udpong").args(["-p", &port, "-b", "fd77::1"]), "bound to");
    place.client(Program::new("udpong").args(args).args(["-s", "fd77::1"])).output().success();
    server.kill();
    server.finish();
}

/// The promises of the manual pages, call by call.
#[test]
fn every_call() {
    needs!(Need::Program("gcc"), Need::Header("rdma/rsocket.h"));
    let scratch = Scratch::new();
    let program = compile("rsockets", &scratch);
    Program::new(program).args([own_address()]).output().success().says("ok");
}

/// A program that waits for a killed peer gets an error.
#[test]
fn a_peer_killed_midway() {
    needs!(Need::Program("python3"));
    let place = Place::here();
    let (host, port) = (place.host(), place.port());
    let python = |lines: &str| {
        let lines = format!("import socket\nat = ('{host}', {port})\n{lines}");
        Program::new("python3").args(["-u", "-c", &lines]).rsockets()
    };
    let server =
        "s = socket.create_server(at)\nc = s.accept()[0]\nc.send(b'x')\ninput_ = c.recv(9)";
    let mut server = place.serve(python(server), Place::LISTENS);
    let client =
        "c = socket.create_connection(at)\nprint('got', c.recv(9))\nprint('then', c.recv(9))";
    let mut client = place.client(python(client)).start();
    client.wait_says("got b'x'");
    server.wait_idle();
    server.kill();
    server.finish();
    client.finish().success().says("then b''");
}
