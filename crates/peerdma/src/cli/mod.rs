//! The command line: the name of each subcommand, and its module.

mod demo;
mod devices;
mod dmabuf;
mod doctor;
mod explain;
mod generate;
mod gpu;
mod matrix;
mod outcome;
mod top;
mod topo;
mod tty;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// RDMA to any memory, on any Linux machine: a software RDMA NIC in user space.
#[derive(Parser)]
#[command(name = "peerdma", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print completions for a shell
    Completions(generate::Completions),
    /// Move every kind of memory between two processes, and check every byte
    Demo(demo::Args),
    /// List the NICs of this machine as a Rust program has them: those of its libibverbs, then the
    /// software ones
    Devices(devices::Args),
    /// List the dma-bufs that the processes of this user have open
    #[command(name = "dmabuf")]
    DmaBuf(dmabuf::Args),
    /// Examine this host, and report for each use of RDMA and peer memory whether it works, why
    /// not, and what helps
    Doctor(doctor::Args),
    /// Print the variables that `run` sets, for shells, CI and images
    Env(launcher::EnvArgs),
    /// Explain a completion status, or why the work requests of a program failed
    Explain(explain::Args),
    /// List the software GPUs and buffers of running programs, or evict, move, reset and unplug
    /// them
    Gpu(gpu::Args),
    /// Write man pages
    Man(generate::Man),
    /// Measure every class of importer against every exporter, and compare the results with the
    /// rules
    Matrix(matrix::Args),
    /// Run a verbs program on peerdma: its libibverbs, its librdmacm, its /sys/class/infiniband
    Run(launcher::Args),
    /// Show the processes of the NICs, their objects, rates, paths and losses, and the GPUs
    Top(top::Args),
    /// Show how near GPUs, NICs and NVMe controllers are to each other, and which of them reach
    /// whose memory, or why not
    Topo(topo::Args),
}

/// Parses the command line and runs the subcommand.
pub(crate) fn main() -> ExitCode {
    explain_if_asked();
    match Cli::parse().command {
        Command::Completions(args) => generate::completions(&args),
        Command::Demo(args) => demo::main(args),
        Command::Devices(args) => devices::main(&args),
        Command::DmaBuf(args) => dmabuf::main(args),
        Command::Doctor(args) => doctor::main(args),
        Command::Env(args) => launcher::env(args),
        Command::Explain(args) => explain::main(args),
        Command::Gpu(args) => gpu::main(args),
        Command::Man(args) => generate::man(&args),
        Command::Matrix(args) => matrix::main(args),
        Command::Run(args) => launcher::main(args),
        Command::Top(args) => top::main(args),
        Command::Topo(args) => topo::main(args),
    }
}

/// Prints decisions and their reasons on standard error when `PEERDMA_LOG` names a level or a
/// filter. Silent otherwise: the standard error of `peerdma run` is the program's.
fn explain_if_asked() {
    let Some(filter) = environment::var("PEERDMA_LOG") else { return };
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .init();
}
