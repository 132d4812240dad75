//! `peerdma run --trace`: the trace of each kind of program, read by Perfetto's own description of
//! the format.

use std::path::{Path, PathBuf};
use std::time::Duration;

use interop::need::Need;
use interop::{Artefacts, Mode, Pair, Program, Scratch, Veth, compile, needs, wheel};

/// A file of the wheels that describe the format.
const WHEEL: &str = "perfetto/protos/perfetto/trace/perfetto_trace_pb2.py";

/// A pair whose two processes write one trace.
fn traced(pair: Pair, file: &Path) -> Pair {
    pair.both(|program| program.env("PEERDMA_TRACE", file))
}

/// What is in a trace (`interop/py/perfetto_trace.py`).
struct Read(String);

impl Read {
    #[track_caller]
    fn file(file: &Path) -> Self {
        let packages = wheel("perfetto").parent().expect("in a directory").to_owned();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/py/perfetto_trace.py");
        let out = Program::new("/usr/bin/python3")
            .args([Path::new(script), file])
            .env("PYTHONPATH", packages)
            .mode(Mode::Plain)
            .limit(Duration::from_secs(120))
            .output();
        Self(out.success().stdout.clone())
    }

    /// How many there are of what a line names.
    fn count(&self, what: &str) -> usize {
        let counts = self.0.lines().filter_map(|line| {
            let (count, rest) = line.split_once(' ')?;
            (rest == what).then(|| count.parse::<usize>().ok())?
        });
        counts.sum()
    }

    /// How many flows begin and end so, whatever is between.
    fn flows(&self, begin: &str, end: &str) -> usize {
        let of_line = |line: &str| {
            let (count, rest) = line.split_once(' ')?;
            let flow = rest.strip_prefix("flow ")?;
            (flow.starts_with(begin) && flow.ends_with(end)).then(|| count.parse::<usize>().ok())?
        };
        self.0.lines().filter_map(of_line).sum()
    }

    #[track_caller]
    fn says(&self, what: &str) -> &Self {
        assert!(self.0.contains(what), "no {what:?} in\n{}", self.0);
        self
    }
}

fn pingpong(size: &str) -> Pair {
    Pair::new("ibv_rc_pingpong").args(["-g", "0", "-c", "-n", "50", "-s", size])
}

#[test]
fn a_request_is_tied_to_its_packets_and_its_completions_on_both_sides() {
    needs!(Need::Wheel(WHEEL), Need::Program("ibv_rc_pingpong"));
    let scratch = Scratch::new();
    let file = scratch.file("both.pftrace");
    traced(pingpong("64"), &file).run();
    let read = Read::file(&file);
    read.says("sequences 2 processes 2");
    for (own, other) in [("P1", "P2"), ("P2", "P1")] {
        let nic = format!("{own}/peerdma0");
        let sent = format!("{nic}/packets sent: RC_SEND_ONLY");
        let done = format!("{nic}/CQ: SUCCESS");
        assert_eq!(read.count(&format!("slice {nic}/QP RC/sends: SEND SUCCESS")), 50, "{}", read.0);
        assert_eq!(read.count(&format!("slice {nic}/QP RC/receives: RECV SUCCESS")), 50);
        // Posted and never used; all but the first ones wait for their turn to be shown.
        assert!(read.count(&format!("slice {nic}/QP RC/receives: RECV destroyed")) > 0);
        // A packet that was sent again is one more step.
        let request = format!("{nic}/QP RC/sends: SEND -> {sent} -> ");
        assert_eq!(read.flows(&request, &done), 50, "{request}\n{}", read.0);
        let there = format!("{other}/peerdma0");
        let packet = format!("{sent} -> {there}/packets received: RC_SEND_ONLY -> ");
        let here = format!("{there}/CQ: SUCCESS");
        assert!(read.flows(&packet, &here) >= 45, "{packet}\n{}", read.0);
    }
    read.says("arg path shared memory");
}

#[test]
fn a_message_of_many_packets_is_one_slice_on_every_carrier() {
    needs!(
        Need::Wheel(WHEEL),
        Need::Root,
        Need::Namespaces,
        Need::Program("ip"),
        Need::Program("ib_write_bw")
    );
    let scratch = Scratch::new();
    let veth = Veth::new();
    for (name, hosts, carrier) in [("memory", None, "shared memory"), ("wire", Some(&veth), "UDP")]
    {
        let file = scratch.file(name);
        let mut pair =
            traced(Pair::new("ib_write_bw").args(["-F", "-n", "20", "-s", "10001"]), &file);
        if let Some(veth) = hosts {
            pair = pair.across(veth);
        }
        pair.run();
        let read = Read::file(&file);
        let slices: usize = ["P1", "P2"]
            .iter()
            .map(|process| {
                let of = format!("slice {process}/peerdma0/QP RC/sends: RDMA WRITE");
                // perftest asks for a completion of every hundredth WRITE, or of the last one.
                read.count(&format!("{of} SUCCESS")) + read.count(&format!("{of} no completion"))
            })
            .sum();
        assert!(slices >= 20, "{name}: {slices} slices\n{}", read.0);
        read.says("sends: RDMA WRITE -> ").says("packets sent: RC_RDMA_WRITE_FIRST -> ");
        read.says(&format!("arg path {carrier}"));
    }
}

