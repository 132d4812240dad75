//! The groups of `cargo xtask test`: what each runs, and how long it may take on two cores.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::counts::Counts;
use crate::sh::{Outcome, cargo, check, target_dir, tool, watch};
use crate::suites::wheels;
use crate::{
    aarch64, blktests, columns, cuda_rdma, deny, deps, examples, fuzz, house, level_zero_tests,
    libfabric, loom, publish, pyverbs, rdma_unit_test, rules, rust_crates, semver, site, tsan,
    unsafety, variables,
};

/// One line of the report.
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) budget: Duration,
    pub(crate) job: Job,
}

/// What a group does.
#[derive(Clone, Copy)]
pub(crate) enum Job {
    /// A check that passes or fails as a whole.
    Check(fn(&Context) -> Outcome),
    /// A check that a machine may be unable to do at all: it then returns the reason, which is
    /// reported and never counts as passed.
    IfPossible(fn(&Context) -> Outcome<Option<String>>),
    /// A run with tests to count.
    Tests(fn(&Context) -> Outcome<Counts>),
    /// A third-party suite, built from source. A suite that takes this long runs with `--full` or
    /// by its name, and its line in the list shows that.
    Suite(fn(&Context) -> Outcome<Tested>),
    /// `cargo test -p interop --test NAME`, with this many tests at a time.
    Interop { threads: u8 },
}

impl Job {
    /// Whether the group runs only on request.
    pub(crate) fn is_long(&self) -> bool {
        matches!(self, Self::Suite(_))
    }
}

/// The result of a third-party suite.
pub(crate) enum Tested {
    Ran(Counts),
    /// Its source or a build tool cannot be obtained, and why. This is reported, and never counts
    /// as passed.
    Impossible(String),
}

/// What the command line asked for.
pub(crate) struct Context {
    /// Tools may be installed.
    pub(crate) setup: bool,
    /// A test that cannot run fails.
    pub(crate) require_all: bool,
    /// Tests with a short and a full form run in full.
    pub(crate) full: bool,
    /// Where tests record what they could not run.
    pub(crate) skip_log: PathBuf,
}

const fn group(name: &'static str, seconds: u64, what: &'static str, job: Job) -> Group {
    Group { name, what, budget: Duration::from_secs(seconds), job }
}

