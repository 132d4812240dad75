//! libfabric with device memory, its tests, and what their runner needs.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::setup;
use crate::sh::{Outcome, target_dir, tool};
use crate::suites::built::{built, built_in, make, name};
use crate::suites::{rocm, toolkit, wheels};

/// Packages that the builds need besides those that the tests need.
const PACKAGES: [(&str, &str); 6] = [
    ("autoconf", "libfabric is built from its repository"),
    ("automake", "likewise"),
    ("libtool", "likewise"),
    ("libhsa-runtime-dev", "the headers of HSA"),
    ("libze-dev", "the headers and the loader of Level Zero"),
    ("make", "libfabric again"),
];

/// Where things are.
#[derive(Debug)]
pub(crate) struct Built {
    /// Where libfabric and its tests are installed.
    pub(crate) installed: PathBuf,
    /// What Python needs to run the tests.
    pub(crate) python: PathBuf,
}

/// Makes what is missing.
pub(crate) fn all(install: bool) -> Outcome<Built> {
    setup::install("libfabric", &PACKAGES, !install)?;
    let python = wheels("fabtests")?;
    let (toolkit, rocm) = (toolkit()?, rocm()?);
    let with_rocr = format!("--with-rocr={}", rocm.display());
    let source = built("libfabric", |source| {
        let mut configure = tool("./configure");
        configure.args(["--quiet", "--enable-cuda-dlopen", "--enable-ze-dlopen"]);
        configure.args(["--enable-rocr-dlopen", &with_rocr]);
        configure.args(["verbs", "shm", "rxm"].map(|what| format!("--enable-{what}=yes")));
        // Providers for hardware that nothing here emulates.
        let without = ["efa", "opx", "psm2", "psm3", "usnic", "ucx", "cxi", "lpp", "mrail"];
        configure.args(without.map(|what| format!("--enable-{what}=no")));
        configure.arg(format!("--with-cuda={}", toolkit.display())).arg("--with-ze=/usr");
        configure.arg(format!("--prefix={}", installed(source).display()));
        Ok(vec![tool("./autogen.sh"), configure, make(), make_install()])
    })?;
    built_in(&source.join("fabtests"), || {
        let mut configure = tool("./configure");
        configure.args(["--quiet", "--with-ze=/usr", "--disable-efa", "--disable-lpp"]);
        configure.arg(format!("--with-cuda={}", toolkit.display())).arg(&with_rocr);
        configure.arg(format!("--with-libfabric={}", installed(&source).display()));
        configure.arg(format!("--prefix={}", installed(&source).display()));
        Ok(vec![tool("./autogen.sh"), configure, make(), make_install()])
    })?;
    // Where the tests look for it.
    name(&target_dir().join("libfabric/installed"), &installed(&source))?;
    Ok(Built { installed: installed(&source), python })
}

fn installed(source: &Path) -> PathBuf {
    source.join("installed")
}

fn make_install() -> Command {
    let mut install = make();
    install.arg("install");
    install
}
