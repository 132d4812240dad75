//! The same program on two machines: on peerdma here, and in a [`Vm`] on the kernel's `rdma_rxe` or
//! on peerdma there, once as server and once as client.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::artefacts::Artefacts;
use crate::netns::Tap;
use crate::output::Output;
use crate::program::Program;
use crate::scratch::Scratch;
use crate::vm::{Vm, VmOutput};

/// How long one program may take, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Messages of programs without a listener: of the pingpongs and perftest, and of the connection
/// manager.
const EARLY: [&str; 6] = [
    "couldn't connect",
    "event_rejected",
    "event: rejected",
    "connect error",
    "addr_error",
    "event_unreachable",
];

/// The RDMA device in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guest {
    /// The kernel's `rdma_rxe`.
    Rxe,
    /// peerdma, on an interface of the machine's kernel.
    Peerdma,
}

/// One program on both sides.
#[derive(Clone, Debug)]
pub struct Case {
    /// Whether the machine has the server.
    pub guest_serves: bool,
    /// A name in PATH, or a path.
    pub program: String,
    /// The arguments of both sides, beside device, address and port.
    pub args: Vec<String>,
}

/// The output of both sides of some cases.
#[derive(Debug)]
pub struct CasesOutput {
    /// Our side, in the order of the cases.
    pub here: Vec<Output>,
    /// The machine's side: a section for each case, named by its number.
    pub there: VmOutput,
}

/// The cases for one machine.
#[derive(Clone, Debug)]
pub struct Cases<'a> {
    guest: Guest,
    cases: Vec<Case>,
    own: Vec<&'a Path>,
    faults: Option<&'a Path>,
    patience: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Here,
    There,
}

impl Side {
    const fn address(self) -> &'static str {
        match self {
            Self::Here => Tap::HOST,
            Self::There => Tap::GUEST,
        }
    }
}

impl Case {
    /// A program with these arguments, twice: the machine is once the server and once the client.
    pub fn both_ways(program: &str, args: &[&str]) -> [Self; 2] {
        [true, false].map(|guest_serves| Self {
            guest_serves,
            program: program.to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        })
    }

    /// The output of the client.
    pub fn asking<'a>(&self, number: usize, said: &'a CasesOutput) -> &'a Output {
        if self.guest_serves { &said.here[number] } else { said.there.section(&number.to_string()) }
    }

    const fn server(&self) -> Side {
        if self.guest_serves { Side::There } else { Side::Here }
    }

    /// The arguments of one side.
    fn args(&self, number: usize, side: Side, guest: Guest) -> Vec<String> {
        let port = (21_000 + number).to_string();
        // The GID of the IPv4 address is the second of an rxe device, after the link-local one.
        let (device, gid) = match (side, guest) {
            (Side::There, Guest::Rxe) => ("rxe0", "1"),
            _ => ("peerdma0", "0"),
        };
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
        // It has a fixed port, and another meaning for -p.
        if self.program != "udaddy" {
            words.extend(["-p", &port]);
        }
        if words.contains(&"-d") && side != server {
            words.push(server.address());
        }
        words.into_iter().map(str::to_owned).collect()
    }

    /// The line for the machine's script.
    fn line(&self, number: usize, guest: Guest) -> String {
        let role = if self.guest_serves { "serves" } else { "asks" };
        let program = self.program.rsplit('/').next().unwrap_or(&self.program);
        format!("{role} {program} {}", self.args(number, Side::There, guest).join(" "))
    }
}

impl<'a> Cases<'a> {
    /// These cases, in this order.
    pub fn new(guest: Guest, cases: impl IntoIterator<Item = Case>) -> Self {
        let cases = cases.into_iter().collect();
        Self { guest, cases, own: Vec::new(), faults: None, patience: PATIENCE }
    }

    /// Copies a program of ours to the machine; a case names it by its path.
    #[must_use]
    pub fn own(mut self, program: &'a Path) -> Self {
        self.own.push(program);
        self
    }

    /// Our side follows this fault plan (docs/FAULT_PLANS.md).
    #[must_use]
    pub fn faults(mut self, plan: &'a Path) -> Self {
        self.faults = Some(plan);
        self
    }

