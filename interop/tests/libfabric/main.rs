//! libfabric's FI_HMEM and FI_MR_DMABUF over our NIC: the results of registrations of GPU memory,
//! and the path of the bytes. `cargo xtask libfabric` builds libfabric and runs its own tests.

mod storm;

use std::path::Path;
use std::time::Duration;

use interop::need::Need;
use interop::{
    Finished, Netns, Port, Program, Scratch, Veth, by_nic, compile_with, libfabric, needs,
};

/// The program that registers in many ways, on the GPUs of a preset or on a configured machine.
fn fi_mr(scratch: &Scratch, config: &str) -> Program {
    let [include, lib] = ["include", "lib"].map(libfabric);
    let [include, lib] = [format!("-I{}", include.display()), lib.display().to_string()];
    let (search, run_path) = (format!("-L{lib}"), format!("-Wl,-rpath,{lib}"));
    let libraries = [&*search, &*run_path, "-lfabric", "-ldl"];
    let program = Program::new(compile_with("fi_mr", scratch, &[&include], &libraries));
    with(program.gpu("nvidia").limit(Duration::from_secs(30)), scratch, config)
}

fn with(program: Program, scratch: &Scratch, config: &str) -> Program {
    if config.is_empty() {
        return program;
    }
    let file = scratch.file("peerdma.toml");
    std::fs::write(&file, config).expect("a scratch directory is writable");
    program.env("PEERDMA_CONFIG", file)
}

const EBADF: i32 = 9;
const EFAULT: i32 = 14;
const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;
const ENODATA: i32 = 61;
const ENOPROTOOPT: i32 = 92;

/// A table of docs/semantics.md 6: requests, and libfabric's results.
const ANSWERS: [(&str, i32); 20] = [
    ("FI_HMEM", 0),
    // The NIC has peermem: `ibv_reg_mr` of the address.
    ("regattr as system memory", 0),
    ("regattr", 0),
    ("regattr of an interface that is not there", ENOSYS),
    ("regattr of memory that nobody has", EFAULT),
    ("dma-buf", 0),
    ("dma-buf, part", 0),
    ("dma-buf, no base", 0),
    ("dma-buf, too long", EINVAL),
    ("dma-buf, behind its end", EINVAL),
    ("dma-buf, base within a page", EINVAL),
    ("dma-buf -1", EBADF),
    ("dma-buf of a file", EINVAL),
    ("reg with the flag", EINVAL),
    ("regv with the flag", EINVAL),
    ("dma-buf of memory that was freed", 0),
    ("regattr of memory that was freed", EFAULT),
    // FI_OPT_FI_HMEM_P2P: verbs_ep.c does not have this option (`return -FI_ENOPROTOOPT`), and rxm
    // passes it to verbs.
    ("option enabled", ENOPROTOOPT),
    ("option required", ENOPROTOOPT),
    ("option disabled", ENOPROTOOPT),
];

#[track_caller]
fn answers(program: &Program, expected: &[(&str, i32)]) {
    let out = program.output();
    out.success();
    let lines: Vec<_> = out.stdout.lines().collect();
    let expected: Vec<_> =
        expected.iter().map(|(what, number)| format!("{what}: {number}")).collect();
    assert_eq!(lines, expected, "{out}");
}

#[test]
fn memory_is_registered_or_refused_with_the_error_codes_of_the_rules() {
    needs!(Need::Libfabric, Need::Program("gcc"));
    let scratch = Scratch::new();
    for provider in ["verbs", "verbs;ofi_rxm"] {
        answers(&fi_mr(&scratch, "").args([provider]), &ANSWERS);
    }
}

#[test]
fn without_peermem_a_device_pointer_is_not_registered_as_system_memory() {
    needs!(Need::Libfabric, Need::Program("gcc"));
    let scratch = Scratch::new();
    let config = "[[nic]]\nname = \"peerdma0\"\n[[gpu]]\nname = \"g0\"\nshared = false\n";
    let mut expected = ANSWERS;
    expected[1].1 = EFAULT;
    answers(&fi_mr(&scratch, config), &expected);
}