#[test]
fn what_a_plan_does_and_why_a_request_failed_is_in_the_trace() {
    needs!(Need::Wheel(WHEEL), Need::Program("ibv_rc_pingpong"));
    let scratch = Scratch::new();
    let (file, plan) = (scratch.file("plan.pftrace"), scratch.file("plan.toml"));
    let text = "[[fault]]\ndo = 'drop'\nopcode = 'send'\nnth = 7\n\
        [[fault]]\ndo = 'not-ready'\nway = 'in'\nopcode = 'send'\nnth = 30\n\
        [[fault]]\ndo = 'qp-error'\nopcode = 'send'\nnth = 40\n";
    std::fs::write(&plan, text).expect("our own directory");
    let done =
        traced(pingpong("64"), &file).both(|program| program.env("PEERDMA_FAULT", &plan)).start();
    // One side sees its QP fail, the other one that nobody answers.
    drop((done.server.finish(), done.client.finish()));
    let read = Read::file(&file);
    read.says("arg what drop RC_SEND_ONLY").says("arg what not-ready RC_SEND_ONLY");
    read.says("arg what qp-error, QPs 1");
    read.says("asynchronous events: async event").says("arg what QpFatal");
    read.says("arg answer RNR NAK").says("arg status WR_FLUSH_ERR");
}

#[test]
fn moves_of_gpu_memory_are_on_a_track_of_the_buffer() {
    needs!(Need::Wheel(WHEEL), Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let (file, plan, config) =
        (scratch.file("gpu.pftrace"), scratch.file("plan.toml"), scratch.file("peerdma.toml"));
    let text = "[[fault]]\ndo = 'evict'\nopcode = 'RC_RDMA_WRITE_LAST'\nqp = 1\nevery = 3\n\
        [[fault]]\ndo = 'move'\nto = 'vram'\nopcode = 'RC_RDMA_WRITE_FIRST'\nqp = 1\nevery = 2\n";
    std::fs::write(&plan, text).expect("our own directory");
    let text = "[[nic]]\nimporter = \"dynamic\"\n[[gpu]]\nname = \"gpu0\"\nshared = false\n\
        preset = \"amdgpu\"\nvram = \"64M\"\ngtt = \"64M\"\n";
    std::fs::write(&config, text).expect("our own directory");
    Program::new(compile("weather", &scratch))
        .gpu("nvidia")
        .args(["storm", "60"])
        .env("PEERDMA_CONFIG", &config)
        .env("PEERDMA_FAULT", &plan)
        .env("PEERDMA_TRACE", &file)
        .output()
        .success()
        .says("ok");
    let read = Read::file(&file);
    for what in ["move to GTT", "move to VRAM"] {
        assert!(read.count(&format!("slice P1/GPU gpu0/gpu0.bo1: {what}")) > 0, "{}", read.0);
    }
    assert!(read.count("instant P1/peerdma0/memory regions: mapped again after a move") > 0);
    read.says("processes 1");
}

#[test]
fn run_replaces_the_file_or_reports_why_it_cannot() {
    needs!(Need::Wheel(WHEEL), Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let file = scratch.file("new.pftrace");
    let program = compile("pcap_loop", &scratch);
    let run = |trace: PathBuf| {
        Program::new(Artefacts::find().peerdma())
            .args([Path::new("explain"), Path::new("--trace"), &trace, Path::new("--"), &program])
            .mode(Mode::Plain)
            .output()
    };
    std::fs::write(&file, "an older file").expect("our own directory");
    run(file.clone()).success().says("ok").says("ui.perfetto.dev");
    let read = Read::file(&file);
    assert_eq!(read.count("slice P1/peerdma0/QP RC/sends: RDMA WRITE SUCCESS"), 1, "{}", read.0);
    read.says("arg path loopback");
    run(scratch.file("no/such/directory")).failure().says("--trace").says("No such file");
}

#[test]
fn a_killed_process_leaves_a_trace_that_can_be_read() {
    needs!(Need::Wheel(WHEEL), Need::Program("ib_send_bw"));
    let scratch = Scratch::new();
    let file = scratch.file("killed.pftrace");
    let args = ["-F", "-s", "4096", "-n", "1000000"];
    let mut pair = traced(Pair::new("ib_send_bw").args(args), &file).start();
    pair.client.wait_busy(Duration::from_millis(50));
    pair.server.kill();
    pair.client.finish().failure();
    Read::file(&file).says("sends: SEND RETRY_EXC_ERR").says("arg why RETRY_EXC_ERR (12): SEND");
}