    /// How long each program may take (default: three minutes).
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Runs all cases. Both sides of each must succeed, and the client must print `said`.
    #[track_caller]
    pub fn run(&self, said: &str) -> CasesOutput {
        let done = self.boot();
        let begun = done.here.len();
        assert_eq!(begun, self.cases.len(), "the machine ended early: {}", done.there.all);
        for (number, case) in self.cases.iter().enumerate() {
            let (here, there) = (&done.here[number], done.there.section(&number.to_string()));
            let line = case.line(number, self.guest);
            let both = format!("{line}\n=== here: {here}\n=== in the machine: {there}");
            assert!(here.status.success() && there.stdout.contains("--- exit 0"), "{both}");
            assert!(case.asking(number, &done).stdout.contains(said), "no {said:?}: {both}");
        }
        done.there.all.success();
        done
    }

    fn machine(&self, tap: &Tap) -> Vm {
        let mut vm = Vm::new("cases").wired_to(tap);
        match self.guest {
            Guest::Rxe => {
                let driver = "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so";
                for file in [driver, "/etc/libibverbs.d/rxe.driver"] {
                    vm = vm.file(Path::new(file), file);
                }
                for module in ["rdma_rxe", "ib_uverbs", "rdma_ucm"] {
                    vm = vm.module(module);
                }
                vm = vm.program("rdma").variable("guest", "rxe");
            }
            Guest::Peerdma => {
                for name in ["libibverbs.so.1", "librdmacm.so.1"] {
                    vm = vm.file(&Artefacts::find().library(), &format!("/opt/peerdma/{name}"));
                }
                vm = vm.variable("guest", "peerdma");
            }
        }
        let mut programs: Vec<&str> = self.cases.iter().map(|case| &*case.program).collect();
        programs.sort_unstable();
        programs.dedup();
        for program in programs.into_iter().filter(|program| !program.contains('/')) {
            vm = vm.program(program);
        }
        for path in &self.own {
            let name = path.file_name().and_then(|name| name.to_str()).expect("our own name");
            vm = vm.file(path, &format!("/bin/{name}"));
        }
        vm.variable("early", &EARLY.join("|").replace(' ', "."))
            .variable("patience", &self.patience.as_secs().to_string())
    }

    #[track_caller]
    fn boot(&self) -> CasesOutput {
        let scratch = Scratch::new();
        let list = scratch.file("cases");
        let mut lines = String::new();
        for (number, case) in self.cases.iter().enumerate() {
            let _ = writeln!(lines, "{}", case.line(number, self.guest));
        }
        std::fs::write(&list, lines).expect("a file of our own");
        let tap = Tap::new();
        let vm = self.machine(&tap).file(&list, "/cases").limit(2 * self.patience);
        std::thread::scope(|scope| {
            let machine = scope.spawn(move || vm.run());
            let began = Instant::now();
            let is_over = || machine.is_finished();
            // A case that begins after the end of the machine cannot succeed.
            let here = self.cases.iter().enumerate().take_while(|_| !is_over());
            let here = here
                .map(|(number, case)| self.run_here(case, number, &tap, began, &is_over))
                .collect();
            match machine.join() {
                Ok(there) => CasesOutput { here, there },
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Runs our side of a case; a client retries until the server listens.
    fn run_here(
        &self,
        case: &Case,
        number: usize,
        tap: &Tap,
        began: Instant,
        is_over: &dyn Fn() -> bool,
    ) -> Output {
        let mut ours = Program::new(&case.program)
            .args(case.args(number, Side::Here, self.guest))
            .env("PEERDMA_LOG", "warn,peerdma::counters=info,peerdma::udp=debug")
            .limit(self.patience)
            .in_netns(&tap.host);
        if let Some(plan) = self.faults {
            ours = ours.env("PEERDMA_FAULT", plan);
        }
        let deadline = began + 2 * self.patience;
        loop {
            let out = ours.output();
            let said = format!("{}{}", out.stdout, out.stderr).to_lowercase();
            let is_early = EARLY.iter().any(|words| said.contains(words));
            if out.status.success() {
                return out;
            }
            if !is_early || Instant::now() > deadline || is_over() {
                // The other side now waits in vain, and the test may fail with its error.
                eprintln!("case {number}, here: {out}");
                return out;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}
