//! `cargo xtask pyverbs`: the test suite of rdma-core, unmodified, on peerdma.
//!
//! The suite is Debian's (`/usr/share/doc/rdma-core/tests`, package rdma-core; the Python verbs are
//! in python3-pyverbs). With `--build` it is that of a newer rdma-core, with pyverbs built from
//! Debian's source package: Debian builds its own without DRM, and the dma-buf tests then skip
//! whatever the device can do. With `--rxe` the suite also runs on the Linux kernel's `rdma_rxe`,
//! in a virtual machine.
//!
//! `interop/pyverbs/expected.toml` explains each test that skips and each that does not pass yet.
//! What is not explained there is an error, and so is an explanation of a failure that no longer
//! happens.

mod build;
mod page;
mod rxe;
mod suite;
mod verdicts;

use std::path::Path;

use clap::Args;

use self::rxe::Rxe;
use self::suite::{Gpu, Suite, is_of_cuda};
use crate::counts::Counts;
use crate::groups::Context;
use crate::sh::{Outcome, cargo, check};
use crate::suites::{Expected, Verdict, Verdicts, wheels};

/// What is known about the tests.
const EXPECTED: &str = "interop/pyverbs/expected.toml";
/// The ways of running the suite: with cuda-python, or without if it could not be obtained.
const ON: [&str; 2] = ["cuda-python", "no-cuda-python"];
/// The list of the wheels that are cuda-python.
const CUDA_PYTHON: &str = "cuda-python";

/// The options of `cargo xtask pyverbs`.
#[derive(Args)]
pub(crate) struct Options {
    /// The suite of a newer rdma-core, with pyverbs built from Debian's source package with DRM.
    #[arg(long)]
    build: bool,
    /// With --build: the release of Debian whose source package is built.
    #[arg(long, default_value = "forky", value_name = "NAME")]
    suite: String,
    /// Also on the Linux kernel's rdma_rxe, in a virtual machine: some minutes. The page has the
    /// results of the last such run.
    #[arg(long, conflicts_with_all = ["build", "check", "patterns"])]
    rxe: bool,
    /// Do not write the page in docs/.
    #[arg(long)]
    check: bool,
    /// Only tests whose name contains one of these words.
    patterns: Vec<String>,
}

/// Runs the suite, writes the page, and compares with the expected results.
pub(crate) fn run(options: &Options) -> Outcome {
    let suite = if options.build { build::suite(&options.suite)? } else { suite::installed()? };
    if options.rxe {
        let rxe = Rxe::run(&suite)?;
        rxe.write()?;
        println!("\non rdma_rxe: {}", summary(&rxe.verdicts));
    }
    let write = !options.check && options.patterns.is_empty();
    let counts = judge(&suite, &options.patterns, Some(&wheels(CUDA_PYTHON)?), write)?;
    counts.as_expected("pyverbs")
}

/// The group of `cargo xtask test`: the installed suite, and no page.
pub(crate) fn group(context: &Context) -> Outcome<Counts> {
    let suite = suite::installed()?;
    match wheels(CUDA_PYTHON) {
        Ok(cuda) => judge(&suite, &[], Some(&cuda), false),
        // A machine without a Python index can run everything else.
        Err(why) if context.require_all && context.full => Err(why),
        Err(why) => {
            println!("the tests of CUDA do not run: {why}");
            let counts = judge(&suite, &[], None, false)?;
            let ignored = u64::from(!context.require_all);
            Ok(Counts { ignored: counts.ignored + ignored, ..counts })
        }
    }
}

/// The GPUs on which a pyverbs with DRM must pass all tests of dma-bufs: it knows two drivers. The
/// first is that of the whole suite.
const GPUS: &[Gpu] = &[
    Gpu { preset: "amdgpu", args: &[] },
    Gpu { preset: "amdgpu", args: &["--gtt"] },
    Gpu { preset: "i915", args: &[] },
    Gpu { preset: "i915", args: &["--gtt"] },
];

/// Runs a suite. A test with an unexpected result counts as failed, even if it passed.
fn judge(suite: &Suite, patterns: &[String], cuda: Option<&Path>, write: bool) -> Outcome<Counts> {
    let expected = Expected::read(EXPECTED)?;
    check(cargo().args(["build", "--release", "--locked"]))?;
    let gpus = if suite.has_drm { GPUS } else { &[] };
    let mut verdicts = suite.run(gpus.first().copied(), patterns)?;
    let on = ON[usize::from(cuda.is_none())];
    // Without cuda-python each of these skips, and a caller that names tests may not have named
    // these.
    if let Some(wheels) = cuda.filter(|_| verdicts.tests.keys().any(|test| is_of_cuda(test))) {
        verdicts.tests.extend(suite.run_cuda(wheels)?.tests);
    }
    if write {
        // The kernel runs Debian's tests: those of a newer rdma-core differ.
        let rxe = if suite.has_drm { None } else { Some(Rxe::read()?) };
        page::write(suite, (on, &verdicts), &expected, rxe.as_ref())?;
    }
    let mut complaints = expected.complaints(on, &verdicts);
    // A test that is explained and did not pass counts as neither: the summary lists it.
    let mut passed = verdicts.sums()[0].saturating_sub(expected.stale(on, &verdicts)) as u64;
    println!("\n{}", summary(&verdicts));
    for gpu in gpus {
        let verdicts = suite.run(Some(*gpu), &["DmaBuf".to_owned()])?;
        println!("\n{gpu:?}: {}", summary(&verdicts));
        passed += verdicts.sums()[0] as u64;
        let bad = verdicts.tests.iter().filter(|(_, verdict)| **verdict != Verdict::Passed);
        complaints.extend(bad.map(|(test, verdict)| format!("{gpu:?}: {test}: {verdict:?}")));
    }
    for complaint in &complaints {
        println!("not as expected: {complaint}");
    }
    Ok(Counts { passed, failed: complaints.len() as u64, ignored: 0 })
}

fn summary(verdicts: &Verdicts) -> String {
    let [passed, skipped, failed] = verdicts.sums();
    format!("pyverbs: {passed} pass, {skipped} skip, {failed} fail")
}
