//! Mooncake's transfer engine with its buffers on a GPU.

use std::time::Duration;

use interop::need::Need;
use interop::{Pair, Port, Program, Scratch, Veth, by_nic, cuda_program, needs, row};

use crate::{DEFAULT, TWO_HOSTS, WAYS, Way, lacks};

/// The variable that selects registration by address or by dma-buf.
const PEERMEM: &str = "WITH_NVIDIA_PEERMEM";

/// Mooncake's benchmark, as target or as initiator.
fn bench(mode: &str, address: &str, args: &[&str], peermem: bool) -> Program {
    let port = Port::lease();
    let name = format!("--local_server_name={address}:{}", port.number());
    Program::new(cuda_program("mooncake").join("mooncake/transfer_engine_bench"))
        .args([&*format!("--mode={mode}"), "--metadata_server=P2PHANDSHAKE", &name])
        .args(["--protocol=rdma", "--device_name=peerdma0", "--use_vram=true"])
        .args(["--buffer_size=4194304", "--threads=2", "--batch_size=4"])
        .args(args)
        .env(PEERMEM, if peermem { "1" } else { "0" })
}

/// Two processes whose engines write and read GPU memory of each other, compared byte by byte.
pub(crate) fn pair(rounds: u64) -> Pair {
    let pair = Pair::new(concat!(env!("CARGO_MANIFEST_DIR"), "/py/mooncake_vram.py"));
    let pair = pair.args([rounds.to_string()]);
    pair.both(|program| program.env("PYTHONPATH", cuda_program("mooncake")).env(PEERMEM, "0"))
}

#[track_caller]
fn transfers(way: &Way, peermem: bool, veth: Option<&Veth>) {
    let run = format!("transfer_engine_bench by {}", if peermem { "peermem" } else { "dma-buf" });
    let place = way.place(veth);
    let scratch = Scratch::new();
    let report = scratch.file("report.txt");
    let side = |mode, args: &[&str]| {
        let (netns, address) = match (veth, mode) {
            (None, _) => (None, "127.0.0.1"),
            (Some(veth), "target") => (Some(&veth.left), veth.left_address()),
            (Some(veth), _) => (Some(&veth.right), veth.right_address()),
        };
        let program = way.on(bench(mode, address, args, peermem), &scratch, &report);
        match netns {
            Some(netns) => program.in_netns(netns),
            None => program,
        }
    };
    let mut target = side("target", &[]).start();
    if !(if peermem { way.peermem } else { way.dma_buf }) {
        target.end_unless_ended(Duration::from_secs(10));
        let out = target.finish();
        let refusals = ["DMA BUF supported required", "Failed to register memory"];
        assert!(refusals.iter().any(|words| out.stderr.contains(words)), "{place}: {out}");
        assert_eq!(by_nic(&report), 0, "{out}");
        row("mooncake", &place, &run, "refused, as it has to be", "");
        return;
    }
    // It does not report when its memory is registered, but sleeps then. An initiator that connects
    // before that crashes.
    target.wait_says("Allocating memory on GPU");
    target.wait_idle();
    let said = target.errors();
    let segment = said.lines().find_map(|line| Some(line.split_once("listening on ")?.1));
    let segment = format!("--segment_id={}", segment.expect("its address"));
    let args = [&*segment, "--duration=1", "--operation=write"];
    side("initiator", &args).output().success().says("Test completed");
    target.end_unless_ended(Duration::from_secs(1));
    drop(target);
    let moved = by_nic(&report);
    assert!(moved > 0, "{run}, {place}: nothing by the NIC");
    row("mooncake", &place, &run, "pass", "");
}

#[test]
fn mooncake_transfers_between_vram() {
    needs!(Need::CudaProgram("mooncake"), Need::Library("libmlx5.so.1"));
    for way in &WAYS {
        for peermem in [false, true] {
            transfers(way, peermem, None);
        }
    }
}

#[test]
fn mooncake_transfers_between_vram_of_two_hosts() {
    needs!(Need::CudaProgram("mooncake"), Need::Library("libmlx5.so.1"));
    if lacks(TWO_HOSTS) {
        return;
    }
    let veth = Veth::new();
    for peermem in [false, true] {
        transfers(&DEFAULT, peermem, Some(&veth));
    }
}

#[track_caller]
fn writes_and_reads(veth: Option<&Veth>) {
    let scratch = Scratch::new();
    let report = scratch.file("report.txt");
    let pair = pair(10).both(|program| DEFAULT.on(program, &scratch, &report));
    let pair = match veth {
        Some(veth) => pair.across(veth),
        None => pair,
    };
    pair.run().client.says("all bytes right");
    assert!(by_nic(&report) >= 20 << 20, "not by the NIC");
    let place = DEFAULT.place(veth);
    row("mooncake", &place, "its engine from Python: 1 MiB written and read, compared", "pass", "");
}

#[test]
fn mooncakes_engine_writes_and_reads_vram_of_another_process_and_host() {
    needs!(Need::CudaProgram("mooncake"), Need::Library("libmlx5.so.1"), Need::Python("ctypes"));
    writes_and_reads(None);
    if lacks(TWO_HOSTS) {
        return;
    }
    writes_and_reads(Some(&Veth::new()));
}
