//! C programs of our own, linked against the system's headers and libraries like any program.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::artefacts::Artefacts;
use crate::scratch::Scratch;
use crate::vm::arm64_dir;

/// Compiles `interop/c/NAME.c` into `scratch`, linked with the system's `libibverbs.so.1` and, if
/// it needs it, `librdmacm.so.1`.
#[track_caller]
pub fn compile(name: &str, scratch: &Scratch) -> PathBuf {
    compile_by(
        "gcc",
        name,
        scratch,
        &["-pthread", "-I/usr/include/libdrm"],
        &["-Wl,--as-needed", "-libverbs", "-lrdmacm", "-ldl"],
    )
}

/// The same, with only these options and libraries.
#[track_caller]
pub fn compile_with(name: &str, scratch: &Scratch, options: &[&str], libs: &[&str]) -> PathBuf {
    compile_by("gcc", name, scratch, options, libs)
}

/// The same for a program whose run path names our library, like one that is installed with it:
/// this works even where the loader ignores the user's variables. Every user can start it.
#[track_caller]
pub fn compile_installed(name: &str, scratch: &Scratch) -> PathBuf {
    let library = Artefacts::find().staged(scratch).library_dir(scratch);
    let run_path = format!("-Wl,-rpath,{}", library.display());
    compile_by("gcc", name, scratch, &["-pthread"], &[&run_path, "-libverbs"])
}

/// Compiles `interop/c/NAME.c` into `scratch` as an MPI program, which does not call verbs itself.
#[track_caller]
pub fn compile_mpi(name: &str, scratch: &Scratch) -> PathBuf {
    compile_mpi_by(Path::new("mpicc"), name, scratch)
}

/// The same by the compiler of another MPI installation.
#[track_caller]
pub fn compile_mpi_by(mpicc: &Path, name: &str, scratch: &Scratch) -> PathBuf {
    compile_by(mpicc, name, scratch, &[], &["-ldl"])
}

/// Compiles `interop/c/NAME.c` for the arm64 machine, with the headers of the verbs that are here.
#[track_caller]
pub fn compile_arm64(name: &str, scratch: &Scratch) -> PathBuf {
    let include = scratch.file("include");
    std::fs::create_dir(&include).expect("a scratch directory is writable");
    for headers in ["infiniband", "rdma"] {
        let here = Path::new("/usr/include").join(headers);
        std::os::unix::fs::symlink(here, include.join(headers)).expect("our own directory");
    }
    let libraries = arm64_dir().join("debian/usr/lib/aarch64-linux-gnu");
    let library = |name| libraries.join(name).display().to_string();
    compile_by(
        "aarch64-linux-gnu-gcc",
        name,
        scratch,
        &["-pthread", "-I", &include.display().to_string()],
        // The libraries that these need are not looked for.
        &["-Wl,--allow-shlib-undefined", &library("libibverbs.so.1"), &library("librdmacm.so.1")],
    )
}

#[track_caller]
fn compile_by(
    compiler: impl AsRef<OsStr>,
    name: &str,
    scratch: &Scratch,
    options: &[&str],
    libraries: &[&str],
) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // `check.h` comes from the tests of the library.
    let shared = root.join("../crates/peerdma/tests/c");
    let program = scratch.file(name);
    let out = Command::new(compiler)
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"])
        .args(options)
        .arg("-iquote")
        .arg(shared)
        .arg("-o")
        .arg(&program)
        .arg(root.join("c").join(format!("{name}.c")))
        .args(libraries)
        .output()
        .expect("the compiler starts: the test asked for it with needs!");
    assert!(out.status.success(), "{name}.c: {}", String::from_utf8_lossy(&out.stderr));
    program
}
