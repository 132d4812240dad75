//! A Debian kernel with Yama and udmabuf, under emulation: features that the kernel of a container
//! seldom has.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use interop::need::Need;
use interop::{
    Artefacts, Case, Cases, Guest, Mode, Program, Scratch, Tap, Vm, VmOutput, built, compile,
    needs, perftest,
};

/// Exchanges of one perftest run in `guest/permissions.sh`.
const ITERATIONS: u64 = 1000;

/// The path of the program in the guest, independent of the build directory.
const IN_THE_GUEST: &str = "/bin/peerdma";

#[test]
fn the_machine_returns_the_output_of_the_script() {
    needs!(Need::Vm, Need::Program("setpriv"));
    let vm = Vm::new("harness").program("setpriv").module("vgem");
    let out = vm.clone().variable("status", "7").run();
    assert_eq!(out.all.status.code(), Some(7), "{}", out.all);
    assert_eq!(out.section("user").stdout, "user");
    assert_eq!(out.names().collect::<Vec<_>>(), ["status", "user"]);
    // A machine that dies is reported differently from a test that fails.
    let out = vm.variable("status", "panic").run();
    assert_eq!(out.all.status.code(), Some(202), "{}", out.all);
}

/// An assertion in QEMU itself says nothing about what runs in the machine.
#[test]
fn an_emulator_that_fails_is_tried_again() {
    let scratch = Scratch::new();
    let (dir, fake) = (scratch.file("machine"), scratch.file("fake.sh"));
    std::fs::create_dir_all(dir.join("qemu")).expect("a directory of our own");
    std::fs::write(dir.join("qemu/command"), format!("bash {}\n", fake.display())).expect("a file");
    let fails = r#"echo VM-START; echo '=== a'
if mkdir "$0.tried" 2>/dev/null; then
    echo "qemu-system-x86_64: system/physmem.c:1: f: Assertion \`x' failed."
    kill -ABRT $$
fi
echo VM-EXIT 0
exit 1
"#;
    std::fs::write(&fake, fails).expect("a file of our own");
    let run = concat!(env!("CARGO_MANIFEST_DIR"), "/vm/run.sh");
    let out = Program::new(run).args([&dir, &fake]).mode(Mode::Plain).output();
    out.success().says("QEMU failed, and not the machine").says("Assertion `x' failed");
    assert_eq!(out.stdout, "=== a\n", "{out}");
}

/// ptrace_scope 0: a process may access the memory of any other process of its user.
#[test]
fn without_yama_one_sided_operations_go_directly() {
    needs!(Need::Vm, Need::Program("setpriv"), Need::Program("ib_write_bw"));
    let out = permissions(0);
    for program in ["ib_write_bw", "ib_read_bw"] {
        let client = out.section(&format!("{program} client"));
        client.says("one-sided operations go directly").says("direct_operations=");
        assert!(requests(&out, program) < ITERATIONS, "{}", out.all);
    }
    assert!(demo_paths(&out).contains('d'), "{}", out.all);
}

/// ptrace_scope 1: only an ancestor may; two programs of one shell are not ancestors of each other.
#[test]
fn under_yama_unrelated_processes_use_the_ring_and_log_why() {
    needs!(Need::Vm, Need::Program("setpriv"), Need::Program("ib_write_bw"));
    let out = permissions(1);
    for program in ["ib_write_bw", "ib_read_bw", "ib_atomic_bw"] {
        out.section(&format!("{program} client"))
            .says("one-sided operations go through the ring: not permitted to reach")
            .says("Yama's ptrace_scope is 1, so only its ancestors may (`peerdma doctor` shows")
            .never_says("direct_operations=");
        assert_eq!(requests(&out, program), ITERATIONS, "{}", out.all);
    }
    // The demo's initiator is the parent of its target.
    out.section("demo").says("one-sided operations go directly");
}

