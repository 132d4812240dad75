//! UCX built with ROCm.

use interop::need::Need;
use interop::{Pair, Scratch, Veth, by_nic, cuda_program, needs, row};

use crate::{TWO_HOSTS, lacks};

/// A NIC and a GPU beside it, whose memory UCX also reads by the CPU (docs/HSA.md).
const MACHINE: &str = "[[gpu]]\nname = \"amdgpu0\"\nhost_access = true\n";

const MESSAGES: u64 = 20;
const MESSAGE: u64 = 1 << 20;

/// A test of UCP between two processes, in memory of a GPU or of the host at either end.
#[track_caller]
fn by_dma_buf(test: &str, memory: &str, veth: Option<&Veth>) {
    let scratch = Scratch::new();
    let config = scratch.file("peerdma.toml");
    std::fs::write(&config, MACHINE).expect("a scratch directory is writable");
    let report = scratch.file("report.txt");
    let (messages, bytes) = (MESSAGES.to_string(), MESSAGE.to_string());
    let pair = Pair::new(cuda_program("ucx").join("bin/ucx_perftest"));
    let pair = pair.args(["-t", test, "-m", memory, "-n", &messages, "-w", "2", "-s", &bytes]);
    let pair = pair.both(|program| {
        let program = program.gpu("amdgpu").env("PEERDMA_REPORT", &report);
        // It takes dma-bufs of ROCm only with the second of these settings.
        let program = program.env("PEERDMA_CONFIG", &config).env("UCX_ROCM_COPY_DMABUF", "y");
        let program = program.env("UCX_RCACHE_ENABLE", "y").env("UCX_FENCE_MODE", "weak");
        program.env("UCX_TLS", "rc_v,rocm_copy").env("UCX_NET_DEVICES", "peerdma0:1")
    });
    let pair = match veth {
        Some(veth) => pair.across(veth),
        None => pair,
    };
    let done = pair.run();
    done.client.says("Final:");
    let moved = by_nic(&report);
    let run = format!("ucx_perftest {test} -m {memory}");
    assert!(moved >= MESSAGES * MESSAGE, "{run}: {moved} bytes by the NIC");
    let way = format!("memory of amdgpu{}", if veth.is_some() { ", two hosts" } else { "" });
    row("ucx", &way, &run, "pass", "the NIC reached GPU memory itself");
}

#[test]
fn ucx_moves_memory_of_hsa_by_each_protocol_without_staging_it() {
    needs!(Need::CudaProgram("ucx"), Need::Header("hsa/hsa.h"));
    for test in ["ucp_put_bw", "ucp_get", "tag_bw", "tag_lat", "ucp_am_bw", "ucp_am_lat"] {
        for memory in ["rocm", "rocm,host", "host,rocm"] {
            by_dma_buf(test, memory, None);
        }
    }
}

#[test]
fn ucx_moves_memory_of_hsa_between_two_hosts() {
    if lacks(TWO_HOSTS.into_iter().chain([Need::CudaProgram("ucx"), Need::Header("hsa/hsa.h")])) {
        return;
    }
    let veth = Veth::new();
    for test in ["ucp_put_bw", "tag_bw"] {
        by_dma_buf(test, "rocm", Some(&veth));
    }
}
