//! Programs of others that move GPU memory, unmodified, over the software GPU. `cargo xtask cuda-rdma` builds them, and makes
//! docs/CUDA_PROGRAMS.md of the rows that these tests leave.

use std::path::Path;
use std::time::Duration;

use interop::need::Need;
use interop::{Pair, Port, Program, Scratch, Veth, by_nic, cuda_program, needs, row};

/// A machine, in words and as a configuration; without one there are two GPUs and two NICs with peermem.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    config: &'static str,
    /// What its NIC takes.
    dma_buf: bool,
    peermem: bool,
}

const DEFAULT: Way = Way { name: "default", config: "", dma_buf: true, peermem: true };

/// NICs of each class, with peermem and without, and little memory.
const WAYS: [Way; 7] = [
    DEFAULT,
    Way {
        name: "dynamic NIC, no peermem",
        config: "[[nic]]\nname = \"peerdma0\"\npreset = \"mlx5\"\n[[gpu]]\nname = \"g0\"\n",
        dma_buf: true,
        peermem: false,
    },
    Way {
        name: "revocable NIC, no peermem",
        config: "[[nic]]\nname = \"peerdma0\"\nimporter = \"revocable\"\n[[gpu]]\nname = \"g1\"\n",
        dma_buf: true,
        peermem: false,
    },
    Way {
        name: "pinned NIC, no peermem",
        config: "[[nic]]\nname = \"peerdma0\"\nimporter = \"pinned\"\n[[gpu]]\nname = \"g2\"\n",
        dma_buf: true,
        peermem: false,
    },
    Way {
        name: "peermem alone",
        config: "[[nic]]\nname = \"peerdma0\"\npeermem = true\n[[gpu]]\nname = \"g3\"\ndma_buf = false\n",
        dma_buf: false,
        peermem: true,
    },
    Way {
        name: "NIC that takes no GPU memory",
        config: "[[nic]]\nname = \"peerdma0\"\nimporter = \"none\"\n[[gpu]]\nname = \"g4\"\n",
        dma_buf: false,
        peermem: false,
    },
    Way {
        name: "16 MiB of VRAM",
        config: "[[nic]]\nname = \"peerdma0\"\npeermem = true\n[[gpu]]\nname = \"g5\"\nvram = \"16M\"\n",
        dma_buf: true,
        peermem: true,
    },
];

impl Way {
    /// The program on that machine; what its NIC did with GPU memory is then in `report`.
    fn on(&self, program: Program, scratch: &Scratch, report: &Path) -> Program {
        let program = program.gpu("nvidia").env("PEERDMA_REPORT", report);
        if self.config.is_empty() {
            return program;
        }
        let file = scratch.file("peerdma.toml");
        std::fs::write(&file, self.config).expect("a scratch directory is writable");
        program.env("PEERDMA_CONFIG", file)
    }
}

fn gdrcopy(test: &str) -> Program {
    let dir = cuda_program("gdrcopy");
    Program::new(dir.join("tests").join(test))
        .gpu("nvidia")
        .env("LD_LIBRARY_PATH", dir.join("src"))
        .env("GDRCOPY_USE_DMABUF_MMAP", "1")
        .limit(Duration::from_secs(120))
}

/// The names below a heading of gdrcopy's summary.
fn listed<'a>(said: &'a str, heading: &str) -> Vec<&'a str> {
    let below = said.split(heading).nth(1).unwrap_or_default();
    let lines = below.lines().skip(1).take_while(|line| line.starts_with(' '));
    lines.map(str::trim).collect()
}

/// What gdrcopy waives itself, as its way over dma-bufs has no such thing.
const WAIVED: [(&str, &str); 6] = [
    ("basic_unaligned_mapping", "its mappings of dma-bufs are of whole pages"),
    ("forcepci", "a flag of mappings that only coherent platforms have"),
    ("tokens", "P2P tokens are not offered (they went with CUDA 13)"),
    ("mix_mappings", "likewise"),
    ("fork", "its mappings of dma-bufs are shared with children"),
    ("unix_sock", "its handles are no files that can be passed on"),
];

