//! UCX built with ROCm.

use interop::need::Need;
use interop::{Pair, Scratch, by_nic, cuda_program, needs};

/// A NIC and a GPU beside it, whose memory UCX also reads by the CPU (docs/HSA.md).
const MACHINE: &str = "[[gpu]]\nname = \"amdgpu0\"\nhost_access = true\n";

const MESSAGES: u64 = 20;
const MESSAGE: u64 = 1 << 20;

#[test]
fn ucx_moves_memory_of_hsa_by_each_protocol_without_staging_it() {
    needs!(Need::CudaProgram("ucx"), Need::Header("hsa/hsa.h"));
    let scratch = Scratch::new();
    let config = scratch.file("peerdma.toml");
    std::fs::write(&config, MACHINE).expect("a scratch directory is writable");
    for test in ["ucp_put_bw", "ucp_get", "tag_bw", "tag_lat", "ucp_am_bw", "ucp_am_lat"] {
        for memory in ["rocm", "rocm,host", "host,rocm"] {
            let report = scratch.file(&format!("{test}-{memory}.txt"));
            let (messages, bytes) = (MESSAGES.to_string(), MESSAGE.to_string());
            let pair = Pair::new(cuda_program("ucx").join("bin/ucx_perftest"));
            let pair = pair.args(["-t", test, "-m", memory, "-n", &messages, "-w", "2"]);
            let done = pair.args(["-s", &bytes]).both(|program| {
                let program = program.gpu("amdgpu").env("PEERDMA_REPORT", &report);
                let program = program.env("PEERDMA_CONFIG", &config);
                // It takes dma-bufs of ROCm only with this setting.
                let program = program.env("UCX_ROCM_COPY_DMABUF", "y");
                let program = program.env("UCX_RCACHE_ENABLE", "y").env("UCX_FENCE_MODE", "weak");
                program.env("UCX_TLS", "rc_v,rocm_copy").env("UCX_NET_DEVICES", "peerdma0:1")
            });
            let done = done.run();
            let last = done.client.stdout.lines().find(|line| line.starts_with("Final:"));
            assert!(last.is_some(), "{test} {memory}: {}", done.client);
            let moved = by_nic(&report);
            assert!(moved >= MESSAGES * MESSAGE, "{test} {memory}: {moved} bytes by the NIC");
        }
    }
}
