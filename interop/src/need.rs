//! The requirements of a test, and what happens if the machine does not meet them.
//!
//! A test that cannot run has not passed. It calls [`skip`], which records the reason for `cargo
//! xtask test`, and fails the test if `PEERDMA_REQUIRE=all` is set.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// One requirement.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// A program in PATH.
    Program(&'static str),
    /// A module that `/usr/bin/python3` can import.
    Python(&'static str),
    /// A C header, and the compiler to use it with.
    Header(&'static str),
    /// A file of a Python wheel (`interop/wheels`).
    Wheel(&'static str),
    /// A shared library that the loader finds.
    Library(&'static str),
    /// A program that `cargo xtask cuda-rdma --build` builds or fetches.
    CudaProgram(&'static str),
    /// libfabric with support for device memory, and its tests.
    Libfabric,
    /// User id 0, to become another user.
    Root,
    /// A netdev beside `lo`: addresses of `lo` belong to no device (`cma_bind_loopback` of the
    /// kernel), nor do its groups.
    Netdev,
    /// IPv6 in the kernel.
    Ipv6,
    /// Permission to create network and pid namespaces.
    Namespaces,
    /// A [`Vm`](crate::Vm): its kernel and QEMU, which are fetched from Debian if they are missing.
    Vm,
    /// An arm64 machine likewise ([`Vm::arm64`](crate::Vm::arm64)), and what builds for it.
    Arm64,
    /// Modules of our own in such a machine: the headers of its kernel, likewise.
    Modules,
}

/// Returns from the test, recorded as skipped, unless all requirements are met.
///
/// ```
/// use interop::{need::Need, needs};
///
/// fn a_test() {
///     needs!(Need::Program("sh"), Need::Root);
///     // ...
/// }
/// # a_test();
/// ```
#[macro_export]
macro_rules! needs {
    ($($need:expr),+ $(,)?) => {
        $(if let Err(why) = $crate::need::check($need) {
            return $crate::need::skip(&why);
        })+
    };
}

/// Checks a requirement. The error tells what is missing and how to get it.
pub fn check(need: Need) -> Result<(), String> {
    let (there, missing) = match need {
        Need::Program(name) => (in_path(name), format!("the program {name}")),
        Need::Python(module) => (
            quiet("/usr/bin/python3", &["-c", &format!("import {module}")]),
            format!("the Python module {module}"),
        ),
        Need::Header(name) => (
            in_path("gcc") && Path::new("/usr/include").join(name).exists(),
            format!("gcc and the header {name}"),
        ),
        Need::Wheel(name) => {
            let lists = "the lists of interop/wheels, which `cargo xtask test` gives to pip";
            (crate::wheel::find(name).is_some(), format!("{name} of {lists}"))
        }
        Need::Library(name) => (
            Command::new("/sbin/ldconfig")
                .arg("-p")
                .output()
                .is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains(name)),
            format!("the library {name}"),
        ),
        Need::Netdev => (has_netdev(), "a netdev beside lo".to_owned()),
        Need::CudaProgram(name) => (
            crate::cuda_program(name).exists(),
            format!("{name}, which `cargo xtask cuda-rdma --build` makes"),
        ),
        Need::Ipv6 => (Path::new("/proc/net/if_inet6").exists(), "IPv6".to_owned()),
        Need::Libfabric => (
            crate::libfabric("bin").is_dir(),
            "libfabric with CUDA: `cargo xtask libfabric --build`".to_owned(),
        ),
        Need::Root => (rustix::process::geteuid().is_root(), "user id 0".to_owned()),
        Need::Namespaces => {
            (quiet("unshare", &["--net", "--pid", "--fork", "true"]), "new namespaces".to_owned())
        }
        Need::Modules => match crate::vm::fetch_headers() {
            Ok(()) => (true, String::new()),
            Err(why) => (false, format!("modules for a virtual machine: {why}")),
        },
        Need::Arm64 => match crate::arm64::check() {
            Ok(()) => (true, String::new()),
            Err(why) => (false, format!("an arm64 machine: {why}")),
        },
        Need::Vm => match crate::vm::fetch() {
            Ok(()) => (true, String::new()),
            Err(why) => (false, format!("a virtual machine: {why}")),
        },
    };
    if there { Ok(()) } else { Err(format!("needs {missing} (see `cargo xtask setup`)")) }
}

/// Whether tests are to cover everything, regardless of time: `cargo xtask test --full`.
pub fn full() -> bool {
    std::env::var("PEERDMA_FULL").is_ok_and(|value| value == "1")
}

/// Records that the running test cannot run. Under `PEERDMA_REQUIRE=all` it fails instead.
///
/// # Panics
///
/// Under `PEERDMA_REQUIRE=all`.
#[track_caller]
pub fn skip(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test").to_owned();
    assert!(
        !std::env::var("PEERDMA_REQUIRE").is_ok_and(|what| what.split(',').any(|w| w == "all")),
        "{test} cannot run here: {why}"
    );
    eprintln!("SKIPPED {test}: {why}");
    if let Some(log) = std::env::var_os("PEERDMA_SKIP_LOG") {
        let mut log =
            OpenOptions::new().append(true).create(true).open(log).expect("a writable log");
        writeln!(log, "{test}: {why}").expect("a writable log");
    }
}

fn has_netdev() -> bool {
    let netdevs = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    netdevs.lines().filter_map(|line| line.split_once(':')).any(|(name, _)| name.trim() != "lo")
}

fn in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(Into::into);
    std::env::split_paths(&path).chain(system).any(|dir| fs::metadata(dir.join(name)).is_ok())
}

fn quiet(program: &str, args: &[&str]) -> bool {
    Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
