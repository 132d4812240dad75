//! Open MPI built with CUDA, over UCX built with CUDA: ranks on two hosts, with buffers in GPU
//! memory.

use std::time::Duration;

use interop::need::Need;
use interop::{Mpi, Output, Scratch, Veth, by_nic, compile_mpi_by, cuda_program, row, sum};

use crate::storm::PLAN;
use crate::{DEFAULT, TWO_HOSTS, WAYS, Way, lacks, machine};

/// Bytes that each rank of `mpi_cuda.c` receives in messages per turn: three of four rounds go into
/// GPU memory.
const BYTES_OF_A_TURN: u64 = 4 * (1 + 1_000 + 10_000 + 300_000 + (4 << 20));
/// The part of them that is in GPU memory on both sides and too long for UCX to copy: two rounds.
const LONG_OF_A_TURN: u64 = 2 * (300_000 + (4 << 20));

const RUN: &str = "mpi_cuda.c: messages, collectives, RMA, compared";

fn lacks_mpi() -> bool {
    lacks(TWO_HOSTS.into_iter().chain([Need::CudaProgram("openmpi"), Need::Program("gcc")]))
}

/// Runs the program between two hosts for some turns; `env` is the environment of its ranks.
#[track_caller]
fn mpi(scratch: &Scratch, turns: u64, env: &[(&str, &str)]) -> Output {
    let bin = cuda_program("openmpi").join("bin");
    let program = compile_mpi_by(&bin.join("mpicc"), "mpi_cuda", scratch);
    let (program, count) = (program.to_str().expect("our own path"), turns.to_string());
    let options = [("pml", "ucx"), ("osc", "ucx"), ("btl", "self")];
    // As in `ucx::over_rc`, plus the transport for a rank's messages to itself.
    let ucx = [
        ("UCX_RCACHE_ENABLE", "y"),
        ("UCX_TLS", "rc_v,cuda_copy,self"),
        ("UCX_FENCE_MODE", "weak"),
        ("UCX_NET_DEVICES", "peerdma0:1"),
    ];
    let env = [&ucx[..], env].concat();
    let mpirun = bin.join("mpirun");
    let mpi = Mpi {
        mpirun: &mpirun,
        program: &[program, &count],
        gpu: Some("nvidia"),
        options: &options,
        env: &env,
    };
    let veth = Veth::new();
    let command = mpi.between([&veth.left, &veth.right], scratch.path());
    let out = command.limit(Duration::from_secs(180)).output();
    let bytes = turns * BYTES_OF_A_TURN;
    for rank in 0..2 {
        out.success().says(&format!("rank {rank} of 2 received {bytes} bytes, all right"));
    }
    out
}

#[track_caller]
fn on(way: &Way) {
    let scratch = Scratch::new();
    let report = scratch.file("report.txt");
    let mut env = vec![("PEERDMA_REPORT", report.to_str().expect("our own path"))];
    let config = machine(&scratch, way.nic, way.gpu);
    if !way.gpu.is_empty() {
        env.push(("PEERDMA_CONFIG", config.to_str().expect("our own path")));
    }
    let out = mpi(&scratch, 1, &env);
    let moved = by_nic(&report);
    let place = format!("{}, two hosts", way.name);
    if way.dma_buf || way.peermem {
        assert!(moved >= 2 * LONG_OF_A_TURN, "{place}: {moved} bytes by the NIC\n{out}");
        row("openmpi", &place, RUN, "pass", "the NIC reached GPU memory itself");
    } else {
        assert_eq!(moved, 0, "{place}: a NIC that takes no GPU memory\n{out}");
        row("openmpi", &place, RUN, "pass", "UCX copied through host memory");
    }
}

#[test]
fn mpi_moves_gpu_memory_between_two_hosts_without_staging_it() {
    if lacks_mpi() {
        return;
    }
    on(&DEFAULT);
}

#[test]
fn mpi_registers_gpu_memory_as_the_nic_allows() {
    if lacks_mpi() {
        return;
    }
    for way in WAYS.iter().filter(|way| ["mlx5", "irdma", "rxe"].contains(&way.name)) {
        on(way);
    }
}

/// GPU memory moves all the time under both ranks, which compare each byte.
#[test]
fn mpi_follows_memory_that_moves() {
    if lacks_mpi() {
        return;
    }
    for driver in ["amdgpu", "xe"] {
        let scratch = Scratch::new();
        let [report, plan] = ["report.txt", "plan.toml"].map(|name| scratch.file(name));
        std::fs::write(&plan, PLAN).expect("a file of our own");
        let keys =
            format!("name = 'mpi-{driver}'\npreset = '{driver}'\nvram = '256M'\ngtt = '256M'");
        let config = machine(&scratch, "preset = 'mlx5'", &keys);
        let [report_word, plan, config] =
            [&report, &plan, &config].map(|file| file.to_str().expect("our own path"));
        let env =
            [("PEERDMA_REPORT", report_word), ("PEERDMA_FAULT", plan), ("PEERDMA_CONFIG", config)];
        let out = mpi(&scratch, 2, &env);
        let text = std::fs::read_to_string(&report).expect("each rank reports");
        let moves = sum(&text, "moves ") + sum(&text, "evictions ");
        assert!(moves > 20, "{moves} moves: {text}\n{out}");
        assert_eq!(sum(&text, "stale accesses "), 0, "{text}");
        let place = format!("mlx5, memory of {driver}, two hosts");
        row("openmpi", &place, "moves and evictions by a plan, bytes compared", "pass", "");
    }
}