/// libfabric keeps a descriptor for each region: when none is left, the log tells what uses them.
#[test]
fn when_no_descriptor_is_left_the_log_tells_what_uses_them() {
    needs!(Need::Libfabric, Need::Program("gcc"));
    let scratch = Scratch::new();
    // Without peermem: libfabric would register by address instead.
    let config = "[[nic]]\nname = \"peerdma0\"\n[[gpu]]\nname = \"g0\"\nshared = false\n";
    let program = fi_mr(&scratch, config).args(["verbs", "128"]);
    let out = program.env("PEERDMA_LOG", "info").output();
    out.success();
    let (_, error) = out.stdout.rsplit_once(": ").expect("an answer");
    assert_ne!(error.trim(), "0", "{out}");
    let words = "as many descriptors as it may (RLIMIT_NOFILE, 128)";
    assert!(out.stderr.contains(words), "{out}");
}

/// FI_HMEM is offered with a NIC that imports dma-bufs, unless peer-to-peer or dma-bufs are
/// disabled in libfabric.
#[test]
fn without_dma_bufs_or_peer_to_peer_no_device_memory_is_offered() {
    needs!(Need::Libfabric, Need::Program("gcc"));
    let scratch = Scratch::new();
    let nothing = [("FI_HMEM", ENODATA)];
    for off in [("FI_VERBS_USE_DMABUF", "0"), ("FI_HMEM_DISABLE_P2P", "1")] {
        answers(&fi_mr(&scratch, "").env(off.0, off.1), &nothing);
    }
    for class in ["importer = \"none\"", "preset = \"rxe\""] {
        let config = format!("[[nic]]\n{class}\n[[gpu]]\nname = \"g0\"\nshared = false\n");
        answers(&fi_mr(&scratch, &config), &nothing);
    }
}

/// The number of messages of a test, and their size: too large to be copied through bounce buffers.
const MESSAGES: u64 = 20;
const BYTES: u64 = 1 << 20;

/// Two sides of one of libfabric's tests, on CUDA memory unless `change` selects another; with `-v`
/// they compare the data.
#[track_caller]
fn fabtest(
    test: &str,
    args: &[&str],
    [server, client]: [(&Netns, &str); 2],
    change: impl Fn(Program) -> Program,
) -> Finished {
    // The two sides first meet on a TCP port; connected endpoints do not.
    let port = (!args.contains(&"verbs")).then(Port::lease);
    // In memory of Level Zero they also wait for each other there (docs/LIBFABRIC.md).
    let is_rendezvous = args.contains(&"ze") && !args.contains(&"shm");
    let option = if is_rendezvous { "-b" } else { "-E" };
    let meet = port.as_ref().map(|port| format!("{option}={}", port.number()));
    let (messages, bytes) = (MESSAGES.to_string(), BYTES.to_string());
    let program = |(netns, address): (&Netns, &str)| {
        let program = Program::new(libfabric("bin").join(test))
            .args(["-I", &messages, "-S", &bytes, "-s", address])
            .args(&meet)
            .args(args)
            .gpu("nvidia")
            .in_netns(netns)
            .limit(Duration::from_secs(60));
        change(program)
    };
    let mut running = program(server).start();
    match &port {
        Some(port) => running.wait_listening(port.number()),
        None => running.wait_idle(),
    }
    let client = program(client).args([server.1]).output();
    if !client.status.success() {
        running.end_unless_ended(Duration::from_secs(3));
    }
    Finished { server: running.finish(), client }
}

/// Runs a test with each kind of registration, on one host and between two, and requires that the
/// NICs accessed GPU memory directly.
#[track_caller]
fn moves(test: &str, provider: &str, more: &[&str]) {
    needs!(Need::Libfabric, Need::Root, Need::Namespaces, Need::Program("ip"));
    let veth = Veth::new();
    let near = (&veth.left, veth.left_address());
    let far = (&veth.right, veth.right_address());
    for (by, is_far) in [(None, false), (Some("-R"), false), (None, true)] {
        let scratch = Scratch::new();
        let report = scratch.file("report.txt");
        let args = ["-p", provider, "-D", "cuda"];
        let args: Vec<_> = args.into_iter().chain(by).chain(more.iter().copied()).collect();
        let sides = [near, if is_far { far } else { near }];
        let done = fabtest(test, &args, sides, |program| reported(program, &report));
        for side in [&done.client, &done.server] {
            side.success();
        }
        let moved = by_nic(&report);
        assert!(moved >= MESSAGES * BYTES, "{moved} bytes by the NIC: {args:?}\n{}", done.client);
    }
}

fn reported(program: Program, report: &Path) -> Program {
    program.env("PEERDMA_REPORT", report)
}

