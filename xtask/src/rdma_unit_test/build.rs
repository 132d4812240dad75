//! Building google/rdma-unit-test without Bazel: its sources unchanged, by
//! `interop/rdma-unit-test/CMakeLists.txt`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::setup;
use crate::sh::{Outcome, check, root, target_dir, tool};
use crate::suites::Source;

/// Packages that the build needs besides those that the tests need. Nothing else needs them, so
/// `cargo xtask setup` leaves them out.
const PACKAGES: [(&str, &str); 7] = [
    ("cmake", "configures the suite"),
    ("g++", "compiles it"),
    ("libgrpc++-dev", "with which the parts of its random walk talk"),
    ("libprotobuf-dev", "its configurations"),
    ("ninja-build", "builds it"),
    ("protobuf-compiler", "compiles its configurations"),
    ("protobuf-compiler-grpc", "compiles its services"),
];

/// The suite and its dependencies, as passed to CMake.
const SOURCES: [(&str, &str); 4] = [
    ("SUITE", "rdma-unit-test"),
    ("ABSEIL", "abseil-cpp"),
    ("GOOGLETEST", "googletest"),
    ("MAGIC_ENUM", "magic_enum"),
];

/// The suite, built.
#[derive(Debug)]
pub(crate) struct Built {
    /// What was built from what.
    pub(crate) sources: Vec<Source>,
    pub(crate) programs: PathBuf,
}

/// The packages, the sources and where they are. An error says why this machine cannot have them.
pub(crate) fn sources(install: bool) -> Outcome<Vec<(&'static str, Source, PathBuf)>> {
    setup::install("rdma-unit-test", &PACKAGES, !install)?;
    let source = |(variable, name): &(&'static str, &'static str)| {
        let source = Source::named(name)?;
        let dir = source.unpacked()?;
        Ok((*variable, source, dir))
    };
    SOURCES.iter().map(source).collect()
}

/// Builds what is missing: ten minutes of two cores the first time, nothing after that.
pub(crate) fn build(sources: Vec<(&'static str, Source, PathBuf)>) -> Outcome<Built> {
    let dir = target_dir().join("sources/rdma-unit-test-built");
    fs::create_dir_all(&dir).map_err(|err| format!("{}: {err}", dir.display()))?;
    let mut cmake = tool("cmake");
    cmake.args(["-GNinja", "-S"]).arg(root().join("interop/rdma-unit-test")).arg("-B").arg(&dir);
    for (variable, _, source) in &sources {
        cmake.arg(definition(variable, source));
    }
    check(&mut cmake)?;
    check(tool("nice").args(["ninja", "-C"]).arg(&dir))?;
    let sources = sources.into_iter().map(|(_, source, _)| source).collect();
    Ok(Built { sources, programs: dir.join("bin") })
}

fn definition(variable: &str, dir: &Path) -> String {
    format!("-D{variable}={}", dir.display())
}

impl Built {
    /// The names of its programs: those of tests, and that of the random walk.
    pub(crate) fn names(&self) -> Outcome<Vec<String>> {
        let failed = |err: std::io::Error| format!("{}: {err}", self.programs.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.programs).map_err(failed)? {
            names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
        }
        // Left over from before a change of the suite.
        names.retain(|name| name.ends_with("_test") || name == super::WALK);
        names.sort();
        Ok(names)
    }
}
