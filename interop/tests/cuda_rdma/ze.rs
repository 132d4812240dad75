//! UCX in memory of Level Zero.

use interop::need::Need;
use interop::{Pair, Scratch, Veth, by_nic, cuda_program, needs, row, sum};

use crate::{TWO_HOSTS, lacks};

const MESSAGES: u64 = 20;
const MESSAGE: u64 = 1 << 20;

/// A test of UCP between two processes, in memory of a GPU.
fn perftest(test: &str, memory: &str, gpu: &str) -> Pair {
    let (messages, bytes) = (MESSAGES.to_string(), MESSAGE.to_string());
    let pair = Pair::new(cuda_program("ucx").join("bin/ucx_perftest"));
    let pair = pair.args(["-t", test, "-m", memory, "-n", &messages, "-w", "2", "-s", &bytes]);
    // As in `ucx::over_rc`, plus the transport for Level Zero's copies.
    pair.both(|program| {
        let program = program.gpu(gpu).env("UCX_RCACHE_ENABLE", "y");
        let program = program.env("UCX_TLS", "rc_v,ze_copy").env("UCX_FENCE_MODE", "weak");
        program.env("UCX_NET_DEVICES", "peerdma0:1")
    })
}

#[track_caller]
fn by_dma_buf(test: &str, memory: &str, gpu: &str, veth: Option<&Veth>) {
    let scratch = Scratch::new();
    let report = scratch.file("report.txt");
    let pair = perftest(test, memory, gpu).both(|program| program.env("PEERDMA_REPORT", &report));
    let pair = match veth {
        Some(veth) => pair.across(veth),
        None => pair,
    };
    let done = pair.run();
    done.client.says("Final:");
    // i915 moves exported buffers to system memory.
    let text = std::fs::read_to_string(&report).expect("each process reports");
    let moved = by_nic(&report) + sum(&text, "system memory ");
    let run = format!("ucx_perftest {test} -m {memory}");
    assert!(moved >= MESSAGES * MESSAGE, "{run}, {gpu}: {moved} bytes by the NIC");
    let way = format!("memory of {gpu}{}", if veth.is_some() { ", two hosts" } else { "" });
    let note = match gpu {
        "i915" => "the NIC reached it itself, in system memory, where i915 puts what it exports",
        _ => "the NIC reached GPU memory itself",
    };
    row("ucx", &way, &run, "pass", note);
}

#[test]
fn ucx_moves_level_zero_memory_without_staging_it() {
    needs!(Need::CudaProgram("ucx"), Need::Library("libze_loader.so.1"));
    for gpu in ["xe", "i915"] {
        for test in ["ucp_put_bw", "ucp_get", "tag_bw", "ucp_am_bw"] {
            by_dma_buf(test, "ze-device", gpu, None);
        }
    }
}

#[test]
fn ucx_moves_level_zero_memory_between_two_hosts() {
    if lacks(TWO_HOSTS.into_iter().chain([Need::CudaProgram("ucx")])) {
        return;
    }
    let veth = Veth::new();
    for test in ["ucp_put_bw", "tag_bw"] {
        by_dma_buf(test, "ze-device", "xe", Some(&veth));
    }
}
