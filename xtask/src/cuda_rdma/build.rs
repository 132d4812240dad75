//! Third-party programs, built or fetched, for the tests in `interop/tests/cuda_rdma`, each under
//! its name in `target/cuda-rdma`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::setup;
use crate::sh::{Outcome, target_dir, tool};
use crate::suites::built::{built, make, name};
use crate::suites::{Source, rocm, toolkit, wheels};

/// Packages that the builds need besides those that the tests need.
const PACKAGES: [(&str, &str); 11] = [
    ("autoconf", "perftest and UCX are built from their repositories"),
    ("automake", "likewise"),
    ("libevent-dev", "Open MPI is built with it"),
    ("libhsa-runtime-dev", "UCX is built with it"),
    ("libhwloc-dev", "Open MPI again"),
    ("libibumad-dev", "perftest asks for it"),
    ("libpci-dev", "likewise"),
    ("libpmix-dev", "Open MPI again"),
    ("libtool", "perftest and UCX again"),
    ("libze-dev", "UCX is built with it"),
    ("make", "all that is built"),
];

/// A program, and how to obtain it.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Returns where the program is. If it is built already, this takes no time.
    make: fn(&Path) -> Outcome<PathBuf>,
    /// Where its version is listed.
    from: From,
}

enum From {
    Source,
    Wheels,
}

/// All programs, quick builds first.
pub(crate) const PROGRAMS: [Program; 6] = [
    Program { name: "nixl", make: |_| wheels("nixl"), from: From::Wheels },
    Program { name: "mooncake", make: |_| wheels("mooncake"), from: From::Wheels },
    Program { name: "gdrcopy", make: gdrcopy, from: From::Source },
    Program { name: "perftest", make: perftest, from: From::Source },
    Program { name: "ucx", make: ucx, from: From::Source },
    Program { name: "openmpi", make: openmpi, from: From::Source },
];

/// Where the tests look for them.
pub(crate) fn home() -> PathBuf {
    target_dir().join("cuda-rdma")
}

/// Makes the missing programs. Returns those that cannot be obtained, and why.
pub(crate) fn all(install: bool) -> Outcome<Vec<(&'static str, String)>> {
    setup::install("cuda-rdma", &PACKAGES, !install)?;
    let toolkit = toolkit()?;
    let mut missing = Vec::new();
    for program in &PROGRAMS {
        let link = home().join(program.name);
        match (program.make)(&toolkit) {
            Ok(dir) => name(&link, &dir)?,
            Err(why) => {
                // A program from an earlier list must not be mistaken for this one.
                let _ = fs::remove_file(&link);
                println!("no {}: {why}", program.name);
                missing.push((program.name, why));
            }
        }
    }
    Ok(missing)
}

impl Program {
    /// The repository and the commit, or the wheel and its version.
    pub(crate) fn version(&self) -> Outcome<String> {
        match self.from {
            From::Source => {
                let source = Source::named(self.name)?;
                Ok(format!("{} {} of {}", source.repository, source.commit(), source.date))
            }
            From::Wheels => {
                let list = crate::sh::root().join(format!("interop/wheels/{}.txt", self.name));
                let text = fs::read_to_string(&list)
                    .map_err(|err| format!("{}: {err}", list.display()))?;
                let wheel = text.lines().find(|line| line.contains("==")).unwrap_or_default();
                Ok(format!("wheel {}", wheel.trim_end_matches([' ', '\\'])))
            }
        }
    }
}

/// Only the library and the tests; the rest has GPU kernels.
fn gdrcopy(toolkit: &Path) -> Outcome<PathBuf> {
    built("gdrcopy", |_| {
        let [mut library, mut tests] = [make(), make()];
        library.args(["-C", "src", "lib"]);
        tests.args(["-C", "tests", "gdrcopy_sanity", "gdrcopy_copybw", "gdrcopy_copylat"]);
        // The build of the other parts asks it for its version.
        tests.arg("NVCC=false").arg(format!("CUDA={}", toolkit.display()));
        Ok(vec![library, tests])
    })
}

fn perftest(toolkit: &Path) -> Outcome<PathBuf> {
    built("perftest", |_| {
        let mut configure = tool("./configure");
        // Its part for the runtime library is a validation kernel, which needs nvcc.
        configure.args(["--quiet", "--disable-cudart"]);
        configure.arg(format!("CUDA_H_PATH={}/include/cuda.h", toolkit.display()));
        configure.arg(format!("LDFLAGS=-L{}/lib64", toolkit.display()));
        Ok(vec![tool("./autogen.sh"), configure, make()])
    })
}

fn ucx(toolkit: &Path) -> Outcome<PathBuf> {
    let rocm = rocm()?;
    let source = built("ucx", |source| {
        let mut configure = tool("./contrib/configure-release");
        configure.args(["--quiet", "--with-verbs", "--disable-doxygen-doc"]);
        let without = ["go", "java", "gdrcopy", "gaudi", "gda", "mlx5", "rdmacm"];
        configure.args(without.map(|what| format!("--without-{what}")));
        configure.arg("--with-ze=/usr").arg(format!("--with-cuda={}", toolkit.display()));
        configure.arg(format!("--with-rocm={}", rocm.display()));
        // UCX's own program that checks each byte.
        configure.arg("--with-iodemo-cuda");
        configure.arg(format!("--prefix={}", source.join("installed").display()));
        let mut install = make();
        install.arg("install");
        Ok(vec![tool("./autogen.sh"), configure, make(), install])
    })?;
    Ok(source.join("installed"))
}

/// MPI with support for device memory, over that UCX only.
fn openmpi(toolkit: &Path) -> Outcome<PathBuf> {
    let ucx = ucx(toolkit)?;
    let source = built("openmpi", |source| {
        let mut configure = tool("./configure");
        let without = ["mpi-fortran", "oshmem", "io-romio", "libompitrace"];
        configure.arg("--quiet").args(without.map(|what| format!("--disable-{what}")));
        configure.args(["verbs", "ofi", "psm2", "slurm"].map(|what| format!("--without-{what}")));
        let packaged = ["libevent", "hwloc", "pmix"];
        configure.args(packaged.map(|what| format!("--with-{what}=external")));
        configure.arg(format!("--with-cuda={}", toolkit.display()));
        configure.arg(format!("--with-ucx={}", ucx.display()));
        configure.arg(format!("--prefix={}", source.join("installed").display()));
        let mut install = make();
        install.arg("install");
        Ok(vec![configure, make(), install])
    })?;
    Ok(source.join("installed"))
}
