//! NIXL, whose wheel contains its own UCX.

use interop::need::Need;
use interop::{Pair, Scratch, Veth, by_nic, cuda_program, needs, row};

use crate::{DEFAULT, TWO_HOSTS, WAYS, Way, lacks};

const MIB: u64 = 1 << 20;

/// Two processes whose agents write and read GPU memory of each other, compared byte by byte.
pub(crate) fn pair(rounds: u64) -> Pair {
    let pair = Pair::new(concat!(env!("CARGO_MANIFEST_DIR"), "/py/nixl_vram.py"));
    let pair = pair.args([rounds.to_string()]);
    pair.both(|program| {
        let program = program.env("PYTHONPATH", cuda_program("nixl"));
        let program = program.env("UCX_TLS", "rc_v,cuda_copy");
        program.env("UCX_NET_DEVICES", "peerdma0:1")
    })
}

#[track_caller]
fn writes_and_reads(way: &Way, veth: Option<&Veth>) {
    const ROUNDS: u64 = 10;
    let scratch = Scratch::new();
    let report = scratch.file("report.txt");
    let pair = pair(ROUNDS).both(|program| way.on(program, &scratch, &report));
    let pair = match veth {
        Some(veth) => pair.across(veth),
        None => pair,
    };
    pair.run().client.says("all bytes right");
    let (moved, place) = (by_nic(&report), way.place(veth));
    let how = if way.dma_buf || way.peermem {
        assert!(moved >= 2 * ROUNDS * MIB, "{place}: {moved} bytes by the NIC");
        "the NIC reached GPU memory itself"
    } else {
        assert_eq!(moved, 0, "{place}: a NIC that takes no GPU memory");
        "its UCX copied through host memory"
    };
    row("nixl", &place, "WRITE and READ of 1 MiB, compared", "pass", how);
}

#[test]
fn nixl_writes_and_reads_vram_of_another_process() {
    needs!(Need::CudaProgram("nixl"), Need::Python("ctypes"));
    for way in WAYS {
        writes_and_reads(&way, None);
    }
}

#[test]
fn nixl_writes_and_reads_vram_of_another_host() {
    needs!(Need::CudaProgram("nixl"), Need::Python("ctypes"));
    if lacks(TWO_HOSTS) {
        return;
    }
    let veth = Veth::new();
    for way in [DEFAULT, WAYS[1]] {
        writes_and_reads(&way, Some(&veth));
    }
}
