//! Ratios: peerdma compared with a peer or a physical limit, measured in one run.
//!
//! ```text
//!   bench NAME
//!     |
//!     +-- repetition 1:  the bare thing, then peerdma     (the order turns with each repetition, so that a busy
//!     +-- repetition 2:  peerdma, then the bare thing      machine slows both)
//!     +-- ...
//!     v
//!   a line: median of each, median ratio, its spread, the target
//! ```
//!
//! A figure alone tells more about the machine than about us, so each is printed with what it is
//! compared with. Nothing depends on the figures: the program succeeds whether a target is met or
//! not. `bench/README.md` tells what each bench measures and how to read it.
//!
//! Third-party programs (`ib_write_bw`, `ucx_perftest`, `iperf3`) run unmodified; ours run on
//! `target/release/peerdma`, which must have been built. The rest are roles of this very program,
//! which it starts as its own children.

mod bare;
mod benches;
mod child;
mod exchange;
mod iperf3;
mod machine;
mod netns;
mod pairs;
mod perftest;
mod report;
mod roles;
mod sample;
mod ucx;
mod vm;

use std::process::ExitCode;

use clap::Parser;

use report::Report;

/// What every step returns; an error is a reason in words.
type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The command line.
#[derive(Parser)]
#[command(name = "bench", about = "Ratios against a peer or a physical limit, in one run")]
struct Args {
    /// Which to run, of the table in `bench/README.md` (default: all but those of it that run only
    /// when named)
    names: Vec<String>,
    /// Repetitions of each measurement
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..1000))]
    reps: u32,
    /// Be a child of another bench: its name and arguments
    #[arg(long, hide = true, num_args = 1..)]
    role: Option<Vec<String>>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match &args.role {
        Some(words) => roles::run(words),
        None => run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Outcome<()> {
    if let Some(name) =
        args.names.iter().find(|name| benches::ALL.iter().all(|bench| bench.name != *name))
    {
        let known: Vec<_> = benches::ALL.iter().map(|bench| bench.name).collect();
        return Err(format!("there is no bench {name}: {}", known.join(", ")).into());
    }
    println!("{}", machine::describe());
    println!("Medians; the ratio and its spread are over repetitions of both, side by side.\n");
    println!("{}", report::head());
    for bench in benches::ALL {
        let is_named = args.names.iter().any(|name| name == bench.name);
        if !is_named && (bench.only_when_named || !args.names.is_empty()) {
            continue;
        }
        eprintln!("{}: {} ...", bench.name, bench.about);
        let load = machine::load();
        let mut report = Report::default();
        if let Err(error) = (bench.run)(args.reps, &mut report) {
            report.note(bench.name, format!("did not finish: {error}"));
        }
        report.note(bench.name, format!("load average {load} before, {} after", machine::load()));
        print!("{report}");
    }
    Ok(())
}