#[test]
fn gdrcopy_passes_what_it_does_not_waive_itself() {
    needs!(Need::CudaProgram("gdrcopy"));
    let out = gdrcopy("gdrcopy_sanity").args(["-v"]).output();
    let said = format!("{}\n{}", out.stdout, out.stderr);
    for line in said.lines() {
        let Some((verdict, test)) =
            line.strip_prefix("&&&& ").and_then(|words| words.split_once(' '))
        else {
            continue;
        };
        let why = WAIVED.iter().find(|(part, _)| test.contains(part)).map_or("", |(_, why)| why);
        match verdict {
            "PASSED" => row("gdrcopy", "default", test, "pass", ""),
            "WAIVED" => row("gdrcopy", "default", test, "waived by itself", why),
            "FAILED" => row("gdrcopy", "default", test, "fail", ""),
            _ => {}
        }
    }
    let unexplained = |test: &&str| !WAIVED.iter().any(|(part, _)| test.contains(part));
    let waived_all = listed(&said, "List of waived tests:");
    let waived: Vec<_> = waived_all.iter().copied().filter(unexplained).collect();
    assert!(waived.is_empty(), "{waived:?}: {out}");
    let failed = listed(&said, "List of failed tests:");
    assert!(failed.is_empty(), "{out}");
    out.says("Total: 36");
    assert!(!waived_all.is_empty(), "{out}");
}

#[test]
fn gdrcopy_copies_through_a_mapping() {
    needs!(Need::CudaProgram("gdrcopy"));
    for test in ["gdrcopy_copybw", "gdrcopy_copylat"] {
        gdrcopy(test).output().success();
        row("gdrcopy", "default", test, "pass", "");
    }
}

/// The operations of perftest, one program each for bandwidth and latency.
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

