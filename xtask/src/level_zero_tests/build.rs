//! The suite and the loader that it needs, built from their sources, and a directory that looks as
//! if the suite's programs were installed there.

use std::fs;
use std::path::{Path, PathBuf};

use crate::setup;
use crate::sh::{Outcome, target_dir, tool};
use crate::suites::Source;
use crate::suites::built::{built, name};

/// Packages that the builds need besides those that the tests need.
const PACKAGES: [(&str, &str); 10] = [
    ("cmake", "configures the suite and the loader"),
    ("g++", "compiles them"),
    ("libboost-chrono1.81-dev", "the suite asks for it"),
    ("libboost-log1.81-dev", "likewise"),
    ("libboost-program-options1.81-dev", "likewise"),
    ("libboost-serialization1.81-dev", "likewise"),
    ("libboost-system1.81-dev", "likewise"),
    ("libboost-timer1.81-dev", "likewise"),
    ("libpng-dev", "likewise"),
    ("ninja-build", "builds them"),
];

/// The programs of a directory of the suite, and what they start.
pub(crate) struct Part {
    /// `conformance_tests/core/test_NAME`.
    name: &'static str,
    pub(crate) programs: &'static [&'static str],
    /// Programs that lie in a directory `NAME` beside these.
    helpers: &'static [&'static str],
}

const fn part(
    name: &'static str,
    programs: &'static [&'static str],
    helpers: &'static [&'static str],
) -> Part {
    Part { name, programs, helpers }
}

/// What is built of the suite.
pub(crate) const PARTS: [Part; 9] = [
    part(
        "driver",
        &[
            "test_driver",
            "test_driver_init_flag_gpu",
            "test_driver_init_flag_none",
            "test_driver_init_flag_vpu",
            "test_driver_init_flag_vpu_gpu",
        ],
        &[],
    ),
    part(
        "device",
        &["test_device"],
        &["test_affinity_helper", "test_device_hierarchy_helper", "test_pci_device_order_helper"],
    ),
    part("context", &["test_context"], &[]),
    part("fence", &["test_fence"], &[]),
    part("event", &["test_event"], &[]),
    part("cmdlist", &["test_cmdlist"], &[]),
    part("copy", &["test_copy"], &[]),
    part(
        "ipc",
        &[
            "test_ipc",
            "test_ipc_memory",
            "test_ipc_multidevice",
            "test_ipc_multisubdevice",
            "test_ipc_p2p_memory",
            "test_ipc_put_handle",
        ],
        &["test_ipc_event_helper", "test_ipc_memory_helper", "test_ipc_put_handle_helper"],
    ),
    part("memory", &["test_memory"], &["test_import_helper"]),
];

/// The suite, built.
#[derive(Debug)]
pub(crate) struct Built {
    /// Where its programs run.
    pub(crate) programs: PathBuf,
    /// The directory of the loader and its layers.
    pub(crate) loader: PathBuf,
    /// What was built of what.
    pub(crate) sources: [Source; 2],
}

/// Makes what is missing. An error says why this machine cannot have it.
pub(crate) fn all(install: bool) -> Outcome<Built> {
    setup::install("level-zero-tests", &PACKAGES, !install)?;
    let googletest = Source::named("googletest")?.unpacked()?;
    let loader = built("level-zero", |_| {
        let mut cmake = configure();
        cmake.arg("-DCMAKE_INSTALL_PREFIX=installed");
        Ok(vec![cmake, ninja(["install"])])
    })?
    .join("installed");
    let library = loader.join("lib");
    let suite = built("level-zero-tests", |_| {
        let mut cmake = configure();
        cmake.arg("-DGROUP=/conformance_tests/core");
        cmake.arg(format!("-DGTEST_ROOT={}", googletest.display()));
        cmake.arg(format!("-DLevelZero_INCLUDE_DIR={}/include", loader.display()));
        cmake.arg(format!("-DLevelZero_LIBRARY={}/libze_loader.so", library.display()));
        let programs = PARTS.iter().flat_map(|part| part.programs.iter().chain(part.helpers));
        Ok(vec![cmake, ninja(programs.copied())])
    })?;
    let programs = target_dir().join("level-zero-tests/programs");
    lay_out(&suite, &programs)?;
    let sources = [Source::named("level-zero-tests")?, Source::named("level-zero")?];
    Ok(Built { programs, loader: library, sources })
}

/// The programs find their helpers and modules relative to where they run.
fn lay_out(suite: &Path, into: &Path) -> Outcome {
    let core = Path::new("conformance_tests/core");
    for part in &PARTS {
        let directory = core.join(format!("test_{}", part.name));
        let at = suite.join("built").join(&directory);
        for program in part.programs {
            name(&into.join(program), &at.join(program))?;
        }
        for helper in part.helpers {
            name(&into.join(part.name).join(helper), &at.join(helper))?;
        }
        let Ok(kernels) = fs::read_dir(suite.join(directory).join("kernels")) else { continue };
        for kernel in kernels.flatten().map(|kernel| kernel.path()) {
            if let Some(file) =
                kernel.file_name().filter(|_| kernel.extension().is_some_and(|end| end == "spv"))
            {
                name(&into.join(file), &kernel)?;
            }
        }
    }
    Ok(())
}

fn configure() -> std::process::Command {
    let mut cmake = tool("cmake");
    cmake.args(["-GNinja", "-S", ".", "-B", "built", "-DCMAKE_BUILD_TYPE=Release"]);
    cmake
}

fn ninja(targets: impl IntoIterator<Item = &'static str>) -> std::process::Command {
    let mut ninja = tool("nice");
    ninja.args(["ninja", "-C", "built"]).args(targets);
    ninja
}
