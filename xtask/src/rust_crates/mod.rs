//! `cargo xtask rust-crates`: the tests of crates that wrap libibverbs, their sources unchanged, by
//! `peerdma run -- cargo test`, and their examples.
//!
//! `interop/rust-crates/expected.toml` explains each test that is ignored or fails; what is not
//! explained there is an error, and so is an explanation of a failure that no longer happens.

mod examples;
mod libtest;
mod page;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;

use self::examples::Examples;
use self::libtest::Reader;
use crate::counts::Counts;
use crate::groups::{Context, Tested};
use crate::setup;
use crate::sh::{Outcome, cargo, check, root, target_dir, tool};
use crate::suites::{Expected, Source, Verdict, Verdicts, host, show};

/// What is known about the tests.
const EXPECTED: &str = "interop/rust-crates/expected.toml";

/// A configuration with a NIC like rxe.
const RXE: &str = "interop/rust-crates/rxe.toml";

/// Packages that the builds need besides those that the tests need.
const PACKAGES: [(&str, &str); 8] = [
    ("cmake", "writes the headers of a newer rdma-core"),
    ("libclang-dev", "reads them, for bindings"),
    ("libnl-3-dev", "rdma-core asks for it"),
    ("libnl-route-3-dev", "likewise"),
    ("libssl-dev", "rust-rdma-io's TLS"),
    ("ninja-build", "rdma-core asks for it"),
    ("pkg-config", "finds them"),
    ("protobuf-compiler", "rust-rdma-io's gRPC"),
];

/// A crate, or a workspace of several.
struct Tests {
    name: &'static str,
    /// The arguments of `cargo test`.
    args: &'static [&'static str],
    /// The arguments of `cargo build --examples`.
    of_examples: &'static [&'static str],
    /// Whether tests run one at a time, as its own instructions say.
    is_serial: bool,
    /// Whether tests are ignored by default because they need a device.
    needs_device: bool,
    /// Whether it was written for the kernel's rxe, and so needs a NIC of that preset.
    is_for_rxe: bool,
}

const CRATES: [Tests; 5] = [
    Tests {
        name: "rust-ibverbs",
        args: &["--features", "rdmacm"],
        of_examples: &["--features", "rdmacm"],
        is_serial: false,
        needs_device: true,
        is_for_rxe: false,
    },
    Tests {
        name: "sideway",
        args: &[],
        of_examples: &[],
        is_serial: false,
        needs_device: false,
        is_for_rxe: false,
    },
    Tests {
        name: "rust-rdma-io",
        args: &["--workspace"],
        of_examples: &[],
        is_serial: true,
        needs_device: true,
        is_for_rxe: false,
    },
    Tests {
        name: "ibverbs-rs",
        args: &["--lib"],
        of_examples: &[],
        is_serial: false,
        needs_device: false,
        is_for_rxe: false,
    },
    Tests {
        name: "async-rdma",
        args: &[],
        of_examples: &["--features", "cm,raw"],
        is_serial: true,
        needs_device: false,
        is_for_rxe: true,
    },
];

/// A test that prints nothing for this long hangs.
const PATIENCE: Duration = Duration::from_secs(180);

/// How long an example may take.
const EXAMPLES_PATIENCE: Duration = Duration::from_secs(90);

/// The options of `cargo xtask rust-crates`.
#[derive(Args)]
pub(crate) struct Options {
    /// Do not write docs/RUST_CRATES.md.
    #[arg(long)]
    check: bool,
    /// Only these crates.
    crates: Vec<String>,
}

/// Runs the tests, writes the page, and compares with the expected results.
pub(crate) fn run(options: &Options) -> Outcome {
    let sources = sources(true)?;
    let counts = judge(&sources, options, options.crates.is_empty() && !options.check)?;
    counts.as_expected("rust-crates")
}

/// The group of `cargo xtask test --full`: all of it, and no page.
pub(crate) fn group(context: &Context) -> Outcome<Tested> {
    let sources = match sources(context.setup) {
        Ok(sources) => sources,
        Err(why) => return Ok(Tested::Impossible(why)),
    };
    let options = Options { check: true, crates: Vec::new() };
    judge(&sources, &options, false).map(Tested::Ran)
}

/// The crates, and rdma-core, since some need newer headers than Debian's. An error says why this
/// machine cannot have them.
struct Sources {
    crates: Vec<(&'static Tests, Source, PathBuf)>,
    rdma_core: (Source, PathBuf),
}

fn sources(install: bool) -> Outcome<Sources> {
    setup::install("rust-crates", &PACKAGES, !install)?;
    let unpack = |name: &str| -> Outcome<(Source, PathBuf)> {
        let source = Source::named(name)?;
        let dir = source.unpacked()?;
        Ok((source, dir))
    };
    let with = |tests: &'static Tests| {
        let (source, dir) = unpack(tests.name)?;
        Ok((tests, source, dir))
    };
    let crates: Outcome<Vec<_>> = CRATES.iter().map(with).collect();
    Ok(Sources { crates: crates?, rdma_core: unpack("rdma-core")? })
}

/// Runs the tests. A test with an unexpected result counts as failed, even if it passed.
fn judge(sources: &Sources, options: &Options, write: bool) -> Outcome<Counts> {
    let expected = Expected::read(EXPECTED)?;
    check(cargo().args(["build", "--release", "--locked"]))?;
    let headers = headers(&sources.rdma_core.1)?;
    let examples = Examples::read()?;
    let mut counts = Counts::default();
    let mut rows = Vec::new();
    for (tests, source, dir) in &sources.crates {
        if !options.crates.is_empty() && !options.crates.iter().any(|name| name == tests.name) {
            continue;
        }
        let mut verdicts = tests.run(dir, &headers)?;
        verdicts.tests.extend(tests.run_examples(&examples, dir, &headers)?.tests);
        counts += &expected.judge(tests.name, &verdicts);
        rows.push((source, verdicts));
    }
    if write {
        page::write(&rows, &expected)?;
    }
    Ok(counts)
}

