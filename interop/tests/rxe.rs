//! Interoperability with another implementation: the Linux kernel's `rdma_rxe`, in a virtual
//! machine that is connected to a network namespace. Debian's programs run on the kernel there and
//! on peerdma here, each once as server and once as client.
//!
//! `cargo xtask test --group rxe --full` covers every size at every path MTU; docs/RXE.md has the
//! results.

use std::time::Duration;

use interop::need::{Need, full};
use interop::{Case, Cases, Guest, Scratch, compile, needs};

/// The limit of a program with 32,768 packets of 256 bytes per largest message, on a loaded
/// machine.
const MANY_PACKETS: Duration = Duration::from_secs(900);

const PATH_MTUS: [&str; 5] = ["256", "512", "1024", "2048", "4096"];

fn both_ways(program: &str, args: &[&[&str]]) -> Vec<Case> {
    args.iter().flat_map(|args| Case::both_ways(program, args)).collect()
}

#[test]
fn the_pingpongs() {
    needs!(Need::Vm, Need::Namespaces, Need::Program("rdma"), Need::Program("ibv_rc_pingpong"));
    let mut cases = both_ways(
        "ibv_rc_pingpong",
        &[
            &["-c", "-n", "200", "-s", "4096", "-m", "1024"],
            &["-c", "-e", "-n", "100", "-s", "70001", "-m", "4096"],
        ],
    );
    let unreliable: [&[&str]; 2] = [
        &["-c", "-n", "100", "-s", "4000", "-m", "1024"],
        &["-c", "-e", "-n", "100", "-s", "1001", "-m", "256"],
    ];
    cases.extend(both_ways("ibv_uc_pingpong", &unreliable));
    let datagrams: [&[&str]; 2] =
        [&["-c", "-n", "100", "-s", "1000"], &["-c", "-e", "-n", "100", "-s", "61"]];
    cases.extend(both_ways("ibv_ud_pingpong", &datagrams));
    let shared: [&[&str]; 2] = [
        &["-c", "-n", "200", "-s", "4096", "-q", "4"],
        &["-c", "-e", "-n", "100", "-s", "70001", "-m", "4096", "-q", "4"],
    ];
    cases.extend(both_ways("ibv_srq_pingpong", &shared));
    // Long enough for a transmit socket: the kernel checks the ICRCs of its packets, and drops
    // wrong ones.
    let long = cases.len();
    cases.extend(both_ways("ibv_rc_pingpong", &[&["-c", "-n", "1000", "-s", "64", "-m", "1024"]]));
    let done = Cases::new(Guest::Rxe, cases).run("iters in");
    for out in &done.here {
        out.never_says("invalid data");
    }
    for out in &done.here[long..] {
        assert!(out.stderr.contains("opened a transmit socket"), "{out}");
        out.never_says("its transmit socket is closed");
    }
}

/// Every operation at each path MTU, 1 byte to 1 MiB and at two of them to 8 MiB (all of them with
/// `--full`); the far side checks every byte.
#[test]
fn every_operation_and_every_byte() {
    needs!(Need::Vm, Need::Namespaces, Need::Program("rdma"), Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let xfer = compile("xfer", &scratch);
    let program = xfer.to_str().expect("our own path");
    let cases = PATH_MTUS.iter().flat_map(|mtu| {
        let large: &[&str] = if full() || matches!(*mtu, "1024" | "4096") { &["-l"] } else { &[] };
        Case::both_ways(program, &[&["-m", mtu], large].concat())
    });
    Cases::new(Guest::Rxe, cases).own(&xfer).patience(patience()).run("every exchange was right");
}

/// One packet in a hundred is lost on its way to us, and another one on its way from us. Both sides
/// send again what is missing, or all from there on, and every byte is right.
#[test]
fn every_byte_where_packets_are_lost() {
    needs!(Need::Vm, Need::Namespaces, Need::Program("rdma"), Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let xfer = compile("xfer", &scratch);
    let program = xfer.to_str().expect("our own path");
    let plan = scratch.file("lossy.toml");
    let rules = ["in", "out"].map(|way| {
        format!("[[fault]]\nname = '{way}'\ndo = 'drop'\nprobability = 0.01\nway = '{way}'\n")
    });
    std::fs::write(&plan, rules.concat()).expect("a file of our own");
    let cases = Case::both_ways(program, &["-m", "1024", "-t", "14"]);
    let done =
        Cases::new(Guest::Rxe, cases).own(&xfer).faults(&plan).run("every exchange was right");
    for here in &done.here {
        here.says("in: drop fired").says("out: drop fired");
    }
}

/// Each side requests as many outstanding READs and atomics as its own device supports, without
/// regard to the other one: rxe's 128 are more than mlx5's 16, and than ours.
fn outstanding(program: &str) -> &'static [&'static str] {
    let is_answered = program.contains("read") || program.contains("atomic");
    if is_answered { &["-o", "16"] } else { &[] }
}

#[test]
fn perftest() {
    needs!(Need::Vm, Need::Namespaces, Need::Program("rdma"), Need::Program("ib_write_bw"));
    let mut cases = Vec::new();
    for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
        let args =
            [&["-F", "-n", "20", "-s", "65537", "-m", "1024"], outstanding(program)].concat();
        cases.extend(both_ways(program, &[&args]));
    }
    cases.extend(both_ways("ib_write_bw", &[&["-F", "-n", "5", "-a", "-m", "4096"]]));
    for program in ["ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_bw", "ib_atomic_lat"] {
        let args = [&["-F", "-n", "50"], outstanding(program)].concat();
        cases.extend(both_ways(program, &[&args]));
    }
    cases.extend(both_ways("ib_send_bw", &[&["-F", "-n", "50", "-c", "UD", "-s", "1024"]]));
    run_perftest(&cases);
    if full() {
        PATH_MTUS.iter().for_each(|mtu| perftest_with_every_size(mtu));
    }
}

