//! One command for every chore of the project: `cargo xtask NAME`.
//!
//! CI runs exactly these commands (`.ci/run`), so a failure there is a failure here. Each chore is
//! one file; it only calls the tools that a person would call, checks their output, and explains it
//! in words.

mod aarch64;
mod abi;
mod bench;
mod blktests;
mod columns;
mod counts;
mod cuda_rdma;
mod deny;
mod deps;
mod dist;
mod examples;
mod fuzz;
mod groups;
mod house;
mod level_zero_tests;
mod libfabric;
mod licences;
mod load;
mod loom;
mod metadata;
mod publish;
mod pyverbs;
mod rdma_unit_test;
mod report;
mod rules;
mod rust_crates;
mod semver;
mod setup;
mod sh;
mod site;
mod source;
mod suites;
mod test;
mod tsan;
mod unsafety;
mod variables;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::sh::Outcome;

/// The chores of peerdma.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Install what the tests need: Debian packages, by apt-get (with sudo when not root).
    Setup {
        /// Only report what is missing; exit status 1 if anything is.
        #[arg(long)]
        check: bool,
    },
    /// Build everything and run the tests, in groups with a time budget each.
    Test(test::Options),
    /// What CI runs: `test --setup --require all`.
    Ci,
    /// Prove that the arrows between crates point down, that `unsafe` stays in its crates, that the
    /// tests which the tables of rules name exist, that no more walls are missing than
    /// docs/HOUSE.md has, that comments keep within 100 columns, and that manifests have what a
    /// registry asks for.
    DepsCheck,
    /// How the crates are divided: files, circles of files that use each other, what locks guard.
    House(house::Options),
    /// Licences, sources and banned crates of every dependency (deny.toml).
    Deny {
        /// Install cargo-deny under target/tools first, if it is missing.
        #[arg(long)]
        install: bool,
    },
    /// Pack every crate that is published, in order, and build each from its package.
    Publish(publish::Options),
    /// An archive and a Debian package of what is installed (docs/INSTALL.md).
    Dist(dist::Options),
    /// The pages of docs as a site, in target/site, with every link checked.
    Site,
    /// The models of lock-free code, every interleaving.
    Loom,
    /// What the Rust API of the published libraries lost since the commit of xtask/semver.baseline,
    /// by cargo-semver-checks, which is built under target/tools if it is missing.
    Semver,
    /// Each fuzz target for a number of inputs.
    Fuzz {
        /// Inputs per target.
        #[arg(long, default_value_t = 20_000)]
        runs: u64,
        /// Only this target.
        target: Option<String>,
    },
    /// Eight threads at one device under ThreadSanitizer, or the reason why this machine cannot.
    Tsan,
    /// The C interface: exported symbols and their versions, layout of structures.
    AbiCheck,
    /// Write docs/VERBS_MATRIX.md: what each verb does here.
    Matrix {
        /// Only compare with the existing file.
        #[arg(long)]
        check: bool,
    },
    /// rdma-core's own tests, unmodified; writes docs/PYVERBS.md.
    Pyverbs(pyverbs::Options),
    /// google/rdma-unit-test, unmodified; writes docs/RDMA_UNIT_TEST.md.
    RdmaUnitTest(rdma_unit_test::Options),
    /// The tests of Rust crates that wrap libibverbs, unmodified; writes docs/RUST_CRATES.md.
    RustCrates(rust_crates::Options),
    /// Third-party programs that move GPU memory, unmodified; writes docs/CUDA_PROGRAMS.md.
    CudaRdma(cuda_rdma::Options),
    /// The conformance tests of Level Zero, unmodified; writes docs/LEVEL_ZERO_TESTS.md.
    LevelZeroTests(level_zero_tests::Options),
    /// libfabric's own tests, on host and on device memory; writes docs/FABTESTS.md.
    Libfabric(libfabric::Options),
    /// The nvme tests of blktests, unmodified, against examples/nvmet; writes docs/BLKTESTS.md.
    Blktests(blktests::Options),
    /// Measure: ratios against a peer or a physical limit, in one run.
    Bench {
        /// Arguments for the bench program.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

fn main() -> ExitCode {
    let done: Outcome = match Cli::parse().chore {
        Chore::Setup { check } => setup::run(check),
        Chore::Test(options) => test::run(&options),
        Chore::Ci => test::run(&test::Options::ci()),
        Chore::House(options) => house::run(&options),
        Chore::DepsCheck => groups::tree(),
        Chore::Deny { install } => deny::run(install).map(|_| ()),
        Chore::Publish(options) => publish::run(&options),
        Chore::Dist(options) => dist::run(&options),
        Chore::Site => site::run().and_then(|impossible| impossible.map_or(Ok(()), Err)),
        Chore::Loom => loom::run().map(|_| ()),
        Chore::Semver => semver::run(),
        Chore::Fuzz { runs, target } => fuzz::run(runs, target.as_deref()),
        Chore::Tsan => tsan::run().and_then(|impossible| impossible.map_or(Ok(()), Err)),
        Chore::AbiCheck => abi::run(),
        Chore::Matrix { check } => abi::matrix(check),
        Chore::Pyverbs(options) => pyverbs::run(&options),
        Chore::RdmaUnitTest(options) => rdma_unit_test::run(&options),
        Chore::RustCrates(options) => rust_crates::run(&options),
        Chore::CudaRdma(options) => cuda_rdma::run(&options),
        Chore::LevelZeroTests(options) => level_zero_tests::run(&options),
        Chore::Libfabric(options) => libfabric::run(&options),
        Chore::Blktests(options) => blktests::run(&options),
        Chore::Bench { args } => bench::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}
