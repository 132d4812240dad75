//! UCX built with CUDA.

use interop::need::Need;
use interop::{
    Pair, Program, Recorded, Recording, Scratch, Veth, by_nic, cuda_program, needs, row,
};

use crate::{DEFAULT, TWO_HOSTS, WAYS, Way, lacks};

/// A program of UCX built with CUDA.
fn ucx(name: &str) -> std::path::PathBuf {
    cuda_program("ucx").join("bin").join(name)
}

#[test]
fn ucx_finds_gpus_and_the_nic() {
    needs!(Need::CudaProgram("ucx"));
    let out = Program::new(ucx("ucx_info")).gpu("nvidia").args(["-d"]).output();
    for words in ["Transport: rc_verbs", "Transport: cuda_copy", "Transport: cuda_ipc"] {
        out.success().says(words);
    }
    row("ucx", "default", "ucx_info -d", "pass", "");
}

/// Tests of UCP: put, get, tags, active messages.
const UCP: [&str; 6] = ["ucp_put_bw", "ucp_get", "tag_bw", "tag_lat", "ucp_am_bw", "ucp_am_lat"];
/// The memory of each side: that of a GPU on both sides, on the sender, or on the receiver.
const MEMORY: [&str; 3] = ["cuda", "cuda,host", "host,cuda"];
const MESSAGES: u64 = 20;
const MESSAGE: u64 = 1 << 20;

const BY_NIC: &str = "the NIC reached GPU memory itself";
const STAGED: &str = "UCX copied through host memory";

/// A test of UCP between two processes.
fn perftest(test: &str, memory: &str) -> Pair {
    let (messages, bytes) = (MESSAGES.to_string(), MESSAGE.to_string());
    let pair = Pair::new(ucx("ucx_perftest"));
    let pair = pair.args(["-t", test, "-m", memory, "-n", &messages, "-w", "2", "-s", &bytes]);
    pair.both(over_rc)
}

fn over_rc(program: Program) -> Program {
    // It fails without its registration cache, for which it must see each call that maps and unmaps
    // memory.
    let program = program.env("UCX_RCACHE_ENABLE", "y");
    // On devices other than mlx5, its strong fence reads by a key that UCX itself considers
    // invalid.
    let program = program.env("UCX_TLS", "rc_v,cuda_copy").env("UCX_FENCE_MODE", "weak");
    program.env("UCX_NET_DEVICES", "peerdma0:1")
}

#[track_caller]
fn ucx_perftest(test: &str, memory: &str, way: &Way, veth: Option<&Veth>) {
    let scratch = Scratch::new();
    let report = scratch.file("report.txt");
    let pair = perftest(test, memory).both(|program| way.on(program, &scratch, &report));
    let pair = match veth {
        Some(veth) => pair.across(veth),
        None => pair,
    };
    let done = pair.run();
    let last = done.client.stdout.lines().find(|line| line.starts_with("Final:"));
    assert!(last.is_some(), "{}", done.client);
    let moved = by_nic(&report);
    let name = way.place(veth);
    let run = format!("ucx_perftest {test} -m {memory}");
    if way.dma_buf || way.peermem {
        assert!(moved >= MESSAGES * MESSAGE, "{run}, {name}: {moved} bytes by the NIC");
        row("ucx", &name, &run, "pass", BY_NIC);
    } else {
        assert_eq!(moved, 0, "{run}, {name}: a NIC that takes no GPU memory");
        row("ucx", &name, &run, "pass", STAGED);
    }
}

/// UCX's `io_demo`, a program for reads and writes of storage, which checks each byte and stops at
/// a wrong one. Its server ends when it is interrupted.
pub(crate) fn io_demo(rounds: u64) -> Pair {
    let pair = Pair::new(ucx("io_demo"));
    let rounds = rounds.to_string();
    // Reads and writes of 64 to 256 KiB, four at a time, checked (-q).
    let pair = pair.args(["-m", "cuda", "-q", "-o", "read,write", "-d", "64K:256K", "-w", "4"]);
    // It connects by address and port, for which it needs TCP, and sends by the faster transport.
    pair.args(["-i", &rounds]).both(|program| {
        let program = over_rc(program).env("UCX_TLS", "rc_v,cuda_copy,tcp");
        program.env("UCX_NET_DEVICES", "peerdma0:1,lo")
    })
}

