//! GPU memory moves all the time under programs that compare each byte.

use std::time::Duration;

use interop::need::Need;
use interop::{Artefacts, Mode, Pair, Program, RunningPair, Scratch, row, sum};

use crate::{lacks, machine, mooncake, nixl, ucx};

/// A program, two processes of it, and whether its server continues when its client has ended.
struct Judge {
    name: &'static str,
    pair: fn(u64) -> Pair,
    rounds: u64,
    server_stays: bool,
}

const JUDGES: [Judge; 3] = [
    Judge { name: "nixl", pair: nixl::pair, rounds: 60, server_stays: false },
    Judge { name: "mooncake", pair: mooncake::pair, rounds: 60, server_stays: false },
    Judge { name: "ucx", pair: ucx::io_demo, rounds: 500, server_stays: true },
];

/// Acts triggered by calls of the program and by packets of its NIC, so that their number follows
/// its work and not the speed of the machine. And some by time.
pub(crate) const PLAN: &str = "seed = 5\n\
    [[fault]]\nname = 'clock'\ndo = 'evict'\nevery = '100ms'\nprobability = 0.5\n\
    [[fault]]\nname = 'back'\ndo = 'move'\nto = 'vram'\nopcode = ['write', 'read-response']\nevery = 150\n\
    [[fault]]\nname = 'call'\ndo = 'evict'\noperation = ['cuMemcpyHtoD', 'cuMemcpyDtoH', 'cudaMemcpy']\nprobability = 0.3\n\
    [[fault]]\nname = 'packet'\ndo = 'move'\nto = 'gtt'\nopcode = ['write', 'read-response']\nevery = 100\n";

/// What moves the buffers.
#[derive(Clone, Copy)]
enum By {
    Plan,
    /// `peerdma gpu`, again and again.
    Hand,
}

/// The output of the processes, and the events on their GPU.
struct Done {
    /// Moves and evictions, of all processes.
    moves: u64,
    /// The report of the plan, or the output of the commands.
    acts: String,
}

#[track_caller]
fn under(judge: &Judge, (driver, gpu): (&str, &str), nic: &str, by: By) -> Done {
    let scratch = Scratch::new();
    let [report, plan, acts] = ["report.txt", "plan.toml", "acts.txt"].map(|f| scratch.file(f));
    let gpu_keys = format!("name = '{gpu}'\npreset = '{driver}'\nvram = '128M'\ngtt = '128M'");
    let config = machine(&scratch, &format!("preset = '{nic}'"), &gpu_keys);
    std::fs::write(&plan, PLAN).expect("a file of our own");
    let pair = (judge.pair)(judge.rounds).both(|program| {
        let program = program.gpu("nvidia").env("PEERDMA_CONFIG", &config);
        let program = program.env("PEERDMA_REPORT", &report).limit(Duration::from_secs(120));
        match by {
            By::Plan => program.env("PEERDMA_FAULT", &plan).env("PEERDMA_FAULT_REPORT", &acts),
            By::Hand => program,
        }
    });
    let mut running = pair.start();
    let said = match by {
        By::Plan => String::new(),
        By::Hand => moved_by_hand(&mut running, gpu),
    };
    let RunningPair { server, client, .. } = &mut running;
    let client = client.end();
    if judge.server_stays {
        server.interrupt();
    } else if !client.status.success() {
        server.end_unless_ended(Duration::from_secs(3));
    }
    let server = server.end();
    assert!(
        client.status.success() && server.status.success(),
        "{} on {driver}, {nic}: {said}\n=== client {client}\n=== server {server}",
        judge.name
    );
    let text = std::fs::read_to_string(&report).expect("each process reports");
    let number = |words| sum(&text, words);
    let by_nic = ["bus address ", "through the host bridge ", "system memory "].map(number);
    assert!(by_nic.iter().sum::<u64>() > 50 << 20, "the NIC reached GPU memory itself: {text}");
    assert_eq!(number("stale accesses "), 0, "{text}");
    let acts = std::fs::read_to_string(&acts).unwrap_or(said);
    Done { moves: number("moves ") + number("evictions "), acts }
}

/// Moves the buffers of a GPU by commands for as long as the client lives. Returns their output.
fn moved_by_hand(running: &mut RunningPair, gpu: &str) -> String {
    let peerdma = Artefacts::find().peerdma();
    let gpu_command = |words: &[&str]| {
        Program::new(&peerdma).mode(Mode::Plain).args(["gpu"]).args(words).output()
    };
    let mut said = String::new();
    while running.client.is_alive() {
        let evicted = gpu_command(&["evict", gpu]);
        // A line for each process: `GPU of pid 4711 (NAME): 2 buffers evicted`.
        for rest in evicted.stdout.split(" of pid ").skip(1) {
            let pid = rest.split(' ').next().expect("a number");
            let back = gpu_command(&["move", gpu, "1", "vram", "--pid", pid]);
            said.extend([back.stdout, back.stderr]);
        }
        said.extend([evicted.stdout, evicted.stderr]);
    }
    said
}

fn lacks_a_judge() -> bool {
    let programs = JUDGES.iter().map(|judge| Need::CudaProgram(judge.name));
    lacks(programs.chain([Need::Library("libmlx5.so.1"), Need::Python("ctypes")]))
}

#[test]
fn a_dynamic_nic_follows_memory_that_moves_under_programs() {
    if lacks_a_judge() {
        return;
    }
    for judge in &JUDGES {
        for (driver, by, how) in [
            ("amdgpu", By::Plan, "by a plan"),
            ("xe", By::Plan, "by a plan"),
            ("amdgpu", By::Hand, "by hand"),
        ] {
            let gpu = format!("storm-{driver}");
            let done = under(judge, (driver, &gpu), "mlx5", by);
            assert!(done.moves > 20, "{}: {} moves: {}", judge.name, done.moves, done.acts);
            let run = format!("moves and evictions {how}, bytes compared");
            row(judge.name, &format!("mlx5, memory of {driver}"), &run, "pass", "");
        }
    }
}

/// The bytes are correct there, too.
#[test]
fn static_or_pinned_memory_does_not_move_under_programs() {
    if lacks_a_judge() {
        return;
    }
    for judge in &JUDGES {
        for (driver, nic, words) in [
            ("nvidia", "mlx5", "nvidia never moves"),
            ("amdgpu", "irdma", "is pinned and cannot move"),
            ("amdgpu", "efa", "is pinned and cannot move"),
        ] {
            let gpu = format!("still-{driver}-{nic}");
            let done = under(judge, (driver, &gpu), nic, By::Plan);
            assert!(done.acts.contains(words), "{}: {}", judge.name, done.acts);
            let place = format!("{nic}, memory of {driver}");
            row(judge.name, &place, "moves and evictions refused, bytes compared", "pass", words);
        }
    }
}