/// All groups, cheap ones first, so that a typo is found in seconds.
pub(crate) const GROUPS: &[Group] = &[
    group("fmt", 10, "rustfmt", Job::Check(fmt)),
    group("deps", 10, "crate arrows, places of unsafe, tests of rules", Job::Check(|_| tree())),
    group("clippy", 180, "lints, all targets", Job::Check(clippy)),
    group("aarch64-check", 240, "type check for aarch64", Job::IfPossible(|_| aarch64::types())),
    group("msrv", 240, "type check with the oldest Rust that is named", Job::IfPossible(msrv)),
    group("doc", 60, "documentation builds without warning", Job::Check(doc)),
    group("unit", 420, "unit, property and documentation tests", Job::Tests(unit)),
    group("loom", 180, "models of lock-free code", Job::Tests(|_| loom::run())),
    group("tsan", 300, "eight threads under ThreadSanitizer", Job::IfPossible(|_| tsan::run())),
    group("fuzz", 180, "20,000 inputs per fuzz target", Job::Check(|_| fuzz::run(20_000, None))),
    group("build", 420, "release build of the library and programs", Job::Check(build)),
    group("rig", 30, "the interop rig itself", Job::Interop { threads: 2 }),
    group(
        "devices",
        30,
        "ibv_devices, ibv_devinfo, dlvsym, vendor libraries",
        Job::Interop { threads: 2 },
    ),
    group("sysfs", 20, "/sys/class/infiniband, read directly", Job::Interop { threads: 2 }),
    group("observe", 60, "rdma, node-exporter, ibstat and top", Job::Interop { threads: 1 }),
    group("pingpong", 90, "the pingpongs of ibverbs-utils", Job::Interop { threads: 1 }),
    group("perftest", 240, "every perftest program with its options", Job::Interop { threads: 1 }),
    group("rdmacm", 150, "the programs of the connection manager", Job::Interop { threads: 1 }),
    group(
        "rsockets",
        300,
        "sockets over RDMA, for programs that ask for them and others",
        Job::Interop { threads: 1 },
    ),
    group("permissions", 120, "users and pid namespaces", Job::Interop { threads: 1 }),
    group("strangers", 60, "hostile local users", Job::Interop { threads: 1 }),
    group("families", 30, "sandboxes that forbid netlink", Job::Interop { threads: 2 }),
    group("setuid", 30, "programs with more rights than their user", Job::Interop { threads: 2 }),
    group("fork", 30, "fork, daemon, multiprocessing", Job::Interop { threads: 2 }),
    group("heap", 60, "memory of programs that peers map", Job::Interop { threads: 1 }),
    group(
        "descriptors",
        60,
        "programs that close our descriptors, or replace them",
        Job::Interop { threads: 1 },
    ),
    group("successor", 60, "targets that are gone, by exec or by end", Job::Interop { threads: 1 }),
    group("pyverbs", 180, "rdma-core's own tests", Job::Tests(pyverbs::group)),
    group("drm", 30, "render nodes of the software GPU", Job::Interop { threads: 2 }),
    group("exporters", 30, "other exporters, for programs in C", Job::Interop { threads: 2 }),
    group("cuda", 60, "CUDA programs over the software GPU", Job::Interop { threads: 2 }),
    group(
        "cuda_memory",
        60,
        "CUDA's memory beyond one allocation in a row",
        Job::Interop { threads: 2 },
    ),
    group("cuda_runtime", 60, "CUDA's runtime libraries and NVML", Job::Interop { threads: 2 }),
    group("cuda_programs", 180, "UCX and Mooncake in GPU memory", Job::Interop { threads: 1 }),
    group(
        "level_zero",
        30,
        "Level Zero programs over the software GPU",
        Job::Interop { threads: 2 },
    ),
    group("hsa", 30, "HSA programs over the software GPU", Job::Interop { threads: 2 }),
    group("weather", 60, "GPU memory in bad weather", Job::Interop { threads: 1 }),
    group("badday", 90, "killed and stopped peers, wrong arguments", Job::Interop { threads: 1 }),
    group("wire", 180, "two hosts: tshark and the ICRC", Job::Interop { threads: 1 }),
    group(
        "hostile",
        120,
        "a device under attack, with honest traffic",
        Job::Interop { threads: 1 },
    ),
    group("multicast", 30, "groups of datagrams, one host and two", Job::Interop { threads: 1 }),
    group(
        "raw",
        60,
        "raw packets, flow steering, receive side scaling",
        Job::Interop { threads: 1 },
    ),
    group("fault", 60, "fault plans", Job::Interop { threads: 2 }),
    group("stacks", 120, "UCX, libfabric, and Open MPI by both", Job::Interop { threads: 1 }),
    group("pcap", 60, "packets of every carrier, recorded", Job::Interop { threads: 1 }),
    group("trace", 60, "traces, read by Perfetto's package", Job::Interop { threads: 1 }),
    group("verbs", 30, "tag matching, shared QPs of XRC", Job::Interop { threads: 1 }),
    group("scale", 120, "eight hosts, many QPs, processes that die", Job::Interop { threads: 1 }),
    group("recipes", 90, "docs/TUTORIAL.md and docs/RECIPES.md", Job::Interop { threads: 1 }),
    group("site", 30, "docs as a site, its links checked", Job::IfPossible(|_| site::run())),
    group("examples", 30, "the examples of verbs", Job::Interop { threads: 1 }),
    group("vm", 240, "a Debian kernel with Yama and udmabuf", Job::Interop { threads: 2 }),
    group("topology", 150, "PCI trees, judged by a kernel", Job::Interop { threads: 1 }),
    group("rxe", 240, "against the Linux kernel's rdma_rxe", Job::Interop { threads: 2 }),
    group("providers", 150, "crate verbs on the kernel's rxe", Job::Interop { threads: 1 }),
    group(
        "aarch64",
        420,
        "an emulated arm64 machine with Debian's kernel and programs",
        Job::Suite(aarch64::machine),
    ),
    group(
        "aarch64_pyverbs",
        900,
        "rdma-core's own tests in that arm64 machine",
        Job::Suite(aarch64::pyverbs),
    ),
    group("nvmeof", 240, "nvmet and the Linux kernel's host", Job::Interop { threads: 1 }),
    group("install", 240, "package and archive on a clean Debian", Job::Interop { threads: 1 }),
    group(
        "wheel",
        900,
        "the wheel of Python, and files for CI, on a clean Debian",
        Job::Suite(|context| interop(context, "wheel", 1)),
    ),
    group(
        "test_hmm",
        300,
        "the kernel's test_hmm beside crate hmm",
        Job::Suite(|context| interop(context, "test_hmm", 1)),
    ),
    group("unit-test", 3600, "google/rdma-unit-test", Job::Suite(rdma_unit_test::group)),
    group("rust-crates", 1800, "Rust crates that wrap libibverbs", Job::Suite(rust_crates::group)),
    group(
        "cuda_rdma",
        900,
        "gdrcopy, perftest, UCX, Open MPI, NIXL and Mooncake on GPU memory",
        Job::Suite(cuda_rdma::group),
    ),
    group(
        "level-zero-tests",
        1800,
        "the conformance tests of Level Zero",
        Job::Suite(level_zero_tests::group),
    ),
    group("libfabric", 3600, "libfabric's own tests", Job::Suite(libfabric::group)),
    group(
        "blktests",
        1500,
        "blktests' nvme tests, with nvmet as the target",
        Job::Suite(blktests::group),
    ),
    group(
        "semver",
        900,
        "the Rust API since the baseline, by cargo-semver-checks",
        Job::Suite(semver::group),
    ),
    group("demo", 60, "cargo run --release -- demo, and demo --storage", Job::Check(demo)),
    group("deny", 240, "licences and sources of dependencies", Job::Check(licences)),
];

