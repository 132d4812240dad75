//! The benches, in the order they run.

mod connect;
mod cost;
mod crowded;
mod cuda;
mod fair;
mod fd_backed;
pub(crate) mod futures;
mod hmm;
pub(crate) mod latency;
mod level_zero;
mod memory;
mod nvmeof;
mod pcap;
mod peer_memory;
mod post;
mod sends;
mod small;
mod storage;
mod vm;
mod vm_cost;
mod vm_nvmeof;
mod vm_post;
mod wire;
mod write;

use crate::Outcome;
use crate::report::Report;

/// A bench.
#[derive(Clone, Copy)]
pub(crate) struct Bench {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Too slow, or too far from a user's machine, to run unless it is requested.
    pub(crate) only_when_named: bool,
    /// Measures with this many repetitions, and adds rows.
    pub(crate) run: fn(u32, &mut Report) -> Outcome<()>,
}

const fn bench(
    name: &'static str,
    about: &'static str,
    run: fn(u32, &mut Report) -> Outcome<()>,
) -> Bench {
    Bench { name, about, only_when_named: false, run }
}

pub(crate) const ALL: [Bench; 29] = [
    bench("write", "ib_write_bw against process_vm_writev", write::run),
    bench("sends", "many small SENDs against UCX's active messages", sends::run),
    bench("small", "many short WRITEs and READs against process_vm_writev", small::run),
    bench("fd-backed", "WRITE and READ between memfds against memcpy", fd_backed::run),
    bench("write-lat", "ib_write_lat against a process_vm_writev ping-pong", latency::write),
    bench("send-lat", "ib_send_lat against a ping-pong of two cache lines", latency::send),
    bench("futures", "requests as futures against a C program", futures::run),
    bench("post", "crate verbs on a library against the library's own calls", post::run),
    bench("wire", "ib_write_bw over a veth against a bare UDP stream", wire::run),
    Bench {
        only_when_named: true,
        ..bench("wire-ways", "other operations and more QPs over a veth", wire::ways)
    },
    bench("wire-lat", "ib_send_lat over a veth against a UDP ping-pong", wire::latency),
    Bench {
        only_when_named: true,
        ..bench("crowded", "throughput and latency on busy processors, beside TCP", crowded::run)
    },
    Bench {
        only_when_named: true,
        ..bench("fair", "the share of each of many more engines than processors", fair::run)
    },
    Bench {
        only_when_named: true,
        ..bench("cost", "processor time per GB and per million messages", cost::run)
    },
    bench("memory", "resident memory of a context", memory::context),
    bench(
        "peer-memory",
        "GPU and device memory against host memory; registering and moving buffers",
        peer_memory::run,
    ),
    bench("cuda", "CUDA's driver over the software GPU against memcpy and limits", cuda::run),
    bench(
        "level-zero",
        "Level Zero against memcpy, libfabric against host memory",
        level_zero::run,
    ),
    bench("hmm", "a page back from a device against a bare userfaultfd", hmm::run),
    bench("storage", "a file into GPU memory against ordinary memory", storage::run),
    bench("nvmeof", "random reads over NVMe-oF against the same of the file", nvmeof::run),
    bench("connect", "cmtime against TCP connections", connect::run),
    bench("qps", "10,000 QPs in one process", memory::qps),
    bench("pcap", "what recording every packet costs", pcap::run),
    Bench {
        only_when_named: true,
        ..bench("vm", "peerdma against the kernel's rdma_rxe, in a virtual machine", vm::speed)
    },
    Bench {
        only_when_named: true,
        ..bench("vm-loss", "the same on a link that loses packets", vm::losses)
    },
    Bench {
        only_when_named: true,
        ..bench("vm-cost", "processor time there, the kernel's included", vm_cost::run)
    },
    Bench {
        only_when_named: true,
        ..bench("vm-post", "the bench `post` there, in instructions", vm_post::run)
    },
    Bench {
        only_when_named: true,
        ..bench(
            "vm-nvmeof",
            "examples/nvmet against the kernel's target, in a virtual machine",
            vm_nvmeof::run,
        )
    },
];

/// Runs two measurements in turns: which comes first changes from one repetition to the next. A
/// repetition in which one of them failed does not count, and is reported.
fn in_turns<T, U>(
    bench: &'static str,
    reps: u32,
    report: &mut Report,
    mut ours: impl FnMut() -> Outcome<T>,
    mut theirs: impl FnMut() -> Outcome<U>,
) -> Outcome<(Vec<T>, Vec<U>)> {
    let (mut all_ours, mut all_theirs) = (Vec::new(), Vec::new());
    for rep in 0..reps {
        let both = if rep % 2 == 0 {
            theirs().and_then(|theirs| Ok((ours()?, theirs)))
        } else {
            ours().and_then(|ours| Ok((ours, theirs()?)))
        };
        match both {
            Ok((ours, theirs)) => {
                all_ours.push(ours);
                all_theirs.push(theirs);
            }
            Err(error) => report.note(bench, format!("repetition {} FAILED: {error}", rep + 1)),
        }
    }
    if all_ours.is_empty() {
        return Err("no repetition succeeded".into());
    }
    Ok((all_ours, all_theirs))
}
