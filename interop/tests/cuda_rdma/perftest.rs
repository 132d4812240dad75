//! perftest with its memory on a GPU.

use std::path::Path;
use std::time::Duration;

use interop::need::Need;
use interop::{Pair, Scratch, Veth, by_nic, cuda_program, needs, row};

use crate::{DEFAULT, TWO_HOSTS, WAYS, Way, lacks};

/// The operations of perftest, each with one program for bandwidth and one for latency.
const OPERATIONS: [&str; 4] = ["write", "read", "send", "atomic"];
const ITERATIONS: u64 = 200;
const BYTES: u64 = 65536;

/// Two sides of a perftest program on GPU memory.
fn perftest(test: &str, args: &[&str], way: &Way, scratch: &Scratch, report: &Path) -> Pair {
    let iterations = ITERATIONS.to_string();
    let pair = Pair::new(cuda_program("perftest").join(test));
    let pair = pair.args(["-d", "peerdma0", "-F", "-n", &iterations, "--use_cuda=0"]).args(args);
    pair.both(|program| way.on(program, scratch, report).limit(Duration::from_secs(60)))
}

/// Runs it by dma-buf or by address alone, and requires that the NIC accessed GPU memory directly,
/// or that it refused.
#[track_caller]
fn perftest_by(test: &str, by_dma_buf: bool, way: &Way, veth: Option<&Veth>) {
    let scratch = Scratch::new();
    let report = scratch.file("report.txt");
    let size = BYTES.to_string();
    // An atomic operates on eight bytes.
    let (mut args, bytes) =
        if test.contains("atomic") { (vec![], 8) } else { (vec!["-s", &*size], BYTES) };
    if by_dma_buf {
        args.push("--use_cuda_dmabuf");
    }
    if test == "ib_write_lat" {
        // Without, the side that waits looks at its memory, which is the GPU's.
        args.push("--write_with_imm");
    }
    let pair = perftest(test, &args, way, &scratch, &report);
    let pair = match veth {
        Some(veth) => pair.across(veth),
        None => pair,
    };
    let run = format!("{test} by {}", if by_dma_buf { "dma-buf" } else { "peermem" });
    let name = way.place(veth);
    let is_taken = if by_dma_buf { way.dma_buf } else { way.peermem };
    if is_taken {
        pair.run();
        let moved = by_nic(&report);
        assert!(moved >= ITERATIONS * bytes, "{run}, {name}: {moved} bytes by the NIC");
        row("perftest", &name, &run, "pass", "");
    } else {
        pair.start().finish().client.failure();
        row("perftest", &name, &run, "refused, as it has to be", "");
    }
}

#[test]
fn perftest_moves_gpu_memory_by_each_operation_and_both_ways_of_registering() {
    needs!(Need::CudaProgram("perftest"));
    for operation in OPERATIONS {
        for kind in ["bw", "lat"] {
            for by_dma_buf in [true, false] {
                perftest_by(&format!("ib_{operation}_{kind}"), by_dma_buf, &DEFAULT, None);
            }
        }
    }
}

#[test]
fn perftest_is_served_or_refused_by_the_class_of_the_nic() {
    needs!(Need::CudaProgram("perftest"));
    for way in &WAYS[1..] {
        for by_dma_buf in [true, false] {
            perftest_by("ib_write_bw", by_dma_buf, way, None);
        }
    }
}

#[test]
fn perftest_moves_gpu_memory_between_two_hosts() {
    needs!(Need::CudaProgram("perftest"));
    if lacks(TWO_HOSTS) {
        return;
    }
    let veth = Veth::new();
    for operation in OPERATIONS {
        for by_dma_buf in [true, false] {
            perftest_by(&format!("ib_{operation}_bw"), by_dma_buf, &DEFAULT, Some(&veth));
        }
    }
}
