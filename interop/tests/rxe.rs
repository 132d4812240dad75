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

/// One of the two sides of a case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Ours,
    Kernel,
}

impl Side {
    /// Its device, and the index of the GID with its IPv4 address: the second of an rxe device, after the link-local one.
    const fn device(self) -> (&'static str, &'static str) {
        match self {
            Self::Ours => ("peerdma0", "0"),
            Self::Kernel => ("rxe0", "1"),
        }
    }

    const fn address(self) -> &'static str {
        match self {
            Self::Ours => Tap::HOST,
            Self::Kernel => Tap::GUEST,
        }
    }
}

impl Case {
    fn server(&self) -> Side {
        if self.kernel_serves { Side::Kernel } else { Side::Ours }
    }

    /// The arguments of one side.
    fn args(&self, number: usize, side: Side) -> Vec<String> {
        let port = (21_000 + number).to_string();
        let (device, gid) = side.device();
        let server = self.server();
        let mut words: Vec<&str> = match self.program.as_str() {
            "rping" if side == server => vec!["-s", "-a", server.address()],
            "rping" => vec!["-c", "-a", server.address()],
            "ucmatose" | "udaddy" if side == server => vec!["-b", server.address()],
            "ucmatose" | "udaddy" => vec!["-s", server.address()],
            program if program.starts_with("ib_") => vec!["-d", device, "-x", gid],
            _ => vec!["-d", device, "-g", gid],
        };
        words.extend(self.args.iter().map(String::as_str));
        // It has a port of its own, and another meaning for -p.
        if self.program != "udaddy" {
            words.extend(["-p", &port]);
        }
        if words.contains(&"-d") && side != server {
            words.push(server.address());
        }
        words.into_iter().map(str::to_owned).collect()
    }

    /// The line for the guest's script.
    fn line(&self, number: usize) -> String {
        let role = if self.kernel_serves { "serves" } else { "asks" };
        let program = self.program.rsplit('/').next().unwrap_or(&self.program);
        format!("{role} {program} {}", self.args(number, Side::Kernel).join(" "))
    }

    /// Runs our side.
    fn run(&self, number: usize, tap: &Tap, began: Instant) -> Output {
        let ours = Program::new(&self.program)
            .args(self.args(number, Side::Ours))
            .limit(PATIENCE)
            .in_netns(&tap.host);
        loop {
            let out = ours.output();
            // Nobody listens there yet: the words of the pingpongs and perftest, and of the connection manager.
            let said = format!("{}{}", out.stdout, out.stderr).to_lowercase();
            let is_early = EARLY.iter().any(|words| said.contains(words));
            if out.status.success() || !is_early || began.elapsed() > PATIENCE {
                return out;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// What programs say when nobody listens. `guest/rxe.sh` looks for the same.
const EARLY: [&str; 6] = [
    "couldn't connect",
    "event_rejected",
    "event: rejected",
    "connect error",
    "addr_error",
    "event_unreachable",
];

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
    let mut vm =
        Vm::new("rxe").wired_to(&tap).variable("early", &EARLY.join("|").replace(' ', "."));
    for module in ["rdma_rxe", "ib_uverbs", "rdma_ucm"] {
        vm = vm.module(module);
    }
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
    // Each side wants as many READs and atomics at once as its own device can, and uses what the other one says: rxe's 128 are
    // more than mlx5's 16, and than ours.
    let outstanding = |program: &str| -> &[&str] {
        let answered = program.contains("read") || program.contains("atomic");
        if answered { &["-o", "16"] } else { &[] }
    };
    let mut cases = Vec::new();
    for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
        let args =
            [&["-F", "-n", "20", "-s", "65537", "-m", "1024"], outstanding(program)].concat();
        cases.extend(both_ways(program, &[&args]));
    }
    cases.extend(both_ways("ib_write_bw", &[&["-F", "-n", "5", "-s", "8388608"]]));
    for program in ["ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_bw", "ib_atomic_lat"] {
        let args = [&["-F", "-n", "50"], outstanding(program)].concat();
        cases.extend(both_ways(program, &[&args]));
    }
    cases.extend(both_ways("ib_send_bw", &[&["-F", "-n", "50", "-c", "UD", "-s", "1024"]]));
    let done = against_the_kernel(&cases, &[]);
    all_say(&cases, &done, "#bytes");
}

/// The connection manager of the kernel and ours, in management datagrams on QP 1.
#[test]
fn the_connection_manager() {
    needs!(Need::Vm, Need::Namespaces, Need::Program("rdma"), Need::Program("rping"));
    let pings = both_ways("rping", &[&["-v", "-V", "-C", "20"], &["-V", "-C", "5", "-S", "10000"]]);
    let mut cases = pings;
    cases.extend(both_ways("ucmatose", &[&["-c", "4", "-C", "10", "-S", "3000"]]));
    cases.extend(both_ways("udaddy", &[&["-c", "2", "-C", "10", "-S", "500"]]));
    let done = against_the_kernel(&cases, &[]);
    all_say(&cases, &done, "");
    for (number, case) in cases.iter().enumerate() {
        let kernel = done.1.section(&number.to_string());
        let asking = if case.kernel_serves { &done.0[number] } else { kernel };
        match case.program.as_str() {
            "rping" if case.args.contains(&"-v".to_owned()) => {
                asking.says("ping data: rdma-ping-19")
            }
            "rping" => asking.never_says("mismatch"),
            _ => asking.says("data transfers complete").says("return status 0"),
        };
    }
}