/// ptrace_scope 2: only a process with a capability may.
#[test]
fn under_a_stricter_yama_a_parent_uses_the_ring_too() {
    needs!(Need::Vm, Need::Program("setpriv"), Need::Program("ib_write_bw"));
    let out = permissions(2);
    out.section("demo")
        .says(
            "Yama's ptrace_scope is 2, so only processes with CAP_SYS_PTRACE may (`peerdma doctor`",
        )
        .never_says("direct_operations=");
    assert!(!demo_paths(&out).contains('d'), "{}", out.all);
}

/// peerdma in the machine, on its kernel and its network interface, with peerdma here: each is
/// server and client, and every byte is checked.
#[test]
fn peerdma_in_the_machine() {
    needs!(Need::Vm, Need::Namespaces, Need::Program("ibv_rc_pingpong"));
    needs!(Need::Program("rping"), Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let xfer = compile("xfer", &scratch);
    let program = xfer.to_str().expect("our own path");
    let mut cases = Vec::new();
    // Only a few: a pingpong considers a machine dead that gets no CPU time for two seconds. The
    // others have longer timeouts.
    cases.extend(Case::both_ways("ibv_rc_pingpong", &["-c", "-n", "20", "-s", "9001"]));
    cases.extend(Case::both_ways(program, &["-m", "4096"]));
    cases.extend(Case::both_ways("rping", &["-V", "-C", "10"]));
    let done = Cases::new(Guest::Peerdma, cases.clone()).own(&xfer).run("");
    for (number, case) in cases.iter().enumerate() {
        let asking = case.asking(number, &done);
        match &*case.program {
            "ibv_rc_pingpong" => asking.says("20 iters in").never_says("invalid data"),
            "rping" => asking.never_says("mismatch"),
            _ => asking.says("every exchange was right"),
        };
    }
}

#[test]
fn real_dma_bufs() {
    needs!(Need::Vm, Need::Program("setpriv"), Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let mut vm = Vm::new("udmabuf")
        .program("setpriv")
        .module("vgem")
        .module("virtio-gpu")
        .module("vfio-pci")
        .module("vfio_iommu_type1")
        .variable("intel_iommu", "on")
        .qemu(["-device", "intel-iommu"])
        .qemu(["-object", "memory-backend-ram,id=bar,size=1M,share=on"])
        .qemu(["-device", "ivshmem-plain,memdev=bar"])
        .qemu(["-device", "virtio-gpu-pci"])
        .file(&compile("kernel_buffers", &scratch), "/bin/kernel_buffers")
        .file(&Artefacts::find().library(), "/opt/peerdma/libibverbs.so.1")
        .file(&compile("vgem_fence", &scratch), "/bin/vgem_fence")
        .file(&compile("vfio_buffer", &scratch), "/bin/vfio_buffer")
        .file(&Artefacts::find().peerdma(), IN_THE_GUEST);
    let mut tests = test_programs(&["dmabuf", "umem"]);
    // That test needs root for processes of several users, and uses no buffer of the kernel.
    tests.retain(|test| name(test) != "share");
    assert!(!tests.is_empty(), "dmabuf and umem have tests");
    for test in &tests {
        let name = name(test);
        vm = vm.file(test, &format!("/tests/{name}"));
    }
    let out = vm.limit(Duration::from_secs(200)).run();
    out.all.success();
    out.section("kernel")
        .says("kernel dma-buf by udmabuf ... ok")
        .says("kernel dma-buf by a dma-heap ... ok")
        .says("kernel fences by vgem ... ok")
        .says("kernel dma-buf by vfio ... ok");
    for test in &tests {
        out.section(name(test)).says("ok").never_says("NOT TESTED");
    }
    for exporter in ["udmabuf", "dma_heap", "vgem", "virtio_gpu"] {
        out.section("kernel_buffers").says(&format!("{exporter}: source and target ... ok"));
    }
    out.section("demo")
        .says("dma-bufs by udmabuf")
        .says("every byte was checked")
        .says("operations on this region go through the ring: it is a dma-buf of the kernel");
}

/// The same program, with buffers of the software GPU, in two processes, and with buffers of the
/// kernel.
#[test]
fn a_dma_buf_behaves_the_same_for_every_exporter() {
    needs!(Need::Vm, Need::Program("setpriv"), Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = compile("dmabuf_uapi", &scratch);
    let ours = Program::new(program.clone()).gpu("amdgpu").args(["amdgpu"]).output();
    let ours = ours.success().stdout.clone();
    assert!(ours.contains("another process: sees what was written: 1"), "{ours}");
    let out =
        Vm::new("uapi").program("setpriv").module("vgem").file(&program, "/bin/dmabuf_uapi").run();
    out.all.success();
    for exporter in ["udmabuf", "vgem"] {
        let theirs = &out.section(exporter).stdout;
        let lines = ours.lines().zip(theirs.lines());
        let other: Vec<_> = lines.filter(|(ours, theirs)| ours.trim() != theirs.trim()).collect();
        assert_eq!(other, [], "ours, and {exporter}'s");
        assert_eq!(ours.lines().count(), theirs.lines().count(), "{exporter}");
    }
}

/// Plain memory is a dma-buf for a program in C only where the kernel has udmabuf: here the table
/// of `peerdma matrix` has all of its rows from both sides.
#[test]
fn a_c_program_finds_every_row_of_the_matrix() {
    needs!(Need::Vm, Need::Program("setpriv"), Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/peerdma/src/cli/matrix/by_c.c");
    let program = scratch.file("by_c");
    let mut cc = Command::new("cc");
    cc.arg("-O1").arg("-o").arg(&program).arg(&source).args(["-libverbs", "-ldl"]);
    assert!(cc.status().expect("the headers are there, so is a compiler").success());
    let mut vm = Vm::new("matrix").program("setpriv");
    vm = vm.file(&program, "/opt/by_c").file(&source, "/opt/by_c.c");
    for file in Artefacts::find().all() {
        let name =
            file.file_name().and_then(|name| name.to_str()).expect("cargo's names are ASCII");
        vm = vm.file(&file, &format!("/opt/peerdma/{name}"));
    }
    let out = vm.limit(Duration::from_secs(200)).run();
    out.all.success();
    let said = out.section("matrix").says("The C program finds the same.");
    said.never_says("NOT MEASURED").says("memory ");
}

/// A disk with a memory buffer that the kernel lends to programs, below one switch with the NIC:
/// the disk's bytes go through that memory to this host.
#[test]
fn memory_that_the_kernel_lends_is_between_a_disk_and_the_wire() {
    needs!(Need::Vm, Need::Namespaces);
    let scratch = Scratch::new();
    let image = scratch.file("image");
    let bytes: Vec<u8> =
        (0..4_u64 << 20).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 16) as u8).collect();
    std::fs::write(&image, bytes).expect("room");
    let programs = built(["build", "-p", "peerdma-providers", "--example", "p2pmem"]);
    let program = programs.into_iter().next().expect("cargo builds it");
    let tap = Tap::new();
    let mut receiver = Program::new(program.clone())
        .mode(Mode::Plain)
        .args(["receive", &format!("{}:7472", Tap::HOST), Tap::INTERFACE])
        .args([&image])
        .limit(Duration::from_secs(600))
        .in_netns(&tap.host)
        .start();
    receiver.wait_says("listening");
    let drive = format!("file={},if=none,id=disk,format=raw,read-only=on", image.display());
    let out = Vm::new("p2pmem")
        .module("nvme")
        .file(&program, "/bin/p2pmem")
        .variable("pool", "0000:03:00.0")
        .qemu(["-device", "pcie-root-port,id=root,bus=pcie.0,addr=4.0,chassis=1"])
        .qemu(["-device", "x3130-upstream,id=up,bus=root"])
        .qemu(["-device", "xio3130-downstream,id=left,bus=up,addr=0.0,chassis=2"])
        .qemu(["-device", "xio3130-downstream,id=right,bus=up,addr=1.0,chassis=3"])
        .qemu(["-drive", &drive])
        .qemu(["-device", "nvme,serial=1,cmb_size_mb=8,bus=left,drive=disk"])
        .wired_by("virtio-net-pci,bus=right", &tap)
        .run();
    out.all.success();
    out.section("send")
        .says("pool: 8388608 bytes")
        .says("too much: the pool is nearest, and has no memory to give")
        .says("has no 0x801000 bytes in a row")
        .says("all of it: 0 bytes free")
        .says("0x0 of 0x800000 are free (ENOMEM)")
        .says("of 0x800000 are free (ENOMEM)")
        .says("eth0: BusAddr, distance 4")
        .says("/dev/nvme0n1: BusAddr, distance 0")
        .says("0 bytes are wrong")
        .says("bus_address=8388608 bounced=0")
        .says("unbound: the pool is there: false")
        .says("a write from it: an RDMA WRITE ended with LocQpOpErr");
    let here = receiver.finish();
    here.success();
    here.says("4194304 bytes arrived, every one right");
}

/// Runs `guest/permissions.sh`, which fails if a program does, and checks what must hold on every
/// path.
#[track_caller]
fn permissions(scope: u8) -> VmOutput {
    let built = Artefacts::find();
    let mut vm = Vm::new("permissions")
        .variable("scope", &scope.to_string())
        .file(&built.peerdma(), IN_THE_GUEST)
        .file(&built.library(), "/opt/peerdma/libibverbs.so.1");
    for program in ["setpriv", "ibv_rc_pingpong", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"] {
        vm = vm.program(program);
    }
    let out = vm.run();
    out.all.success();
    for side in ["client", "server"] {
        out.section(&format!("ibv_rc_pingpong {side}"))
            .says("100 iters in")
            .never_says("invalid data");
        for program in ["ib_write_bw", "ib_read_bw", "ib_atomic_bw"] {
            let section = out.section(&format!("{program} {side}"));
            assert_eq!(perftest::rows(section).len(), 1, "{section}");
        }
    }
    out.section("demo").says("every byte was checked");
    out
}

/// The number of one-sided operations that the target of a perftest program executed itself.
#[track_caller]
fn requests(out: &VmOutput, program: &str) -> u64 {
    let kind = program.trim_start_matches("ib_").trim_end_matches("_bw");
    let counter = format!("rx_{kind}_requests=");
    let server = &out.section(&format!("{program} server")).stdout;
    let value = server.split_whitespace().find_map(|word| word.strip_prefix(&counter));
    value.map_or(0, |value| value.parse().expect("a counter is a number"))
}

/// The letters that end the cells of the demo's table.
fn demo_paths(out: &VmOutput) -> String {
    let words = out.section("demo").stdout.split_whitespace().collect::<Vec<_>>();
    words.windows(2).filter(|pair| ["GB/s", "us"].contains(&pair[0])).map(|pair| pair[1]).collect()
}

/// Builds the tests of some crates and returns their paths.
#[track_caller]
fn test_programs(crates: &[&str]) -> Vec<PathBuf> {
    let names = crates.iter().flat_map(|name| ["-p".to_owned(), format!("peerdma-{name}")]);
    let args = ["test", "--no-run", "--lib", "--tests"].map(str::to_owned);
    built(args.into_iter().chain(names))
}

/// `guard` of `target/debug/deps/guard-0123456789abcdef`.
fn name(test: &Path) -> &str {
    let file = test.file_name().and_then(|name| name.to_str()).expect("cargo's names are ASCII");
    file.split_once('-').map_or(file, |(name, _)| name)
}
