//! `cargo xtask cuda-rdma`: third-party programs that allocate, copy and send GPU memory,
//! unmodified, on the software GPU.
//!
//! gdrcopy, perftest, UCX and Open MPI are built from source (`interop/sources.toml`), NIXL and
//! Mooncake are wheels (`interop/wheels`). `interop/tests/cuda_rdma` runs and judges them, and also
//! writes the rows of the page.

mod build;
mod page;

use std::fs;

use clap::Args;

use crate::counts::Counts;
use crate::groups::{self, Context, Tested};
use crate::sh::{Outcome, cargo, check, target_dir};

/// The file of the tests.
const TESTS: &str = "cuda_rdma";

/// The options of `cargo xtask cuda-rdma`.
#[derive(Args)]
pub(crate) struct Options {
    /// Only build; the tests can then be run by `cargo test -p interop --test cuda_rdma`.
    #[arg(long)]
    build: bool,
    /// Do not write docs/CUDA_PROGRAMS.md.
    #[arg(long)]
    check: bool,
}

/// Builds, runs the tests, and writes the page.
pub(crate) fn run(options: &Options) -> Outcome {
    check(cargo().args(["build", "--release", "--locked"]))?;
    let missing = build::all(true)?;
    if !missing.is_empty() {
        let names: Vec<_> = missing.iter().map(|(name, _)| *name).collect();
        return Err(format!("cannot be obtained: {}", names.join(" ")));
    }
    if options.build {
        return Ok(());
    }
    let context = Context {
        setup: true,
        require_all: true,
        full: true,
        skip_log: target_dir().join("skipped-cuda-rdma.txt"),
    };
    let counts = test(&context)?;
    if !options.check {
        let rows = rows();
        page::write(
            &fs::read_to_string(&rows).map_err(|err| format!("{}: {err}", rows.display()))?,
        )?;
    }
    match counts.failed {
        0 => Ok(()),
        failed => Err(format!("cuda-rdma: {failed} tests failed")),
    }
}

/// The group of `cargo xtask test --full`: all of it, without the page. The tests of a program that
/// cannot be obtained do not run, and report that.
pub(crate) fn group(context: &Context) -> Outcome<Tested> {
    check(cargo().args(["build", "--release", "--locked"]))?;
    match build::all(context.setup) {
        Ok(_) => test(context).map(Tested::Ran),
        Err(why) => Ok(Tested::Impossible(why)),
    }
}

fn test(context: &Context) -> Outcome<Counts> {
    // Left by an earlier run.
    let _ = fs::remove_file(rows());
    match groups::interop(context, TESTS, 1)? {
        Tested::Ran(counts) => Ok(counts),
        Tested::Impossible(why) => Err(why),
    }
}

fn rows() -> std::path::PathBuf {
    build::home().join("rows.tsv")
}
