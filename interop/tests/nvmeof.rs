//! The NVMe-oF target of `examples/nvmet` with the host of the Linux kernel, `nvme-rdma` on
//! `rdma_rxe` in a virtual machine; and our host with the kernel's target. docs/NVMEOF.md has the
//! results.

use std::fs::{self, File};
use std::io::Write;
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

    /// Ends it as a crash would, and starts another one on the same files.
    #[track_caller]
    fn restart(&mut self, program: &Path, tap: &Tap, memory: &str) -> Output {
        self.running.kill();
        let out = self.running.end();
        (self.running, self.input) = start(program, tap, self.port, memory, &self.scratch);
        out
    }

    /// A line for its standard input, and what it says when it is done.
    #[track_caller]
    fn asked(&mut self, line: &str, done: &str) {
        writeln!(self.input, "{line}").expect("it reads");
        self.running.wait_says(done);
    }

    /// Runs a machine, and answers each word that it writes to the second namespace.
    #[track_caller]
    fn attend(&mut self, vm: Vm, mut answer: impl FnMut(&mut Self, &str)) -> VmOutput {
        std::thread::scope(|scope| {
            let machine = scope.spawn(move || vm.run());
            let mut last = String::new();
            while !machine.is_finished() {
                let two = self.file("two");
                let word = two.split(|byte| *byte == b'\n').next().unwrap_or_default();
                match std::str::from_utf8(word) {
                    Ok(word) if word != last && !word.contains('\0') => {
                        last = word.to_owned();
                        answer(self, word);
                    }
                    _ => std::thread::sleep(Duration::from_millis(20)),
                }
            }
            machine.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Makes the file of the first namespace longer or shorter.
    #[track_caller]
    fn resize(&self, bytes: usize) {
        let one = File::options().write(true).open(self.scratch.file("one"));
        one.and_then(|one| one.set_len(bytes as u64)).expect("our own file");
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

/// Starts a target on files that are there.
#[track_caller]
fn start(program: &Path, tap: &Tap, port: u16, memory: &str, scratch: &Scratch) -> (Running, File) {
    let input = scratch.file("input");
    if !input.exists() {
        Program::new("mkfifo").mode(Mode::Plain).args([&input]).output().success();
    }
    // Open for reading as well, or it would wait for the target.
    let held = File::options().read(true).write(true).open(&input).expect("our own");
    // With a small disk of its own.
    let full = scratch.file("full");
    fs::create_dir_all(&full).expect("room");
    let prepare = "input=$1 full=$2; shift 2; mount -t tmpfs -o size=2m none \"$full\" && \
                   truncate -s 4m \"$full/disk\" && exec \"$@\" <\"$input\"";
    let mut running = Program::new("unshare")
        .mode(Mode::Plain)
        .args(["--mount", "sh", "-c", prepare, "sh"])
        .args([&input, &full, &program.to_owned()])
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

/// A program of `examples/nvmet`.
#[track_caller]
fn example(name: &str) -> PathBuf {
    let programs = built(["build", "-p", "nvmet", "--bin", name]);
    programs.into_iter().next().expect("cargo builds it")
}

/// A machine with the kernel's host, and its part of the script.
fn host(what: &str, tap: &Tap) -> Vm {
    let vm = machine(what, tap).module("nvme-rdma");
    let programs = ["nvme", "fio", "blkdiscard"];
    programs.iter().fold(vm, |vm, name| vm.program(name))
}

/// A machine with the kernel's device, and its part of the script.
fn machine(what: &str, tap: &Tap) -> Vm {
    let vm = Vm::new("nvmeof").wired_to(tap).module("rdma_rxe").program("rdma");
    vm.variable("what", what).limit(PATIENCE)
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
        .never_says("queue/discard_max_bytes:0\n")
        .never_says("queue/write_zeroes_max_bytes:0\n")
        .says("num_err_log_entries\t\t\t: 0");
    let sum = &out.section(&format!("sum {port}")).stdout;
    assert_eq!(sum.split(' ').next(), Some(&*sha256(&target.file("one"), scratch)), "{}", out.all);
    assert_eq!(target.file("one"), pattern(port.into(), ONE), "nothing was written here");
    let (two, mut copied) = (target.file("two"), pattern(0, COPIED));
    // Zeroed, and deallocated.
    copied[MIB..3 * MIB].fill(0);
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
    let (program, tap, scratch) = (example("nvmet"), Tap::new(), Scratch::new());
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

/// The controller is reset, and the target killed, with many commands under way.
#[test]
fn the_kernels_host_comes_back_after_resets_and_a_targets_end_with_nothing_lost() {
    needs!(Need::Vm, Need::Namespaces, Need::Program("rdma"));
    needs!(Need::Program("nvme"), Need::Program("fio"));
    let (program, tap, scratch) = (example("nvmet"), Tap::new(), Scratch::new());
    let mut target = Target::new(&program, &tap, 4420, "gpu");
    let copied = scratch.file("pattern");
    fs::write(&copied, pattern(0, COPIED)).expect("room");
    let vm = host("recovers", &tap).file(&copied, "/pattern").variable("ports", "4420");
    let mut ended = Vec::new();
    let out = target.attend(vm, |target, word| {
        if word.starts_with("kill") {
            ended.push(target.restart(&program, &tap, "gpu"));
        }
    });
    out.all.success();
    assert_eq!(ended.len(), 2, "{}", out.all);
    let kernel = out.section("kernel").never_says("I/O error").never_says("Removing after");
    let one = target.file("one");
    let last = target.end();
    // It knows why the kernel lost one that was not killed.
    let count = kernel.stdout.matches("Successfully reconnected").count();
    assert_eq!(count, 2, "{kernel}\n{last}");
    assert!(one[..COPIED] == pattern(0, COPIED), "other bytes than were written");
    for out in ended.iter().chain([&last]) {
        out.never_says("opcode").never_says("refused").never_says("silent");
    }
    assert_eq!(moved(&last, "of these, bounced"), 0, "{last}");
    assert_ne!(moved(&last, "bus address"), 0, "{last}");
}

/// The statuses of the target, as the kernel takes them: none of them costs a connection.
#[test]
fn the_kernels_host_understands_what_the_target_refuses() {
    needs!(Need::Vm, Need::Namespaces, Need::Program("rdma"), Need::Program("nvme"));
    let (program, tap, scratch) = (example("nvmet"), Tap::new(), Scratch::new());
    let mut target = Target::new(&program, &tap, 4420, "system");
    let copied = scratch.file("pattern");
    fs::write(&copied, pattern(0, COPIED)).expect("room");
    let vm = machine("refuses", &tap).module("nvme-rdma").program("nvme");
    let vm = vm.file(&copied, "/pattern").variable("ports", "4420");
    let out = target.attend(vm, |target, word| {
        if word == "shrink" {
            target.resize(ONE / 2);
        }
    });
    out.all.success();
    out.section("other subsystem").says("Connect Invalid Data Parameter, subsysnqn");
    out.section("idle").says("clamping down").never_says("rror").never_says("reconnect");
    for (section, words) in [
        ("beyond the end", "LBA Out of Range"),
        ("no such command", "Invalid Command Opcode"),
        ("another length", "Data SGL Length Invalid"),
        ("no such page", "Invalid Log Page"),
        ("no such feature", "Invalid Field in Command"),
        ("short file", "critical medium error"),
    ] {
        out.section(section).says(words);
    }
    target.end().never_says("silent");
}

/// The kernel hears of it by an asynchronous event, and looks by itself.
#[test]
fn the_kernels_host_follows_namespaces_that_change_and_loses_nothing_when_memory_goes() {
    needs!(Need::Vm, Need::Namespaces, Need::Program("rdma"), Need::Program("sha256sum"));
    needs!(Need::Program("nvme"), Need::Program("fio"));
    let (program, tap, scratch) = (example("nvmet"), Tap::new(), Scratch::new());
    let mut target = Target::new(&program, &tap, 4420, "cmb");
    let copied = scratch.file("pattern");
    fs::write(&copied, pattern(0, COPIED)).expect("room");
    let vm = host("changes", &tap).file(&copied, "/pattern").variable("ports", "4420");
    let out = target.attend(vm, |target, word| match word {
        "grow" => {
            target.resize(2 * ONE);
            target.asked("revalidate 1", "namespace 1 has another size");
        }
        "shrink" => {
            target.resize(ONE);
            target.asked("revalidate 1", "namespace 1 has another size");
        }
        "remove" => target.asked("remove 1", "no namespace 1"),
        // A program that runs is a file that cannot be written.
        "protected" => target.asked("add /proc/self/exe", "/proc/self/exe is namespace 1"),
        "full" => {
            let disk = target.scratch.file("full").join("disk");
            target.asked(&format!("add {}", disk.display()), "disk is namespace 3");
        }
        "unplug" => target.asked("unplug", "the provider left"),
        other => panic!("{other:?}"),
    });
    out.all.success();
    out.section("gone").says("rescanning namespaces").never_says("rror");
    out.section("read-only").says("ro 1").says("Namespace is Write Protected");
    let program = fs::read(&program).expect("it ran");
    let sum = &out.section("sum").stdout;
    assert_eq!(
        sum.split(' ').next(),
        Some(&*sha256(&program[..64 << 10], &scratch)),
        "{}",
        out.all
    );
    out.section("full").says("No space left on device");
    out.section("unplugged").never_says("rror").never_says("reconnect");
    let report = target.end();
    report.says("capacity exceeded").says("namespace is write protected");
    assert_eq!(moved(&report, "of these, bounced"), 0, "{report}");
    for way in ["bus address", "system memory"] {
        assert_ne!(moved(&report, way), 0, "{report}");
    }
}

/// The small host of `examples/nvmet`, and the kernel's own target.
#[test]
fn our_host_verifies_namespaces_of_the_kernels_target() {
    needs!(Need::Vm, Need::Namespaces, Need::Program("rdma"), Need::Program("sha256sum"));
    let (program, tap, scratch) = (example("nvmet-host"), Tap::new(), Scratch::new());
    let copied = scratch.file("pattern");
    fs::write(&copied, pattern(0, COPIED)).expect("room");
    let vm = machine("serves", &tap).module("nvmet-rdma").file(&copied, "/pattern");
    let write = scratch.file("write");
    fs::write(&write, pattern(1, TWO)).expect("room");
    fs::write(scratch.file("over"), "over").expect("room");
    // With files of the scratch directory as standard input and output.
    let ours = |words: &str, input: &str, output: &str| {
        let target = format!("{}:4420", Tap::GUEST);
        let files = [input, output].map(|name| match name {
            "" => "/dev/null".into(),
            name => scratch.file(name),
        });
        Program::new("sh")
            .mode(Mode::Plain)
            .args(["-c", "in=$1 out=$2; shift 2; exec \"$@\" <\"$in\" >\"$out\"", "sh"])
            .args(&files)
            .args([&program])
            .args(["--netdev", Tap::INTERFACE, "--nqn", "nqn.2026-11.org.example:kernel", &target])
            .args(words.split(' '))
            .limit(PATIENCE)
            .in_netns(&tap.host)
            .output()
    };
    let out = std::thread::scope(|scope| {
        let machine = scope.spawn(move || vm.run());
        // It shows itself when its target listens.
        while !tap.host.tool("ip", &["neigh"]).contains(Tap::GUEST) {
            assert!(!machine.is_finished(), "the machine ended early");
            std::thread::sleep(Duration::from_millis(20));
        }
        ours("discover", "", "found").success();
        ours("list", "", "list").success();
        ours("read 2 0 1024", "", "read").success();
        // More than the kernel's capsules bring, and what they do bring.
        for words in ["verify 1 --bytes 4096", "verify 1 --bytes 8192", "verify 1 --bytes 131072"] {
            ours(words, "", "verified").success();
        }
        ours("write 1 0", "write", "").success();
        ours("write 2 0", "over", "").success();
        machine.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    out.all.success();
    let file = |name: &str| fs::read(scratch.file(name)).expect("it is there");
    let text = |name: &str| String::from_utf8(file(name)).expect("words");
    let at = format!("nqn.2026-11.org.example:kernel at {}:4420", Tap::GUEST);
    assert!(text("found").contains(&at), "{}", text("found"));
    assert_eq!(text("list").matches(" 2048   4096 ").count(), 2, "{}", text("list"));
    assert!(file("read") == pattern(0, COPIED), "what the kernel has reads differently");
    let sum = &out.section("sum").stdout;
    assert_eq!(sum.split(' ').next(), Some(&*sha256(&pattern(1, TWO), &scratch)), "{}", out.all);
    out.section("kernel").never_says("rror").never_says("fail");
}