#[test]
fn ucx_moves_gpu_memory_by_each_protocol_without_staging_it() {
    needs!(Need::CudaProgram("ucx"));
    for test in UCP {
        for memory in MEMORY {
            ucx_perftest(test, memory, &DEFAULT, None);
        }
    }
}

#[test]
fn ucx_registers_gpu_memory_as_the_nic_allows() {
    needs!(Need::CudaProgram("ucx"));
    for way in &WAYS[1..] {
        for test in ["ucp_put_bw", "tag_bw"] {
            ucx_perftest(test, "cuda", way, None);
        }
    }
}

#[test]
fn ucx_moves_gpu_memory_between_two_hosts() {
    needs!(Need::CudaProgram("ucx"));
    if lacks(TWO_HOSTS) {
        return;
    }
    let veth = Veth::new();
    for test in ["ucp_put_bw", "ucp_get", "tag_bw", "ucp_am_bw"] {
        ucx_perftest(test, "cuda", &DEFAULT, Some(&veth));
    }
}

/// Bytes that both processes sent in packets, from memory regions of dma-bufs, of peer memory, and
/// of other memory.
fn sent(recording: &Recording) -> [u64; 3] {
    /// The maximum of header bytes in a request with payload.
    const HEADERS: usize = 64;
    let mut bytes = [0; 3];
    for packet in recording.packets.iter().filter(|packet| !packet.inbound) {
        let kinds = ["(dma-buf)", "(peer memory)"];
        let kind = kinds.iter().position(|kind| packet.comment.ends_with(kind)).unwrap_or(2);
        bytes[kind] += packet.frame.ip.len().saturating_sub(HEADERS) as u64;
    }
    bytes
}

/// A capture of the same test: it names the source region of each packet, and the remote region of
/// each WRITE and READ request.
#[test]
fn a_capture_shows_what_ucx_registered() {
    needs!(Need::CudaProgram("ucx"));
    let way = |name| WAYS.iter().find(|way| way.name == name).expect("one of them");
    let by_address = way("mlx5 with peermem, no dma-bufs of the GPU");
    for (way, kind, words) in
        [(&DEFAULT, 0, "(dma-buf)"), (by_address, 1, "(peer memory)"), (way("rxe"), 2, "")]
    {
        for test in ["ucp_put_bw", "ucp_get", "tag_bw"] {
            let scratch = Scratch::new();
            let [report, file] = ["report.txt", "ucx.pcapng"].map(|name| scratch.file(name));
            let pair = perftest(test, "cuda")
                .both(|program| way.on(program, &scratch, &report).env("PEERDMA_PCAP", &file));
            pair.run();
            let recording = Recording::read(&file);
            let sent = sent(&recording);
            let run = format!("ucx_perftest {test} -m cuda, recorded");
            assert!(sent[kind] >= MESSAGES * MESSAGE, "{run}, {}: {sent:?}", way.name);
            // A request without bytes names region 0.
            let named = |packet: &&Recorded| {
                packet.inbound
                    && packet.comment.contains(", MR ")
                    && !packet.comment.ends_with(", MR 0x0")
            };
            let named: Vec<_> = recording.packets.iter().filter(named).collect();
            if kind == 2 {
                assert_eq!(sent[..2], [0, 0], "{run}, {}: out of GPU memory", way.name);
                row("ucx", way.name, &run, "pass", STAGED);
                continue;
            }
            // The other bytes are UCX's message headers.
            let rest: u64 = sent.iter().sum::<u64>() - sent[kind];
            assert!(rest < MESSAGE, "{run}, {}: {sent:?}", way.name);
            assert!(!named.is_empty(), "{run}, {}: no request names a region", way.name);
            for packet in named {
                assert!(packet.comment.ends_with(words), "{run}: {}", packet.comment);
            }
            let why =
                format!("each packet with bytes comes from, and goes to, a region of {words}");
            row("ucx", way.name, &run, "pass", &why);
        }
    }
}
