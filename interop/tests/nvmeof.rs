//! The NVMe-oF target of `examples/nvmet`, and the host of the Linux kernel: `nvme-rdma` on
//! `rdma_rxe`, in a virtual machine. docs/NVMEOF.md has the results.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use interop::need::Need;
use interop::{Mode, Output, Program, Running, Scratch, Tap, Vm, VmOutput, built, needs};

const MIB: usize = 1 << 20;
/// Bytes of the namespaces.
const ONE: usize = 16 * MIB;
const TWO: usize = 8 * MIB;
/// Bytes that the guest copies to the second one.
const COPIED: usize = 4 * MIB;

/// The time of a script, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A target that listens at the tap. It ends when this is dropped.
struct Target {
    port: u16,
    scratch: Scratch,
    running: Running,
    /// Its standard input; the target ends with it.
    input: File,
}

/// Bytes that no wrong offset can produce.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| ((n ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

impl Target {
    /// Serves two namespaces: the first one has a pattern, the second one zeros.
    #[track_caller]
    fn new(program: &Path, tap: &Tap, port: u16, memory: &str) -> Self {
        let scratch = Scratch::new();
        fs::write(scratch.file("one"), pattern(port.into(), ONE)).expect("room");
        fs::write(scratch.file("two"), vec![0; TWO]).expect("room");
        let (running, input) = start(program, tap, port, memory, &scratch);
        Self { port, scratch, running, input }
    }

    /// The bytes of a namespace.
    fn file(&self, name: &str) -> Vec<u8> {
        fs::read(self.scratch.file(name)).expect("it is there")
    }

    /// Ends it, and returns what it reported.
    #[track_caller]
    fn end(self) -> Output {
        drop(self.input);
        let out = self.running.finish();
        out.success();
        out
    }
}

#[track_caller]
fn start(program: &Path, tap: &Tap, port: u16, memory: &str, scratch: &Scratch) -> (Running, File) {
    let input = scratch.file("input");
    if !input.exists() {
        Program::new("mkfifo").mode(Mode::Plain).args([&input]).output().success();
    }
    // Open for reading as well, or it would wait for the target.
    let held = File::options().read(true).write(true).open(&input).expect("our own");
    let mut running = Program::new("sh")
        .mode(Mode::Plain)
        .args(["-c", "input=$1; shift; exec \"$@\" <\"$input\"", "sh"])
        .args([&input, program])
        .args(["--listen", &format!("{}:{port}", Tap::HOST), "--netdev", Tap::INTERFACE])
        .args(["--nqn", &nqn(port), "--memory", memory, "--log", "nvmet=debug"])
        .args([scratch.file("one"), scratch.file("two")])
        .limit(4 * PATIENCE)
        .in_netns(&tap.host)
        .start();
    running.wait_says("data through");
    (running, held)
}

fn nqn(port: u16) -> String {
    format!("nqn.2026-11.org.example:{port}")
}

/// The target's program.
#[track_caller]
fn nvmet() -> PathBuf {
    let programs = built(["build", "-p", "nvmet", "--bin", "nvmet"]);
    programs.into_iter().next().expect("cargo builds it")
}

/// A machine with the kernel's host, and its part of the script.
fn host(what: &str, tap: &Tap) -> Vm {
    let vm = Vm::new("nvmeof").wired_to(tap).module("rdma_rxe").module("nvme-rdma");
    let programs = ["rdma", "nvme", "fio", "blkdiscard"];
    programs.iter().fold(vm, |vm, name| vm.program(name)).variable("what", what).limit(PATIENCE)
}

/// The bytes of a row of the target's report.
#[track_caller]
fn moved(report: &Output, way: &str) -> u64 {
    let row = report.stdout.lines().find_map(|line| line.strip_prefix(way));
    row.unwrap_or_else(|| panic!("no {way:?}: {report}")).trim().parse().expect("a number")
}

fn sha256(bytes: &[u8], scratch: &Scratch) -> String {
    let file = scratch.file("bytes");
    fs::write(&file, bytes).expect("room");
    let out = Command::new("sha256sum").arg(&file).output().expect("it starts");
    String::from_utf8_lossy(&out.stdout).split(' ').next().expect("a sum").to_owned()
}

/// Checks the machine's view of a target, and the target's files afterwards.
#[track_caller]
fn assert_moved(target: &Target, out: &VmOutput, scratch: &Scratch) {
    let port = target.port;
    let discovered = out.section(&format!("discover {port}"));
    for words in ["Number of Records 1", "traddr:  10.78.0.1", "trtype:  rdma", "roce-v2"] {
        discovered.says(words);
    }
    discovered.says(&format!("trsvcid: {port}")).says(&format!("subnqn:  {}", nqn(port)));
    let identified = out.section(&format!("identify {port}"));
    for bytes in [ONE, TWO] {
        let sectors = bytes / 512;
        identified.says(&format!("nsze    : {sectors:#x}")).says(&format!("size:{sectors}\n"));
    }
    identified
        .says("queue/write_cache:write back")
        .says("queue/fua:1")
        .says("queue/max_hw_sectors_kb:128")
        .says("queue/discard_max_bytes:0")
        .never_says("queue/write_zeroes_max_bytes:0\n")
        .says("num_err_log_entries\t\t\t: 0");
    let sum = &out.section(&format!("sum {port}")).stdout;
    assert_eq!(sum.split(' ').next(), Some(&*sha256(&target.file("one"), scratch)), "{}", out.all);
    assert_eq!(target.file("one"), pattern(port.into(), ONE), "nothing was written here");
    let (two, mut copied) = (target.file("two"), pattern(0, COPIED));
    copied[MIB..2 * MIB].fill(0);
    assert!(two[..COPIED] == copied, "the second namespace has other bytes than were written");
    assert_ne!(two[COPIED..], vec![0; TWO - COPIED], "fio wrote here");
    out.section(&format!("kernel {port}"))
        .says("mapped 2/0/0 default/read/poll queues")
        .never_says("rror")
        .never_says("warn")
        .never_says("clamp")
        .never_says("invalid")
        .never_says("reconnect")
        .never_says("unexpected")
        .never_says("fail");
}

#[test]
fn the_kernels_host_finds_reads_and_writes_namespaces_by_each_kind_of_memory() {
    needs!(Need::Vm, Need::Namespaces, Need::Program("rdma"), Need::Program("sha256sum"));
    needs!(Need::Program("nvme"), Need::Program("fio"));
    let (program, tap, scratch) = (nvmet(), Tap::new(), Scratch::new());
    let memories = [(4420, "system"), (4421, "cmb"), (4422, "gpu")];
    let targets = memories.map(|(port, memory)| Target::new(&program, &tap, port, memory));
    let copied = scratch.file("pattern");
    fs::write(&copied, pattern(0, COPIED)).expect("room");
    let ports = memories.map(|(port, _)| port.to_string()).join(",");
    let out = host("moves", &tap).file(&copied, "/pattern").variable("ports", &ports).run();
    out.all.success();
    for (target, (_, memory)) in targets.into_iter().zip(memories) {
        assert_moved(&target, &out, &scratch);
        let report = target.end();
        assert_eq!(moved(&report, "of these, bounced"), 0, "{report}");
        let (through, idle) = match memory {
            "system" => ("system memory", "bus address"),
            _ => ("bus address", "system memory"),
        };
        // The first namespace was read, half of the second one written.
        assert!(moved(&report, through) > (2 * ONE + COPIED / 2) as u64, "{report}");
        assert_eq!(moved(&report, idle), 0, "{report}");
        // Failed commands would be listed here.
        report.never_says("opcode").never_says("failed").never_says("refused");
    }
}