#[test]
fn messages_between_gpus_go_by_dma_buf() {
    moves("fi_rdm_tagged_bw", "verbs;ofi_rxm", &["-v"]);
    moves("fi_msg_bw", "verbs", &["-v"]);
}

#[test]
fn writes_and_reads_between_gpus_go_by_dma_buf() {
    for operation in ["write", "read"] {
        moves("fi_rma_bw", "verbs;ofi_rxm", &["-v", "-e", "rdm", "-o", operation]);
        // No comparison: that requires FI_DELIVERY_COMPLETE, which verbs does not have.
        moves("fi_rma_bw", "verbs", &["-e", "msg", "-o", operation]);
    }
}

/// The runtimes, and the presets that provide them.
const RUNTIMES: [(&str, &str); 4] =
    [("cuda", "nvidia"), ("ze", "xe"), ("ze", "i915"), ("rocr", "amdgpu")];

/// The shm provider opens memory of the peer's GPU by the runtime's IPC.
#[test]
fn processes_of_one_host_share_memory_of_each_runtime() {
    needs!(Need::Libfabric, Need::Root, Need::Namespaces);
    let netns = Netns::new();
    for (memory, preset) in RUNTIMES {
        let args = ["-p", "shm", "-D", memory, "-v"];
        let sides = [(&netns, "127.0.0.1"); 2];
        let done = fabtest("fi_rdm_tagged_bw", &args, sides, |program| program.gpu(preset));
        for side in [&done.client, &done.server] {
            side.success();
        }
    }
}

#[test]
fn messages_from_each_runtimes_memory_arrive() {
    needs!(Need::Libfabric, Need::Root, Need::Namespaces, Need::Program("ip"));
    let veth = Veth::new();
    let near = (&veth.left, veth.left_address());
    for (memory, preset) in RUNTIMES {
        let args = ["-p", "verbs;ofi_rxm", "-D", memory, "-v"];
        let change = |program: Program| program.gpu(preset);
        let done = fabtest("fi_rdm_tagged_pingpong", &args, [near, near], change);
        for side in [&done.client, &done.server] {
            side.success();
        }
    }
}

/// Two sides of an RDMA test between Level Zero GPUs, with the first GPU beside the first NIC.
#[track_caller]
fn xe(test: &str, args: &[&str], veth: &Veth, change: impl Fn(Program) -> Program) {
    let messages = MESSAGES.to_string();
    let program = || {
        let program = Program::new(libfabric("bin").join(test))
            .args(["-m", "device", "-n", &messages])
            .args(args)
            .gpu("xe")
            .in_netns(&veth.left)
            .limit(Duration::from_secs(60));
        change(program)
    };
    let mut server = program().start();
    server.wait_listening(12345);
    let client = program().args([veth.left_address()]).output();
    if !client.status.success() {
        server.end_unless_ended(Duration::from_secs(3));
    }
    for side in [client, server.finish()] {
        side.success();
    }
}

/// The memory comes from Level Zero, its dma-buf is registered, and another process reads and
/// writes it: by plain verbs, and by FI_HMEM.
#[test]
fn intels_tests_of_dma_bufs_read_and_write_gpu_memory() {
    needs!(Need::Libfabric, Need::Root, Need::Namespaces, Need::Program("ip"));
    let veth = Veth::new();
    let rxm = ["-p", "verbs;ofi_rxm", "-e", "rdm", "-d", "peerdma0:0", "-S", "1M", "-v"];
    let verbs = ["-d", "0", "-g", "0", "-S", "1048576"];
    for operation in ["read", "write"] {
        let scratch = Scratch::new();
        let (one, other) = (scratch.file("verbs.txt"), scratch.file("rxm.txt"));
        // By verbs it can compare the result of READs.
        let compared: &[&str] = if operation == "read" { &["-v"] } else { &[] };
        let by_verbs = [&verbs, &["-t", operation][..], compared].concat();
        let by_hmem = [&rxm[..], &["-t", operation]].concat();
        for (test, args, report) in [("xe_rdmabw", by_verbs, one), ("fi_xe_rdmabw", by_hmem, other)]
        {
            xe(test, &args, &veth, |program| reported(program, &report));
            let moved = by_nic(&report);
            assert!(moved >= MESSAGES * BYTES, "{test} {args:?}: {moved} bytes by the NIC");
        }
    }
}
