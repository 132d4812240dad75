//! `cargo xtask pyverbs`: the test suite of rdma-core, unmodified, on peerdma.
//!
//! The suite is Debian's (`/usr/share/doc/rdma-core/tests`, package rdma-core; the verbs from Python, python3-pyverbs).
//! With `--build` it is that of a newer rdma-core, whose pyverbs is built from Debian's source package, since Debian builds
//! its own without DRM and its dma-buf tests then skip whatever the device can do. With `--rxe` the suite also runs on the
//! Linux kernel's `rdma_rxe`, in a virtual machine.
//!
//! `interop/pyverbs/expected.toml` explains each test that skips and each that does not pass yet. What is not explained
//! there is an error, and so is an explanation of a failure that happens no more.

mod build;
mod page;
mod rxe;
mod suite;
mod verdicts;

use clap::Args;

use self::rxe::Rxe;
use self::suite::{Gpu, Suite};
use crate::counts::Counts;
use crate::sh::{Outcome, cargo, check};
use crate::suites::{Expected, Verdict, Verdicts};

/// What is known of the tests.
const EXPECTED: &str = "interop/pyverbs/expected.toml";
/// The ways of running the suite are not told apart.
const ON: &str = "";

/// The options of `cargo xtask pyverbs`.
#[derive(Args)]
pub(crate) struct Options {
    /// The suite of a newer rdma-core, with pyverbs built from Debian's source package with DRM.
    #[arg(long)]
    build: bool,
    /// With --build: the release of Debian whose source package is built.
    #[arg(long, default_value = "forky", value_name = "NAME")]
    suite: String,
    /// Also on the Linux kernel's rdma_rxe, in a virtual machine: some minutes. The page has what the last such run gave.
    #[arg(long, conflicts_with_all = ["build", "check", "patterns"])]
    rxe: bool,
    /// Do not write the page in docs/.
    #[arg(long)]
    check: bool,
    /// Only tests whose name has one of these words in it.
    patterns: Vec<String>,
}

/// Runs the suite, writes the page, and compares with what is expected.
pub(crate) fn run(options: &Options) -> Outcome {
    let suite = if options.build { build::suite(&options.suite)? } else { suite::installed()? };
    if options.rxe {
        let rxe = Rxe::run(&suite)?;
        rxe.write()?;
        println!("\non rdma_rxe: {}", summary(&rxe.verdicts));
    }
    let counts = judge(&suite, &options.patterns, !options.check && options.patterns.is_empty())?;
    match counts.failed {
        0 => Ok(()),
        failed => Err(format!("pyverbs: {failed} tests are not as expected")),
    }
}

/// The group of `cargo xtask test`: the installed suite, and no page.
pub(crate) fn group() -> Outcome<Counts> {
    judge(&suite::installed()?, &[], false)
}

/// The GPUs on which a pyverbs with DRM must pass all tests of dma-bufs: it knows two drivers. The first is that of the
/// whole suite.
const GPUS: &[Gpu] = &[
    Gpu { preset: "amdgpu", gtt: false },
    Gpu { preset: "amdgpu", gtt: true },
    Gpu { preset: "i915", gtt: false },
    Gpu { preset: "i915", gtt: true },
];

/// Runs a suite. A test that is not as expected counts as failed, even if it passed.
fn judge(suite: &Suite, patterns: &[String], write: bool) -> Outcome<Counts> {
    let expected = Expected::read(EXPECTED)?;
    check(cargo().args(["build", "--release", "--locked"]))?;
    let gpus = if suite.has_drm { GPUS } else { &[] };
    let verdicts = suite.run(gpus.first().copied(), patterns)?;
    if write {
        // The kernel runs Debian's tests: those of a newer rdma-core are others.
        let rxe = if suite.has_drm { None } else { Some(Rxe::read()?) };
        page::write(suite, &verdicts, &expected, rxe.as_ref())?;
    }
    let mut complaints = expected.complaints(ON, &verdicts);
    // What is explained and did not pass is neither: the summary has it.
    let mut passed = verdicts.sums()[0].saturating_sub(expected.stale(ON, &verdicts)) as u64;
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