/// Every program of perftest at a path MTU, those that measure bandwidth with sizes from 2 bytes to
/// 8 MiB.
fn perftest_with_every_size(mtu: &str) {
    let mut cases = Vec::new();
    for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
        let args = [&["-F", "-a", "-n", "5", "-m", mtu], outstanding(program)].concat();
        cases.extend(both_ways(program, &[&args]));
    }
    for program in ["ib_send_lat", "ib_write_lat", "ib_read_lat"] {
        let args = [&["-F", "-n", "20", "-s", "65537", "-m", mtu], outstanding(program)].concat();
        cases.extend(both_ways(program, &[&args]));
    }
    for program in ["ib_atomic_bw", "ib_atomic_lat"] {
        for kind in ["FETCH_AND_ADD", "CMP_AND_SWAP"] {
            let args = ["-F", "-n", "50", "-o", "16", "-A", kind, "-m", mtu];
            cases.extend(both_ways(program, &[&args]));
        }
    }
    for (program, kind) in [
        ("ib_send_bw", "UC"),
        ("ib_send_bw", "UD"),
        ("ib_send_lat", "UC"),
        ("ib_send_lat", "UD"),
        ("ib_write_bw", "UC"),
    ] {
        // These transports do not retransmit: no more messages at once than the receiver has
        // posted.
        let args = ["-F", "-n", "50", "-c", kind, "-s", mtu, "-m", mtu];
        cases.extend(both_ways(program, &[&args]));
    }
    run_perftest(&cases);
    eprintln!("path MTU {mtu}: {} runs ended well on both sides", cases.len());
}

fn run_perftest(cases: &[Case]) {
    let done = Cases::new(Guest::Rxe, cases.iter().cloned()).patience(patience()).run("#bytes");
    for (number, case) in cases.iter().enumerate() {
        if case.args.iter().any(|arg| arg == "-a") {
            case.asking(number, &done).says("8388608");
        }
    }
}

fn patience() -> Duration {
    if full() { MANY_PACKETS } else { Duration::from_secs(360) }
}

/// Packets with congestion marks (CE, by the sender's own traffic class): we send CNPs to the
/// kernel's device, which does not support them, drops them and continues; it sends none itself.
#[test]
fn marks_of_congestion() {
    needs!(Need::Vm, Need::Namespaces, Need::Program("rdma"), Need::Program("ib_write_bw"));
    let args = ["-F", "-n", "50", "-s", "65536", "-m", "1024", "--tclass", "3"];
    let cases = Case::both_ways("ib_write_bw", &args);
    let done = Cases::new(Guest::Rxe, cases).run("#bytes");
    // Data is marked in one direction, acknowledgements in the other.
    for here in &done.here {
        here.says("np_cnp_sent=").says("np_ecn_marked_roce_packets=").never_says("rp_cnp_handled");
    }
}

/// The connection manager of the kernel and ours, in management datagrams on QP 1.
#[test]
fn the_connection_manager() {
    needs!(Need::Vm, Need::Namespaces, Need::Program("rdma"), Need::Program("rping"));
    let pings = both_ways("rping", &[&["-v", "-V", "-C", "20"], &["-V", "-C", "5", "-S", "10000"]]);
    let mut cases = pings;
    cases.extend(both_ways("ucmatose", &[&["-c", "4", "-C", "10", "-S", "3000"]]));
    cases.extend(both_ways("udaddy", &[&["-c", "2", "-C", "10", "-S", "500"]]));
    let done = Cases::new(Guest::Rxe, cases.clone()).run("");
    for (number, case) in cases.iter().enumerate() {
        let asking = case.asking(number, &done);
        match case.program.as_str() {
            "rping" if case.args.contains(&"-v".to_owned()) => {
                asking.says("ping data: rdma-ping-19")
            }
            "rping" => asking.never_says("mismatch"),
            _ => asking.says("data transfers complete").says("return status 0"),
        };
    }
}
