//! Running a suite.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::verdicts::Reader;
use crate::sh::{Outcome, check, target_dir, tool};
use crate::suites::{PYTHON, Verdicts, host, show};

/// A copy of the tests, and what Python needs to find the verbs.
#[derive(Debug)]
pub(crate) struct Suite {
    /// The origin of the tests, in words.
    pub(crate) what: String,
    /// What is changed in the tests, if anything.
    pub(crate) changed: &'static str,
    /// The command that runs them.
    pub(crate) command: &'static str,
    /// The page in docs/.
    pub(crate) page: &'static str,
    /// Whether its pyverbs makes buffers of GPUs.
    pub(crate) has_drm: bool,
    /// The directory that holds `tests`.
    pub(crate) dir: PathBuf,
    /// Additions to the environment.
    pub(crate) env: Vec<(&'static str, OsString)>,
}

/// Debian's tests, as shipped in its package rdma-core.
const INSTALLED: &str = "/usr/share/doc/rdma-core/tests";
/// The whole suite takes seconds: a test that takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// The suite of the installed packages.
pub(crate) fn installed() -> Outcome<Suite> {
    if !Path::new(INSTALLED).exists() {
        return Err(format!("no {INSTALLED}: `cargo xtask setup` installs rdma-core"));
    }
    let dir = scratch("installed")?;
    copy(Path::new(INSTALLED), &dir)?;
    Ok(Suite {
        what: "the tests of Debian's packages rdma-core and python3-pyverbs".to_owned(),
        changed: "unmodified",
        command: "cargo xtask pyverbs",
        page: "PYVERBS.md",
        has_drm: false,
        dir,
        env: Vec::new(),
    })
}

/// An empty directory under target/pyverbs.
pub(crate) fn scratch(name: &str) -> Outcome<PathBuf> {
    let dir = target_dir().join("pyverbs").join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).map_err(|err| format!("{}: {err}", dir.display()))?;
    Ok(dir)
}

/// Copies a directory of tests to `to/tests`, and unpacks what Debian packed.
pub(crate) fn copy(from: &Path, to: &Path) -> Outcome {
    check(tool("cp").arg("--recursive").arg("--dereference").arg(from).arg(to.join("tests")))?;
    let files = fs::read_dir(to.join("tests")).map_err(|err| format!("{}: {err}", to.display()))?;
    let packed: Vec<_> = files
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "gz"))
        .collect();
    if packed.is_empty() { Ok(()) } else { check(tool("gzip").arg("--decompress").args(packed)) }
}

/// The GPU of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gpu {
    /// Its driver.
    pub(crate) preset: &'static str,
    /// What the tests are told about it, such as that buffers must be in system memory.
    pub(crate) args: &'static [&'static str],
}

/// The GPU that tests of CUDA reach by cuda-python.
const NVIDIA: Gpu = Gpu { preset: "nvidia", args: &["--gpu", "0"] };
/// The tests of CUDA that run here: the others also need vendors' hardware.
const OF_CUDA: &str = "test_cuda_dmabuf";

/// Whether a test is one of these.
pub(crate) fn is_of_cuda(test: &str) -> bool {
    test.starts_with(OF_CUDA)
}

impl Suite {
    /// Runs the tests whose names have one of the patterns in them, or all.
    pub(crate) fn run(&self, gpu: Option<Gpu>, patterns: &[String]) -> Outcome<Verdicts> {
        self.run_with(gpu, patterns, &self.env)
    }

    /// Runs the tests of CUDA, with cuda-python from a directory of wheels.
    pub(crate) fn run_cuda(&self, wheels: &Path) -> Outcome<Verdicts> {
        let mut env = self.env.clone();
        let ours = env.iter().position(|(name, _)| *name == "PYTHONPATH");
        let ours = ours.map(|at| env.swap_remove(at).1);
        let all = ours.iter().map(Path::new).chain([wheels]);
        let all = std::env::join_paths(all).map_err(|err| format!("PYTHONPATH: {err}"))?;
        env.push(("PYTHONPATH", all));
        self.run_with(Some(NVIDIA), &[OF_CUDA.to_owned()], &env)
    }

    fn run_with(
        &self,
        gpu: Option<Gpu>,
        patterns: &[String],
        env: &[(&'static str, OsString)],
    ) -> Outcome<Verdicts> {
        let option = gpu.map(|gpu| format!("--gpu={}", gpu.preset));
        let args = gpu.map_or(&[][..], |gpu| gpu.args);
        let mut command = host::of_its_own(true)?;
        command.arg(target_dir().join("release/peerdma"));
        command.current_dir(&self.dir).arg("run").args(&option);
        command.args(["--", PYTHON, "tests/run_tests.py", "-v", "--dev", "peerdma0"]).args(args);
        for pattern in patterns {
            command.args(["-k", pattern]);
        }
        command.envs(env.iter().map(|(name, value)| (name, value)));
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        println!(
            "$ peerdma run {} -- {PYTHON} tests/run_tests.py -v --dev peerdma0 {} {}",
            option.unwrap_or_default(),
            args.join(" "),
            patterns.join(" ")
        );
        let reader =
            show(command, PATIENCE, Reader::default(), Reader::read, |r| r.running.as_deref())?;
        Ok(reader.finish())
    }
}
