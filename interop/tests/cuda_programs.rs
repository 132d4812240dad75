//! Third-party programs for GPUs and RDMA, as released: UCX with CUDA, and Mooncake.

use std::time::Duration;

use interop::need::Need;
use interop::{Pair, Program, needs, wheel};

const UCX_INFO: &str = "libucx/bin/ucx_info";
const UCX_PERFTEST: &str = "libucx/bin/ucx_perftest";
const MOONCAKE: &str = "mooncake/transfer_engine_bench";

/// The program with GPUs of NVIDIA's driver, and UCX's own libraries.
fn with_ucx(program: Program) -> Program {
    let program = program.gpu("nvidia").env("LD_LIBRARY_PATH", wheel("libucx/lib"));
    // It fails without its registration cache, for which it must see each call that maps and unmaps
    // memory.
    program.env("UCX_LOG_LEVEL", "warn").env("UCX_RCACHE_ENABLE", "y")
}

#[test]
fn ucx_finds_gpus_and_their_dma_bufs() {
    needs!(Need::Wheel(UCX_INFO));
    let out = with_ucx(Program::new(wheel(UCX_INFO))).args(["-d"]).output();
    out.success().says("Transport: cuda_copy").says("Transport: cuda_ipc");
    out.says("cuda (access,alloc,reg,detect,dmabuf)").never_says("ERROR").never_says("WARN");
}

/// A test of UCP between two processes with memory of these kinds, over these transports.
fn ucx(test: &str, memory: &str, transports: &str) {
    needs!(Need::Wheel(UCX_PERFTEST));
    let pair = Pair::new(wheel(UCX_PERFTEST))
        .args(["-t", test, "-m", memory, "-n", "100", "-w", "10", "-s", "200000"])
        .both(|program| with_ucx(program).env("UCX_TLS", transports).env("UCX_NET_DEVICES", "lo"));
    let done = pair.limit(Duration::from_secs(60)).run();
    for side in [&done.server, &done.client] {
        // A hook that cannot be installed is a warning, and an unknown address an error.
        side.never_says("ERROR").never_says("WARN");
    }
    done.client.says("Final:");
}

#[test]
fn ucx_sends_and_receives_gpu_memory() {
    for memory in ["cuda,cuda", "cuda,host", "host,cuda", "cuda-managed,cuda-managed"] {
        ucx("tag_bw", memory, "tcp,cuda_copy");
    }
}

#[test]
fn ucx_puts_gets_and_delivers_messages_in_gpu_memory() {
    for test in ["ucp_put_bw", "ucp_get", "ucp_am_bw", "tag_lat"] {
        ucx(test, "cuda,cuda", "tcp,cuda_copy");
    }
}

#[test]
fn ucx_opens_gpu_memory_of_another_process() {
    ucx("tag_bw", "cuda,cuda", "tcp,cuda_copy,cuda_ipc");
}

/// Runs Mooncake's benchmark in GPU memory. Returns the initiator's output.
#[track_caller]
fn mooncake(protocol: &str, env: &[(&str, &str)]) -> interop::Output {
    let bench = wheel(MOONCAKE);
    let protocol = format!("--protocol={protocol}");
    let side = |program: Program| {
        let program = program.args([
            "--metadata_server=P2PHANDSHAKE",
            "--device_name=peerdma0",
            "--use_vram=true",
            "--buffer_size=134217728",
            &protocol,
        ]);
        env.iter().fold(program, |program, (name, value)| program.env(name, value)).gpu("nvidia")
    };
    // It reports its address on standard error.
    let target = Program::new("sh").args(["-c", "exec \"$0\" \"$@\" 2>&1"]).args([&bench]);
    let target = target.args(["--mode=target", "--gpu_id=0", "--local_server_name=127.0.0.1"]);
    let mut target = side(target).start();
    target.wait_says("Allocating memory on GPU 0");
    // It does not report when the memory is registered, but sleeps then. An initiator that connects
    // before that crashes.
    target.wait_idle();
    let printed = target.printed();
    let port = printed.split("listening on 127.0.0.1:").nth(1).expect("it says where it listens");
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    let segment = format!("--segment_id=127.0.0.1:{port}");
    let initiator = Program::new(&bench).args([
        "--mode=initiator",
        "--gpu_id=1",
        "--local_server_name=127.0.0.1",
        "--operation=write",
        "--block_size=65536",
        "--batch_size=8",
        "--threads=1",
        "--duration=1",
        &segment,
    ]);
    let out = side(initiator).output();
    target.interrupt();
    target.end_unless_ended(Duration::from_secs(10));
    out.success().says("Test completed");
    out
}

#[test]
fn mooncake_writes_gpu_memory_over_tcp() {
    needs!(Need::Wheel(MOONCAKE));
    mooncake("tcp", &[("MC_FORCE_TCP", "1")]);
}

#[test]
fn mooncake_writes_gpu_memory_over_rdma_by_dma_buf_and_by_address() {
    needs!(Need::Wheel(MOONCAKE), Need::Library("libmlx5.so.1"));
    // By address if the variable is 1, which is its default.
    for peermem in ["0", "1"] {
        let log = ("PEERDMA_LOG", "info");
        let out = mooncake("rdma", &[("WITH_NVIDIA_PEERMEM", peermem), log]);
        let sent = out.counters().get("direct_bytes").copied().unwrap_or(0);
        assert!(sent > 1 << 20, "{sent} bytes: {out}");
    }
}