/// Groups that run programs from wheels, and the lists of those in `interop/wheels`.
const WHEELS: &[(&str, &str)] =
    &[("cuda_programs", "cuda-programs"), ("trace", "perfetto"), ("wheel", "cross")];

fn fmt(_: &Context) -> Outcome {
    check(cargo().args(["fmt", "--all", "--check"]))
}

/// Checks of the tree's own files: arrows, places of `unsafe`, variables, rules and their tests,
/// walls, examples, columns.
pub(crate) fn tree() -> Outcome {
    deps::run()?;
    unsafety::run()?;
    variables::run()?;
    rules::run()?;
    house::compare()?;
    examples::run()?;
    publish::manifests()?;
    columns::run()
}

fn clippy(_: &Context) -> Outcome {
    check(cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ]))
}

fn msrv(_: &Context) -> Outcome<Option<String>> {
    let version = format!("{}.0", env!("CARGO_PKG_RUST_VERSION"));
    let mut install = tool("rustup");
    install.args(["toolchain", "install", &version, "--profile", "minimal", "--no-self-update"]);
    if let Err(why) = check(&mut install) {
        return Ok(Some(format!("no Rust {version}: {why}")));
    }
    let mut command = tool("rustup");
    // What others build: our tests may be newer.
    command.args(["run", &version, "cargo", "check", "--workspace", "--all-features", "--locked"]);
    // The output of another compiler there would be rebuilt, and again by the next group.
    command.env("CARGO_TARGET_DIR", target_dir().join("msrv"));
    check(&mut command).map(|()| None)
}

fn doc(_: &Context) -> Outcome {
    let mut command = cargo();
    // As docs.rs builds it.
    command.args(["doc", "--workspace", "--all-features", "--no-deps", "--locked"]);
    check(command.env("RUSTDOCFLAGS", "-D warnings"))
}

fn unit(context: &Context) -> Outcome<Counts> {
    // interop needs the release build and has groups of its own; bench measures.
    let args = ["test", "--workspace", "--exclude", "interop", "--exclude", "bench", "--locked"];
    tests(context, cargo().args(args).arg("--no-fail-fast"))
}

fn build(_: &Context) -> Outcome {
    check(cargo().args(["build", "--release", "--locked"]))?;
    check(cargo().args(["build", "--release", "--locked", "-p", "peerdma-verbs", "--examples"]))
}

fn demo(_: &Context) -> Outcome {
    for more in [&[][..], &["--storage"]] {
        let args = ["run", "--release", "--locked", "-p", "peerdma", "--", "demo"];
        check(cargo().args(args).args(more))?;
    }
    Ok(())
}

fn licences(context: &Context) -> Outcome {
    let by = deny::run(context.setup)?;
    if context.require_all && by != deny::By::CargoDeny {
        return Err("cargo-deny is required and missing (`cargo xtask deny --install`)".to_owned());
    }
    Ok(())
}

/// The tests of one file of `interop/tests`.
pub(crate) fn interop(context: &Context, name: &str, threads: u8) -> Outcome<Tested> {
    let threads = format!("--test-threads={threads}");
    let mut cargo = cargo();
    cargo.args(["test", "-p", "interop", "--locked", "--test", name, "--", &threads]);
    if let Some((_, list)) = WHEELS.iter().find(|(group, _)| *group == name) {
        match wheels(list) {
            Ok(directory) => drop(cargo.env("PEERDMA_WHEELS", directory)),
            // Without them the tests report that they cannot run; a machine without a Python index
            // can still run everything else.
            Err(why) if context.full || !context.require_all => eprintln!("{why}"),
            Err(why) => return Ok(Tested::Impossible(why)),
        }
    }
    tests(context, &mut cargo).map(Tested::Ran)
}

/// Runs `cargo test`; a run that fails without a failed test did not build or crashed.
fn tests(context: &Context, command: &mut Command) -> Outcome<Counts> {
    command.env("PEERDMA_SKIP_LOG", &context.skip_log);
    if context.require_all {
        command.env("PEERDMA_REQUIRE", "all");
    }
    if context.full {
        command.env("PEERDMA_FULL", "1");
    }
    let mut counts = Counts::default();
    let ok = watch(command, |line| counts.read(line))?;
    if !ok && counts.failed == 0 {
        return Err("the tests did not build, or a test program crashed".to_owned());
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A file without a group is never run.
    #[test]
    fn every_file_of_interop_tests_is_a_group() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interop/tests");
        for entry in folder.read_dir().expect("the folder is there") {
            let path = entry.expect("it can be read").path();
            let name = path.file_stem().and_then(|name| name.to_str()).expect("a plain name");
            let is_known = |group: &Group| {
                group.name == name && !matches!(group.job, Job::Check(_) | Job::IfPossible(_))
            };
            assert!(GROUPS.iter().any(is_known), "{}", path.display());
        }
    }
}
