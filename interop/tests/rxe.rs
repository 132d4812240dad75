//! Against an implementation that none of us wrote: the Linux kernel's `rdma_rxe`, in a machine of its own that is wired to a
//! network namespace. Debian's programs run on the kernel there and on peerdma here, each once as server and once as client.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use interop::need::Need;
use interop::{Output, Program, Scratch, Tap, Vm, VmOutput, compile, needs};

/// How long the other side may take to come to the case, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// One program on both sides.
struct Case {
    /// Whether the kernel's side serves.
    kernel_serves: bool,
    program: String,
    args: Vec<String>,
}

impl Case {
    /// The arguments that name a device and a GID, which differ between the two.
    fn device(&self, device: &str, gid: &str) -> [String; 4] {
        let flag = if self.program.starts_with("ib_") { "-x" } else { "-g" };
        ["-d", device, flag, gid].map(str::to_owned)
    }

    fn port(number: usize) -> [String; 2] {
        ["-p".to_owned(), (21_000 + number).to_string()]
    }

    /// The line for the guest's script.
    fn line(&self, number: usize) -> String {
        let role = if self.kernel_serves { "serves" } else { "asks" };
        let program = self.program.rsplit('/').next().unwrap_or(&self.program);
        // The IPv4 address is the second GID of an rxe device, after the link-local one.
        let mut words = vec![role.to_owned(), program.to_owned()];
        words.extend(self.device("rxe0", "1"));
        words.extend(self.args.iter().cloned());
        words.extend(Self::port(number));
        if !self.kernel_serves {
            words.push(Tap::HOST.to_owned());
        }
        words.join(" ")
    }

    /// Runs our side.
    fn run(&self, number: usize, tap: &Tap, began: Instant) -> Output {
        let ours = Program::new(&self.program)
            .args(self.device("peerdma0", "0"))
            .args(&self.args)
            .args(Self::port(number))
            .limit(PATIENCE)
            .in_netns(&tap.host);
        if !self.kernel_serves {
            return ours.output();
        }
        let ours = ours.args([Tap::GUEST]);
        loop {
            let out = ours.output();
            let is_early = out.stderr.to_lowercase().contains("couldn't connect");
            if out.status.success() || !is_early || began.elapsed() > PATIENCE {
                return out;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Runs cases in one machine. Our sides of them, and what the machine said.
#[track_caller]
fn against_the_kernel(cases: &[Case], own: &[&Path]) -> (Vec<Output>, VmOutput) {
    let scratch = Scratch::new();
    let list = scratch.file("cases");
    let mut lines = String::new();
    for (number, case) in cases.iter().enumerate() {
        let _ = writeln!(lines, "{}", case.line(number));
    }
    std::fs::write(&list, lines).expect("a file of our own");

    let tap = Tap::new();
    let mut vm = Vm::new("rxe").wired_to(&tap).module("rdma_rxe").module("ib_uverbs");
    for file in
        ["/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "/etc/libibverbs.d/rxe.driver"]
    {
        vm = vm.file(Path::new(file), file);
    }
    let mut programs: Vec<&str> = cases.iter().map(|case| case.program.as_str()).collect();
    programs.sort_unstable();
    programs.dedup();
    for program in programs.into_iter().filter(|program| !program.contains('/')) {
        vm = vm.program(program);
    }
    for path in own {
        let name = path.file_name().and_then(|name| name.to_str()).expect("our own name");
        vm = vm.file(path, &format!("/bin/{name}"));
    }
    let vm = vm.program("rdma").file(&list, "/cases").limit(2 * PATIENCE);

    std::thread::scope(|scope| {
        let machine = scope.spawn(move || vm.run());
        let began = Instant::now();
        let ours = cases.iter().enumerate().map(|(number, case)| case.run(number, &tap, began));
        let ours: Vec<Output> = ours.collect();
        match machine.join() {
            Ok(said) => (ours, said),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Each case of a program, the kernel once as server and once as client.
fn both_ways(program: &str, args: &[&[&str]]) -> Vec<Case> {
    let ways = [true, false];
    let cases = args.iter().flat_map(|args| ways.map(|kernel_serves| (args, kernel_serves)));
    cases
        .map(|(args, kernel_serves)| Case {
            kernel_serves,
            program: program.to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        })
        .collect()
}

/// Both sides of every case ended well, and the one that asks said this.
#[track_caller]
fn all_say(cases: &[Case], (ours, kernel): &(Vec<Output>, VmOutput), said: &str) {
    for (number, (case, ours)) in cases.iter().zip(ours).enumerate() {
        let theirs = kernel.section(&number.to_string());
        let both = format!("{}\n=== ours: {ours}\n=== the kernel's: {theirs}", case.line(number));
        assert!(ours.status.success() && theirs.stdout.contains("--- exit 0"), "{both}");
        let asking = if case.kernel_serves { ours } else { theirs };
        assert!(asking.stdout.contains(said), "no {said:?}: {both}");
    }
    kernel.all.success();
}

#[test]
fn the_pingpongs() {
    needs!(Need::Vm, Need::Namespaces, Need::Program("rdma"), Need::Program("ibv_rc_pingpong"));
    let mut cases = both_ways(
        "ibv_rc_pingpong",
        &[
            &["-c", "-n", "200", "-s", "4096", "-m", "1024"],
            &["-c", "-e", "-n", "100", "-s", "70001", "-m", "4096"],
        ],
    );
    cases.extend(both_ways("ibv_uc_pingpong", &[&["-n", "100", "-s", "4000", "-m", "1024"]]));
    cases.extend(both_ways("ibv_ud_pingpong", &[&["-n", "100", "-s", "1000"]]));
    cases.extend(both_ways("ibv_srq_pingpong", &[&["-n", "200", "-s", "4096", "-q", "4"]]));
    let done = against_the_kernel(&cases, &[]);
    all_say(&cases, &done, "iters in");
    for out in &done.0 {
        out.never_says("invalid data");
    }
}

/// Every operation at each path MTU, 1 byte to 1 MiB and at two of them to 8 MiB; every byte is looked at on the far side.
#[test]
fn every_operation_and_every_byte() {
    needs!(Need::Vm, Need::Namespaces, Need::Program("rdma"), Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let xfer = compile("xfer", &scratch);
    let args: [&[&str]; 5] = [
        &["-m", "256"],
        &["-m", "512"],
        &["-m", "1024", "-l"],
        &["-m", "2048"],
        &["-m", "4096", "-l"],
    ];
    let cases = both_ways(xfer.to_str().expect("our own path"), &args);
    let done = against_the_kernel(&cases, &[&xfer]);
    all_say(&cases, &done, "every exchange was right");
}

#[test]
fn perftest() {
    needs!(Need::Vm, Need::Namespaces, Need::Program("rdma"), Need::Program("ib_write_bw"));
    let mut cases = Vec::new();
    for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
        cases.extend(both_ways(program, &[&["-F", "-n", "20", "-s", "65537", "-m", "1024"]]));
    }
    cases.extend(both_ways("ib_write_bw", &[&["-F", "-n", "5", "-s", "8388608"]]));
    for program in ["ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_bw", "ib_atomic_lat"] {
        cases.extend(both_ways(program, &[&["-F", "-n", "50"]]));
    }
    cases.extend(both_ways("ib_send_bw", &[&["-F", "-n", "50", "-c", "UD", "-s", "1024"]]));
    let done = against_the_kernel(&cases, &[]);
    all_say(&cases, &done, "#bytes");
}