/// Runs it by a dma-buf or by the address alone, and requires that the NIC reached GPU memory itself, or that it refused.
#[track_caller]
fn perftest_by(test: &str, by_dma_buf: bool, way: &Way, veth: Option<&Veth>) {
    let scratch = Scratch::new();
    let report = scratch.file("report.txt");
    let size = BYTES.to_string();
    // An atomic has eight bytes.
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
    let name = format!("{}{}", way.name, if veth.is_some() { ", two hosts" } else { "" });
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

macro_rules! two_hosts {
    () => {
        needs!(
            Need::Root,
            Need::Namespaces,
            Need::Program("ip"),
            Need::Program("nsenter"),
            Need::Program("setpriv")
        )
    };
}

#[test]
fn perftest_moves_gpu_memory_between_two_hosts() {
    needs!(Need::CudaProgram("perftest"));
    two_hosts!();
    let veth = Veth::new();
    for operation in OPERATIONS {
        for by_dma_buf in [true, false] {
            perftest_by(&format!("ib_{operation}_bw"), by_dma_buf, &DEFAULT, Some(&veth));
        }
    }
}

#[test]
fn nixl_writes_from_vram_to_vram() {
    needs!(Need::CudaProgram("nixl"), Need::Python("ctypes"));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/py/nixl_vram.py");
    for way in WAYS {
        let scratch = Scratch::new();
        let program = Program::new("/usr/bin/python3").args([script]);
        let program = program
            .env("PYTHONPATH", cuda_program("nixl"))
            .env("UCX_TLS", "rc_v,cuda_copy")
            .env("UCX_NET_DEVICES", "peerdma0:1");
        let out = way.on(program, &scratch, &scratch.file("report.txt")).output();
        out.success().says("DONE equal");
        row("nixl", way.name, "WRITE of 1 MiB, compared", "pass", "");
    }
}

/// Mooncake's benchmark, as target or as initiator.
fn mooncake(mode: &str, args: &[&str], peermem: bool) -> Program {
    let port = Port::lease();
    let name = format!("--local_server_name=127.0.0.1:{}", port.number());
    Program::new(cuda_program("mooncake").join("mooncake/transfer_engine_bench"))
        .args([&*format!("--mode={mode}"), "--metadata_server=P2PHANDSHAKE", &name])
        .args([
            "--protocol=rdma",
            "--device_name=peerdma0",
            "--use_vram=true",
            "--buffer_size=16777216",
        ])
        .args(args)
        .env("WITH_NVIDIA_PEERMEM", if peermem { "1" } else { "0" })
}

#[test]
fn mooncake_transfers_between_vram() {
    needs!(Need::CudaProgram("mooncake"), Need::Library("libmlx5.so.1"));
    for way in WAYS.iter().filter(|way| !way.config.contains("vram =")) {
        for peermem in [false, true] {
            let run =
                format!("transfer_engine_bench by {}", if peermem { "peermem" } else { "dma-buf" });
            let scratch = Scratch::new();
            let report = scratch.file("report.txt");
            let mut target = way.on(mooncake("target", &[], peermem), &scratch, &report).start();
            if !(if peermem { way.peermem } else { way.dma_buf }) {
                target.end_unless_ended(Duration::from_secs(10));
                let out = target.finish();
                let refusals = ["DMA BUF supported required", "Failed to register memory"];
                assert!(refusals.iter().any(|words| out.stderr.contains(words)), "{out}");
                assert_eq!(by_nic(&report), 0, "{out}");
                row("mooncake", way.name, &run, "refused, as it has to be", "");
                continue;
            }
            // It does not say when its memory is registered: then it sleeps. An initiator that comes before crashes.
            target.wait_says("Allocating memory on GPU");
            target.wait_idle();
            let said = target.errors();
            let segment = said.lines().find_map(|line| Some(line.split_once("listening on ")?.1));
            let segment = format!("--segment_id={}", segment.expect("its address"));
            let args =
                [&*segment, "--duration=1", "--threads=2", "--batch_size=4", "--operation=write"];
            let initiator = way.on(mooncake("initiator", &args, peermem), &scratch, &report);
            initiator.output().success().says("Test completed");
            target.end_unless_ended(Duration::from_secs(1));
            drop(target);
            let moved = by_nic(&report);
            assert!(moved > 0, "{run}, {}: nothing by the NIC", way.name);
            row("mooncake", way.name, &run, "pass", "");
        }
    }
}

/// A program of UCX that was built with CUDA.
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
/// Which memory each side has: both, the sender's or the receiver's is the GPU's.
const MEMORY: [&str; 3] = ["cuda", "cuda,host", "host,cuda"];
const MESSAGES: u64 = 20;
const MESSAGE: u64 = 1 << 20;

#[track_caller]
fn ucx_perftest(test: &str, memory: &str, way: &Way, veth: Option<&Veth>) {
    let scratch = Scratch::new();
    let report = scratch.file("report.txt");
    let (messages, bytes) = (MESSAGES.to_string(), MESSAGE.to_string());
    let pair = Pair::new(ucx("ucx_perftest"));
    let pair = pair.args(["-t", test, "-m", memory, "-n", &messages, "-w", "2", "-s", &bytes]);
    let pair = pair.both(|program| {
        // Its strong fence over a device that is no mlx5 reads by a key that it takes for invalid itself.
        let program = program.env("UCX_TLS", "rc_v,cuda_copy").env("UCX_FENCE_MODE", "weak");
        way.on(program, &scratch, &report).env("UCX_NET_DEVICES", "peerdma0:1")
    });
    let pair = match veth {
        Some(veth) => pair.across(veth),
        None => pair,
    };
    let done = pair.run();
    let last = done.client.stdout.lines().find(|line| line.starts_with("Final:"));
    assert!(last.is_some(), "{}", done.client);
    let moved = by_nic(&report);
    let name = format!("{}{}", way.name, if veth.is_some() { ", two hosts" } else { "" });
    let run = format!("ucx_perftest {test} -m {memory}");
    if way.dma_buf || way.peermem {
        assert!(moved >= MESSAGES * MESSAGE, "{run}, {name}: {moved} bytes by the NIC");
        row("ucx", &name, &run, "pass", "the NIC reached GPU memory itself");
    } else {
        assert_eq!(moved, 0, "{run}, {name}: a NIC that takes no GPU memory");
        row("ucx", &name, &run, "pass", "UCX copied through host memory");
    }
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
fn ucx_takes_what_the_nic_takes() {
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
    two_hosts!();
    let veth = Veth::new();
    for test in ["ucp_put_bw", "ucp_get", "tag_bw", "ucp_am_bw"] {
        ucx_perftest(test, "cuda", &DEFAULT, Some(&veth));
    }
}