/// The headers of rdma-core in their installed form, as its configuration step makes them, and
/// their origin.
struct Headers {
    include: PathBuf,
    verbs: PathBuf,
}

fn headers(source: &Path) -> Outcome<Headers> {
    let build = source.join("build");
    let include = build.join("include");
    if !include.join("infiniband/verbs.h").exists() {
        let options = ["-DENABLE_RESOLVE_NEIGH=0", "-DENABLE_VALGRIND=0", "-DNO_MAN_PAGES=1"];
        let mut cmake = tool("cmake");
        cmake.args(["-GNinja", "-S"]).arg(source).arg("-B").arg(&build);
        check(cmake.args(options).arg("-DNO_PYVERBS=1"))?;
    }
    Ok(Headers { include, verbs: source.join("libibverbs") })
}

impl Tests {
    /// Builds with the network available, then runs without it, on a host of its own.
    fn run(&self, dir: &Path, headers: &Headers) -> Outcome<Verdicts> {
        let program = cargo().get_program().to_owned();
        let mut build = Command::new(&program);
        build.args(["test", "--no-run"]).args(self.args);
        self.prepare(&mut build, dir, headers);
        check(&mut build)?;

        let mut command = host::of_its_own(false)?;
        command.arg(target_dir().join("release/peerdma")).args(["run", "--"]);
        // One stream, so that each test is attributed to its program.
        command.args(["sh", "-c", "exec \"$0\" \"$@\" 2>&1"]).arg(&program);
        command.args(["test", "--offline", "--no-fail-fast"]).args(self.args);
        command.arg("--");
        if self.needs_device {
            command.arg("--include-ignored");
        }
        self.prepare(&mut command, dir, headers);
        if self.is_serial {
            command.env("RUST_TEST_THREADS", "1");
        }
        let mut reader = show(command, PATIENCE, Reader::default(), Reader::read, Reader::running)?;
        reader.end();
        if reader.verdicts.is_empty() {
            reader.verdicts.insert("all".to_owned(), Verdict::Failed("no test ran".to_owned()));
        }
        Ok(Verdicts { tests: reader.verdicts })
    }

    /// Builds the examples with the network available, then runs each on a host of its own.
    fn run_examples(&self, all: &Examples, dir: &Path, headers: &Headers) -> Outcome<Verdicts> {
        let mut verdicts = Verdicts::default();
        for test in examples::unlisted(dir, all.of(self.name))? {
            let why = format!("{} does not have it", examples::FILE);
            verdicts.tests.insert(test, Verdict::Failed(why));
        }
        if all.of(self.name).next().is_none() {
            return Ok(verdicts);
        }
        let mut build = cargo();
        build.args(["build", "--examples"]).args(self.of_examples);
        self.prepare(&mut build, dir, headers);
        check(&mut build)?;
        let here = root().join(examples::FILE).with_file_name("");
        for example in all.of(self.name) {
            let verdict = match example.skipped() {
                Some(skipped) => skipped,
                None => {
                    let mut command = host::of_its_own(false)?;
                    command.arg(target_dir().join("release/peerdma")).args(["run", "--"]);
                    // Each program stands in the folder, and one stream has what all print.
                    let script = format!("exec 2>&1; PATH=.:$PATH; {}", example.run);
                    let patience = EXAMPLES_PATIENCE.as_secs().to_string();
                    command.args(["timeout", &patience, "sh", "-c", &script]);
                    self.prepare(&mut command, dir, headers);
                    command.current_dir(self.target().join("debug/examples"));
                    command.env("ip", host::ADDRESS).env("here", &here);
                    match &example.config {
                        Some(config) => command.env("PEERDMA_CONFIG", here.join(config)),
                        None => command.env_remove("PEERDMA_CONFIG"),
                    };
                    let out = command.output().map_err(|err| format!("{command:?}: {err}"))?;
                    let printed = String::from_utf8_lossy(&out.stdout);
                    println!("{}\n{printed}", example.run);
                    example.verdict(out.status.success(), &printed)
                }
            };
            verdicts.tests.extend(example.tests().map(|test| (test, verdict.clone())));
        }
        Ok(verdicts)
    }

    /// Where it is built.
    fn target(&self) -> PathBuf {
        target_dir().join("sources").join(self.built())
    }

    fn prepare(&self, command: &mut Command, dir: &Path, headers: &Headers) {
        // Its own cargo configuration is there. The toolchain is ours, whatever it asks for.
        command.current_dir(dir);
        command.env("CARGO_TARGET_DIR", self.target());
        // A lint that is newer than a crate is not the crate's failure.
        command.env("RUSTFLAGS", "--cap-lints=warn");
        command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "0");
        // Tests are recognised by lines that a quiet cargo omits.
        command.env("CARGO_TERM_QUIET", "false");
        command.env("RDMA_CORE_INCLUDE_DIR", &headers.include);
        command.env("IBVERBS_HEADER_DIR", &headers.verbs);
        command.env("RDMA_CORE_LIB_DIR", library_dir());
        if self.is_for_rxe {
            command.env("PEERDMA_CONFIG", root().join(RXE));
        }
    }

    fn built(&self) -> String {
        format!("{}-built", self.name)
    }
}

/// Where Debian has the libraries to which programs are linked; `peerdma run` replaces them by
/// ours.
fn library_dir() -> OsString {
    format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH).into()
}
